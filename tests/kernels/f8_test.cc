// e4m3 weights: their products have the bits that the widened matrix has in its own format, which
// matmul_test.cc holds against double precision.
#include <algorithm>

#include "kernel_test.h"

namespace glint::test {
namespace {

// A way to multiply e4m3 and the format that its rows are widened to.
struct Way {
  const char* name;
  MatmulKernels KernelTable::* kernels;
  MatmulKernels KernelTable::* wide;
  DType wide_type;
};
constexpr Way kWays[] = {{"bf16", &KernelTable::f8, &KernelTable::bf16, DType::kBf16},
                         {"f32", &KernelTable::f8_f32, &KernelTable::f32, DType::kF32}};

// Random bytes under random scales; rows are `gap` bytes apart, the first at an odd address, the
// last one ends where the memory does.
class F8Matrix {
 public:
  F8Matrix(Random& random, int rows, int cols, int block_rows, int block_cols, int first_row = 0)
      : rows_(rows), cols_(cols), stride_(static_cast<std::size_t>(cols + 3)) {
    bytes_.resize(1 + static_cast<std::size_t>(rows) * stride_ - 3);
    for (std::byte& byte : bytes_) {
      const int bits = random.below(256);
      byte = static_cast<std::byte>((bits & 0x7f) == 0x7f ? bits - 1 : bits);
    }
    const int across = (cols + block_cols - 1) / block_cols;
    const int down = (first_row + rows + block_rows - 1) / block_rows;
    for (int i = 0; i < (across + 1) * down; ++i)
      scales_.push_back(random.uniform(-1.0f, 1.0f) * 0x1p-8f);
    grid_ = {scales_.data(), block_rows, block_cols, static_cast<std::size_t>(across + 1),
             first_row};
  }
  F8Matrix(const F8Matrix&) = delete;
  F8Matrix& operator=(const F8Matrix&) = delete;

  void set(int row, int col, int bits) { bytes_[at(row, col)] = static_cast<std::byte>(bits); }
  float get(int row, int col) const {
    return e4m3_to_float(std::to_integer<std::uint8_t>(bytes_[at(row, col)])) *
           grid_.row(row)[col / grid_.block_cols];
  }
  const std::byte* data() const { return bytes_.data() + 1; }
  std::size_t stride() const { return stride_; }
  const ScaleGrid& grid() const { return grid_; }
  int rows() const { return rows_; }
  int cols() const { return cols_; }

  StoredMatrix widened(DType type) const {
    StoredMatrix wide(rows_, cols_, type);
    for (int row = 0; row < rows_; ++row) {
      for (int col = 0; col < cols_; ++col) wide.set(row, col, get(row, col));
    }
    return wide;
  }

 private:
  std::size_t at(int row, int col) const {
    return 1 + static_cast<std::size_t>(row) * stride_ + static_cast<std::size_t>(col);
  }
  int rows_, cols_;
  std::size_t stride_;
  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
  ScaleGrid grid_;
};

Block pack(const MatmulKernels& kernels, const std::vector<float>& x, int rows, int k) {
  Block packed(kernels.packed_bytes((rows + kRowBlock - 1) / kRowBlock * kRowBlock, k));
  kernels.pack(x.data(), static_cast<std::size_t>(k), nullptr, rows, k, packed.data());
  return packed;
}

// x w^T by calls of `step` columns each.
template <typename Matrix>
std::vector<float> matmul(const MatmulKernels& kernels, const std::vector<float>& x, int rows,
                          int k, const Matrix& w, int n, int step = 1 << 20, float factor = 1) {
  Block packed = pack(kernels, x, rows, k);
  Block scratch(kernels.scratch_bytes(k));
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(n), kNan);
  MatmulArgs a;
  a.x = packed.data();
  a.rows = rows;
  a.k = k;
  a.w = w.data();
  a.w_stride = w.stride();
  if constexpr (requires { w.grid(); }) a.grid = w.grid();
  a.factor = factor;
  a.y = y.data();
  a.y_stride = static_cast<std::size_t>(n);
  a.scratch = scratch.data();
  for (a.n0 = 0; a.n0 < n; a.n0 += step) {
    a.n1 = std::min(n, a.n0 + step);
    kernels.matmul(a);
  }
  return y;
}

std::vector<float> random_rows(Random& random, int rows, int k) {
  return random.floats(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k));
}

using F8Test = KernelTest;

TEST_P(F8Test, products_have_the_bits_of_the_widened_matrix) {
  struct Shape {
    int n, k, block_rows, block_cols, first_row;
  };
  constexpr Shape kShapes[] = {
      {1, 1, 128, 128, 0},      {3, 31, 128, 128, 127}, {17, 200, 128, 128, 5},
      {33, 33, 1, 33, 2},       {70, 96, 71, 96, 0},    {576, 128, 128, 128, 0},
      {45, 576, 128, 128, 100}, {40, 100, 7, 40, 3},    {64, 2048, 128, 128, 64},
      {32, 1100, 16, 64, 0},    {36, 640, 128, 96, 0},  {100, 160, 1, 160, 0}};
  Random random(1);
  for (const Way& way : kWays) {
    for (const Shape& s : kShapes) {
      const F8Matrix w(random, s.n, s.k, s.block_rows, s.block_cols, s.first_row);
      const StoredMatrix wide = w.widened(way.wide_type);
      for (const int rows : {1, 2, 3, 4, 5, 7, 16, 17, 33, 47}) {
        if (static_cast<std::int64_t>(rows) * s.n * s.k > 1000000) continue;
        const std::vector<float> x = random_rows(random, rows, s.k);
        const std::vector<float> want = matmul(table.*way.wide, x, rows, s.k, wide, s.n);
        for (const int step : {1 << 20, 32}) {
          ASSERT_EQ(matmul(table.*way.kernels, x, rows, s.k, w, s.n, step), want)
              << way.name << " n " << s.n << " k " << s.k << " rows " << rows << " step " << step;
        }
      }
    }
  }
}

TEST_P(F8Test, products_agree_with_double_precision) {
  Random random(2);
  const int n = 40, k = 300, rows = 5;
  const F8Matrix w(random, n, k, 16, 128);
  const std::vector<float> x = random_rows(random, rows, k);
  for (const Way& way : kWays) {
    const std::vector<float> y = matmul(table.*way.kernels, x, rows, k, w, n);
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < n; ++col) {
        double value = 0, magnitude = 0;
        for (int i = 0; i < k; ++i) {
          const double term = static_cast<double>(x[static_cast<std::size_t>(row * k + i)]) *
                              static_cast<double>(w.get(col, i));
          value += term;
          magnitude += std::abs(term);
        }
        // Both sides rounded to bf16, or sums of k + 1 roundings.
        const double epsilon =
            way.wide_type == DType::kBf16 ? 2.1 * kBf16Epsilon / 2 : (k + 2) * kFloatEpsilon;
        ASSERT_NEAR(y[static_cast<std::size_t>(row * n + col)], value, magnitude * epsilon)
            << way.name;
      }
    }
  }
}

// Each alone, so that it is seen in one product.
TEST_P(F8Test, every_byte_has_its_value_and_nan_stays_nan) {
  Random random(3);
  const int n = 256, k = 67;
  for (const Way& way : kWays) {
    F8Matrix w(random, n, k, 128, 128);
    for (int row = 0; row < n; ++row) {
      for (int col = 0; col < k; ++col) w.set(row, col, 0);
      w.set(row, row % k, row);
    }
    for (const int rows : {1, 6, 40}) {
      const std::vector<float> x(static_cast<std::size_t>(rows * k), 1.0f);
      const std::vector<float> y = matmul(table.*way.kernels, x, rows, k, w, n);
      for (int row = 0; row < n; ++row) {
        const float value = w.get(row, row % k);
        const float want =
            way.wide_type == DType::kBf16 ? bf16::from_float(value).to_float() : value;
        for (int r = 0; r < rows; ++r) {
          const float got = y[static_cast<std::size_t>(r * n + row)];
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(got)) << way.name << " byte " << row;
          } else {
            ASSERT_EQ(got, want) << way.name << " byte " << row;
          }
        }
      }
    }
  }
}

// Packed hidden values, read back through a product with the identity.
template <typename Matrix>
std::vector<float> gate_up(const MatmulKernels& kernels, const MatmulKernels& reader,
                           DType reader_type, const std::vector<float>& x, int rows, int k,
                           const Matrix& gate, const Matrix& up, int n, int step,
                           float limit = kInf) {
  Block packed = pack(kernels, x, rows, k);
  Block z(kernels.packed_bytes((rows + kRowBlock - 1) / kRowBlock * kRowBlock, n));
  Block scratch(kernels.scratch_bytes(k));
  GateUpArgs a;
  a.x = packed.data();
  a.rows = rows;
  a.k = k;
  a.w_gate = gate.data();
  a.w_up = up.data();
  a.w_stride = gate.stride();
  a.w_up_stride = up.stride();
  if constexpr (requires { gate.grid(); }) {
    a.gate_grid = gate.grid();
    a.up_grid = up.grid();
  }
  a.gate_factor = 1.7f;
  a.up_factor = -0.3f;
  a.limit = limit;
  a.n_total = n;
  a.z = z.data();
  a.scratch = scratch.data();
  for (a.n0 = 0; a.n0 < n; a.n0 += step) {
    a.n1 = std::min(n, a.n0 + step);
    kernels.gate_up(a);
  }
  const StoredMatrix identity = StoredMatrix::identity(n, reader_type);
  Block reading(reader.scratch_bytes(n));
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(n));
  MatmulArgs m;
  m.x = z.data();
  m.rows = rows;
  m.k = n;
  m.w = identity.data();
  m.w_stride = identity.stride();
  m.n1 = n;
  m.y = values.data();
  m.y_stride = static_cast<std::size_t>(n);
  m.scratch = reading.data();
  reader.matmul(m);
  return values;
}

TEST_P(F8Test, gate_and_up_have_the_bits_of_the_widened_matrices) {
  Random random(4);
  for (const Way& way : kWays) {
    const MatmulKernels &kernels = table.*way.kernels, &wide = table.*way.wide;
    for (const int k : {5, 100, 640}) {
      for (const int n : {1, 31, 32, 50, 96}) {
        const F8Matrix gate(random, n, k, 128, 128, 3), up(random, n, k, 1, k);
        const StoredMatrix wide_gate = gate.widened(way.wide_type);
        const StoredMatrix wide_up = up.widened(way.wide_type);
        for (const int rows : {1, 2, 4, 18}) {
          const std::vector<float> x = random_rows(random, rows, k);
          const std::vector<float> want =
              gate_up(wide, wide, way.wide_type, x, rows, k, wide_gate, wide_up, n, 1 << 20);
          for (const int step : {1 << 20, 32}) {
            ASSERT_EQ(gate_up(kernels, wide, way.wide_type, x, rows, k, gate, up, n, step), want)
                << way.name << " n " << n << " k " << k << " rows " << rows << " step " << step;
          }
          if (n != 50 || k == 5) continue;
          const float limit = 0.01f;
          const auto bounded =
              gate_up(kernels, wide, way.wide_type, x, rows, k, gate, up, n, 32, limit);
          ASSERT_NE(bounded, want);
          ASSERT_EQ(bounded, gate_up(wide, wide, way.wide_type, x, rows, k, wide_gate, wide_up, n,
                                     1 << 20, limit))
              << way.name << " k " << k << " rows " << rows;
        }
      }
    }
  }
}

TEST_P(F8Test, a_factor_multiplies_each_product) {
  Random random(5);
  const int n = 45, k = 130, rows = 3;
  const F8Matrix w(random, n, k, 128, 128);
  const std::vector<float> x = random_rows(random, rows, k);
  for (const Way& way : kWays) {
    std::vector<float> want = matmul(table.*way.kernels, x, rows, k, w, n);
    for (float& value : want) value *= 0.37f;
    EXPECT_EQ(matmul(table.*way.kernels, x, rows, k, w, n, 1 << 20, 0.37f), want) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, F8Test, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
