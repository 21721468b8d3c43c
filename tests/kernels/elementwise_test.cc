#include <algorithm>

#include "kernel_test.h"

namespace glint::test {
namespace {

constexpr int kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 576, 2048, 2051};

// Distance of a float from the true value, in units in the last place of a float of that size.
double ulps(float got, double want) {
  const double unit =
      std::max(std::ldexp(1.0, std::ilogb(want == 0 ? 1e-300 : want) - 23), 0x1p-149);
  return std::abs(static_cast<double>(got) - want) / unit;
}

// A vector followed by canaries, to see writes past its end.
std::vector<float> with_canaries(std::vector<float> values) {
  values.insert(values.end(), 16, 12345.0f);
  return values;
}
void expect_canaries(const std::vector<float>& values, int n) {
  for (std::size_t i = static_cast<std::size_t>(n); i < values.size(); ++i)
    ASSERT_EQ(values[i], 12345.0f) << "size " << n;
}

using ElementwiseTest = KernelTest;

TEST_P(ElementwiseTest, rms_norm_agrees_with_double_precision) {
  Random random(21);
  for (const int n : kSizes) {
    for (const float size : {1e-3f, 1.0f, 1e3f}) {
      std::vector<float> x = random.floats(static_cast<std::size_t>(n));
      for (float& value : x) value *= size;
      const std::vector<float> w = random.floats(static_cast<std::size_t>(n));
      std::vector<float> y = with_canaries(std::vector<float>(static_cast<std::size_t>(n), kNan));
      table.rms_norm(x.data(), w.data(), n, 1e-6f, y.data());
      double squares = 0;
      for (const float value : x)
        squares += static_cast<double>(value) * static_cast<double>(value);
      const double factor = 1 / std::sqrt(squares / n + static_cast<double>(1e-6f));
      for (int i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double want = static_cast<double>(w[at]) * static_cast<double>(x[at]) * factor;
        // The sum has n roundings, of which the root halves the effect; six more follow.
        ASSERT_NEAR(y[at], want, std::abs(want) * (n / 2.0 + 6) * kFloatEpsilon + 0x1p-149) << n;
      }
      expect_canaries(y, n);
    }
  }
}

TEST_P(ElementwiseTest, rms_norm_works_in_place) {
  Random random(22);
  const std::vector<float> x = random.floats(77);
  const std::vector<float> w = random.floats(77);
  std::vector<float> apart(77);
  std::vector<float> in_place = x;
  table.rms_norm(x.data(), w.data(), 77, 1e-5f, apart.data());
  table.rms_norm(in_place.data(), w.data(), 77, 1e-5f, in_place.data());
  EXPECT_EQ(in_place, apart);
}

TEST_P(ElementwiseTest, rows_are_weighed_and_added_in_order) {
  Random random(34);
  for (const int rows : {1, 4, 5, 32}) {
    for (const int n : kSizes) {
      const auto width = static_cast<std::size_t>(n), stride = width + 3;
      const std::vector<float> x = random.floats(static_cast<std::size_t>(rows) * stride);
      const std::vector<float> w = random.floats(static_cast<std::size_t>(rows));
      std::vector<const float*> pointers;
      for (int row = 0; row < rows; ++row)
        pointers.push_back(x.data() + static_cast<std::size_t>(row) * stride);
      std::vector<float> sum = with_canaries(std::vector<float>(width, kNan)), relu = sum;
      table.weighted_sum(pointers.data(), w.data(), rows, n, sum.data());
      table.weighted_relu(x.data(), stride, w.data(), rows, n, relu.data());
      for (std::size_t i = 0; i < width; ++i) {
        double want_sum = 0, want_relu = 0, size = 0;
        for (std::size_t row = 0; row < pointers.size(); ++row) {
          const double product =
              static_cast<double>(w[row]) * static_cast<double>(pointers[row][i]);
          want_sum += product;
          want_relu += pointers[row][i] > 0 ? product : 0;
          size += std::abs(product);
        }
        ASSERT_NEAR(sum[i], want_sum, size * (rows + 1) * kFloatEpsilon) << rows << " " << n;
        ASSERT_NEAR(relu[i], want_relu, size * (rows + 1) * kFloatEpsilon) << rows << " " << n;
      }
      expect_canaries(sum, n);
      expect_canaries(relu, n);
      // The same bits however the values are cut.
      if (n > 20) {
        std::vector<float> piece(width - 5);
        table.weighted_relu(x.data() + 5, stride, w.data(), rows, n - 5, piece.data());
        EXPECT_TRUE(std::equal(piece.begin(), piece.end(), relu.begin() + 5));
      }
    }
  }
}

TEST_P(ElementwiseTest, rope_turns_neighbouring_pairs) {
  Random random(23);
  for (const int n : {2, 4, 8, 14, 16, 30, 32, 64, 96, 128}) {
    const std::vector<float> x = random.floats(static_cast<std::size_t>(n));
    std::vector<float> cos(static_cast<std::size_t>(n / 2));
    std::vector<float> sin(static_cast<std::size_t>(n / 2));
    for (std::size_t j = 0; j < cos.size(); ++j) {
      const float angle = random.uniform(-3.0f, 3.0f);
      cos[j] = std::cos(angle);
      sin[j] = std::sin(angle);
    }
    std::vector<float> y = with_canaries(x);
    table.rope_interleaved(y.data(), cos.data(), sin.data(), n);
    for (std::size_t j = 0; j < cos.size(); ++j) {
      const double even = static_cast<double>(x[2 * j]);
      const double odd = static_cast<double>(x[2 * j + 1]);
      const double c = static_cast<double>(cos[j]);
      const double s = static_cast<double>(sin[j]);
      ASSERT_NEAR(y[2 * j], even * c - odd * s, 3 * 2 * kFloatEpsilon) << n;
      ASSERT_NEAR(y[2 * j + 1], odd * c + even * s, 3 * 2 * kFloatEpsilon) << n;
    }
    expect_canaries(y, n);
  }
}

TEST_P(ElementwiseTest, rope_turns_pairs_of_the_two_halves) {
  Random random(27);
  for (const int n : {2, 4, 8, 14, 16, 30, 32, 34, 64, 96, 128}) {
    const auto half = static_cast<std::size_t>(n / 2);
    const std::vector<float> x = random.floats(2 * half);
    std::vector<float> cos(half);
    std::vector<float> sin(half);
    for (std::size_t j = 0; j < half; ++j) {
      const float angle = random.uniform(-3.0f, 3.0f);
      cos[j] = std::cos(angle);
      sin[j] = std::sin(angle);
    }
    std::vector<float> y = with_canaries(x);
    table.rope_half(y.data(), cos.data(), sin.data(), n);
    for (std::size_t j = 0; j < half; ++j) {
      const double a = static_cast<double>(x[j]);
      const double b = static_cast<double>(x[half + j]);
      const double c = static_cast<double>(cos[j]);
      const double s = static_cast<double>(sin[j]);
      ASSERT_NEAR(y[j], a * c - b * s, 3 * 2 * kFloatEpsilon) << n;
      ASSERT_NEAR(y[half + j], b * c + a * s, 3 * 2 * kFloatEpsilon) << n;
    }
    expect_canaries(y, n);
  }
}

TEST_P(ElementwiseTest, add_and_scale_are_exact) {
  Random random(24);
  for (const int n : kSizes) {
    const auto size = static_cast<std::size_t>(n);
    const std::vector<float> x = random.floats(size);
    const std::vector<float> before = random.floats(size);
    std::vector<float> y = with_canaries(before);
    table.add(x.data(), n, y.data());
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(y[i], before[i] + x[i]);
    expect_canaries(y, n);

    y = with_canaries(before);
    table.scale_to_f32(x.data(), 0.3f, n, y.data());
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(y[i], x[i] * 0.3f);
    expect_canaries(y, n);

    std::vector<bf16> halves(size + 16, bf16{0x1234});
    table.scale_to_bf16(x.data(), 0.3f, n, halves.data());
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_EQ(halves[i].bits, bf16::from_float(x[i] * 0.3f).bits);
    for (std::size_t i = size; i < halves.size(); ++i) ASSERT_EQ(halves[i].bits, 0x1234);
  }
}

TEST_P(ElementwiseTest, bf16_rounding_is_that_of_the_type_for_every_upper_half) {
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  std::vector<bf16> y(x.size());
  table.scale_to_bf16(x.data(), 1.0f, static_cast<int>(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bf16 want = bf16::from_float(x[i] * 1.0f);
    ASSERT_EQ(y[i].bits, want.bits) << std::bit_cast<std::uint32_t>(x[i]);
  }
}

TEST_P(ElementwiseTest, widening_bf16_is_exact) {
  Random random(28);
  for (const int n : kSizes) {
    std::vector<bf16> x(static_cast<std::size_t>(n));
    for (bf16& value : x) value = bf16::from_float(random.uniform(-1e3f, 1e3f));
    std::vector<float> y = with_canaries(std::vector<float>(x.size(), kNan));
    table.widen_bf16(x.data(), n, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i].to_float());
    expect_canaries(y, n);
  }
}

// Gates from above only, before the activation; the other factor on both sides.
TEST_P(ElementwiseTest, silu_times_bounds_both_factors) {
  const float gates[] = {40, -40, 3, -10.5f, 1}, ups[] = {-40, 3, 40, -10.5f, -1};
  for (const float limit : {10.0f, kInf}) {
    for (const int n : kSizes) {
      std::vector<float> gate, up;
      for (int i = 0; i < n; ++i) {
        gate.push_back(gates[i % 5]);
        up.push_back(ups[i % 5]);
      }
      const std::vector<float> before = gate;
      gate = with_canaries(gate);
      table.silu_times(up.data(), n, limit, gate.data());
      for (std::size_t i = 0; i < up.size(); ++i) {
        const double g = std::min(double{before[i]}, double{limit});
        const double want = g / (1 + std::exp(-g)) * std::clamp<double>(up[i], -limit, limit);
        ASSERT_NEAR(gate[i], want, std::abs(want) * 12 * kFloatEpsilon + 1e-14) << limit;
      }
      expect_canaries(gate, n);
    }
  }
}

TEST_P(ElementwiseTest, softmax_agrees_with_double_precision) {
  Random random(25);
  for (const int n : kSizes) {
    for (const float spread : {1.0f, 30.0f, 3000.0f}) {
      std::vector<float> x = random.floats(static_cast<std::size_t>(n));
      for (float& value : x) value *= spread;
      const float max = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const float value : x)
        sum += std::exp(static_cast<double>(value) - static_cast<double>(max));
      std::vector<float> y = with_canaries(x);
      table.softmax(y.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double exponent = static_cast<double>(x[i]) - static_cast<double>(max);
        const double want = std::exp(exponent) / sum;
        // The subtraction is rounded, and the exponential makes that a relative error of the
        // result; subnormal results have a fixed one.
        ASSERT_NEAR(y[i], want, want * (std::abs(exponent) + n + 6) * kFloatEpsilon + 0x1p-148)
            << n << " " << spread;
      }
      expect_canaries(y, n);
    }
  }
}

TEST_P(ElementwiseTest, softmax_gives_masked_entries_exactly_zero) {
  std::vector<float> x(37, -kInf);
  x[3] = 1.0f;
  x[35] = 1.0f;
  table.softmax(x.data(), 37);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 3 || i == 35 ? 0.5f : 0.0f);
}

TEST_P(ElementwiseTest, sigmoid_is_within_four_units_in_the_last_place) {
  std::vector<float> x;
  for (float value = -87.0f; value < 87.0f; value += 0.00731f) x.push_back(value);
  for (const float value : {0.0f, 1e-30f, -1e-30f, 0.34657359f, -0.34657359f}) x.push_back(value);
  std::vector<float> y = x;
  table.sigmoid(y.data(), static_cast<int>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(ulps(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i])))), 4) << x[i];
  }
}

TEST_P(ElementwiseTest, sigmoid_of_extremes) {
  std::vector<float> x{-kInf, -3e38f, -1000.0f, 0.0f, 1000.0f, 3e38f, kInf, kNan};
  table.sigmoid(x.data(), static_cast<int>(x.size()));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(x[i], 0.0f);
  EXPECT_EQ(x[3], 0.5f);
  for (std::size_t i = 4; i < 7; ++i) EXPECT_EQ(x[i], 1.0f);
  EXPECT_TRUE(std::isnan(x[7]));
}

TEST_P(ElementwiseTest, a_place_in_the_vector_does_not_change_a_value) {
  Random random(26);
  const std::vector<float> x = random.floats(67);
  std::vector<float> all = x;
  table.sigmoid(all.data(), 67);
  for (std::size_t i = 0; i < x.size(); ++i) {
    float alone = x[i];
    table.sigmoid(&alone, 1);
    ASSERT_EQ(alone, all[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ElementwiseTest, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
