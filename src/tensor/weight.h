// One matrix in the form its kernels read. Immutable once loaded; computes nothing; knows no names.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "tensor/dtype.h"

namespace glint {

// Element and scale layout together. A new format is a new enumerator, its codec in tensor/ and its
// kernels.
enum class QuantFormat { kF32, kBf16 };

// A stored matrix [rows, cols], row-major, y = x W^T. Either borrows a mapping (kept alive by
// `owner`) or owns a buffer.
class Weight {
 public:
  Weight() = default;
  static Weight borrow(QuantFormat format, std::size_t rows, std::size_t cols,
                       const std::byte* data, std::shared_ptr<const void> owner);
  static Weight own(QuantFormat format, std::size_t rows, std::size_t cols, AlignedBuffer buffer);

  QuantFormat format() const { return format_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  std::size_t row_bytes() const;
  std::size_t nbytes() const { return rows_ * row_bytes(); }
  const std::byte* data() const { return data_; }
  const std::byte* row(std::size_t index) const { return data_ + index * row_bytes(); }
  bool empty() const { return data_ == nullptr; }
  // A view of rows [begin, end) that shares this weight's storage.
  Weight slice_rows(std::size_t begin, std::size_t end) const;

 private:
  QuantFormat format_ = QuantFormat::kF32;
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  const std::byte* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

// row `index` of `weight` as float32, out[cols].
void decode_row(const Weight& weight, std::size_t index, std::span<float> out);

}  // namespace glint
