#include "models/layers/hyper.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/integers.h"
#include "ops/matmul.h"

namespace glint {
namespace {

constexpr int kTokensAtOnce = 256;  // bounds the memory of a step, not its results
constexpr int kTokensPerTask = 4;
constexpr int kRowsPerPiece = 8;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// Calls work(token, worker) for each of them.
template <typename Work>
void for_tokens(Exec& exec, int tokens, const Work& work) {
  exec.pool.run(size(ceil_div(tokens, kTokensPerTask)), [&](std::size_t task, int worker) {
    const int first = static_cast<int>(task) * kTokensPerTask;
    for (int t = first; t < std::min(first + kTokensPerTask, tokens); ++t) work(size(t), worker);
  });
}

// m [tokens, mixes] = fn(norm(h)).
void project(Exec& exec, const HyperDims& dims, const HyperWeights& weights, const float* h,
             int tokens, float* m) {
  Workspace::Scope scope(exec.workspace);
  auto* ones = exec.workspace.array<float>(size(dims.width()));
  std::fill_n(ones, dims.width(), 1.0f);
  auto* projections = exec.workspace.array<Projection>(weights.fn.size());
  std::size_t row = 0;
  for (std::size_t i = 0; i < weights.fn.size(); ++i) {
    projections[i] = {&weights.fn[i], m + row, size(dims.mixes())};
    row += weights.fn[i].rows();
  }
  norm_project(exec, Compute::kF32, h, size(dims.width()), ones, dims.norm_eps, tokens,
               dims.width(), {projections, weights.fn.size()});
}

// Makes a matrix [from, to] of any values nearly doubly stochastic, after Sinkhorn and Knopp.
void balance(const HyperDims& dims, float* comb) {
  const int n = dims.streams;
  const auto divide_columns = [&] {
    for (int to = 0; to < n; ++to) {
      float sum = dims.eps;
      for (int from = 0; from < n; ++from) sum += comb[from * n + to];
      for (int from = 0; from < n; ++from) comb[from * n + to] /= sum;
    }
  };
  for (int from = 0; from < n; ++from) {
    float* row = comb + from * n;
    const float max = *std::max_element(row, row + n);
    float sum = 0;
    for (int to = 0; to < n; ++to) sum += row[to] = std::exp(row[to] - max);
    for (int to = 0; to < n; ++to) row[to] = row[to] / sum + dims.eps;
  }
  divide_columns();
  for (int round = 1; round < dims.iterations; ++round) {
    for (int from = 0; from < n; ++from) {
      float* row = comb + from * n;
      float sum = dims.eps;
      for (int to = 0; to < n; ++to) sum += row[to];
      for (int to = 0; to < n; ++to) row[to] /= sum;
    }
    divide_columns();
  }
}

// What a token's products `m` [mixes] say: of reading in place, of writing and mixing to post and
// comb.
void finish_weights(const KernelTable& table, const HyperDims& dims, const HyperWeights& weights,
                    float* m, float* post, float* comb) {
  const int n = dims.streams;
  for (int i = 0; i < dims.mixes(); ++i)
    m[i] = m[i] * weights.scale[size(i < n ? 0 : i < 2 * n ? 1 : 2)] + weights.base[size(i)];
  table.sigmoid(m, 2 * n);
  for (int i = 0; i < n; ++i) {
    m[i] += dims.eps;
    post[i] = dims.post_multiplier * m[n + i];
  }
  std::copy_n(m + 2 * n, n * n, comb);
  balance(dims, comb);
}

}  // namespace

HyperWeights bind_hyper(TensorBinder& binder, const std::string& prefix, const HyperDims& dims) {
  HyperWeights w;
  const Weight fn = binder.matrix(prefix + "fn", dims.mixes(), dims.width(), MatrixUse::kKept);
  const int piece =
      fn.format() == QuantFormat::kPanels ? static_cast<int>(kPanelRows) : kRowsPerPiece;
  for (int row = 0; row < dims.mixes() && !fn.empty(); row += piece)
    w.fn.push_back(fn.slice_rows(size(row), size(std::min(row + piece, dims.mixes()))));
  w.base = binder.vector(prefix + "base", dims.mixes());
  w.scale = binder.vector(prefix + "scale", 3);
  return w;
}

std::uint64_t hyper_parameters(const HyperDims& dims) {
  return static_cast<std::uint64_t>(dims.mixes()) * (static_cast<std::uint64_t>(dims.width()) + 1) +
         3;
}

HyperMix allocate_mix(Exec& exec, const HyperDims& dims, int tokens) {
  return {exec.workspace.array<float>(size(tokens) * size(dims.streams)),
          exec.workspace.array<float>(size(tokens) * size(dims.streams * dims.streams))};
}

void hyper_collapse(Exec& exec, const HyperDims& dims, const HyperWeights& weights, const float* h,
                    int tokens, const HyperMix& mix, float* x) {
  const std::size_t n = size(dims.streams), d = size(dims.hidden_size), mixes = size(dims.mixes());
  for (int first = 0; first < tokens; first += kTokensAtOnce) {
    Workspace::Scope scope(exec.workspace);
    const int count = std::min(kTokensAtOnce, tokens - first);
    const float* from = h + size(first) * n * d;
    auto* m = exec.workspace.array<float>(size(count) * mixes);
    auto* streams = exec.workspace.array<const float*>(size(count) * n);
    project(exec, dims, weights, from, count, m);
    for_tokens(exec, count, [&](std::size_t t, int) {
      const std::size_t token = size(first) + t;
      finish_weights(exec.kernels, dims, weights, m + t * mixes, mix.post + token * n,
                     mix.comb + token * n * n);
      for (std::size_t i = 0; i < n; ++i) streams[t * n + i] = from + (t * n + i) * d;
      exec.kernels.weighted_sum(streams + t * n, m + t * mixes, dims.streams, dims.hidden_size,
                                x + token * d);
    });
  }
}

void hyper_expand(Exec& exec, const HyperDims& dims, const HyperMix& mix, const float* y,
                  int tokens, float* h) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t n = size(dims.streams), d = size(dims.hidden_size);
  // Of one worker: the rows that new streams of a token are made of, their weights, the streams.
  WorkerScratch scratch(exec, (n + 1) * (sizeof(float*) + sizeof(float)) + n * d * sizeof(float));
  for_tokens(exec, tokens, [&](std::size_t t, int worker) {
    auto** rows = reinterpret_cast<const float**>(scratch.of(worker));
    auto* weights = reinterpret_cast<float*>(rows + n + 1);
    float* made = weights + n + 1;
    float* streams = h + t * n * d;
    rows[0] = y + t * d;
    for (std::size_t from = 0; from < n; ++from) rows[from + 1] = streams + from * d;
    for (std::size_t to = 0; to < n; ++to) {
      weights[0] = mix.post[t * n + to];
      for (std::size_t from = 0; from < n; ++from)
        weights[from + 1] = mix.comb[(t * n + from) * n + to];
      exec.kernels.weighted_sum(rows, weights, dims.streams + 1, dims.hidden_size, made + to * d);
    }
    std::memcpy(streams, made, n * d * sizeof(float));
  });
}

void hyper_spread(Exec& exec, const HyperDims& dims, const float* x, int tokens, float* h) {
  const std::size_t n = size(dims.streams), d = size(dims.hidden_size);
  for_tokens(exec, tokens, [&](std::size_t t, int) {
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(h + (t * n + i) * d, x + t * d, d * sizeof(float));
  });
}

void hyper_mean(Exec& exec, const HyperDims& dims, const float* h, int tokens, float* x) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t n = size(dims.streams), d = size(dims.hidden_size);
  auto* weights = exec.workspace.array<float>(n);
  auto* streams = exec.workspace.array<const float*>(size(tokens) * n);
  std::fill_n(weights, n, 1.0f / static_cast<float>(dims.streams));
  for_tokens(exec, tokens, [&](std::size_t t, int) {
    for (std::size_t i = 0; i < n; ++i) streams[t * n + i] = h + (t * n + i) * d;
    exec.kernels.weighted_sum(streams + t * n, weights, dims.streams, dims.hidden_size, x + t * d);
  });
}

}  // namespace glint
