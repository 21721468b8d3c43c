#include "tensor/weight.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

DType element_type(QuantFormat format) {
  switch (format) {
    case QuantFormat::kF32:
      return DType::kF32;
    case QuantFormat::kBf16:
      return DType::kBf16;
    case QuantFormat::kF16:
      return DType::kF16;
    case QuantFormat::kF8:
    case QuantFormat::kBlocks:
    case QuantFormat::kPanels:
      break;
  }
  GLINT_CHECK(false);
}

// The row without the factor.
void decode_values(const Weight& weight, std::size_t index, std::span<float> out) {
  if (weight.format() == QuantFormat::kPanels) {
    const std::byte* panel = weight.data() + index / kPanelRows * weight.stride();
    decode_panel_row(panel_format(weight.type()), panel, static_cast<int>(index % kPanelRows),
                     weight.cols(), out);
    return;
  }
  const std::byte* row = weight.row(index);
  switch (weight.format()) {
    case QuantFormat::kF32:
      std::memcpy(out.data(), row, weight.row_bytes());
      return;
    case QuantFormat::kBf16:
    case QuantFormat::kF16:
      // A borrowed row need not be aligned: files place tensors where they like.
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, row + 2 * i, 2);
        out[i] = weight.format() == QuantFormat::kBf16 ? bf16{bits}.to_float() : f16_to_float(bits);
      }
      return;
    case QuantFormat::kF8: {
      const float* scales = weight.grid().row(static_cast<int>(index));
      const auto width = static_cast<std::size_t>(weight.grid().block_cols);
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = e4m3_to_float(std::to_integer<std::uint8_t>(row[i])) * scales[i / width];
      return;
    }
    case QuantFormat::kBlocks:
    case QuantFormat::kPanels:
      decode_blocks(weight.type(), row, out.size() / block_size(weight.type()).elements,
                    out.data());
      return;
  }
}

}  // namespace

Weight Weight::borrow(QuantFormat format, DType type, std::size_t rows, std::size_t cols,
                      const std::byte* data, std::shared_ptr<const void> owner) {
  GLINT_CHECK(cols % block_size(type).elements == 0);
  Weight weight;
  weight.format_ = format;
  weight.type_ = type;
  weight.rows_ = rows;
  weight.cols_ = cols;
  weight.data_ = data;
  weight.owner_ = std::move(owner);
  return weight;
}

Weight Weight::borrow(QuantFormat format, std::size_t rows, std::size_t cols, const std::byte* data,
                      std::shared_ptr<const void> owner) {
  return borrow(format, element_type(format), rows, cols, data, std::move(owner));
}

Weight Weight::borrow_f8(std::size_t rows, std::size_t cols, const std::byte* data,
                         const ScaleGrid& grid, std::shared_ptr<const void> owner) {
  GLINT_CHECK(grid.values != nullptr && grid.block_rows > 0 && grid.block_cols > 0);
  Weight weight = borrow(QuantFormat::kF8, DType::kF8E4M3, rows, cols, data, std::move(owner));
  weight.grid_ = grid;
  return weight;
}

Weight Weight::with_factor(float factor) const {
  Weight weight = *this;
  weight.factor_ = factor;
  return weight;
}

Weight Weight::own(QuantFormat format, std::size_t rows, std::size_t cols, AlignedBuffer buffer) {
  GLINT_CHECK(buffer.size() >= bytes_of(format, element_type(format), rows, cols));
  const auto shared = std::make_shared<const AlignedBuffer>(std::move(buffer));
  return borrow(format, rows, cols, shared->data(), shared);
}

std::size_t Weight::row_bytes() const {
  GLINT_CHECK(format_ != QuantFormat::kPanels);
  const BlockSize block = block_size(type_);
  return cols_ / block.elements * block.bytes;
}

std::size_t Weight::stride() const {
  return format_ == QuantFormat::kPanels ? panel_format(type_).panel_bytes(cols_) : row_bytes();
}

std::size_t Weight::bytes_of(QuantFormat format, DType type, std::size_t rows, std::size_t cols) {
  if (format == QuantFormat::kPanels) {
    return (rows + kPanelRows - 1) / kPanelRows * panel_format(type).panel_bytes(cols);
  }
  const BlockSize block = block_size(type);
  return rows * (cols / block.elements * block.bytes);
}

std::size_t Weight::nbytes() const {
  return bytes_of(format_, type_, rows_, cols_);
}

const std::byte* Weight::row(std::size_t index) const {
  return data_ + index * row_bytes();
}

Weight Weight::slice_rows(std::size_t begin, std::size_t end) const {
  GLINT_CHECK(begin <= end && end <= rows_);
  std::size_t offset = 0;
  if (format_ == QuantFormat::kPanels) {
    GLINT_CHECK(begin % kPanelRows == 0);
    offset = begin / kPanelRows * stride();
  } else {
    offset = begin * row_bytes();
  }
  Weight slice = *this;
  slice.rows_ = end - begin;
  slice.data_ += offset;
  slice.grid_.first_row += static_cast<int>(begin);
  return slice;
}

void decode_row(const Weight& weight, std::size_t index, std::span<float> out) {
  GLINT_CHECK(index < weight.rows() && out.size() == weight.cols());
  decode_values(weight, index, out);
  if (weight.factor() == 1.0f) return;
  for (float& value : out) value *= weight.factor();
}

}  // namespace glint
