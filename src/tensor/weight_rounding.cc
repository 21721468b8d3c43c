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
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 448.0f) return static_cast<std::uint8_t>(sign | 0x7eu);
  // A normal value has three bits behind its first one; below 2^-6 steps are of 2^-9.
  const int exponent = std::max(std::ilogb(std::max(magnitude, 0x1p-9f)), -6);
  const float steps = round_whole(std::ldexp(magnitude, 3 - exponent));  // 8 to 16, less below 2^-6
  const int code = (exponent + 6) * 8 + static_cast<int>(steps);  // a carry moves on by itself
  return static_cast<std::uint8_t>(sign | static_cast<unsigned>(code));
}

}  // namespace glint
