#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

Weight counting_weight(QuantFormat format, std::size_t rows, std::size_t cols) {
  AlignedBuffer buffer(rows * cols * (format == QuantFormat::kF32 ? 4 : 2));
  for (std::size_t i = 0; i < rows * cols; ++i) {
    const auto value = static_cast<float>(i);
    if (format == QuantFormat::kF32) {
      buffer.as<float>()[i] = value;
    } else {
      buffer.as<bf16>()[i] = bf16::from_float(value);
    }
  }
  return Weight::own(format, rows, cols, std::move(buffer));
}

TEST(Weight, rows_decode_to_what_was_stored) {
  for (const QuantFormat format : {QuantFormat::kF32, QuantFormat::kBf16}) {
    const Weight weight = counting_weight(format, 3, 5);
    std::vector<float> row(5);
    decode_row(weight, 2, row);
    EXPECT_EQ(row, (std::vector<float>{10, 11, 12, 13, 14}));
  }
}

TEST(Weight, sizes_count_bytes_of_the_format) {
  EXPECT_EQ(counting_weight(QuantFormat::kF32, 3, 5).row_bytes(), 20u);
  EXPECT_EQ(counting_weight(QuantFormat::kBf16, 3, 5).row_bytes(), 10u);
  EXPECT_EQ(counting_weight(QuantFormat::kBf16, 3, 5).nbytes(), 30u);
  EXPECT_TRUE(Weight().empty());
  EXPECT_FALSE(counting_weight(QuantFormat::kBf16, 1, 1).empty());
}

TEST(Weight, a_slice_keeps_the_storage_alive) {
  Weight slice;
  {
    const Weight whole = counting_weight(QuantFormat::kBf16, 4, 3);
    slice = whole.slice_rows(1, 3);
    EXPECT_EQ(slice.data(), whole.row(1));
  }
  EXPECT_EQ(slice.rows(), 2u);
  std::vector<float> row(3);
  decode_row(slice, 1, row);
  EXPECT_EQ(row, (std::vector<float>{6, 7, 8}));
  EXPECT_EQ(slice.slice_rows(2, 2).rows(), 0u);
}

TEST(Weight, a_borrowed_row_need_not_be_aligned) {
  for (const QuantFormat format : {QuantFormat::kF32, QuantFormat::kBf16}) {
    const Weight source = counting_weight(format, 2, 3);
    const auto bytes = std::make_shared<std::vector<std::byte>>(source.nbytes() + 1);
    std::memcpy(bytes->data() + 1, source.data(), source.nbytes());
    const Weight shifted = Weight::borrow(format, 2, 3, bytes->data() + 1, bytes);
    std::vector<float> row(3);
    decode_row(shifted, 1, row);
    EXPECT_EQ(row, (std::vector<float>{3, 4, 5}));
  }
}

// 40 rows of 512 columns of Q4_K, and the same as panels.
constexpr std::size_t kBlockRows = 40, kBlockCols = 512;

std::shared_ptr<std::vector<std::byte>> q4_k_rows() {
  const auto bytes = std::make_shared<std::vector<std::byte>>(kBlockRows * 2 * 144);
  std::uint32_t state = 1;
  for (std::byte& byte : *bytes)
    byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  for (std::size_t block = 0; block < bytes->size(); block += 144) {
    (*bytes)[block + 1] = std::byte{0x24};  // both scales about 0.02
    (*bytes)[block + 3] = std::byte{0x25};
  }
  return bytes;
}

Weight block_weight() {
  const auto bytes = q4_k_rows();
  return Weight::borrow(QuantFormat::kBlocks, DType::kQ4_K, kBlockRows, kBlockCols, bytes->data(),
                        bytes);
}

Weight panel_weight() {
  const auto bytes = q4_k_rows();
  const std::size_t row_bytes = 2 * 144;
  const std::size_t stride = panel_format(DType::kQ4_K).panel_bytes(kBlockCols);
  const auto panels = std::make_shared<AlignedBuffer>(
      Weight::bytes_of(QuantFormat::kPanels, DType::kQ4_K, kBlockRows, kBlockCols));
  for (std::size_t row = 0; row < kBlockRows; row += 16)
    pack_panel(DType::kQ4_K, bytes->data() + row * row_bytes, row_bytes,
               static_cast<int>(std::min<std::size_t>(16, kBlockRows - row)), kBlockCols,
               panels->data() + row / 16 * stride);
  return Weight::borrow(QuantFormat::kPanels, DType::kQ4_K, kBlockRows, kBlockCols, panels->data(),
                        panels);
}

std::vector<float> decoded_row(const Weight& weight, std::size_t index) {
  std::vector<float> row(weight.cols());
  decode_row(weight, index, row);
  return row;
}

TEST(Weight, blocks_and_panels_have_equal_rows) {
  const Weight blocks = block_weight(), panels = panel_weight();
  EXPECT_EQ(blocks.type(), DType::kQ4_K);
  EXPECT_EQ(blocks.row_bytes(), 2u * 144);
  EXPECT_EQ(blocks.stride(), 2u * 144);
  EXPECT_EQ(blocks.nbytes(), kBlockRows * 2 * 144);
  for (std::size_t row = 0; row < kBlockRows; ++row) {
    std::vector<float> expected(kBlockCols);
    decode_blocks(DType::kQ4_K, blocks.row(row), 2, expected.data());
    EXPECT_TRUE(std::ranges::any_of(expected, [](float value) { return value != 0; }));
    EXPECT_EQ(decoded_row(blocks, row), expected);
    EXPECT_EQ(decoded_row(panels, row), expected);
  }
}

TEST(Weight, panels_take_whole_sixteens_of_rows) {
  const Weight panels = panel_weight();
  // 16 rows of 512 columns: 16 * 512 / 2 bytes of codes, 2 * 2 halves and 16 * 2 bytes a row.
  EXPECT_EQ(panels.stride(), 16u * (512 / 2 + 2 * 2 * 2 + 16 * 2));
  EXPECT_EQ(panels.nbytes(), 3 * panels.stride());
  EXPECT_EQ(panels.slice_rows(16, 40).nbytes(), 2 * panels.stride());
  EXPECT_EQ(panels.slice_rows(16, 17).nbytes(), panels.stride());
}

TEST(Weight, slices_of_blocks_and_panels_start_where_they_say) {
  const Weight blocks = block_weight(), panels = panel_weight();
  EXPECT_EQ(decoded_row(blocks.slice_rows(7, 20), 12), decoded_row(blocks, 19));
  const Weight slice = panels.slice_rows(16, 40);
  EXPECT_EQ(slice.rows(), 24u);
  EXPECT_EQ(slice.type(), DType::kQ4_K);
  EXPECT_EQ(decoded_row(slice, 0), decoded_row(blocks, 16));
  EXPECT_EQ(decoded_row(slice.slice_rows(16, 24), 7), decoded_row(blocks, 39));
}

// A kF8 matrix of 5 rows and 7 columns under scales of 2 rows and 3 columns: byte r * 7 + c, that
// is a small number.
struct Scaled {
  std::vector<std::byte> bytes;
  std::vector<float> scales;

  Scaled() {
    for (int i = 0; i < 35; ++i) bytes.push_back(static_cast<std::byte>(0x20 + i));
    for (int i = 0; i < 12; ++i)
      scales.push_back(static_cast<float>(i + 1) / 3);  // 3 x 3, stride 4
  }
  static std::shared_ptr<Scaled> make() { return std::make_shared<Scaled>(); }
  float value(int row, int column) const {
    const int byte = 0x20 + row * 7 + column;
    return e4m3_to_float(static_cast<std::uint8_t>(byte)) *
           scales[static_cast<std::size_t>(row / 2 * 4 + column / 3)];
  }
};

Weight scaled_weight(const std::shared_ptr<Scaled>& scaled) {
  return Weight::borrow_f8(5, 7, scaled->bytes.data(), {scaled->scales.data(), 2, 3, 4}, scaled);
}

TEST(Weight, e4m3_rows_take_the_scales_of_their_rectangles) {
  const auto scaled = Scaled::make();
  const Weight weight = scaled_weight(scaled);
  EXPECT_EQ(weight.format(), QuantFormat::kF8);
  EXPECT_EQ(weight.type(), DType::kF8E4M3);
  EXPECT_EQ(weight.stride(), 7u);
  EXPECT_EQ(weight.nbytes(), 35u);
  for (int row = 0; row < 5; ++row) {
    const std::vector<float> values = decoded_row(weight, static_cast<std::size_t>(row));
    for (int column = 0; column < 7; ++column)
      EXPECT_EQ(values[static_cast<std::size_t>(column)], scaled->value(row, column));
  }
}

TEST(Weight, a_slice_may_cut_a_rectangle_of_scales) {
  const auto scaled = Scaled::make();
  const Weight weight = scaled_weight(scaled);
  const Weight slice = weight.slice_rows(1, 5).slice_rows(2, 4);  // rows 3 and 4
  EXPECT_EQ(decoded_row(slice, 0), decoded_row(weight, 3));
  EXPECT_EQ(decoded_row(slice, 1), decoded_row(weight, 4));
}

TEST(Weight, scales_of_rows_and_of_the_whole_are_rectangles_too) {
  const auto scaled = Scaled::make();
  const Weight rows =
      Weight::borrow_f8(5, 7, scaled->bytes.data(), {scaled->scales.data(), 1, 7, 1}, scaled);
  const Weight whole =
      Weight::borrow_f8(5, 7, scaled->bytes.data(), {scaled->scales.data(), 5, 7, 1}, scaled);
  EXPECT_EQ(decoded_row(rows, 4)[6], e4m3_to_float(0x20 + 34) * scaled->scales[4]);
  EXPECT_EQ(decoded_row(whole, 4)[6], e4m3_to_float(0x20 + 34) * scaled->scales[0]);
}

TEST(Weight, a_factor_multiplies_decoded_rows_and_those_of_slices) {
  const Weight plain = counting_weight(QuantFormat::kBf16, 3, 4);
  const Weight scaled = plain.with_factor(0.5f);
  EXPECT_EQ(plain.factor(), 1.0f);
  EXPECT_EQ(scaled.factor(), 0.5f);
  EXPECT_EQ(decoded_row(scaled.slice_rows(1, 2), 0), (std::vector<float>{2, 2.5, 3, 3.5}));
  EXPECT_EQ(decoded_row(panel_weight().with_factor(2.0f), 3)[5],
            2 * decoded_row(block_weight(), 3)[5]);
}

TEST(WeightDeathTest, panels_are_not_cut_inside) {
  const Weight panels = panel_weight();
  EXPECT_DEATH(panels.slice_rows(8, 24), "internal error");
  EXPECT_DEATH(panels.row_bytes(), "internal error");
  EXPECT_DEATH(Weight::borrow(QuantFormat::kBlocks, DType::kQ4_K, 1, 128, panels.data(), nullptr),
               "internal error");
}

TEST(WeightDeathTest, rows_outside_the_matrix_abort) {
  const Weight weight = counting_weight(QuantFormat::kF32, 2, 2);
  std::vector<float> row(2);
  EXPECT_DEATH(decode_row(weight, 2, row), "internal error");
  EXPECT_DEATH(weight.slice_rows(1, 3), "internal error");
}

}  // namespace
}  // namespace glint
