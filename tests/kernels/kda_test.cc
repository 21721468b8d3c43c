// Kimi delta attention against the recurrence token by token in double precision, and against
// itself under other cuts.
#include <algorithm>

#include "base/aligned.h"
#include "kernel_test.h"

namespace glint::test {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// Rows of one head, dense.
struct Head {
  int dim, tokens;
  std::vector<float> q, k, v, decay, beta;  // [tokens, dim], beta [tokens]

  // Keys and queries as the L2 norm leaves them, gates within [low, high].
  Head(Random& random, int head_dim, int num_tokens, float low, float high)
      : dim(head_dim), tokens(num_tokens) {
    const std::size_t n = size(dim) * size(tokens);
    q = random.floats(n);
    k = random.floats(n);
    v = random.floats(n);
    for (int t = 0; t < tokens; ++t) {
      const float scale = std::sqrt(3.0f / static_cast<float>(dim));
      for (std::size_t c = 0; c < size(dim); ++c) {
        q[size(t) * size(dim) + c] *= scale / std::sqrt(static_cast<float>(dim));
        k[size(t) * size(dim) + c] *= scale;
      }
      beta.push_back(random.uniform(0.0f, 1.0f));
    }
    for (std::size_t i = 0; i < n; ++i) decay.push_back(std::exp(random.uniform(low, high)));
  }
};

struct Result {
  std::vector<float> o;      // [tokens, dim]
  std::vector<float> state;  // [dim, dim]: after the last whole block
};

// The recurrence: decay, correct, read.
void recur(const Head& h, std::vector<double>& o, std::vector<double>& state_at_block) {
  const std::size_t d = size(h.dim);
  std::vector<double> s(d * d, 0.0);
  state_at_block = s;
  for (std::size_t t = 0; t < size(h.tokens); ++t) {
    const float* k = h.k.data() + t * d;
    std::vector<double> error(d);
    for (std::size_t c = 0; c < d; ++c) {
      for (std::size_t i = 0; i < d; ++i) {
        s[c * d + i] *= double{h.decay[t * d + c]};
        error[i] += double{k[c]} * s[c * d + i];
      }
    }
    for (std::size_t i = 0; i < d; ++i)
      error[i] = double{h.beta[t]} * (double{h.v[t * d + i]} - error[i]);
    std::vector<double> row(d);
    for (std::size_t c = 0; c < d; ++c) {
      for (std::size_t i = 0; i < d; ++i) {
        s[c * d + i] += double{k[c]} * error[i];
        row[i] += double{h.q[t * d + c]} * s[c * d + i];
      }
    }
    o.insert(o.end(), row.begin(), row.end());
    if ((t + 1) % kKdaBlock == 0) state_at_block = s;
  }
}

float* floats_of(Block& block) {
  return reinterpret_cast<float*>(block.data());
}

// One row into its place, zeros behind it.
void put(const float* from, int dim, float* to) {
  std::fill_n(to, kda_width(dim), 0.0f);
  std::copy_n(from, dim, to);
}

// `chunk` rows at a time, blocks at multiples of kKdaBlock.
Result run(const KdaKernels& kernels, const Head& h, int chunk, bool fold_elsewhere = false) {
  const int width = kda_width(h.dim);
  const std::size_t w = size(width);
  Block state(size(h.dim) * w * 4), other(size(h.dim) * w * 4);
  Block k(kKdaBlock * w * 4), decay(kKdaBlock * w * 4), u(kKdaBlock * w * 4);
  Block scratch(kernels.scratch_bytes(h.dim));
  Block *s = &state, *next = fold_elsewhere ? &other : &state;
  std::fill_n(floats_of(*s), size(h.dim) * w, 0.0f);
  Result result;
  for (int at = 0; at < h.tokens;) {
    const int first = at % kKdaBlock;
    const int count = std::min({chunk - at % chunk, kKdaBlock - first, h.tokens - at});
    Block q(size(count) * w * 4), v(size(count) * w * 4), o(size(count) * w * 4);
    for (int r = 0; r < count; ++r) {
      const std::size_t from = size(at + r) * size(h.dim);
      put(h.q.data() + from, h.dim, floats_of(q) + size(r) * w);
      put(h.v.data() + from, h.dim, floats_of(v) + size(r) * w);
      put(h.k.data() + from, h.dim, floats_of(k) + size(first + r) * w);
      put(h.decay.data() + from, h.dim, floats_of(decay) + size(first + r) * w);
    }
    KdaRowsArgs rows;
    rows.head_dim = h.dim;
    rows.first = first;
    rows.count = count;
    rows.s = floats_of(*s);
    rows.k = floats_of(k);
    rows.decay = floats_of(decay);
    rows.q = floats_of(q);
    rows.v = floats_of(v);
    rows.beta = h.beta.data() + at;
    rows.u = floats_of(u);
    rows.o = floats_of(o);
    rows.scratch = scratch.data();
    kernels.rows(rows);
    for (int r = 0; r < count; ++r) {
      const float* row = floats_of(o) + size(r) * w;
      result.o.insert(result.o.end(), row, row + h.dim);
      for (int c = h.dim; c < width; ++c) EXPECT_EQ(row[c], 0.0f);
    }
    at += count;
    if (at % kKdaBlock != 0) continue;
    KdaFoldArgs fold;
    fold.head_dim = h.dim;
    fold.s = floats_of(*s);
    fold.k = floats_of(k);
    fold.decay = floats_of(decay);
    fold.u = floats_of(u);
    fold.out = floats_of(*next);
    fold.scratch = scratch.data();
    kernels.fold(fold);
    std::swap(s, next);
    // A block's rows are not read after it.
    for (Block* rows_of_block : {&k, &decay, &u})
      std::memset(rows_of_block->data(), 0xff, rows_of_block->size());
  }
  for (int c = 0; c < h.dim; ++c) {
    const float* row = floats_of(*s) + size(c) * w;
    result.state.insert(result.state.end(), row, row + h.dim);
  }
  return result;
}

struct Gates {
  float low, high;
};
constexpr Gates kGates[] = {{-5.0f, 0.0f}, {-4.999f, -4.999f}, {-0.01f, 0.0f}, {-90.0f, -80.0f}};

using KdaTest = KernelTest;

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance) << "at " << i;
}

TEST_P(KdaTest, blocks_agree_with_the_recurrence) {
  Random random(71);
  for (const int dim : {16, 24, 128}) {
    for (const int tokens : {1, 3, 15, 16, 17, 63, 64, 65, 200}) {
      for (const Gates& gates : kGates) {
        SCOPED_TRACE(testing::Message() << dim << " x " << tokens << ", gates " << gates.low);
        const Head head(random, dim, tokens, gates.low, gates.high);
        std::vector<double> o, state;
        recur(head, o, state);
        const Result got = run(table.kda, head, tokens);
        // Values and keys of size 1, corrections that do not grow: sums of dim terms, some dozens
        // of which each rounding passes through.
        expect_near(got.o, o, 2 * std::sqrt(dim) * 16 * kFloatEpsilon);
        expect_near(got.state, state, 2 * std::sqrt(dim) * 16 * kFloatEpsilon);
      }
    }
  }
}

TEST_P(KdaTest, chunks_have_the_bits_of_the_whole) {
  Random random(72);
  for (const int dim : {24, 128}) {
    const Head head(random, dim, dim == 24 ? 300 : 70, -5.0f, 0.0f);
    const Result whole = run(table.kda, head, 300);
    for (const int chunk : {64, 63, 5, 1}) {
      const Result cut = run(table.kda, head, chunk, chunk == 63);
      EXPECT_EQ(cut.o, whole.o) << chunk;
      EXPECT_EQ(cut.state, whole.state) << chunk;
    }
  }
}

TEST_P(KdaTest, a_short_convolution_sees_three_rows_back) {
  Random random(73);
  for (const int n : {1, 7, 16, 24, 128}) {
    for (const bool round : {false, true}) {
      constexpr int kRows = 21;
      const std::size_t stride = size(n) + 5;
      const std::vector<float> x = random.floats(kRows * stride);
      const std::vector<float> w = random.floats(kKdaTaps * size(n));
      const auto seen = [&](int row, int c) {
        if (row < 0) return 0.0;
        const float value = x[size(row) * stride + size(c)];
        return static_cast<double>(round ? bf16::from_float(value).to_float() : value);
      };
      std::vector<float> whole;
      for (const int chunk : {kRows, 1, 4}) {
        std::vector<float> history(3 * size(n), 0.0f), y(kRows * stride, 77.0f);
        for (int at = 0; at < kRows; at += chunk) {
          ShortConvArgs a;
          a.x = x.data() + size(at) * stride;
          a.x_stride = stride;
          a.rows = std::min(chunk, kRows - at);
          a.n = n;
          a.round = round;
          a.w = w.data();
          a.w_stride = size(n);
          a.history = history.data();
          a.history_stride = size(n);
          a.y = y.data() + size(at) * stride;
          a.y_stride = stride;
          table.kda.short_conv(a);
        }
        if (chunk == kRows) whole = y;
        ASSERT_EQ(y, whole) << "chunk " << chunk;
        for (int row = 0; row < kRows; ++row) {
          for (int c = 0; c < n; ++c) {
            double sum = 0;
            for (int t = 0; t < kKdaTaps; ++t)
              sum += double{w[size(t) * size(n) + size(c)]} * seen(row + t - 3, c);
            ASSERT_NEAR(y[size(row) * stride + size(c)], sum / (1 + std::exp(-sum)),
                        16 * kFloatEpsilon);
          }
          for (std::size_t c = size(n); c < stride; ++c)
            ASSERT_EQ(y[size(row) * stride + c], 77.0f);
        }
        for (int t = 0; t < 3; ++t) {
          for (int c = 0; c < n; ++c)
            ASSERT_EQ(history[size(t) * size(n) + size(c)], seen(kRows - 3 + t, c));
        }
      }
    }
  }
}

TEST_P(KdaTest, the_lower_bound_of_a_gate_multiplies_a_sigmoid) {
  const float x[] = {-3.0f, 0.0f, 3.0f}, bias[] = {0, 0, 0};
  float y[3];
  table.kda.bounded_decay(x, bias, 3, 1.0f, -5.0f, y);
  const double want[] = {-0.237129, -2.5, -4.762871};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(std::log(y[i]), want[i], 1e-5);
}

TEST_P(KdaTest, decays_agree_with_double_precision) {
  Random random(74);
  std::vector<float> x = random.floats(131), bias = random.floats(131), bounded(131), free(131);
  for (float& value : x) value *= 30.0f;
  x[0] = 1e4f;
  x[1] = -1e4f;
  const float rate = 1.7f;
  table.kda.bounded_decay(x.data(), bias.data(), 131, rate, -5.0f, bounded.data());
  table.kda.softplus_decay(x.data(), bias.data(), 131, rate, free.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = static_cast<double>(x[i] + bias[i]);
    const double g = -5 / (1 + std::exp(-double{rate} * u));
    const double h = -double{rate} * (u > 20 ? u : std::log1p(std::exp(u)));
    // A rounding of the exponent is a relative error of the result.
    ASSERT_NEAR(bounded[i], std::exp(g), 40 * kFloatEpsilon);
    ASSERT_NEAR(free[i], std::exp(h), (4 + 4 * std::abs(h)) * std::exp(h) * kFloatEpsilon + 1e-44);
  }
}

TEST_P(KdaTest, the_l2_norm_has_its_epsilon_inside_the_root) {
  for (const int n : {3, 16, 24, 128}) {
    // Squares that sum to a third of the epsilon: as a maximum or outside the root it would show.
    const float value = std::sqrt(kKdaNormEps / 3 / static_cast<float>(n));
    const std::vector<float> x(size(n), value);
    std::vector<float> y(size(n) + 1, 77.0f);
    table.kda.l2_norm(x.data(), n, 0.25f, y.data());
    const double want = 0.25 * double{value} / std::sqrt(1e-6 / 3 + 1e-6);
    for (int i = 0; i < n; ++i) ASSERT_NEAR(y[size(i)], want, want * 1e-6);
    EXPECT_EQ(y[size(n)], 77.0f);
  }
}

TEST_P(KdaTest, the_output_gate_is_a_sigmoid) {
  std::vector<float> y{1.0f, 1.0f, 1.0f, -2.0f};
  const float gate[] = {-3.0f, 0.0f, 3.0f, 3.0f};
  table.kda.sigmoid_times(gate, 3, y.data());
  EXPECT_NEAR(y[0], 0.047426, 1e-6);
  EXPECT_EQ(y[1], 0.5f);
  EXPECT_NEAR(y[2], 0.952574, 1e-6);
  EXPECT_EQ(y[3], -2.0f);
}

INSTANTIATE_TEST_SUITE_P(Isas, KdaTest, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
