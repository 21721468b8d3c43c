#include "tensor/ggml_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/panel.h"

namespace glint {
namespace {

constexpr std::size_t kShort = 32;  // elements of a Q8_0 or Q4_0 block
constexpr float kMaxHalf = 65504.0f;

void put16(std::byte* at, std::uint16_t value) {
  at[0] = static_cast<std::byte>(value & 255);
  at[1] = static_cast<std::byte>(value >> 8);
}

// Nearest whole number, halves away from zero, kept within +-127; NaN gives 0.
int round_to_int8(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<int>(std::round(std::clamp(value, -127.0f, 127.0f)));
}

float inverse_or_zero(float scale) {
  return scale == 0 ? 0.0f : 1.0f / scale;
}

void encode_q8_0_block(const float* x, std::byte* block) {
  float largest = 0;
  for (std::size_t i = 0; i < kShort; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = std::min(largest / 127.0f, kMaxHalf);
  const float inverse = inverse_or_zero(scale);
  put16(block, f16_from_float(scale));
  for (std::size_t i = 0; i < kShort; ++i)
    block[2 + i] = static_cast<std::byte>(round_to_int8(x[i] * inverse));
}

// The code of a tame x (below) under 1 / scale: plus 8.5 and cut off is rounding.
int q4_code(float x, float inverse) {
  return std::clamp(static_cast<int>(x * inverse + 8.5f), 0, 15);
}

// The squared error of a block under a scale, summed in lanes that the compiler can keep apart.
float q4_error(const float* x, float scale) {
  constexpr std::size_t kLanes = 8;
  const float inverse = inverse_or_zero(scale);
  float sums[kLanes] = {};
  for (std::size_t i = 0; i < kShort; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      const float off = value - scale * static_cast<float>(q4_code(value, inverse) - 8);
      sums[lane] += off * off;
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// A scale as the block will hold it.
float half_precision(float scale) {
  return f16_to_float(f16_from_float(std::clamp(scale, -kMaxHalf, kMaxHalf)));
}

// What every Q4_0 block can hold: so x / scale is a small number, and NaN is 0.
float tame(float x) {
  return std::isnan(x) ? 0.0f : std::clamp(x, -8 * kMaxHalf, 8 * kMaxHalf);
}

void encode_q4_0_block(const float* from, std::byte* block) {
  // The largest element is minus so many scales: 8 makes it the lowest code, which has no positive
  // counterpart; less spreads the codes wider, more cuts the largest off and is finer elsewhere.
  constexpr float kSteps[] = {7.0f, 7.25f, 7.5f, 7.75f, 8.25f, 8.5f, 8.75f, 9.0f};
  float x[kShort], largest = 0;
  for (std::size_t i = 0; i < kShort; ++i) {
    x[i] = tame(from[i]);
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  float best = half_precision(largest / -8.0f);
  float least = q4_error(x, best);
  for (const float step : kSteps) {
    const float scale = half_precision(largest / -step);
    const float error = q4_error(x, scale);
    if (!(error < least)) continue;
    least = error;
    best = scale;
  }
  put16(block, f16_from_float(best));
  const float inverse = inverse_or_zero(best);
  for (std::size_t i = 0; i < kShort / 2; ++i) {
    const int low = q4_code(x[i], inverse), high = q4_code(x[i + kShort / 2], inverse);
    block[2 + i] = static_cast<std::byte>(low | high << 4);
  }
}

}  // namespace

void decode_blocks(DType type, const std::byte* blocks, std::size_t count, float* out) {
  const PanelFormat& format = panel_format(type);
  const BlockSize size = block_size(type);
  BlockParts parts{};
  for (std::size_t i = 0; i < count; ++i) {
    split_block(type, blocks + i * size.bytes, parts);
    decode_parts(format, parts, out + i * size.elements);
  }
}

void encode_q8_0(const float* x, std::size_t n, std::byte* blocks) {
  GLINT_CHECK(n % kShort == 0);
  const std::size_t nbytes = block_size(DType::kQ8_0).bytes;
  for (std::size_t i = 0; i < n / kShort; ++i)
    encode_q8_0_block(x + i * kShort, blocks + i * nbytes);
}

void encode_q4_0(const float* x, std::size_t n, std::byte* blocks) {
  GLINT_CHECK(n % kShort == 0);
  const std::size_t nbytes = block_size(DType::kQ4_0).bytes;
  for (std::size_t i = 0; i < n / kShort; ++i)
    encode_q4_0_block(x + i * kShort, blocks + i * nbytes);
}

std::span<const std::int8_t, 16> iq4_values() {
  return panel_format(DType::kIQ4_NL).table;
}

std::span<const std::int8_t, 16> fp4_values() {
  return panel_format(DType::kMXFP4).table;
}

}  // namespace glint
