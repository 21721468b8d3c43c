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

void encode_q8_0_block(const float* x, std::byte* block) {
  float largest = 0;
  for (std::size_t i = 0; i < kShort; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = std::min(largest / 127.0f, kMaxHalf);
  const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
  put16(block, f16_from_float(scale));
  for (std::size_t i = 0; i < kShort; ++i)
    block[2 + i] = static_cast<std::byte>(round_to_int8(x[i] * inverse));
}

// One way to code a block: x is about scale * (codes - 8).
struct Q4Try {
  std::uint16_t scale = 0;
  float error = 0;
  std::uint8_t codes[kShort] = {};
};

void try_q4_scale(const float* x, float scale, Q4Try& result) {
  result.scale = f16_from_float(std::clamp(scale, -kMaxHalf, kMaxHalf));
  const float rounded = f16_to_float(result.scale);
  const float inverse = rounded == 0 ? 0.0f : 1.0f / rounded;
  result.error = 0;
  for (std::size_t i = 0; i < kShort; ++i) {
    // Plus 8.5 and cut off is rounding; the order of the arguments makes NaN a 0.
    const float shifted = std::min(std::max(0.0f, x[i] * inverse + 8.5f), 15.0f);
    const auto code = static_cast<int>(shifted);
    result.codes[i] = static_cast<std::uint8_t>(code);
    const float off = x[i] - rounded * static_cast<float>(code - 8);
    result.error += off * off;
  }
}

void encode_q4_0_block(const float* x, std::byte* block) {
  // Scales are the largest element by minus so much: 8 makes it the lowest code, which the positive
  // side lacks; larger ones are finer and cut it off.
  constexpr float kSteps[] = {8.0f, 7.0f, 7.25f, 7.5f, 7.75f, 8.25f, 8.5f, 8.75f, 9.0f, -7.0f};
  float largest = 0;
  for (std::size_t i = 0; i < kShort; ++i) {
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  Q4Try best, other;
  try_q4_scale(x, largest / -kSteps[0], best);
  for (const float step : std::span(kSteps).subspan(1)) {
    try_q4_scale(x, largest / -step, other);
    if (other.error < best.error) best = other;
  }
  put16(block, best.scale);
  for (std::size_t i = 0; i < kShort / 2; ++i)
    block[2 + i] = static_cast<std::byte>(best.codes[i] | best.codes[i + kShort / 2] << 4);
}

}  // namespace

void decode_blocks(DType type, const std::byte* blocks, std::size_t count, float* out) {
  const PanelFormat& format = panel_format(type);
  const BlockSize size = block_size(type);
  BlockParts parts;
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
