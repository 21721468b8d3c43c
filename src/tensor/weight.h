// One matrix in the form its kernels read. Immutable once loaded; computes nothing; knows no names.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "tensor/dtype.h"
#include "tensor/scale_grid.h"

namespace glint {

// Element and scale layout together. A new format is a new enumerator, its codec in tensor/ and its
// kernels.
enum class QuantFormat {
  kF32,
  kBf16,
  kF16,
  kF8,      // e4m3 as stored, with a grid of scales
  kBlocks,  // rows of a block type, as a GGUF file stores them (tensor/ggml_blocks.h)
  kPanels   // the same packed sixteen rows at a time (tensor/panel.h)
};

// A stored matrix [rows, cols], row-major, y = x W^T. Borrows memory that `owner` keeps alive.
class Weight {
 public:
  Weight() = default;
  // `type` names the elements: kF32, kBf16, kF16, or the block type of kBlocks and kPanels. For kF8
  // see below.
  static Weight borrow(QuantFormat format, DType type, std::size_t rows, std::size_t cols,
                       const std::byte* data, std::shared_ptr<const void> owner);
  // For kF32, kBf16, kF16.
  static Weight borrow(QuantFormat format, std::size_t rows, std::size_t cols,
                       const std::byte* data, std::shared_ptr<const void> owner);
  // e4m3 times the scales of `grid`; `owner` keeps those alive too.
  static Weight borrow_f8(std::size_t rows, std::size_t cols, const std::byte* data,
                          const ScaleGrid& grid, std::shared_ptr<const void> owner);
  static Weight own(QuantFormat format, std::size_t rows, std::size_t cols, AlignedBuffer buffer);

  QuantFormat format() const { return format_; }
  DType type() const { return type_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  // Bytes between rows; not for kPanels.
  std::size_t row_bytes() const;
  // What MatmulArgs::w_stride wants: bytes between rows, for kPanels between panels.
  std::size_t stride() const;
  std::size_t nbytes() const;
  const std::byte* data() const { return data_; }
  const std::byte* row(std::size_t index) const;  // not for kPanels
  bool empty() const { return data_ == nullptr; }
  const ScaleGrid& grid() const { return grid_; }  // of kF8
  // What every product of the matrix is multiplied by; so are decoded rows.
  float factor() const { return factor_; }
  Weight with_factor(float factor) const;
  // A view of rows [begin, end) that shares this weight's storage; for kPanels begin is a multiple
  // of kPanelRows.
  Weight slice_rows(std::size_t begin, std::size_t end) const;

  // Bytes of a matrix in this form.
  static std::size_t bytes_of(QuantFormat format, DType type, std::size_t rows, std::size_t cols);

 private:
  QuantFormat format_ = QuantFormat::kF32;
  DType type_ = DType::kF32;
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  const std::byte* data_ = nullptr;
  ScaleGrid grid_;
  float factor_ = 1.0f;
  std::shared_ptr<const void> owner_;
};

// row `index` of `weight` as float32, out[cols].
void decode_row(const Weight& weight, std::size_t index, std::span<float> out);

}  // namespace glint
