#include "tensor/weight_rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace glint {
namespace {

// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even, for all
// magnitudes below 2^22; unlike std::nearbyint it becomes vector code everywhere.
constexpr float kRounder = 12582912.0f;

float round_whole(float value) {
  return (value + kRounder) - kRounder;
}

float to_bf16(float value) {
  return bf16::from_float(value).to_float();
}

// What a scale makes of some weights.
struct Trial {
  float error;  // sum of squares of what is lost
  float refit;  // the scale with the least error for the same codes
};

Trial try_scale(std::span<const float> weights, float scale, float least, float most) {
  const float inverse = 1.0f / scale;
  float error = 0, dot = 0, norm = 0;
  for (const float w : weights) {
    const float code = std::clamp(round_whole(w * inverse), least, most);
    const float lost = w - code * scale;
    error += lost * lost;
    dot += w * code;
    norm += code * code;
  }
  return {error, norm > 0 ? dot / norm : scale};
}

}  // namespace

float round_to_integers(std::span<const float> weights, int bits, std::span<std::int8_t> codes) {
  GLINT_CHECK(bits >= 2 && bits <= 8 && codes.size() == weights.size());
  const float least = -std::exp2(static_cast<float>(bits - 1)), most = -least - 1;
  float low = 0, high = 0;
  for (const float w : weights) {
    low = std::min(low, w);
    high = std::max(high, w);
  }
  // Covers every weight: there is one more negative code than positive ones.
  const float covering = std::max(high / most, low / least);
  if (!(covering >= std::numeric_limits<float>::min())) {
    std::ranges::fill(codes, std::int8_t{0});
    return 1.0f;
  }
  // With few codes it pays to cut off the largest weights for the sake of the many.
  constexpr int kCuts = 24;
  const int num_cuts = bits > 4 ? 1 : kCuts;
  float best = to_bf16(covering), best_error = std::numeric_limits<float>::infinity();
  for (int i = 0; i < num_cuts; ++i) {
    float scale = to_bf16(covering * (i == 0 ? 1.0f : 1.24f - 0.03f * static_cast<float>(i)));
    for (int round = 0; round < 2 && scale > 0; ++round) {
      const Trial trial = try_scale(weights, scale, least, most);
      if (trial.error < best_error) {
        best = scale;
        best_error = trial.error;
      }
      scale = to_bf16(trial.refit);
    }
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    codes[i] =
        static_cast<std::int8_t>(std::clamp(round_whole(weights[i] * (1.0f / best)), least, most));
  }
  return best;
}

std::uint8_t e4m3_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= std::bit_cast<std::uint32_t>(448.0f))
    return static_cast<std::uint8_t>(sign | 0x7eu);
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6f)) {
    // The unit of e4m3 there is 2^-9, that of float32 from 2^14 on: adding that rounds to it.
    const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0x1p14f)));
  }
  // Three bits of the fraction remain, and the exponent is biased by 120 less.
  return static_cast<std::uint8_t>(
      sign | (magnitude - (120u << 23) + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20);
}

}  // namespace glint
