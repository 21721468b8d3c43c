#include "tensor/weight_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace glint {
namespace {

// Every finite e4m3 value by the format's definition.
double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(E4m3FromFloat, every_value_comes_back) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(e4m3_from_float(static_cast<float>(e4m3_value(code))), code);
  }
}

TEST(E4m3FromFloat, the_nearest_value_is_taken_ties_to_even) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3_value(code), high = e4m3_value(code + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(e4m3_from_float(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 1e9f)), code + 1);
    EXPECT_EQ(e4m3_from_float(-std::nextafter(middle, 1e9f)), 0x80 + code + 1);
  }
}

TEST(E4m3FromFloat, what_is_too_large_saturates_and_nan_stays) {
  EXPECT_EQ(e4m3_from_float(449.0f), 0x7e);
  EXPECT_EQ(e4m3_from_float(-1e30f), 0xfe);
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(e4m3_from_float(std::nanf("")) & 0x7f, 0x7f);
  EXPECT_EQ(e4m3_from_float(1e-30f), 0);
}

double error_of(const std::vector<float>& weights, float scale,
                const std::vector<std::int8_t>& codes) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double lost = static_cast<double>(weights[i]) - static_cast<double>(scale) * codes[i];
    sum += lost * lost;
  }
  return sum;
}

std::vector<float> normal_weights(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> weights(n);
  for (float& w : weights) w = normal(random);
  return weights;
}

TEST(RoundToIntegers, codes_are_in_range_and_the_scale_is_bfloat16) {
  for (const int bits : {2, 3, 4, 8}) {
    const std::vector<float> weights = normal_weights(128, 1);
    std::vector<std::int8_t> codes(weights.size());
    const float scale = round_to_integers(weights, bits, codes);
    EXPECT_EQ(bf16::from_float(scale).to_float(), scale);
    for (const std::int8_t code : codes) {
      EXPECT_GE(code, -(1 << (bits - 1)));
      EXPECT_LT(code, 1 << (bits - 1));
    }
  }
}

// Against the best of a fine grid of scales, searched by brute force.
TEST(RoundToIntegers, four_bits_lose_little_more_than_with_the_best_scale) {
  double sum = 0, sum_of_best = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::vector<float> weights = normal_weights(32, seed);
    std::vector<std::int8_t> codes(weights.size()), trial(weights.size());
    const float scale = round_to_integers(weights, 4, codes);
    double best = std::numeric_limits<double>::infinity();
    for (float s = 0.002f; s < 0.02f; s *= 1.002f) {
      for (std::size_t i = 0; i < weights.size(); ++i)
        trial[i] =
            static_cast<std::int8_t>(std::clamp(std::nearbyint(weights[i] / s), -8.0f, 7.0f));
      best = std::min(best, error_of(weights, s, trial));
    }
    EXPECT_LT(error_of(weights, scale, codes), best * 1.08) << seed;
    sum += error_of(weights, scale, codes);
    sum_of_best += best;
  }
  EXPECT_LT(sum, sum_of_best * 1.01);
}

TEST(RoundToIntegers, whole_multiples_come_back_exactly) {
  const std::vector<float> weights = {-4.0f, -2.0f, 0.5f, 1.0f, 3.5f, 0.0f};
  std::vector<std::int8_t> codes(weights.size());
  const float scale = round_to_integers(weights, 4, codes);
  for (std::size_t i = 0; i < weights.size(); ++i)
    EXPECT_EQ(scale * static_cast<float>(codes[i]), weights[i]);
}

TEST(RoundToIntegers, zeros_and_the_tiniest_weights_are_zeros) {
  for (const float tiny : {0.0f, 1e-44f, -1e-44f}) {
    const std::vector<float> weights(32, tiny);
    std::vector<std::int8_t> codes(weights.size(), 9);
    EXPECT_EQ(round_to_integers(weights, 4, codes), 1.0f);
    for (const std::int8_t code : codes) EXPECT_EQ(code, 0);
  }
}

}  // namespace
}  // namespace glint
