#include "tensor/weight.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace glint {
namespace {

std::size_t element_bytes(QuantFormat format) {
  return format == QuantFormat::kF32 ? 4 : 2;
}

}  // namespace

Weight Weight::borrow(QuantFormat format, std::size_t rows, std::size_t cols, const std::byte* data,
                      std::shared_ptr<const void> owner) {
  Weight weight;
  weight.format_ = format;
  weight.rows_ = rows;
  weight.cols_ = cols;
  weight.data_ = data;
  weight.owner_ = std::move(owner);
  return weight;
}

Weight Weight::own(QuantFormat format, std::size_t rows, std::size_t cols, AlignedBuffer buffer) {
  GLINT_CHECK(buffer.size() >= rows * cols * element_bytes(format));
  const auto shared = std::make_shared<const AlignedBuffer>(std::move(buffer));
  return borrow(format, rows, cols, shared->data(), shared);
}

std::size_t Weight::row_bytes() const {
  return cols_ * element_bytes(format_);
}

Weight Weight::slice_rows(std::size_t begin, std::size_t end) const {
  GLINT_CHECK(begin <= end && end <= rows_);
  return borrow(format_, end - begin, cols_, row(begin), owner_);
}

void decode_row(const Weight& weight, std::size_t index, std::span<float> out) {
  GLINT_CHECK(index < weight.rows() && out.size() == weight.cols());
  const std::byte* row = weight.row(index);
  switch (weight.format()) {
    case QuantFormat::kF32:
      std::memcpy(out.data(), row, weight.row_bytes());
      return;
    case QuantFormat::kBf16:
      // A borrowed row need not be aligned: files place tensors where they like.
      for (std::size_t i = 0; i < out.size(); ++i) {
        bf16 element;
        std::memcpy(&element, row + 2 * i, 2);
        out[i] = element.to_float();
      }
      return;
  }
}

}  // namespace glint
