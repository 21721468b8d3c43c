// Low-bit weights: the products of every block type and table, their activations, and what becomes
// of the results.
#include "tensor/panel.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernel_test.h"
#include "kernels/int8_rows.h"
#include "low_bit_matrix.h"

namespace glint::test {
namespace {

// One of the two ways that a table multiplies low-bit weights.
struct Way {
  const char* name;
  MatmulKernels KernelTable::* kernels;
  PanelProduct (KernelTable::*products)[kNumBlockTypes];
};
constexpr Way kWays[] = {{"int8", &KernelTable::int8, &KernelTable::panel_int8},
                         {"wide", &KernelTable::panel_f32, &KernelTable::panel_wide}};

// What w and its stride and source are in arguments.
struct Operand {
  const std::byte* w;
  std::size_t stride;
  PanelSource source;
};

Operand as_panels(const KernelTable& table, const Way& way, LowBitMatrix& m) {
  return {m.panels(), m.panel_stride(), {(table.*way.products)[index_of(m.type())], nullptr}};
}

Operand as_rows(const KernelTable& table, const Way& way, LowBitMatrix& m) {
  return {m.rows(),
          m.row_stride(),
          {(table.*way.products)[index_of(m.type())], table.pack_panel[index_of(m.type())]}};
}

// Whole blocks of packed rows, as the operations allocate them.
Block pack(const MatmulKernels& kernels, const std::vector<float>& x, int rows, int k) {
  Block packed(kernels.packed_bytes((rows + kRowBlock - 1) / kRowBlock * kRowBlock, k));
  kernels.pack(x.data(), size(k), nullptr, rows, k, packed.data());
  return packed;
}

MatmulArgs arguments(const void* x, int rows, int k, const Operand& w, int n0, int n1,
                     std::vector<float>& y, std::size_t y_stride, Block& scratch) {
  MatmulArgs a;
  a.x = x;
  a.rows = rows;
  a.k = k;
  a.w = w.w;
  a.w_stride = w.stride;
  a.source = w.source;
  a.n0 = n0;
  a.n1 = n1;
  a.y = y.data();
  a.y_stride = y_stride;
  a.scratch = scratch.data();
  return a;
}

std::vector<float> matmul(const MatmulKernels& kernels, Block& x, int rows, int k, const Operand& w,
                          int n) {
  std::vector<float> y(size(rows) * size(n), kNan);
  Block scratch(kernels.scratch_bytes(k));
  kernels.matmul(arguments(x.data(), rows, k, w, 0, n, y, size(n), scratch));
  return y;
}

// Activations of many magnitudes, with some blocks of zeros.
std::vector<float> activations(Random& random, int rows, int k) {
  std::vector<float> x = random.floats(size(rows) * size(k));
  for (std::size_t i = 0; i < x.size(); i += 32) {
    const float factor = random.below(8) == 0 ? 0.0f : std::ldexp(1.0f, random.below(12) - 6);
    for (std::size_t j = i; j < std::min(i + 32, x.size()); ++j) x[j] *= factor;
  }
  return x;
}

// One packed int8 row.
struct Int8Values {
  std::vector<int> q;
  std::vector<float> scales;
  std::vector<int> sums32, sums16;

  Int8Values(const void* packed, int k, int row) {
    const int lane = row % kInt8Rows;
    for (int block = 0; block < int8_blocks(k); ++block) {
      const Int8Chunk& chunk = int8_chunk(packed, k, row, block);
      q.insert(q.end(), std::begin(chunk.q[lane]), std::end(chunk.q[lane]));
      for (const auto& scale : chunk.scale) scales.push_back(scale[lane]);
      for (const auto& sums : chunk.sum32) sums32.push_back(sums[lane]);
      for (const auto& sums : chunk.sum16) sums16.push_back(sums[lane]);
    }
  }
  float value(std::size_t i) const { return static_cast<float>(q[i]) * scales[i / kInt8Group]; }
  bool operator==(const Int8Values&) const = default;
};

void expect_sums_and_padding(const Int8Values& row, int k) {
  for (std::size_t i = size(k); i < row.q.size(); ++i) ASSERT_EQ(row.q[i], 0) << i;
  for (std::size_t g = 0; g < row.sums16.size(); ++g) {
    int sum = 0;
    for (std::size_t i = 16 * g; i < 16 * g + 16; ++i) sum += row.q[i];
    ASSERT_EQ(row.sums16[g], sum) << g;
  }
  for (std::size_t g = 0; g < row.sums32.size(); ++g)
    ASSERT_EQ(row.sums32[g], row.sums16[2 * g] + row.sums16[2 * g + 1]) << g;
}

// One packed float32 row with its padding.
std::vector<float> f32_row(const std::byte* packed, int k, int row) {
  std::vector<float> values(size((k + kPanelStep - 1) / kPanelStep * kPanelStep));
  const std::size_t bytes = values.size() * sizeof(float);
  std::memcpy(values.data(), packed + size(row) * bytes, bytes);
  return values;
}

class PanelTest : public KernelTest {
 protected:
  void expect_gated(const Way& way, Random& random, LowBitMatrix& gate, LowBitMatrix& up, int rows,
                    float limit);
  const KernelTable& scalar = kernel_table(Isa::kScalar);
};

TEST_P(PanelTest, every_type_has_its_kernels) {
  for (const DType type : block_types()) {
    SCOPED_TRACE(dtype_name(type));
    EXPECT_NE(table.panel_int8[index_of(type)], nullptr);
    EXPECT_NE(table.panel_wide[index_of(type)], nullptr);
    EXPECT_NE(table.pack_panel[index_of(type)], nullptr);
  }
  EXPECT_EQ(table.int8.hidden_block, kInt8Block);
  EXPECT_EQ(table.panel_f32.hidden_block % kPanelStep, 0);
}

// Widths in elements for blocks of 32, 64 and 256, in part no whole number of int8 blocks.
std::vector<int> widths(DType type) {
  switch (block_size(type).elements) {
    case 32:
      return {32, 96, 416, 1024};
    case 64:
      return {64, 192, 448, 1024};
    default:
      return {256, 768, 1280};
  }
}

// A product of the scalar table, which all others are held against.
struct ScalarProduct {
  static constexpr int kRows = 33, kColumns = 100;
  LowBitMatrix weights;
  std::vector<float> x, y;

  ScalarProduct(Random& random, DType type, int k)
      : weights(random, type, kColumns, k), x(activations(random, kRows, k)) {
    const KernelTable& scalar = kernel_table(Isa::kScalar);
    Block packed = pack(scalar.int8, x, kRows, k);
    y = matmul(scalar.int8, packed, kRows, k, as_panels(scalar, kWays[0], weights), kColumns);
  }
};

// One for each type and width; slow, so made once.
std::vector<ScalarProduct>& scalar_products() {
  static std::vector<ScalarProduct> products = [] {
    std::vector<ScalarProduct> made;
    Random random(1);
    for (const DType type : block_types()) {
      for (const int k : widths(type)) made.emplace_back(random, type, k);
    }
    return made;
  }();
  return products;
}

TEST_P(PanelTest, int8_products_have_the_bits_of_the_scalar_table) {
  for (ScalarProduct& want : scalar_products()) {
    const int k = want.weights.k();
    for (const int rows : {1, 2, 3, 5, 8, 16, 17, 33}) {
      Block x = pack(table.int8, want.x, rows, k);
      for (const int n : {1, 16, 17, 48, 100}) {
        if (GetParam() == Isa::kScalar && rows * n > 300) continue;
        const std::vector<float> y =
            matmul(table.int8, x, rows, k, as_panels(table, kWays[0], want.weights), n);
        for (int row = 0; row < rows; ++row) {
          for (int c = 0; c < n; ++c) {
            ASSERT_EQ(y[size(row * n + c)], want.y[size(row * ScalarProduct::kColumns + c)])
                << dtype_name(want.weights.type()) << " k " << k << " rows " << rows << " n " << n
                << " at " << row << ", " << c;
          }
        }
      }
    }
  }
}

// All of them at the ends of their range at once: whole-number sums are as large as they get.
TEST_P(PanelTest, the_largest_codes_and_activations_have_the_bits_of_the_scalar_table) {
  Random random(12);
  for (const DType type : block_types()) {
    const int k = widths(type)[1], rows = 5, n = 16;
    std::vector<float> x(size(rows * k), 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t row = i / size(k), column = i % size(k);
      if (row == 1 || (row == 2 && column % 2 != 0) || (row == 3 && column % 8 < 4)) x[i] = -1.0f;
    }
    for (const int byte : {0x00, 0x07, 0x70, 0x77, 0x7f, 0x80, 0x88, 0xf0, 0xff}) {
      LowBitMatrix m(random, type, n, k, byte);
      for (const int used : {1, rows}) {
        Block mine = pack(table.int8, x, used, k), theirs = pack(scalar.int8, x, used, k);
        ASSERT_EQ(matmul(table.int8, mine, used, k, as_panels(table, kWays[0], m), n),
                  matmul(scalar.int8, theirs, used, k, as_panels(scalar, kWays[0], m), n))
            << dtype_name(type) << " byte " << byte << " rows " << used;
      }
    }
  }
}

// Whether two packed matrices hold the same; rows that were not packed may differ.
void expect_same_rows(const Way& way, Block& a, Block& b, int rows, int k) {
  SCOPED_TRACE(std::string(way.name) + " k " + std::to_string(k));
  for (int row = 0; row < rows; ++row) {
    if (way.kernels == &KernelTable::int8) {
      ASSERT_EQ(Int8Values(a.data(), k, row), Int8Values(b.data(), k, row)) << row;
    } else {
      ASSERT_EQ(f32_row(a.data(), k, row), f32_row(b.data(), k, row)) << row;
    }
  }
}

// sum x w with the magnitude that rounding errors are proportional to. Weights with a minimum are
// sums that may cancel, so a weight counts as the largest around it.
struct Product {
  double value = 0, magnitude = 0;
};
Product product(std::span<const float> x, std::span<const float> w) {
  Product p;
  for (std::size_t i = 0; i < x.size(); ++i) {
    float largest = 0;
    for (std::size_t j = i / 16 * 16; j < i / 16 * 16 + 16; ++j)
      largest = std::max(largest, std::abs(w[j]));
    p.value += static_cast<double>(x[i]) * static_cast<double>(w[i]);
    p.magnitude += 4.0 * std::abs(static_cast<double>(x[i])) * static_cast<double>(largest);
  }
  return p;
}

TEST_P(PanelTest, int8_products_agree_with_double_precision) {
  Random random(2);
  for (const DType type : block_types()) {
    const int k = widths(type)[2], rows = 3, n = 21;
    LowBitMatrix m(random, type, n, k);
    Block packed = pack(table.int8, activations(random, rows, k), rows, k);
    const std::vector<float> y =
        matmul(table.int8, packed, rows, k, as_panels(table, kWays[0], m), n);
    for (int row = 0; row < rows; ++row) {
      const Int8Values values(packed.data(), k, row);
      std::vector<float> x(size(k));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = values.value(i);
      for (int c = 0; c < n; ++c) {
        const Product want = product(x, m.row(c));
        // A rounding for each group's scale and each addition of a group, in two levels.
        ASSERT_NEAR(y[size(row * n + c)], want.value, want.magnitude * 40 * kFloatEpsilon)
            << dtype_name(type) << " at " << row << ", " << c;
      }
    }
  }
}

TEST_P(PanelTest, wide_products_agree_with_double_precision) {
  Random random(3);
  for (const DType type : block_types()) {
    for (const int k : {widths(type)[0], widths(type)[2]}) {
      for (const int rows : {1, 3, 17}) {
        const int n = rows < 8 ? 33 : 1;
        LowBitMatrix m(random, type, n, k);
        const std::vector<float> x = activations(random, rows, k);
        Block packed = pack(table.panel_f32, x, rows, k);
        const std::vector<float> y =
            matmul(table.panel_f32, packed, rows, k, as_panels(table, kWays[1], m), n);
        for (int c = 0; c < n; ++c) {
          const std::vector<float> w = m.row(c);
          for (int row = 0; row < rows; ++row) {
            const Product want = product({x.data() + row * k, size(k)}, w);
            ASSERT_NEAR(y[size(row * n + c)], want.value, want.magnitude * (k + 4) * kFloatEpsilon)
                << dtype_name(type) << " k " << k << " rows " << rows << " at " << row << ", " << c;
          }
        }
      }
    }
  }
}

// More rows than a driver hands to a product at once, and a row alone.
TEST_P(PanelTest, one_row_alone_gives_the_bits_it_gives_among_others) {
  Random random(4);
  for (const Way& way : kWays) {
    const MatmulKernels& kernels = table.*way.kernels;
    for (const DType type : {DType::kQ8_0, DType::kQ2_K, DType::kQ4_K, DType::kIQ4_NL}) {
      const int k = widths(type)[0], n = 19, most = 300;
      LowBitMatrix m(random, type, n, k);
      const std::vector<float> x = activations(random, most, k);
      Block packed = pack(kernels, x, most, k);
      const std::vector<float> all = matmul(kernels, packed, most, k, as_panels(table, way, m), n);
      for (const int rows : {1, 2, 4, 7, 16, 40}) {
        for (const int first : {0, 121, 260}) {
          const std::vector<float> part(x.begin() + first * k, x.begin() + (first + rows) * k);
          Block alone = pack(kernels, part, rows, k);
          const std::vector<float> y = matmul(kernels, alone, rows, k, as_panels(table, way, m), n);
          ASSERT_TRUE(std::equal(y.begin(), y.end(), all.begin() + first * n))
              << way.name << " " << dtype_name(type) << ", rows " << first << " to "
              << first + rows;
        }
      }
    }
  }
}

TEST_P(PanelTest, rows_of_blocks_give_the_bits_of_panels) {
  Random random(5);
  for (const Way& way : kWays) {
    const MatmulKernels& kernels = table.*way.kernels;
    for (const DType type : block_types()) {
      const int k = widths(type)[1], n = 41;
      LowBitMatrix m(random, type, n, k);
      for (const int rows : {1, 19}) {
        Block packed = pack(kernels, activations(random, rows, k), rows, k);
        ASSERT_EQ(matmul(kernels, packed, rows, k, as_rows(table, way, m), n),
                  matmul(kernels, packed, rows, k, as_panels(table, way, m), n))
            << way.name << " " << dtype_name(type) << " rows " << rows;
      }
    }
  }
}

TEST_P(PanelTest, panels_are_packed_as_the_format_says) {
  Random random(6);
  for (const DType type : block_types()) {
    for (const int k : widths(type)) {
      for (const int n : {1, 15, 16}) {
        LowBitMatrix m(random, type, n, k);
        Block panel(m.panel_stride());
        table.pack_panel[index_of(type)](m.rows(), m.row_stride(), n, size(k), panel.data());
        ASSERT_EQ(std::memcmp(panel.data(), m.panels(), panel.size()), 0)
            << dtype_name(type) << " k " << k << " rows " << n;
      }
    }
  }
}

TEST_P(PanelTest, splitting_columns_and_row_blocks_keeps_the_bits) {
  Random random(7);
  for (const Way& way : kWays) {
    const MatmulKernels& kernels = table.*way.kernels;
    const int k = 160, n = 171, rows = 21;
    LowBitMatrix m(random, DType::kQ5_1, n, k);
    Block packed = pack(kernels, activations(random, rows, k), rows, k);
    const Operand w = as_panels(table, way, m);
    const std::vector<float> whole = matmul(kernels, packed, rows, k, w, n);
    for (const int step : {32, 64, 96}) {
      std::vector<float> y(whole.size(), kNan);
      Block scratch(kernels.scratch_bytes(k));
      for (int n0 = 0; n0 < n; n0 += step) {
        for (int row = 0; row < rows; row += kRowBlock) {
          MatmulArgs a = arguments(packed.data() + kernels.packed_bytes(row, k),
                                   std::min(kRowBlock, rows - row), k, w, n0,
                                   std::min(n, n0 + step), y, size(n), scratch);
          a.y += row * n;
          kernels.matmul(a);
        }
      }
      ASSERT_EQ(y, whole) << way.name << " step " << step;
    }
  }
}

TEST_P(PanelTest, results_are_scaled_added_and_scattered_and_nothing_else_is_written) {
  Random random(8);
  for (const Way& way : kWays) {
    const MatmulKernels& kernels = table.*way.kernels;
    const int k = 256, n = 45, rows = 9;
    const std::size_t stride = 50;
    LowBitMatrix m(random, DType::kQ6_K, n, k);
    Block packed = pack(kernels, random.floats(size(rows * k)), rows, k);
    const Operand w = as_panels(table, way, m);
    const std::vector<float> plain = matmul(kernels, packed, rows, k, w, n);
    const std::vector<float> scale = random.floats(rows);
    const std::int32_t y_rows[rows] = {4, 0, 11, 2, 7, 1, 10, 9, 5};
    for (int options = 0; options < 16; ++options) {
      const bool scatter = (options & 1) != 0, scaled = (options & 2) != 0;
      const bool accumulate = (options & 4) != 0;
      const float factor = (options & 8) != 0 ? 0.37f : 1.0f;
      std::vector<float> y = random.floats(12 * stride);
      std::vector<float> want = y;
      Block scratch(kernels.scratch_bytes(k));
      MatmulArgs a = arguments(packed.data(), rows, k, w, 32, n, y, stride, scratch);
      if (scatter) a.y_rows = y_rows;
      if (scaled) a.row_scale = scale.data();
      a.accumulate = accumulate;
      a.factor = factor;
      kernels.matmul(a);
      for (int row = 0; row < rows; ++row) {
        for (int c = 32; c < n; ++c) {
          float value = plain[size(row * n + c)] * factor;
          if (scaled) value = value * scale[size(row)];
          float& to = want[size(scatter ? y_rows[row] : row) * stride + size(c)];
          to = accumulate ? to + value : value;
        }
      }
      ASSERT_EQ(y, want) << way.name << " options " << options;
    }
  }
}

TEST_P(PanelTest, activations_are_packed_as_the_scalar_table_packs_them) {
  Random random(9);
  const std::int32_t index[18] = {1, 6, 0, 0, 2, 5, 4, 3, 6, 6, 1, 2, 3, 0, 5, 4, 2, 1};
  for (const int k : {1, 31, 32, 100, 128, 416, 1024}) {
    const std::vector<float> x = activations(random, 7, k);
    for (const int rows : {1, 5, 18}) {
      for (const Way& way : kWays) {
        const MatmulKernels& kernels = table.*way.kernels;
        const std::size_t bytes = kernels.packed_bytes(rows, k);
        ASSERT_EQ(bytes, (scalar.*way.kernels).packed_bytes(rows, k));
        Block packed(bytes), want(bytes);
        kernels.pack(x.data(), size(k), index, rows, k, packed.data());
        (scalar.*way.kernels).pack(x.data(), size(k), index, rows, k, want.data());
        expect_same_rows(way, packed, want, rows, k);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PanelTest, int8_activations_are_rounded_to_nearest_even_with_sums_and_zero_padding) {
  Random random(10);
  for (const int k : {1, 100, 128, 200, 1024}) {
    std::vector<float> x = activations(random, 1, k);
    // The largest is 127: the scale is 1, and halves are halfway between two whole numbers.
    const float marks[] = {127.0f, 0.5f, 1.5f, -2.5f, -3.5f, 0.49f};
    for (std::size_t i = 0; i < std::min(std::size(marks), x.size()); ++i) x[i] = marks[i];
    Block packed = pack(table.int8, x, 1, k);
    const Int8Values row(packed.data(), k, 0);
    const int want[] = {127, 0, 2, -2, -4, 0};
    for (std::size_t i = 0; i < std::min(std::size(marks), x.size()); ++i)
      EXPECT_EQ(row.q[i], want[i]) << k << ", " << i;
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(row.value(i), x[i], 0.5001f * row.scales[i / kInt8Group]) << k << ", " << i;
    expect_sums_and_padding(row, k);
  }
}

TEST_P(PanelTest, odd_activations_are_packed_to_something) {
  const float tiny = 0x1p-140f;
  for (const float odd : {kNan, -kNan, kInf, -kInf, tiny}) {
    std::vector<float> x(256, 0.25f);
    std::fill_n(x.begin(), 128, odd == tiny ? tiny : 1.0f);
    x[5] = odd;
    Block packed = pack(table.int8, x, 1, 256);
    const Int8Values row(packed.data(), 256, 0);
    expect_sums_and_padding(row, 256);
    for (std::size_t i = 128; i < 256; ++i) EXPECT_EQ(row.q[i], 127) << odd;
    if (odd == tiny) {
      for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(row.value(i), 0.0f);
    }
  }
}

TEST_P(PanelTest, packed_blocks_of_sixteen_rows_are_equally_long) {
  for (const Way& way : kWays) {
    const MatmulKernels& kernels = table.*way.kernels;
    for (const int k : {32, 96, 1024}) {
      for (int blocks = 0; blocks < 4; ++blocks) {
        EXPECT_EQ(kernels.packed_bytes(blocks * kRowBlock, k),
                  size(blocks) * kernels.packed_bytes(kRowBlock, k));
      }
    }
  }
}

constexpr float kGateFactor = 1.7f, kUpFactor = -0.3f;

// z, packed, by calls of `step` columns each.
Block gate_up(const MatmulKernels& kernels, Block& x, int rows, int k, const Operand& gate,
              const Operand& up, int n, int step, float limit) {
  Block z(kernels.packed_bytes((rows + kRowBlock - 1) / kRowBlock * kRowBlock, n));
  Block scratch(kernels.scratch_bytes(k));
  GateUpArgs a;
  a.x = x.data();
  a.rows = rows;
  a.k = k;
  a.w_gate = gate.w;
  a.w_up = up.w;
  a.w_stride = gate.stride;
  a.w_up_stride = up.stride;
  a.gate_source = gate.source;
  a.up_source = up.source;
  a.gate_factor = kGateFactor;
  a.up_factor = kUpFactor;
  a.limit = limit;
  a.n_total = n;
  a.z = z.data();
  a.scratch = scratch.data();
  for (a.n0 = 0; a.n0 < n; a.n0 += step) {
    a.n1 = std::min(n, a.n0 + step);
    kernels.gate_up(a);
  }
  return z;
}

// Row `row` of packed z as floats, and the error that packing may have added to each.
void unpack(const Way& way, const std::byte* z, int n, int row, std::vector<float>& values,
            std::vector<float>& errors) {
  if (way.kernels != &KernelTable::int8) {
    values = f32_row(z, n, row);
    errors.assign(values.size(), 0);
    for (std::size_t i = size(n); i < values.size(); ++i) ASSERT_EQ(values[i], 0.0f) << i;
    return;
  }
  const Int8Values packed(z, n, row);
  expect_sums_and_padding(packed, n);
  values.resize(size(n));
  errors.resize(size(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = packed.value(i);
    errors[i] = 0.501f * packed.scales[i / kInt8Group];
  }
}

// Below it silu may be 0: its exponential is out of range.
constexpr double kSiluSmallest = 1e-30;

// That z of one shape is silu(gate) * up, both bounded, however its columns are cut and wherever up
// lies.
void PanelTest::expect_gated(const Way& way, Random& random, LowBitMatrix& gate, LowBitMatrix& up,
                             int rows, float limit) {
  const MatmulKernels& kernels = table.*way.kernels;
  const int k = gate.k(), n = gate.n();
  const Operand g = as_panels(table, way, gate), u = as_panels(table, way, up);
  Block x = pack(kernels, random.floats(size(rows * k)), rows, k);
  Block z = gate_up(kernels, x, rows, k, g, u, n, 1024, limit);
  Block parts = gate_up(kernels, x, rows, k, g, u, n, kernels.hidden_block, limit);
  expect_same_rows(way, z, parts, rows, n);
  Block on_the_way = gate_up(kernels, x, rows, k, g, as_rows(table, way, up), n, 1024, limit);
  expect_same_rows(way, z, on_the_way, rows, n);

  const std::vector<float> gates = matmul(kernels, x, rows, k, g, n);
  const std::vector<float> ups = matmul(kernels, x, rows, k, u, n);
  std::vector<float> values, errors;
  for (int row = 0; row < rows; ++row) {
    unpack(way, z.data(), n, row, values, errors);
    for (int c = 0; c < n; ++c) {
      const double value = std::min(gates[size(row * n + c)] * kGateFactor, limit);
      const double factor = std::clamp(ups[size(row * n + c)] * kUpFactor, -limit, limit);
      const double want = value / (1 + std::exp(-value)) * factor;
      ASSERT_NEAR(values[size(c)], want,
                  std::abs(want) * 12 * kFloatEpsilon + errors[size(c)] + kSiluSmallest)
          << row << ", " << c;
    }
  }
}

TEST_P(PanelTest, gate_and_up_are_fused_and_packed) {
  struct Shape {
    DType gate, up;
    int k, n, rows;
  };
  const Shape shapes[] = {
      {DType::kQ4_K, DType::kQ4_K, 256, 1, 1},     {DType::kQ4_K, DType::kIQ2_XS, 512, 31, 5},
      {DType::kMXFP4, DType::kQ8_0, 96, 128, 1},   {DType::kQ5_1, DType::kQ4_0, 96, 150, 18},
      {DType::kIQ4_NL, DType::kQ5_1, 32, 300, 18}, {DType::kQ8_0, DType::kQ4_1, 32, 50, 140},
      {DType::kUint4H, DType::kInt8F, 96, 40, 3}};
  Random random(11);
  for (const Way& way : kWays) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(std::string(way.name) + " n " + std::to_string(shape.n));
      LowBitMatrix gate(random, shape.gate, shape.n, shape.k);
      LowBitMatrix up(random, shape.up, shape.n, shape.k);
      // Bounds that some products exceed and some do not, in every other shape.
      expect_gated(way, random, gate, up, shape.rows, shape.rows % 2 == 0 ? 0.5f : kInf);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, PanelTest, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
