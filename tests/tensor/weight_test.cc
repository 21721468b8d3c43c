#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

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

TEST(WeightDeathTest, rows_outside_the_matrix_abort) {
  const Weight weight = counting_weight(QuantFormat::kF32, 2, 2);
  std::vector<float> row(2);
  EXPECT_DEATH(decode_row(weight, 2, row), "internal error");
  EXPECT_DEATH(weight.slice_rows(1, 3), "internal error");
}

}  // namespace
}  // namespace glint
