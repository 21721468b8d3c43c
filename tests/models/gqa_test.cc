// Grouped-query attention at the released widths and over several spans of keys, which the tiny
// golden checkpoints do not reach: against naive loops, and against itself under other cuts.
#include "models/layers/gqa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "golden.h"
#include "kernels/isa.h"

namespace glint {
namespace {

constexpr int kTokens = 270;  // two spans, five pages
constexpr float kEps = 1e-5f;

struct Fixture {
  GqaDims dims{48, 24, 2, 128, 64, kEps};
  GqaWeights weights;
  std::vector<float> input_norm;
  std::vector<float> x;  // [kTokens, hidden]

  Fixture() {
    weights.q_proj = matrix(dims.q_width(), dims.hidden_size);
    weights.k_proj = matrix(dims.kv_width(), dims.hidden_size);
    weights.v_proj = matrix(dims.kv_width(), dims.hidden_size);
    weights.o_proj = matrix(dims.hidden_size, dims.q_width());
    weights.q_proj_bias = floats(dims.q_width(), 1);
    weights.k_proj_bias = floats(dims.kv_width(), 1);
    weights.v_proj_bias = floats(dims.kv_width(), 1);
    weights.q_norm = floats(dims.head_dim, 2);
    weights.k_norm = floats(dims.head_dim, 2);
    input_norm = floats(dims.hidden_size, 1);
    x = floats(kTokens * dims.hidden_size, 1);
  }

 private:
  std::vector<float> floats(int n, float scale) {
    std::uniform_real_distribution<float> value(-scale, scale);
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = value(engine_);
    return out;
  }
  Weight matrix(int rows, int cols) {
    const auto values = floats(rows * cols, 1.0f / std::sqrt(static_cast<float>(cols)));
    AlignedBuffer buffer(values.size() * sizeof(bf16));
    for (std::size_t i = 0; i < values.size(); ++i)
      buffer.as<bf16>()[i] = bf16::from_float(values[i]);
    return Weight::own(QuantFormat::kBf16, static_cast<std::size_t>(rows),
                       static_cast<std::size_t>(cols), std::move(buffer));
  }
  std::mt19937 engine_{5};
};

std::vector<double> normed(const double* x, const std::vector<float>& w) {
  double squares = 0;
  for (std::size_t i = 0; i < w.size(); ++i) squares += x[i] * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(w.size()) + double{kEps});
  std::vector<double> y(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) y[i] = x[i] * factor * double{w[i]};
  return y;
}

std::vector<double> times(const std::vector<double>& x, const Weight& w,
                          const std::vector<float>& bias) {
  std::vector<float> row(w.cols());
  std::vector<double> y(w.rows(), 0.0);
  for (std::size_t n = 0; n < w.rows(); ++n) {
    decode_row(w, n, row);
    for (std::size_t k = 0; k < w.cols(); ++k) y[n] += x[k] * double{row[k]};
    if (!bias.empty()) y[n] += double{bias[n]};
  }
  return y;
}

// Norm and rope of each head of a row, as the paper has them.
void finish_heads(const GqaDims& d, const std::vector<float>& norm, int position,
                  std::vector<double>& row) {
  const auto width = static_cast<std::size_t>(d.head_dim);
  const auto half = static_cast<std::size_t>(d.rotary_dim / 2);
  for (std::size_t head = 0; head < row.size(); head += width) {
    std::vector<double> y = normed(row.data() + head, norm);
    std::copy(y.begin(), y.end(), row.begin() + static_cast<std::ptrdiff_t>(head));
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = position * std::pow(1e4, -static_cast<double>(j) / double(half));
      row[head + j] = y[j] * std::cos(angle) - y[half + j] * std::sin(angle);
      row[head + half + j] = y[half + j] * std::cos(angle) + y[j] * std::sin(angle);
    }
  }
}

struct NaiveRow {
  std::vector<double> q, k, v;
};

NaiveRow project(const Fixture& f, int token) {
  const auto d = static_cast<std::size_t>(f.dims.hidden_size);
  const float* x = f.x.data() + static_cast<std::size_t>(token) * d;
  const std::vector<double> in = normed(std::vector<double>(x, x + d).data(), f.input_norm);
  NaiveRow row{times(in, f.weights.q_proj, f.weights.q_proj_bias),
               times(in, f.weights.k_proj, f.weights.k_proj_bias),
               times(in, f.weights.v_proj, f.weights.v_proj_bias)};
  finish_heads(f.dims, f.weights.q_norm, token, row.q);
  finish_heads(f.dims, f.weights.k_norm, token, row.k);
  return row;
}

// The output row of the last of `rows`.
std::vector<double> naive_attention(const Fixture& f, const std::vector<NaiveRow>& rows) {
  const auto width = static_cast<std::size_t>(f.dims.head_dim);
  std::vector<double> context(static_cast<std::size_t>(f.dims.q_width()), 0.0);
  for (int head = 0; head < f.dims.num_heads; ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * width;
    const std::size_t shared = static_cast<std::size_t>(head / f.dims.group()) * width;
    std::vector<double> weights;
    for (const NaiveRow& row : rows) {
      double score = 0;
      for (std::size_t i = 0; i < width; ++i) score += rows.back().q[at + i] * row.k[shared + i];
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t key = 0; key < rows.size(); ++key) {
      for (std::size_t i = 0; i < width; ++i)
        context[at + i] += weights[key] / sum * rows[key].v[shared + i];
    }
  }
  return times(context, f.weights.o_proj, {});
}

struct Cut {
  int threads = 1;
  int chunk = kTokens;
  int companions = 0;  // copies of the sequence in the same steps
};

// The layer's output for every token; the cut says how the work is shared out.
std::vector<float> run(const Fixture& f, Isa isa, Compute compute, const Cut& cut) {
  ThreadPool pool(cut.threads);
  Workspace workspace;
  Exec exec{kernel_table(isa), pool, workspace};
  const std::size_t element = compute == Compute::kF32 ? sizeof(float) : sizeof(bf16);
  Cache cache({"kv_heads", 2, static_cast<std::size_t>(f.dims.cache_width()) * element}, 64, false);
  const auto d = static_cast<std::size_t>(f.dims.hidden_size);
  const std::vector<float> frequencies = rope_frequencies(1e4, f.dims.rotary_dim);
  std::vector<SequenceCache> caches;
  for (int i = 0; i <= cut.companions; ++i) caches.push_back(cache.start({}));
  std::vector<float> out;
  for (int first = 0; first < kTokens; first += cut.chunk) {
    const int count = std::min(cut.chunk, kTokens - first);
    std::vector<SequenceSpan> spans;
    std::vector<float> x, y(caches.size() * static_cast<std::size_t>(count) * d);
    for (SequenceCache& sequence : caches) {
      EXPECT_TRUE(sequence.reserve(count).has_value());
      spans.push_back(
          {static_cast<int>(spans.size()) * count, count, sequence.length(), sequence.pages()});
      const auto at =
          f.x.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * d);
      x.insert(x.end(), at, at + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * d));
    }
    const std::vector<std::int32_t> tokens(spans.size() * static_cast<std::size_t>(count), 0);
    const Batch batch{tokens, spans, {}};
    Workspace::Scope scope(workspace);
    const RopeAngles rope = rope_angles(exec, batch, frequencies);
    gqa_attention(exec, f.dims, f.weights, f.input_norm, kEps,
                  {batch, cache, 1, rope, CacheRows{.compute = compute}.elements()}, x.data(),
                  y.data());
    for (SequenceCache& sequence : caches)
      sequence.commit(std::vector<std::int32_t>(static_cast<std::size_t>(count), 0));
    // The last copy stands for them all: it is the one whose rows lie furthest from the start.
    out.insert(out.end(),
               y.end() - static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * d), y.end());
  }
  return out;
}

class Gqa : public testing::TestWithParam<Isa> {};

TEST_P(Gqa, agrees_with_naive_loops_in_double_precision) {
  const Fixture f;
  const auto f32 = run(f, GetParam(), Compute::kF32, {});
  const auto bf16 = run(f, GetParam(), Compute::kBf16, {});
  std::vector<NaiveRow> rows;
  for (int token = 0; token < kTokens; ++token) {
    rows.push_back(project(f, token));
    if (token > 1 && token < 254 && token % 50 != 0) continue;
    if (token > 258 && token < kTokens - 1) continue;
    const auto want = naive_attention(f, rows);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(token) * want.size() + i;
      ASSERT_NEAR(f32[at], want[i], 1e-5) << "token " << token;
      // Outputs of about 0.3 from values that were rounded to 8 bits three times.
      ASSERT_NEAR(bf16[at], want[i], 0.01) << "token " << token;
    }
  }
}

TEST_P(Gqa, results_have_the_same_bits_however_the_work_is_cut) {
  const Fixture f;
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    const auto want = run(f, GetParam(), compute, {});
    for (const Cut& cut : {Cut{3, kTokens, 0}, Cut{1, 64, 0}, Cut{3, 65, 2}, Cut{2, 11, 1}})
      EXPECT_EQ(run(f, GetParam(), compute, cut), want)
          << cut.threads << " threads, " << cut.chunk << " at a time, " << cut.companions;
  }
}

TEST_P(Gqa, norms_and_biases_are_optional) {
  Fixture with;
  for (auto* values :
       {&with.weights.q_proj_bias, &with.weights.k_proj_bias, &with.weights.v_proj_bias})
    std::fill(values->begin(), values->end(), 0.0f);
  Fixture without;
  without.weights.q_proj_bias.clear();
  without.weights.k_proj_bias.clear();
  without.weights.v_proj_bias.clear();
  EXPECT_EQ(run(without, GetParam(), Compute::kF32, {}), run(with, GetParam(), Compute::kF32, {}));
  without.weights.q_norm.clear();
  without.weights.k_norm.clear();
  EXPECT_NE(run(without, GetParam(), Compute::kF32, {}), run(with, GetParam(), Compute::kF32, {}));
}

std::string param_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

INSTANTIATE_TEST_SUITE_P(Isas, Gqa, testing::ValuesIn(golden::tested_isas()), param_name);

}  // namespace
}  // namespace glint
