#include "tensor/row_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/weight_rounding.h"

namespace glint {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// max |x|, or NaN where there is one: without their signs, floats are in the order of their bits.
float largest(const float* x, int n) {
  std::uint32_t most = 0;
  for (int i = 0; i < n; ++i)
    most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

}  // namespace

std::string_view row_format_name(RowFormat format) {
  switch (format) {
    case RowFormat::kF32:
      return "f32";
    case RowFormat::kBf16:
      return "bf16";
    case RowFormat::kFp8:
      return "fp8";
    case RowFormat::kFp4:
      return "fp4";
  }
  return "?";
}

std::uint8_t e2m1_from_float(float value) {
  const float x = std::abs(value);
  // Halfway between two, the one with the even code.
  const int code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) +
                   (x >= 3.5f) + (x > 5.0f);
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

float e2m1_to_float(std::uint8_t bits) {
  constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float value = kValues[bits & 7];
  return (bits & 8) != 0 ? -value : value;
}

std::uint8_t fp8_row_scale(float most) {
  // Any fraction carries into the exponent: that of the least power of two which is no less.
  const auto bits = std::bit_cast<std::uint32_t>(std::max(most / 448.0f, 1e-4f));
  return static_cast<std::uint8_t>((bits + 0x7fffffu) >> 23);
}

std::uint8_t fp4_row_scale(float most) {
  if (std::isnan(most)) return 0x7f;
  return e4m3_from_float(std::clamp(most / 6.0f, 0x1p-9f, 448.0f));
}

void pack_fp8_row(const float* x, int width, std::byte* row) {
  std::byte* scales = row + width;
  for (int first = 0; first < width; first += kFp8RowGroup) {
    const int n = std::min(kFp8RowGroup, width - first);
    const float most = largest(x + first, n);
    const bool finite = std::isfinite(most);
    const std::uint32_t exponent = finite ? fp8_row_scale(most) : kNanFp8RowScale;
    // 2^-(exponent - 127), which is a normal number.
    const float factor = std::bit_cast<float>((254u - exponent) << 23);
    for (int i = first; i < first + n; ++i)
      row[i] = static_cast<std::byte>(finite ? e4m3_from_float(x[i] * factor) : 0x7f);
    *scales++ = static_cast<std::byte>(exponent);
  }
}

void pack_fp4_row(const float* x, int width, std::byte* row) {
  std::byte* scales = row + (width + 1) / 2;
  std::fill(row, scales, std::byte{0});
  for (int first = 0; first < width; first += kFp4RowGroup) {
    const int n = std::min(kFp4RowGroup, width - first);
    const float most = largest(x + first, n);
    const bool nan = std::isnan(most);
    const std::uint8_t scale = fp4_row_scale(most);
    const float divisor = e4m3_to_float(scale);
    for (int i = first; i < first + n; ++i) {
      const std::uint8_t code = nan ? 0 : e2m1_from_float(x[i] / divisor);
      row[i / 2] |= static_cast<std::byte>(i % 2 == 0 ? code : code << 4);
    }
    *scales++ = static_cast<std::byte>(scale);
  }
}

void unpack_fp8_row(const std::byte* row, int width, bf16* out) {
  for (int i = 0; i < width; ++i) {
    const int exponent = std::to_integer<int>(row[width + i / kFp8RowGroup]);
    const float value =
        exponent == kNanFp8RowScale
            ? kNaN
            : std::ldexp(e4m3_to_float(std::to_integer<std::uint8_t>(row[i])), exponent - 127);
    out[i] = bf16::from_float(value);
  }
}

void unpack_fp4_row(const std::byte* row, int width, bf16* out) {
  const std::byte* scales = row + (width + 1) / 2;
  for (int i = 0; i < width; ++i) {
    const auto both = std::to_integer<std::uint8_t>(row[i / 2]);
    const float scale = e4m3_to_float(std::to_integer<std::uint8_t>(scales[i / kFp4RowGroup]));
    out[i] = bf16::from_float(e2m1_to_float(i % 2 == 0 ? both & 15 : both >> 4) * scale);
  }
}

}  // namespace glint
