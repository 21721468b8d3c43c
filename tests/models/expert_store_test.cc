// Experts on disk against the same experts in memory: the same bits for every way of storing them,
// however few fit; what is shown of them; what becomes of files that cannot be read.
#include "models/expert_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "../base/temp_folder.h"
#include "drafter.h"
#include "golden.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::uint64_t kFewest = 1;  // as little memory as works
constexpr std::uint64_t kAll = std::uint64_t{1} << 30;

Runner::Options resident(Compute compute) {
  Runner::Options options;
  options.isa = available_isas().back();
  options.compute = compute;
  options.form = LatentForm::kAbsorbed;  // whatever the chunks
  return options;
}

Runner::Options streamed(Compute compute, std::uint64_t cache_bytes) {
  Runner::Options options = resident(compute);
  options.experts.enabled = true;
  options.experts.cache_bytes = cache_bytes;
  return options;
}

struct Kind {
  const char* name;
  const char* path;  // in tests/data
  WeightQuant quant = WeightQuant::kAsIs;
  bool repack = true;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

const Kind kKinds[] = {
    {"float32", "golden/glm4_moe"},
    {"lite", "golden/glm4_moe_lite"},
    {"q8", "golden/glm4_moe_lite", WeightQuant::kQ8},
    {"q4", "golden/glm4_moe_lite_groups", WeightQuant::kQ4},
    {"fp8_blocks", "golden/glm4_moe_lite_fp8"},
    {"fp8_channels", "golden/glm4_moe_fp8_channel"},
    {"nvfp4", "golden/glm4_moe_nvfp4"},
    {"int4", "golden/glm4_moe_int4_g128"},
    {"int4_zeros", "golden/glm4_moe_int4_g128_asym"},
    {"int4_lite", "golden/glm4_moe_lite_int4_g32"},
    {"gguf", "gguf/demo-q4_0.gguf"},
    {"gguf_unpacked", "gguf/demo-q4_0.gguf", WeightQuant::kAsIs, false},
    {"bf16", "../../models/demo"},
};

class StreamedExperts : public testing::TestWithParam<Kind> {
 protected:
  fs::path path() const { return fs::path(GLINT_TEST_DATA) / GetParam().path; }
  Runner::Options of_kind(Runner::Options options) const {
    options.quant = GetParam().quant;
    options.repack = GetParam().repack;
    return options;
  }
};

TEST_P(StreamedExperts, give_the_same_bits_as_resident_ones_however_few_fit) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(3 + i * 7 % 90);
  for (const Compute compute : {Compute::kBf16, Compute::kF32}) {
    Runner whole(path(), of_kind(resident(compute)));
    const std::vector<float> expected = whole.logits(ids, 0);
    for (const std::uint64_t cache_bytes : {kFewest, kAll}) {
      Runner streaming(path(), of_kind(streamed(compute, cache_bytes)));
      EXPECT_EQ(streaming.logits(ids, 0), expected);
      if (compute == Compute::kBf16) {
        streaming.cache().clear_prefixes();
        EXPECT_EQ(streaming.logits(ids, 9), expected);
      }
      ASSERT_TRUE(streaming.model().take_failure().has_value());
      const ExpertStats stats = streaming.model().experts()->stats();
      EXPECT_GT(stats.num_experts, 0U);
      EXPECT_LE(stats.misses, stats.uses);
      if (cache_bytes == kAll) {
        EXPECT_EQ(stats.num_slots, stats.num_experts);
        EXPECT_LE(stats.reads, stats.num_experts) << "each is read once";
      } else {
        EXPECT_LE(stats.num_slots, 6U);
        EXPECT_GT(stats.reads, stats.num_slots);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StreamedExperts, testing::ValuesIn(kKinds),
                         [](const auto& instance) { return std::string(instance.param.name); });

// ---- on one small model

std::vector<std::int32_t> some_ids(int n) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(3 + i * 7 % 90);
  return ids;
}

class StreamedModel : public testing::Test {
 protected:
  // A copy of a golden case that may be damaged.
  fs::path copy() {
    const fs::path folder = temp_.path() / "model";
    fs::copy(fs::path(GLINT_TEST_DATA) / "golden" / "glm4_moe", folder);
    fs::remove(folder / "expected.safetensors");
    return folder;
  }
  fs::path weights(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") return entry.path();
    }
    return {};
  }
  TempFolder temp_;
};

TEST_F(StreamedModel, a_read_that_fails_names_file_and_tensor_and_the_next_step_works) {
  const fs::path folder = copy();
  Runner whole(folder, resident(Compute::kF32));
  const auto expected = whole.logits(some_ids(20), 0);
  Runner runner(folder, streamed(Compute::kF32, kFewest));
  const fs::path file = weights(folder), kept = temp_.path() / "kept";
  fs::copy_file(file, kept);
  fs::resize_file(file, 4096);
  runner.logits(some_ids(20), 0);
  const Status failed = runner.model().take_failure();
  ASSERT_FALSE(failed.has_value());
  EXPECT_THAT(failed.error().message, HasSubstr(file.filename().string()));
  EXPECT_THAT(failed.error().message, HasSubstr("mlp.experts."));
  EXPECT_TRUE(runner.model().take_failure().has_value()) << "it is told once";

  std::ofstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out << std::ifstream(kept, std::ios::binary).rdbuf();
  out.close();
  runner.cache().clear_prefixes();
  EXPECT_EQ(runner.logits(some_ids(20), 0), expected);
  EXPECT_TRUE(runner.model().take_failure().has_value());
}

TEST_F(StreamedModel, guesses_of_the_next_layer_change_no_bit) {
  const fs::path folder = fs::path(GLINT_TEST_DATA) / "golden" / "glm4_moe";
  Runner::Options options = streamed(Compute::kBf16, 1 << 20);
  options.experts.read_ahead = false;
  Runner without(folder, options);
  options.experts.read_ahead = true;
  Runner with(folder, options);
  for (const int chunk : {0, 1, 7})
    EXPECT_EQ(with.greedy(some_ids(20), 12, chunk), without.greedy(some_ids(20), 12, chunk));
  EXPECT_EQ(without.model().experts()->stats().reads_ahead, 0U);
  const ExpertStats stats = with.model().experts()->stats();
  EXPECT_LE(stats.reads_ahead_used, stats.reads_ahead);
}

TEST_F(StreamedModel, the_draft_layers_experts_are_streamed_too) {
  const Case golden("glm4_moe");
  Tokens tokens = golden.prompt(golden.bisect_prompt());
  Runner::Options options = resident(Compute::kBf16);
  options.draft = DraftLayer::kRequired;
  Drafter whole(golden.folder(), options);
  options.experts = streamed(Compute::kBf16, kFewest).experts;
  Drafter streaming(golden.folder(), options);
  EXPECT_EQ(streaming.run(tokens, 7).logits, whole.run(tokens, 7).logits);
}

TEST_F(StreamedModel, what_was_used_is_kept_for_the_next_start) {
  const fs::path folder = fs::path(GLINT_TEST_DATA) / "golden" / "glm4_moe";
  Runner::Options options = streamed(Compute::kBf16, kAll);
  options.experts.history = temp_.path() / "cache" / "model.experts.json";
  const auto used = [&] {
    Runner runner(folder, options);
    runner.logits(some_ids(1), 0);
    const ExpertStats stats = runner.model().experts()->stats();
    return stats.misses + stats.reads_ahead_used;
  };
  const std::uint64_t first = used();
  EXPECT_TRUE(fs::exists(options.experts.history));
  {
    Runner runner(folder, options);
    // The same experts come by themselves.
    for (int i = 0; i < 500 && runner.model().experts()->stats().reads < first; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    runner.logits(some_ids(1), 0);
    EXPECT_EQ(runner.model().experts()->stats().misses, 0U);
  }
  std::ofstream(options.experts.history) << "{\"expert_history\": 1, \"model\": \"another\"}";
  EXPECT_EQ(used(), first);
  std::ofstream(options.experts.history) << "no JSON";
  EXPECT_EQ(used(), first);
}

// ---- who stays

TEST(ExpertUsage, what_is_chosen_often_is_expected_sooner) {
  ExpertUsage usage({4, 4}, 1);
  for (int step = 0; step < 40; ++step) {
    usage.begin_step(0, 1);
    usage.use(0, step % 4 == 0 ? 1 : 2, 1);
  }
  EXPECT_LT(usage.steps_to_next_use(0, 2, 1), usage.steps_to_next_use(0, 1, 1));
  EXPECT_LT(usage.steps_to_next_use(0, 1, 1), usage.steps_to_next_use(0, 0, 1));
  EXPECT_LT(usage.steps_to_next_use(1, 0, 0), usage.steps_to_next_use(1, 0, 1))
      << "the layer at work is passed";
  const auto places = usage.by_share();
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].expert, 2);
}

TEST(ExpertUsage, damaged_histories_are_refused_and_add_nothing) {
  TempFolder temp;
  const fs::path path = temp.path() / "history";
  ExpertUsage usage({2}, 1);
  usage.begin_step(0, 3);
  usage.use(0, 1, 3);
  ASSERT_TRUE(usage.save(path, "model").has_value());
  ExpertUsage again({2}, 1);
  ASSERT_TRUE(again.load(path, "model").has_value());
  EXPECT_GT(again.share(0, 1), again.share(0, 0));
  for (const char* text :
       {"", "[]", "{}", R"({"expert_history": 2, "model": "model", "layers": []})",
        R"({"expert_history": 1, "model": "other", "layers": []})",
        R"({"expert_history": 1, "model": "model", "layers": []})",
        R"({"expert_history": 1, "model": "model", "layers": [{"tokens": 1, "uses": [1]}]})",
        R"({"expert_history": 1, "model": "model", "layers": [{"tokens": 1, "uses": [1, 2]}]})",
        R"({"expert_history": 1, "model": "model", "layers": [{"tokens": -1, "uses": [0, 0]}]})",
        R"({"expert_history": 1, "model": "model", "layers": [{"uses": [0, 0]}]})"}) {
    std::ofstream(path) << text;
    ExpertUsage fresh({2}, 1);
    EXPECT_FALSE(fresh.load(path, "model").has_value()) << text;
    EXPECT_FALSE(fresh.has_history());
  }
}

}  // namespace
}  // namespace glint::golden
