#include "ops/cache_rows.h"

#include <cstring>

namespace glint {

void CacheRows::store_elements(const KernelTable& table, const float* x, int n,
                               std::byte* out) const {
  if (compute == Compute::kF32) {
    table.scale_to_f32(x, 1.0f, n, reinterpret_cast<float*>(out));
  } else {
    table.scale_to_bf16(x, 1.0f, n, reinterpret_cast<bf16*>(out));
  }
}

void CacheRows::store(const KernelTable& table, const float* x, int width, std::byte* row) const {
  if (!are_packed()) return store_elements(table, x, width, row);
  (format == RowFormat::kFp8 ? table.fp8_rows : table.fp4_rows).pack(x, width, row);
}

void CacheRows::load(const KernelTable& table, const std::byte* rows, std::size_t stride, int count,
                     int width, std::byte* out) const {
  const std::size_t out_bytes = static_cast<std::size_t>(width) * element_bytes();
  if (!are_packed()) {
    for (int i = 0; i < count; ++i, rows += stride, out += out_bytes)
      std::memcpy(out, rows, out_bytes);
    return;
  }
  const RowKernels& kernels = format == RowFormat::kFp8 ? table.fp8_rows : table.fp4_rows;
  if (compute == Compute::kBf16)
    return kernels.unpack(rows, stride, count, width, reinterpret_cast<bf16*>(out));
  // Every value is exact as bf16: those go to the upper half of the row, which is widened from its
  // first value on. By bytes, since what is written overlaps what was read.
  for (int i = 0; i < count; ++i, rows += stride, out += out_bytes) {
    const std::byte* halves = out + out_bytes / 2;
    kernels.unpack(rows, stride, 1, width, reinterpret_cast<bf16*>(out + out_bytes / 2));
    for (std::size_t at = 0; at < out_bytes; at += sizeof(float)) {
      bf16 half;
      std::memcpy(&half, halves + at / 2, sizeof half);
      const float value = half.to_float();
      std::memcpy(out + at, &value, sizeof value);
    }
  }
}

}  // namespace glint
