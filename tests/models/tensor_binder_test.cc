// Binding and loading of single tensors: what --weights makes of them, where they lie, and what is
// refused.
#include "models/tensor_binder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "../base/temp_folder.h"
#include "kernels/table.h"
#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

// A folder with one safetensors file, written tensor by tensor and opened as a checkpoint.
class TensorBinderTest : public testing::Test {
 protected:
  // Random values between -1 and 1 as they are stored.
  void add(const std::string& name, DType type, const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    std::string dims;
    for (const std::int64_t dim : shape) {
      count *= static_cast<std::size_t>(dim);
      dims += (dims.empty() ? "" : ",") + std::to_string(dim);
    }
    const std::size_t begin = bytes_.size();
    for (std::size_t i = 0; i < count; ++i) {
      const float value = std::uniform_real_distribution<float>(-1, 1)(engine_);
      const std::uint16_t half =
          type == DType::kF16 ? f16_from_float(value) : bf16::from_float(value).bits;
      const void* stored = type == DType::kF32 ? static_cast<const void*>(&value) : &half;
      bytes_.append(static_cast<const char*>(stored), dtype_bytes(type));
    }
    header_ += (header_.empty() ? "\"" : ",\"") + name + R"(":{"dtype":")" +
               std::string(dtype_name(type)) + R"(","shape":[)" + dims + R"(],"data_offsets":[)" +
               std::to_string(begin) + "," + std::to_string(bytes_.size()) + "]}";
  }

  const Checkpoint& checkpoint() {
    if (checkpoint_ == nullptr) {
      folder_.write("config.json", "{}");
      std::string header = "{" + header_ + "}";
      header.resize((header.size() + 7) / 8 * 8 + shift_, ' ');
      const std::uint64_t length = header.size();
      std::string prefix(sizeof length, '\0');
      std::memcpy(prefix.data(), &length, sizeof length);
      folder_.write("model.safetensors", prefix + header + bytes_);
      auto opened = Checkpoint::open(folder_.path());
      if (!opened) throw std::runtime_error(opened.error().message);
      checkpoint_ = *opened;
    }
    return *checkpoint_;
  }

  // Row `row` of a stored matrix of `cols` columns.
  std::vector<float> stored_row(const std::string& name, std::size_t cols, std::size_t row) {
    const TensorRef& tensor = *checkpoint().find(name);
    std::vector<float> out(cols);
    for (std::size_t i = 0; i < cols; ++i) {
      const std::byte* at = tensor.bytes.data() + (row * cols + i) * dtype_bytes(tensor.dtype);
      if (tensor.dtype == DType::kF32) {
        std::memcpy(&out[i], at, sizeof(float));
        continue;
      }
      std::uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      out[i] = tensor.dtype == DType::kF16 ? f16_to_float(bits) : bf16{bits}.to_float();
    }
    return out;
  }

  // What Q8_0 or Q4_0 makes of rows [first, first + rows), as panels.
  std::vector<std::byte> encoded(const std::string& name, DType type, std::size_t cols,
                                 std::size_t first, std::size_t rows) {
    const std::size_t row_bytes = cols / block_size(type).elements * block_size(type).bytes;
    std::vector<std::byte> blocks(rows * row_bytes);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto values = stored_row(name, cols, first + row);
      (type == DType::kQ8_0 ? encode_q8_0 : encode_q4_0)(values.data(), cols,
                                                         blocks.data() + row * row_bytes);
    }
    const std::size_t panel_bytes = panel_format(type).panel_bytes(cols);
    std::vector<std::byte> panels((rows + kPanelRows - 1) / kPanelRows * panel_bytes);
    for (std::size_t row = 0; row < rows; row += kPanelRows) {
      pack_panel(type, blocks.data() + row * row_bytes, row_bytes,
                 static_cast<int>(std::min<std::size_t>(kPanelRows, rows - row)), cols,
                 panels.data() + row / kPanelRows * panel_bytes);
    }
    return panels;
  }

  void expect_rows(const Weight& weight, const std::string& name, std::size_t first) {
    std::vector<float> got(weight.cols());
    for (std::size_t row = 0; row < weight.rows(); ++row) {
      decode_row(weight, row, got);
      ASSERT_EQ(got, stored_row(name, weight.cols(), first + row)) << name << " row " << row;
    }
  }

  static LoadOptions with(WeightQuant quant) {
    LoadOptions options;
    options.quant = quant;
    return options;
  }

  bool lies_in_the_file(const Weight& weight) {
    const auto& bytes = checkpoint().tensors().begin()->second.file->bytes();
    return weight.data() >= bytes.data() && weight.data() < bytes.data() + bytes.size();
  }

  std::size_t shift_ = 0;  // bytes that tensors are off alignment

 private:
  TempFolder folder_;
  std::string header_, bytes_;
  std::mt19937 engine_{7};
  std::shared_ptr<const Checkpoint> checkpoint_;
};

std::vector<std::byte> bytes_of(const Weight& weight) {
  return {weight.data(), weight.data() + weight.nbytes()};
}

TEST_F(TensorBinderTest, float_matrices_stay_as_they_are_stored) {
  const std::pair<const char*, DType> tensors[] = {
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBf16}};
  for (const auto& [name, type] : tensors) add(name, type, {5, 40});
  for (const WeightPlacement placement : {WeightPlacement::kResident, WeightPlacement::kMapped}) {
    LoadOptions options;
    options.placement = placement;
    TensorBinder binder(checkpoint(), options);
    std::vector<Weight> weights;
    for (const auto& [name, type] : tensors)
      weights.push_back(binder.matrix(name, 5, 40, MatrixUse::kFeedForward));
    ASSERT_TRUE(binder.finish().has_value());
    binder.load();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i].type(), tensors[i].second);
      EXPECT_EQ(lies_in_the_file(weights[i]), placement == WeightPlacement::kMapped);
      expect_rows(weights[i], tensors[i].first, 0);
    }
  }
}

// The format promises no alignment, kernels need that of an element.
TEST_F(TensorBinderTest, what_lies_at_an_odd_address_is_copied) {
  shift_ = 1;
  add("w", DType::kBf16, {4, 32});
  LoadOptions options;
  options.placement = WeightPlacement::kMapped;
  TensorBinder binder(checkpoint(), options);
  const Weight weight = binder.matrix("w", 4, 32, MatrixUse::kAttention);
  ASSERT_TRUE(binder.finish().has_value());
  binder.load();
  EXPECT_FALSE(lies_in_the_file(weight));
  expect_rows(weight, "w", 0);
}

TEST_F(TensorBinderTest, quantised_panels_are_encoded_and_packed_rows) {
  constexpr int kRows = 37, kCols = 96;  // no whole number of panels
  const std::pair<const char*, DType> tensors[] = {
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBf16}};
  for (const auto& [name, type] : tensors) add(name, type, {kRows, kCols});
  ThreadPool pool(3);
  for (const WeightQuant quant : {WeightQuant::kQ8, WeightQuant::kQ4}) {
    for (const bool fast : {false, true}) {
      for (const WeightPlacement placement :
           {WeightPlacement::kResident, WeightPlacement::kMapped}) {
        LoadOptions options = with(quant);
        options.placement = placement;
        options.repack = placement == WeightPlacement::kResident;  // either way: not in the file
        if (fast) {
          options.kernels = &kernel_table(available_isas().back());
          options.pool = &pool;
        }
        TensorBinder binder(checkpoint(), options);
        std::vector<Weight> weights;
        for (const auto& [name, type] : tensors)
          weights.push_back(binder.matrix(name, kRows, kCols, MatrixUse::kFeedForward));
        ASSERT_TRUE(binder.finish().has_value());
        binder.load();
        const DType type = quant == WeightQuant::kQ8 ? DType::kQ8_0 : DType::kQ4_0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          ASSERT_EQ(weights[i].format(), QuantFormat::kPanels);
          ASSERT_EQ(weights[i].type(), type);
          EXPECT_EQ(bytes_of(weights[i]), encoded(tensors[i].first, type, kCols, 0, kRows));
        }
      }
    }
  }
}

TEST_F(TensorBinderTest, the_use_of_a_matrix_decides_its_bits) {
  add("w", DType::kBf16, {16, 64});
  const auto form = [&](WeightQuant quant, MatrixUse use) {
    TensorBinder binder(checkpoint(), with(quant));
    const Weight weight = binder.matrix("w", 16, 64, use);
    return std::pair(weight.format(), weight.type());
  };
  const std::pair kept(QuantFormat::kBf16, DType::kBf16);
  const std::pair q8(QuantFormat::kPanels, DType::kQ8_0), q4(QuantFormat::kPanels, DType::kQ4_0);
  for (const WeightQuant quant : {WeightQuant::kAsIs, WeightQuant::kQ8, WeightQuant::kQ4}) {
    EXPECT_EQ(form(quant, MatrixUse::kKept), kept);
    const bool none = quant == WeightQuant::kAsIs;
    EXPECT_EQ(form(quant, MatrixUse::kAttention), none ? kept : q8);
    EXPECT_EQ(form(quant, MatrixUse::kHead), none ? kept : q8);
  }
  EXPECT_EQ(form(WeightQuant::kAsIs, MatrixUse::kFeedForward), kept);
  EXPECT_EQ(form(WeightQuant::kQ8, MatrixUse::kFeedForward), q8);
  EXPECT_EQ(form(WeightQuant::kQ4, MatrixUse::kFeedForward), q4);
}

TEST_F(TensorBinderTest, widths_that_no_group_divides_are_kept) {
  add("w", DType::kBf16, {8, 48});
  for (const WeightQuant quant : {WeightQuant::kQ8, WeightQuant::kQ4}) {
    TensorBinder binder(checkpoint(), with(quant));
    const Weight weight = binder.matrix("w", 8, 48, MatrixUse::kFeedForward);
    ASSERT_TRUE(binder.finish().has_value());
    binder.load();
    EXPECT_EQ(weight.format(), QuantFormat::kBf16);
    expect_rows(weight, "w", 0);
  }
}

TEST_F(TensorBinderTest, head_matrices_are_the_heads_rows) {
  constexpr int kHeads = 3, kHeadRows = 40, kFirst = 8, kRows = 20, kCols = 64;
  add("flat", DType::kBf16, {kHeads * kHeadRows, kCols});
  add("deep", DType::kBf16, {kHeads, kHeadRows, kCols});
  for (const WeightQuant quant : {WeightQuant::kAsIs, WeightQuant::kQ4}) {
    TensorBinder binder(checkpoint(), with(quant));
    const auto flat =
        binder.head_matrices("flat", {kHeads * kHeadRows, kCols}, kHeads, kHeadRows, kFirst, kRows);
    const auto deep =
        binder.head_matrices("deep", {kHeads, kHeadRows, kCols}, kHeads, kHeadRows, kFirst, kRows);
    ASSERT_TRUE(binder.finish().has_value());
    binder.load();
    for (const auto& [name, heads] : {std::pair("flat", flat), std::pair("deep", deep)}) {
      ASSERT_EQ(heads.size(), std::size_t{kHeads});
      for (std::size_t head = 0; head < heads.size(); ++head) {
        const std::size_t first = head * kHeadRows + kFirst;
        EXPECT_EQ(heads[head].rows(), std::size_t{kRows});
        if (quant == WeightQuant::kAsIs) {
          expect_rows(heads[head], name, first);
        } else {  // attention has 8 bits with q4 too
          EXPECT_EQ(bytes_of(heads[head]), encoded(name, DType::kQ8_0, kCols, first, kRows));
        }
      }
    }
  }
}

// Weights share large chunks of memory; one that is larger than a chunk gets its own.
TEST_F(TensorBinderTest, weights_lie_apart_at_whole_cache_lines) {
  for (int i = 0; i < 20; ++i) add("w" + std::to_string(i), DType::kBf16, {3, 33});
  TensorBinder binder(checkpoint(), {});
  std::vector<Weight> weights;
  for (int i = 0; i < 20; ++i)
    weights.push_back(binder.matrix("w" + std::to_string(i), 3, 33, MatrixUse::kAttention));
  ASSERT_TRUE(binder.finish().has_value());
  binder.load();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights[i].data()) % 64, 0u);
    if (i > 0) {
      EXPECT_GE(weights[i].data(), weights[i - 1].data() + weights[i - 1].nbytes());
    }
    expect_rows(weights[i], "w" + std::to_string(i), 0);
  }
}

TEST_F(TensorBinderTest, weights_outlive_their_binder) {
  add("w", DType::kBf16, {16, 32});
  Weight weight;
  {
    TensorBinder binder(checkpoint(), with(WeightQuant::kQ8));
    weight = binder.matrix("w", 16, 32, MatrixUse::kHead);
    binder.load();
  }
  EXPECT_EQ(bytes_of(weight), encoded("w", DType::kQ8_0, 32, 0, 16));
}

TEST_F(TensorBinderTest, progress_rises_to_its_total) {
  add("a", DType::kBf16, {64, 64});
  add("b", DType::kF32, {100, 32});
  for (const WeightQuant quant : {WeightQuant::kAsIs, WeightQuant::kQ4}) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> reports;
    LoadOptions options = with(quant);
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      reports.emplace_back(done, total);
    };
    TensorBinder binder(checkpoint(), options);
    binder.matrix("a", 64, 64, MatrixUse::kAttention);
    binder.matrix("b", 100, 32, MatrixUse::kFeedForward);
    ASSERT_TRUE(binder.finish().has_value());
    binder.load();
    ASSERT_FALSE(reports.empty());
    EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
    EXPECT_EQ(reports.back().second, 64u * 64 * 2 + 100 * 32 * 4);  // as stored
    EXPECT_EQ(reports.back().first, reports.back().second);
  }
}

TEST_F(TensorBinderTest, every_problem_is_listed_with_its_tensor) {
  add("misshapen", DType::kBf16, {4, 32});
  add("whole_numbers", DType::kU16, {4, 32});
  add("unasked", DType::kBf16, {2});
  TensorBinder binder(checkpoint(), with(WeightQuant::kQ4));
  EXPECT_TRUE(binder.matrix("absent", 4, 32, MatrixUse::kAttention).empty());
  EXPECT_TRUE(binder.matrix("misshapen", 32, 4, MatrixUse::kAttention).empty());
  EXPECT_TRUE(binder.matrix("whole_numbers", 4, 32, MatrixUse::kAttention).empty());
  EXPECT_TRUE(binder.head_matrices("absent_heads", {2, 2, 32}, 2, 2, 0, 2).empty());
  const Status status = binder.finish();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);  // because of whole_numbers
  for (const char* text :
       {"tensor absent is missing", "tensor misshapen", "[4, 32]", "[32, 4]",
        "tensor whole_numbers", "U16", "tensor absent_heads is missing", "tensor unasked"}) {
    EXPECT_NE(status.error().message.find(text), std::string::npos)
        << text << " in " << status.error().message;
  }
}

TEST_F(TensorBinderTest, a_missing_tensor_alone_is_a_corrupt_checkpoint) {
  add("w", DType::kBf16, {4, 32});
  TensorBinder binder(checkpoint());
  binder.matrix("absent", 4, 32, MatrixUse::kAttention);
  binder.skip([](std::string_view name) { return name == "w"; });
  const Status status = binder.finish();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace glint
