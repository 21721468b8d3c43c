#include <algorithm>

#include "kernel_test.h"

namespace glint::test {
namespace {

struct Format {
  const char* name;
  MatmulKernels KernelTable::* kernels;
  DType weights;
  bool bf16_activations;
};
constexpr Format kFormats[] = {{"bf16", &KernelTable::bf16, DType::kBf16, true},
                               {"bf16_f32", &KernelTable::bf16_f32, DType::kBf16, false},
                               {"f32", &KernelTable::f32, DType::kF32, false},
                               {"f16", &KernelTable::f16, DType::kF16, true},
                               {"f16_f32", &KernelTable::f16_f32, DType::kF16, false}};

float activation(const Format& format, float value) {
  return format.bf16_activations ? bf16::from_float(value).to_float() : value;
}

Block pack(const MatmulKernels& kernels, const std::vector<float>& x, int rows, int k,
           const std::int32_t* row_index = nullptr) {
  Block packed(kernels.packed_bytes(rows, k));
  kernels.pack(x.data(), static_cast<std::size_t>(k), row_index, rows, k, packed.data());
  return packed;
}

MatmulArgs arguments(const void* x, int rows, int k, const StoredMatrix& w, int n0, int n1,
                     float* y, std::size_t y_stride, Block& scratch) {
  MatmulArgs a;
  a.x = x;
  a.rows = rows;
  a.k = k;
  a.w = w.data();
  a.w_stride = w.stride();
  a.n0 = n0;
  a.n1 = n1;
  a.y = y;
  a.y_stride = y_stride;
  a.scratch = scratch.data();
  return a;
}

std::vector<float> matmul(const MatmulKernels& kernels, const void* x, int rows, int k,
                          const StoredMatrix& w, int n) {
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(n), kNan);
  Block scratch(kernels.scratch_bytes(k));
  kernels.matmul(arguments(x, rows, k, w, 0, n, y.data(), static_cast<std::size_t>(n), scratch));
  return y;
}

// sum |x w|: what the rounding error of a product is proportional to.
struct Product {
  double value = 0;
  double magnitude = 0;
};
Product product(const Format& format, const float* x, const StoredMatrix& w, int n, int k) {
  Product p;
  for (int i = 0; i < k; ++i) {
    const double term =
        static_cast<double>(activation(format, x[i])) * static_cast<double>(w.get(n, i));
    p.value += term;
    p.magnitude += std::abs(term);
  }
  return p;
}
// k products and k additions, each rounded once, in whatever order.
double product_tolerance(const Product& p, int k) {
  return p.magnitude * (k + 1) * kFloatEpsilon;
}

using MatmulTest = KernelTest;

TEST_P(MatmulTest, every_shape_agrees_with_double_precision) {
  Random random(1);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {1, 3, 8, 17, 31, 32, 40, 96, 576, 2048}) {
      for (const int n : {1, 3, 17, 32, 33, 576}) {
        const std::size_t misalignment = 1;  // a header of odd length before the tensors
        const StoredMatrix w =
            StoredMatrix::random(random, n, k, format.weights, n % 3, misalignment);
        for (const int rows : {1, 2, 3, 5, 16, 17, 33, 64}) {
          if (static_cast<std::int64_t>(rows) * k * n > 1200000) continue;
          const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * k));
          Block packed = pack(kernels, x, rows, k);
          const std::vector<float> y = matmul(kernels, packed.data(), rows, k, w, n);
          for (int row = 0; row < rows; ++row) {
            for (int col = 0; col < n; ++col) {
              const Product want = product(format, x.data() + row * k, w, col, k);
              ASSERT_NEAR(y[static_cast<std::size_t>(row * n + col)], want.value,
                          product_tolerance(want, k))
                  << format.name << " rows " << rows << " k " << k << " n " << n << " at " << row
                  << ", " << col;
            }
          }
        }
      }
    }
  }
}

TEST_P(MatmulTest, one_row_alone_gives_the_bits_it_gives_among_others) {
  Random random(2);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {17, 96, 576, 1600}) {
      const int n = 67;
      const StoredMatrix w = StoredMatrix::random(random, n, k, format.weights);
      const int most = 40;
      const std::vector<float> x = random.floats(static_cast<std::size_t>(most * k));
      Block packed = pack(kernels, x, most, k);
      const std::vector<float> all = matmul(kernels, packed.data(), most, k, w, n);
      for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17}) {
        for (const int first : {0, 7, 23}) {
          const std::vector<float> part(x.begin() + first * k, x.begin() + (first + rows) * k);
          Block alone = pack(kernels, part, rows, k);
          const std::vector<float> y = matmul(kernels, alone.data(), rows, k, w, n);
          ASSERT_TRUE(std::equal(y.begin(), y.end(), all.begin() + first * n))
              << format.name << " k " << k << ", rows " << first << " to " << first + rows;
        }
      }
    }
  }
}

TEST_P(MatmulTest, splitting_columns_and_row_blocks_keeps_the_bits) {
  Random random(3);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {40, 1100}) {
      const int n = 171;
      const int rows = 41;
      const StoredMatrix w = StoredMatrix::random(random, n, k, format.weights);
      const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * k));
      Block packed = pack(kernels, x, rows, k);
      const std::vector<float> whole = matmul(kernels, packed.data(), rows, k, w, n);
      for (const int step : {32, 64, 96}) {
        std::vector<float> y(whole.size(), kNan);
        Block scratch(kernels.scratch_bytes(k));
        for (int n0 = 0; n0 < n; n0 += step) {
          for (int row = 0; row < rows; row += kRowBlock) {
            kernels.matmul(arguments(packed.data() + kernels.packed_bytes(row, k),
                                     std::min(kRowBlock, rows - row), k, w, n0,
                                     std::min(n, n0 + step), y.data() + row * n,
                                     static_cast<std::size_t>(n), scratch));
          }
        }
        ASSERT_EQ(y, whole) << format.name << " k " << k << " step " << step;
      }
    }
  }
}

TEST_P(MatmulTest, results_are_scaled_added_and_scattered_and_nothing_else_is_written) {
  Random random(4);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    const int k = 48;
    const int n = 45;
    const int rows = 9;
    const std::size_t stride = 50;
    const StoredMatrix w = StoredMatrix::random(random, n, k, format.weights);
    const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * k));
    Block packed = pack(kernels, x, rows, k);
    const std::vector<float> plain = matmul(kernels, packed.data(), rows, k, w, n);
    const std::vector<float> scale = random.floats(rows);
    const std::int32_t y_rows[rows] = {4, 0, 11, 2, 7, 1, 10, 9, 5};
    for (int options = 0; options < 16; ++options) {
      const bool scatter = (options & 1) != 0;
      const bool scaled = (options & 2) != 0;
      const bool accumulate = (options & 4) != 0;
      const float factor = (options & 8) != 0 ? 0.37f : 1.0f;
      const std::vector<float> before = random.floats(12 * stride);
      std::vector<float> y = before;
      Block scratch(kernels.scratch_bytes(k));
      MatmulArgs a = arguments(packed.data(), rows, k, w, 32, n, y.data(), stride, scratch);
      if (scatter) a.y_rows = y_rows;
      if (scaled) a.row_scale = scale.data();
      a.accumulate = accumulate;
      a.factor = factor;
      kernels.matmul(a);
      std::vector<float> want = before;
      for (int row = 0; row < rows; ++row) {
        for (int col = 32; col < n; ++col) {
          float value = plain[static_cast<std::size_t>(row * n + col)] * factor;
          if (scaled) value = value * scale[static_cast<std::size_t>(row)];
          float& to = want[static_cast<std::size_t>(scatter ? y_rows[row] : row) * stride +
                           static_cast<std::size_t>(col)];
          to = accumulate ? to + value : value;
        }
      }
      ASSERT_EQ(y, want) << format.name << " options " << options;
    }
  }
}

TEST_P(MatmulTest, packing_gathers_rows_rounds_to_nearest_even_and_zeroes_the_padding) {
  Random random(5);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {1, 5, 31, 33, 64}) {
      // 1 + 2^-8 and 1 + 3 2^-8 lie halfway between two bfloat16.
      std::vector<float> x = random.floats(static_cast<std::size_t>(6 * k));
      x[0] = 1.0f + 0x1p-8f;
      x[static_cast<std::size_t>(k)] = 1.0f + 3 * 0x1p-8f;
      x[static_cast<std::size_t>(2 * k)] = -3.0e38f;
      const std::int32_t index[5] = {1, 5, 0, 0, 2};
      Block packed = pack(kernels, x, 5, k, index);
      const StoredMatrix identity = StoredMatrix::identity(k, format.weights);
      const std::vector<float> y = matmul(kernels, packed.data(), 5, k, identity, k);
      for (int row = 0; row < 5; ++row) {
        for (int i = 0; i < k; ++i) {
          ASSERT_EQ(y[static_cast<std::size_t>(row * k + i)],
                    activation(format, x[static_cast<std::size_t>(index[row] * k + i)]))
              << format.name << " k " << k << " row " << row << " element " << i;
        }
      }
    }
  }
}

TEST_P(MatmulTest, packed_blocks_of_sixteen_rows_are_equally_long) {
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {1, 17, 576}) {
      for (int blocks = 0; blocks < 5; ++blocks) {
        EXPECT_EQ(kernels.packed_bytes(blocks * kRowBlock, k),
                  static_cast<std::size_t>(blocks) * kernels.packed_bytes(kRowBlock, k));
      }
      EXPECT_LE(kernels.packed_bytes(3, k), kernels.packed_bytes(kRowBlock, k));
    }
  }
}

// z is packed, so it is read back through a product with the identity.
std::vector<float> gate_up(const MatmulKernels& kernels, const void* x, int rows, int k,
                           const StoredMatrix& gate, const StoredMatrix& up, int n, int step,
                           DType weights, float gate_factor = 1, float up_factor = 1,
                           float limit = kInf) {
  Block z(kernels.packed_bytes(rows, n));
  Block scratch(kernels.scratch_bytes(k));
  GateUpArgs a;
  a.x = x;
  a.rows = rows;
  a.k = k;
  a.w_gate = gate.data();
  a.w_up = up.data();
  a.w_stride = gate.stride();
  a.gate_factor = gate_factor;
  a.up_factor = up_factor;
  a.limit = limit;
  a.n_total = n;
  a.z = z.data();
  a.scratch = scratch.data();
  for (a.n0 = 0; a.n0 < n; a.n0 += step) {
    a.n1 = std::min(n, a.n0 + step);
    kernels.gate_up(a);
  }
  return matmul(kernels, z.data(), rows, n, StoredMatrix::identity(n, weights), n);
}

TEST_P(MatmulTest, gate_and_up_are_fused_and_packed) {
  Random random(6);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    for (const int k : {3, 40, 600}) {
      for (const int n : {1, 31, 32, 50, 96, 112}) {
        const StoredMatrix gate = StoredMatrix::random(random, n, k, format.weights, 3, 2);
        const StoredMatrix up = StoredMatrix::random(random, n, k, format.weights, 3, 2);
        for (const int rows : {1, 2, 7, 18}) {
          const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * k));
          Block packed = pack(kernels, x, rows, k);
          const std::vector<float> z =
              gate_up(kernels, packed.data(), rows, k, gate, up, n, n, format.weights);
          ASSERT_EQ(gate_up(kernels, packed.data(), rows, k, gate, up, n, 32, format.weights), z);
          for (int row = 0; row < rows; ++row) {
            for (int col = 0; col < n; ++col) {
              const Product g = product(format, x.data() + row * k, gate, col, k);
              const Product u = product(format, x.data() + row * k, up, col, k);
              const double silu = g.value / (1 + std::exp(-g.value));
              // |silu'| <= 1.1; the exponential and three more operations round a few times; then
              // bfloat16 once.
              double tolerance =
                  1.1 * product_tolerance(g, k) * (std::abs(u.value) + product_tolerance(u, k)) +
                  std::abs(silu) * product_tolerance(u, k) +
                  12 * kFloatEpsilon * std::abs(silu * u.value);
              if (format.bf16_activations)
                tolerance += kBf16Epsilon * (std::abs(silu * u.value) + tolerance);
              ASSERT_NEAR(z[static_cast<std::size_t>(row * n + col)], silu * u.value, tolerance)
                  << format.name << " rows " << rows << " k " << k << " n " << n << " at " << row
                  << ", " << col;
            }
          }
        }
      }
    }
  }
}

// Factors that are powers of two may as well be in the weights.
TEST_P(MatmulTest, gate_and_up_have_factors) {
  Random random(7);
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    const int k = 40, n = 70, rows = 5;
    StoredMatrix gate = StoredMatrix::random(random, n, k, format.weights);
    StoredMatrix up = StoredMatrix::random(random, n, k, format.weights);
    Block packed = pack(kernels, random.floats(static_cast<std::size_t>(kRowBlock * k)), rows, k);
    const std::vector<float> by_factor =
        gate_up(kernels, packed.data(), rows, k, gate, up, n, 32, format.weights, 0.5f, 4.0f);
    for (int row = 0; row < n; ++row) {
      for (int col = 0; col < k; ++col) {
        gate.set(row, col, gate.get(row, col) * 0.5f);
        up.set(row, col, up.get(row, col) * 4.0f);
      }
    }
    EXPECT_EQ(gate_up(kernels, packed.data(), rows, k, gate, up, n, 32, format.weights), by_factor)
        << format.name;
  }
}

// Gates from above only, before the activation; the other factor on both sides.
TEST_P(MatmulTest, gate_and_up_are_bounded) {
  struct Case {
    float gate, up, bounded, unbounded;
  };
  constexpr float kSilu3 = 2.8577224f, kSilu10 = 9.9995460f;
  const Case cases[] = {{40, -40, -10 * kSilu10, -1600},
                        {-40, 3, 0, 0},
                        {3, 40, 10 * kSilu3, 40 * kSilu3},
                        {10, 10, 10 * kSilu10, 10 * kSilu10},
                        {3, -2, -2 * kSilu3, -2 * kSilu3}};
  const int n = 70, rows = 18;
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    StoredMatrix gate(n, 1, format.weights), up(n, 1, format.weights);
    for (int i = 0; i < n; ++i) {
      gate.set(i, 0, cases[i % 5].gate / 2);
      up.set(i, 0, cases[i % 5].up * 4);
    }
    Block packed = pack(kernels, std::vector<float>(rows, 1.0f), rows, 1);
    for (const bool bounded : {true, false}) {
      const std::vector<float> z = gate_up(kernels, packed.data(), rows, 1, gate, up, n, 32,
                                           format.weights, 2.0f, 0.25f, bounded ? 10.0f : kInf);
      for (std::size_t i = 0; i < z.size(); ++i) {
        const Case& c = cases[i % std::size_t{n} % 5];
        const float want = bounded ? c.bounded : c.unbounded;
        ASSERT_NEAR(z[i], want,
                    std::abs(want) * (format.bf16_activations ? kBf16Epsilon : 1e-6) + 1e-14)
            << format.name << " at " << i;
      }
    }
  }
}

TEST_P(MatmulTest, silu_is_safe_for_large_gates) {
  for (const Format& format : kFormats) {
    const MatmulKernels& kernels = table.*format.kernels;
    const float largest = format.weights == DType::kF16 ? 57344.0f : 1e38f;
    const float gates[] = {-largest, -1000.0f, -90.0f, 0.0f, 90.0f, 1000.0f, largest};
    const int n = 7;
    StoredMatrix gate(n, 1, format.weights);
    StoredMatrix up(n, 1, format.weights);
    for (int i = 0; i < n; ++i) {
      gate.set(i, 0, gates[i]);
      up.set(i, 0, 1.0f);
    }
    Block packed = pack(kernels, {1.0f}, 1, 1);
    const std::vector<float> z =
        gate_up(kernels, packed.data(), 1, 1, gate, up, n, n, format.weights);
    for (int i = 0; i < 3; ++i)
      EXPECT_NEAR(z[static_cast<std::size_t>(i)], 0.0f, 1e-35) << format.name << gates[i];
    EXPECT_EQ(z[3], 0.0f);
    for (int i = 4; i < 7; ++i)
      EXPECT_EQ(z[static_cast<std::size_t>(i)], gate.get(i, 0)) << format.name << gates[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, MatmulTest, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
