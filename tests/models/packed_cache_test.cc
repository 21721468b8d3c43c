// Packed weights kept on disk: the next load takes them, bit for bit, and only when they are those
// that it would make itself; nothing that is wrong with the file or its folder stops a load.
#include "models/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "../base/temp_folder.h"
#include "golden.h"
#include "kernels/table.h"
#include "models/tensor_binder.h"
#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPayload = std::size_t{2} << 20;  // where the first chunk begins
constexpr int kRows = 200, kCols = 256;
using Bytes = std::vector<std::byte>;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void flip(const fs::path& path, std::size_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1));
  ASSERT_TRUE(file.good());
}

bool is_mapped(const fs::path& path) {
  return contents("/proc/self/maps").find(path.string()) != std::string::npos;
}

// A checkpoint of two matrices, and a folder beside it.
class PackedWeights : public testing::Test {
 protected:
  PackedWeights() {
    folder_.write("model/config.json", "{}");
    std::string header =
        R"({"a":{"dtype":"BF16","shape":[200,256],"data_offsets":[0,102400]},)"
        R"("b":{"dtype":"BF16","shape":[200,256],"data_offsets":[102400,204800]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    file += header;
    values_ = file.size();
    std::mt19937 engine(5);
    for (int i = 0; i < 2 * kRows * kCols; ++i) {
      const bf16 value = bf16::from_float(std::uniform_real_distribution<float>(-1, 1)(engine));
      file.append(reinterpret_cast<const char*>(&value.bits), sizeof value.bits);
    }
    folder_.write("model/model.safetensors", file);
    options_.quant = WeightQuant::kQ8;
    options_.packed_cache = folder_.path() / "some" / "cache";
  }

  fs::path source() const { return folder_.path() / "model" / "model.safetensors"; }
  fs::path cached() const { return options_.packed_cache / "model.packed"; }
  std::size_t files_cached() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(options_.packed_cache), {}));
  }

  std::vector<Weight> weights(const LoadOptions& options) const {
    auto checkpoint = Checkpoint::open(folder_.path() / "model");
    if (!checkpoint) throw std::runtime_error(checkpoint.error().message);
    TensorBinder binder(**checkpoint, options);
    std::vector<Weight> weights = {binder.matrix("a", kRows, kCols, MatrixUse::kFeedForward),
                                   binder.matrix("b", kRows, kCols, MatrixUse::kAttention)};
    EXPECT_TRUE(binder.finish().has_value());
    binder.load();
    return weights;
  }
  Bytes load(const LoadOptions& options) const {
    Bytes all;
    for (const Weight& weight : weights(options))
      all.insert(all.end(), weight.data(), weight.data() + weight.nbytes());
    return all;
  }
  Bytes load() const { return load(options_); }
  Bytes load_without() const {
    LoadOptions options = options_;
    options.packed_cache.clear();
    return load(options);
  }
  // Whether a load takes its first byte from the file, which is then spoiled.
  bool uses_file(const LoadOptions& options) const {
    flip(cached(), kPayload);
    LoadOptions without = options;
    without.packed_cache.clear();
    Bytes want = load(without);
    const Bytes got = load(options);
    if (got == want) return false;
    want[0] ^= std::byte{1};
    EXPECT_EQ(got, want);
    flip(cached(), kPayload);
    return true;
  }
  // A load that finds a file it cannot use packs, says so, and leaves a good file.
  void expect_rewritten(const char* why) const {
    testing::internal::CaptureStderr();
    const Bytes got = load();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find(std::string("is not used: ") + why), std::string::npos) << log;
    EXPECT_EQ(got, load_without());
    EXPECT_TRUE(uses_file(options_));
    EXPECT_EQ(files_cached(), 1u);
  }

  TempFolder folder_;
  LoadOptions options_;
  std::size_t values_ = 0;  // where the tensors begin in their file
};

TEST_F(PackedWeights, the_second_load_takes_the_same_bytes_from_the_file) {
  ThreadPool pool(3);
  const Bytes want = load_without();
  for (const WeightPlacement placement : {WeightPlacement::kResident, WeightPlacement::kMapped}) {
    for (ThreadPool* team : {static_cast<ThreadPool*>(nullptr), &pool}) {
      options_.placement = placement;
      options_.pool = team;
      fs::remove_all(options_.packed_cache);
      EXPECT_EQ(load(), want);
      const std::string written = contents(cached());
      EXPECT_EQ(load(), want);
      EXPECT_EQ(contents(cached()), written);
      EXPECT_TRUE(uses_file(options_));
      EXPECT_EQ(files_cached(), 1u);
    }
  }
}

TEST_F(PackedWeights, only_weights_that_may_stay_in_a_file_are_mapped) {
  load();
  EXPECT_FALSE(is_mapped(cached()));
  {
    const auto resident = weights(options_);
    EXPECT_FALSE(is_mapped(cached()));
  }
  options_.placement = WeightPlacement::kMapped;
  {
    const auto mapped = weights(options_);
    EXPECT_TRUE(is_mapped(cached()));
  }
  EXPECT_FALSE(is_mapped(cached()));
}

TEST_F(PackedWeights, progress_ends_at_its_total) {
  load();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reports;
  options_.progress = [&](std::uint64_t done, std::uint64_t total) {
    reports.emplace_back(done, total);
  };
  load();
  const std::uint64_t all = 2 * kRows * kCols * sizeof(bf16);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back(), std::pair(all, all));
}

TEST_F(PackedWeights, another_kernel_table_packs_the_same_file) {
  load();
  for (const Isa isa : available_isas()) {
    options_.kernels = &kernel_table(isa);
    EXPECT_TRUE(uses_file(options_)) << isa_name(isa);
  }
}

// The file's size and time are put back, so that the samples alone tell.
TEST_F(PackedWeights, a_changed_tensor_is_packed_anew) {
  const std::size_t tensor = kRows * kCols * sizeof(bf16);
  for (const std::size_t at : {std::size_t{0}, tensor / 2, tensor - 2, tensor, 2 * tensor - 2}) {
    load();
    const auto time = fs::last_write_time(source());
    flip(source(), values_ + at);
    fs::last_write_time(source(), time);
    expect_rewritten("other weights");
  }
}

TEST_F(PackedWeights, a_changed_time_of_the_checkpoint_is_enough) {
  load();
  fs::last_write_time(source(), fs::last_write_time(source()) + std::chrono::seconds(1));
  expect_rewritten("other weights");
}

TEST_F(PackedWeights, other_options_replace_the_file) {
  load();
  for (const WeightQuant quant : {WeightQuant::kQ4, WeightQuant::kQ8}) {
    options_.quant = quant;
    expect_rewritten("other weights");
  }
}

TEST_F(PackedWeights, without_anything_packed_there_is_no_file) {
  options_.quant = WeightQuant::kAsIs;
  load();
  EXPECT_FALSE(fs::exists(options_.packed_cache));
}

TEST_F(PackedWeights, a_damaged_file_is_rewritten) {
  load();
  const std::string good = contents(cached());
  const auto put = [&](std::string_view bytes) {
    std::ofstream(cached(), std::ios::binary | std::ios::trunc) << bytes;
  };
  put("");
  expect_rewritten("no packed weights");
  put("something else");
  expect_rewritten("no packed weights");
  put(std::string(good.size(), 'x'));
  expect_rewritten("no packed weights");
  put(good.substr(0, 40));  // within the header
  expect_rewritten("no packed weights");
  put(good.substr(0, good.size() - 1));
  expect_rewritten("it is truncated");
  put(good + "x");
  expect_rewritten("it is truncated");
  for (const std::size_t at :
       {std::size_t{16}, std::size_t{31}, std::size_t{32}, std::size_t{40}}) {
    put(good);
    flip(cached(), at);  // key, number of chunks, their sizes
    expect_rewritten("other weights");
  }
}

TEST_F(PackedWeights, a_folder_that_cannot_be_written_costs_a_warning) {
  const Bytes want = load_without();
  const auto expect_warning = [&](const char* text) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(load(), want);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("are not kept for the next start"), std::string::npos) << log;
    EXPECT_NE(log.find(text), std::string::npos) << log;
  };
  fs::create_directories(cached().string() + ".tmp");
  expect_warning("cannot create");
  fs::remove(cached().string() + ".tmp");
  fs::create_directories(cached() / "not empty");
  expect_warning("cannot write");
  options_.packed_cache = folder_.write("file", "") / "cache";
  expect_warning("file");
}

TEST_F(PackedWeights, a_full_disk_costs_a_warning) {
  const Bytes want = load_without();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = kPayload + 1000;  // writes stop within the weights
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Bytes got = load();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_action);
  EXPECT_EQ(got, want);
  EXPECT_EQ(files_cached(), 0u);
}

TEST_F(PackedWeights, what_a_killed_start_left_is_reused_and_a_running_one_is_left_alone) {
  fs::create_directories(options_.packed_cache);
  const fs::path temporary = cached().string() + ".tmp";
  std::ofstream(temporary) << std::string(5u << 20, 'x');
  const int other = ::open(temporary.c_str(), O_WRONLY);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_EQ(load(), load_without());
  EXPECT_FALSE(fs::exists(cached()));
  EXPECT_EQ(fs::file_size(temporary), 5u << 20);
  ::close(other);
  load();
  EXPECT_TRUE(uses_file(options_));
  EXPECT_FALSE(fs::exists(temporary));
}

// Panels of random blocks of the block types [first, last).
void add_panels(int first, int last, std::mt19937& engine, PackedKeyBuilder& builder) {
  for (int i = first; i < last; ++i) {
    const auto type = static_cast<DType>(static_cast<int>(kFirstBlockType) + i);
    constexpr std::size_t kWidth = 512;
    const std::size_t row = kWidth / block_size(type).elements * block_size(type).bytes;
    Bytes blocks(row * kPanelRows);
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(engine() & 0x3b);
    Bytes panel(panel_format(type).panel_bytes(kWidth));
    pack_panel(type, blocks.data(), row, kPanelRows, kWidth, panel.data());
    builder.add(std::span<const std::byte>(panel));
  }
}

// Whoever packs otherwise than before must raise kPackedVersion in tensor_binder.cc, and write the
// new number here.
TEST(PackedVersion, stands_for_these_bytes) {
  PackedKeyBuilder builder;
  std::mt19937 engine(11);
  add_panels(0, kNumGgmlTypes, engine, builder);
  std::vector<float> values(512);
  for (float& value : values) value = (static_cast<float>(engine() % 2001) - 1000) / 64;
  for (const auto& [type, encode] :
       {std::pair(DType::kQ8_0, &encode_q8_0), std::pair(DType::kQ4_0, &encode_q4_0)}) {
    Bytes blocks(values.size() / block_size(type).elements * block_size(type).bytes);
    encode(values.data(), values.size(), blocks.data());
    builder.add(std::span<const std::byte>(blocks));
  }
  EXPECT_EQ(builder.key(), (PackedKey{0xac875429595718f7, 0x5b2d9780cf9cf857}))
      << std::hex << builder.key().first << " " << builder.key().second;
}

TEST(PackedVersion, stands_for_these_bytes_of_integers) {
  PackedKeyBuilder builder;
  std::mt19937 engine(12);
  add_panels(kNumGgmlTypes, kNumBlockTypes, engine, builder);
  EXPECT_EQ(builder.key(), (PackedKey{0x9c1ddf7080f9d6e5, 0x3351510c91ce3c66}))
      << std::hex << builder.key().first << " " << builder.key().second;
}

TEST(PackedKeyBuilder, tells_contents_and_their_borders_apart) {
  const auto key = [](std::initializer_list<std::string_view> texts) {
    PackedKeyBuilder builder;
    for (const std::string_view text : texts) builder.add(text);
    return builder.key();
  };
  EXPECT_EQ(key({"ab", "c"}), key({"ab", "c"}));
  const PackedKey all[] = {key({}),          key({""}),        key({"", ""}),
                           key({"ab", "c"}), key({"a", "bc"}), key({"abc"}),
                           key({"c", "ab"}), key({"abc", ""}), key({std::string_view("abc\0", 4)})};
  for (std::size_t i = 0; i < std::size(all); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      EXPECT_NE(all[i].first, all[k].first) << i << " " << k;
      EXPECT_NE(all[i].second, all[k].second) << i << " " << k;
    }
  }
}

TEST(PackedCache, keeps_several_chunks_of_any_size) {
  TempFolder folder;
  const std::size_t sizes[] = {1, (std::size_t{3} << 20) + 64, std::size_t{4} << 20, 4095};
  const auto make = [&](bool filled) {
    std::vector<PackedChunk> chunks;
    std::mt19937 engine(3);
    for (const std::size_t used : sizes) {
      chunks.push_back({std::make_shared<AlignedBuffer>(std::size_t{4} << 20), used});
      for (std::size_t i = 0; filled && i < used; ++i)
        chunks.back().buffer->data()[i] = static_cast<std::byte>(engine());
    }
    return chunks;
  };
  const auto written = make(true);
  const PackedCache cache(folder.path(), "of/strange name", {1, 2});
  EXPECT_EQ(cache.path().filename(), "of_strange_name.packed");
  EXPECT_FALSE(cache.fill(make(false), {}));
  cache.save(written);
  for (const WeightPlacement placement : {WeightPlacement::kResident, WeightPlacement::kMapped}) {
    LoadOptions options;
    options.placement = placement;
    const auto chunks = make(false);
    ASSERT_TRUE(cache.fill(chunks, options));
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(std::memcmp(chunks[i].buffer->data(), written[i].buffer->data(), sizes[i]), 0);
    }
    EXPECT_FALSE(PackedCache(folder.path(), "of/strange name", {1, 3}).fill(chunks, options));
    EXPECT_FALSE(PackedCache(folder.path(), "of/strange name", {3, 2}).fill(chunks, options));
    auto longer = make(false);
    longer.back().used += 64;
    EXPECT_FALSE(cache.fill(longer, options));
    longer.pop_back();
    EXPECT_FALSE(cache.fill(longer, options));
  }
}

class PackedModel : public testing::TestWithParam<WeightPlacement> {};

TEST_P(PackedModel, computes_the_same_logits) {
  const fs::path data(GLINT_TEST_DATA);
  const fs::path models[] = {data / "../../models/demo", data / "gguf" / "demo-q4_0.gguf"};
  const std::vector<std::int32_t> ids = {5, 300, 17, 42, 256, 7, 99};
  for (const fs::path& model : models) {
    TempFolder folder;
    golden::Runner::Options options;
    options.isa = available_isas().back();
    options.compute = Compute::kBf16;
    options.quant = WeightQuant::kQ4;
    options.placement = GetParam();
    const auto want = golden::Runner(model, options).logits(ids, 0);
    options.packed_cache = folder.path();
    EXPECT_EQ(golden::Runner(model, options).logits(ids, 0), want);
    testing::internal::CaptureStderr();
    EXPECT_EQ(golden::Runner(model, options).logits(ids, 0), want);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("packed weights come from"), std::string::npos) << log;
  }
}

INSTANTIATE_TEST_SUITE_P(placements, PackedModel,
                         testing::Values(WeightPlacement::kResident, WeightPlacement::kMapped),
                         [](const auto& tested) {
                           return tested.param == WeightPlacement::kMapped ? "mapped" : "resident";
                         });

}  // namespace
}  // namespace glint
