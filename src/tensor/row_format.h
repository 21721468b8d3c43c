// How the rows that a model keeps of each token are stored. kFp8 and kFp4 are those of FlashMLA
// (2026.09.30, for rows of 512), here of any width: a row's elements, then the scales of its
// groups, the last of which may be shorter. The portable code here defines them; kernels do the
// same faster.
//
//   kFp8  e4m3, a byte each; then for every 32 a byte e: x = element 2^(e - 127)
//   kFp4  e2m1, the first of two in the low half of a byte; then for every 16 an e4m3 s:
//         x = element s
//
// Either is exact as bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace glint {

enum class RowFormat : std::uint8_t { kF32, kBf16, kFp8, kFp4 };

inline constexpr int kFp8RowGroup = 32;  // values that share a scale
inline constexpr int kFp4RowGroup = 16;
// The scale bytes that packing finite values gives: 2^-13 to 2^120. All others are decoded as well.
inline constexpr int kLeastFp8RowScale = 114, kMostFp8RowScale = 247;
inline constexpr std::uint8_t kNanFp8RowScale = 0xff;

std::string_view row_format_name(RowFormat format);  // "bf16", "fp8", ...

// Bytes of a row of `width` values.
constexpr std::size_t row_bytes(RowFormat format, int width) {
  const auto n = static_cast<std::size_t>(width);
  switch (format) {
    case RowFormat::kF32:
      return 4 * n;
    case RowFormat::kBf16:
      return 2 * n;
    case RowFormat::kFp8:
      return n + (n + kFp8RowGroup - 1) / kFp8RowGroup;
    case RowFormat::kFp4:
      return (n + 1) / 2 + (n + kFp4RowGroup - 1) / kFp4RowGroup;
  }
  return 0;
}

// x[0, width) to a row, each element rounded to nearest even. The scale of a group is the least
// power of two that is at least max |x| / 448 and 1e-4; NaN and infinity make it, and the elements,
// NaN.
void pack_fp8_row(const float* x, int width, std::byte* row);
// The scale of a group is max |x| / 6, within [2^-9, 448], rounded to e4m3; elements are bounded by
// 6. NaN makes the scale NaN.
void pack_fp4_row(const float* x, int width, std::byte* row);
// out[0, width); a scale of NaN makes NaN of its group.
void unpack_fp8_row(const std::byte* row, int width, bf16* out);
void unpack_fp4_row(const std::byte* row, int width, bf16* out);

// The scales of groups, as stored: of max |x|, which is finite; of max |x|, or NaN where any is.
std::uint8_t fp8_row_scale(float most);
std::uint8_t fp4_row_scale(float most);

// 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives: to nearest even, bounded by 6. Not for NaN.
std::uint8_t e2m1_from_float(float value);
float e2m1_to_float(std::uint8_t bits);  // the low four

}  // namespace glint
