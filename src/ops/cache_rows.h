// The rows that layers keep of each token, between how they are stored and what they are multiplied
// as.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"
#include "ops/matmul.h"
#include "tensor/row_format.h"

namespace glint {

// `format` is that of the elements, or one smaller.
struct CacheRows {
  RowFormat format = RowFormat::kBf16;
  Compute compute = Compute::kBf16;  // elements are float32 with kF32, else bf16

  std::size_t element_bytes() const {
    return compute == Compute::kF32 ? sizeof(float) : sizeof(bf16);
  }
  // Whether rows must be unpacked before they are multiplied.
  bool are_packed() const { return format == RowFormat::kFp8 || format == RowFormat::kFp4; }
  std::size_t bytes(int width) const { return row_bytes(format, width); }
  const AttendKernels& attend_kernels(const KernelTable& table) const {
    return compute == Compute::kF32 ? table.attend_f32 : table.attend_bf16;
  }

  // The same elements, stored as they are.
  CacheRows elements() const {
    return {compute == Compute::kF32 ? RowFormat::kF32 : RowFormat::kBf16, compute};
  }

  // x [width] as a row.
  void store(const KernelTable& table, const float* x, int width, std::byte* row) const;
  // x [n] as elements.
  void store_elements(const KernelTable& table, const float* x, int n, std::byte* out) const;
  // The elements of `count` rows, `stride` bytes apart, to out [count, width].
  void load(const KernelTable& table, const std::byte* rows, std::size_t stride, int count,
            int width, std::byte* out) const;
};

}  // namespace glint
