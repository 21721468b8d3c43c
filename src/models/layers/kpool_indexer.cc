#include "models/layers/kpool_indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/integers.h"

namespace glint {
namespace {

constexpr int kTokensPerTask = 16;
constexpr int kQueriesPerTask = kRowBlock;  // so that heads of a task fill whole blocks of rows
constexpr int kPoolsPerTask = 128;
constexpr std::size_t kScoresAtOnce = std::size_t{1} << 22;  // bounds memory, not results

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// A key, then its gate, as float32: what becomes of them is rounded once.
int raw_width(const KpoolDims& dims) {
  return 2 * dims.head_dim;
}

// Positions whose raw rows a sequence remembers.
int num_rows(const KpoolDims& dims) {
  return dims.pool - 1 + kMaxGuesses;
}

std::size_t element_bytes(Compute compute) {
  return compute == Compute::kF32 ? sizeof(float) : sizeof(bf16);
}

// One step, with what it is made of.
struct Indexer {
  const KpoolStep& step;
  const KpoolCache& where;

  const KpoolDims& dims() const { return step.dims; }
  std::span<const SequenceSpan> sequences() const { return where.batch.sequences; }

  // The whole pools up to and with `position`.
  int whole_pools(int position) const {
    return std::max(0, position + 1 - where.origin) / dims().pool;
  }
  // The first pool without a token that is not there.
  int first_pool(const SequenceSpan& sequence) const {
    return ceil_div(std::max(0, sequence.first - where.origin), dims().pool);
  }
  int pool_start(int pool) const { return where.origin + pool * dims().pool; }
  std::byte* pool_key(const SequenceSpan& sequence, int pool) const {
    const int last = pool_start(pool) + dims().pool - 1;
    const std::size_t bytes = size(dims().head_dim) * element_bytes(where.compute);
    return where.cache.rows(sequence.pages[size(last / kPageSize)], where.layer) +
           where.keys_offset + size(last % kPageSize / dims().pool) * bytes;
  }
  // The remembered row of a position.
  float* raw_row(const SequenceSpan& sequence, int position) const {
    GLINT_DCHECK(sequence.state != nullptr);
    return reinterpret_cast<float*>(sequence.state + step.rows_offset) +
           size(position % num_rows(dims())) * size(raw_width(dims()));
  }
  // What a page keeps of the pool that goes on behind it.
  float* page_rows(PageId page) const {
    const CacheSpec& spec = where.cache.spec();
    GLINT_DCHECK(spec.page_model_bytes == kpool_page_bytes(dims()));
    return reinterpret_cast<float*>(where.cache.page_state(page) + spec.page_state_bytes -
                                    spec.page_model_bytes);
  }
};

void norm_key(const KpoolDims& dims, const KpoolWeights& weights, float* key) {
  const int n = dims.head_dim;
  float mean = 0;
  for (int i = 0; i < n; ++i) mean += key[i];
  mean /= static_cast<float>(n);
  float variance = 0;
  for (int i = 0; i < n; ++i) variance += (key[i] - mean) * (key[i] - mean);
  const float factor = 1.0f / std::sqrt(variance / static_cast<float>(n) + dims.key_norm_eps);
  for (int i = 0; i < n; ++i)
    key[i] = (key[i] - mean) * factor * weights.k_norm[size(i)] + weights.k_norm_bias[size(i)];
}

// The key of a pool from the keys and gates of its tokens; each channel is weighed on its own.
void pool_tokens(const KpoolDims& dims, const float* const* keys, const float* const* gates,
                 const float* ape, float* out) {
  for (int c = 0; c < dims.head_dim; ++c) {
    float max = -std::numeric_limits<float>::infinity();
    for (int s = 0; s < dims.pool; ++s)
      max = std::max(max, gates[s][c] + ape[s * dims.head_dim + c]);
    float sum = 0, value = 0;
    for (int s = 0; s < dims.pool; ++s) {
      const float weight = std::exp(gates[s][c] + ape[s * dims.head_dim + c] - max);
      sum += weight;
      value += weight * keys[s][c];
    }
    out[c] = value / sum;
  }
}

// A draft layer's pools are not aligned with pages: who starts at a page finds the pool's beginning
// there.
void take_up_pages(const Indexer& indexer) {
  const KpoolDims& d = indexer.dims();
  if (indexer.where.origin % d.pool == 0) return;
  for (const SequenceSpan& sequence : indexer.sequences()) {
    if (sequence.count == 0 || sequence.start % kPageSize != 0) continue;
    const float* kept = indexer.page_rows(sequence.pages[size(sequence.start / kPageSize - 1)]);
    for (int i = 0; i < d.pool - 1; ++i) {
      std::memcpy(indexer.raw_row(sequence, sequence.start - (d.pool - 1) + i),
                  kept + size(i) * size(raw_width(d)), size(raw_width(d)) * sizeof(float));
    }
  }
}

void remember(const Indexer& indexer, const SequenceSpan& sequence, const float* keys,
              const float* gates) {
  const KpoolDims& d = indexer.dims();
  const std::size_t width = size(d.head_dim);
  const auto copy = [&](int position, float* to) {
    if (position < sequence.start) {
      std::memcpy(to, indexer.raw_row(sequence, position), 2 * width * sizeof(float));
    } else {
      const std::size_t row = size(sequence.begin + position - sequence.start);
      std::memcpy(to, keys + row * width, width * sizeof(float));
      std::memcpy(to + width, gates + row * width, width * sizeof(float));
    }
  };
  const int end = sequence.start + sequence.count;
  if (indexer.where.origin % d.pool != 0) {  // before the rows of this step take their place
    for (int page = sequence.start / kPageSize; page < end / kPageSize; ++page) {
      float* to = indexer.page_rows(sequence.pages[size(page)]);
      const int first = (page + 1) * kPageSize - (d.pool - 1);
      for (int i = 0; i < d.pool - 1; ++i) copy(first + i, to + size(i) * 2 * width);
    }
  }
  for (int position = std::max(sequence.start, end - num_rows(d)); position < end; ++position)
    copy(position, indexer.raw_row(sequence, position));
}

// Bits whose order is that of the values.
std::uint32_t ordered_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// A group of queries of one sequence at work.
struct ScoreGroup {
  const SequenceSpan& sequence;
  int first_row = 0, queries = 0;  // of the batch
  int first_pool = 0, num_pools = 0;
  float* scores = nullptr;  // [queries, num_pools]

  int position(int query) const { return sequence.start + first_row + query - sequence.begin; }
};

void score(Exec& exec, const Indexer& indexer, const ScoreGroup& group, const float* queries,
           const float* weights) {
  Workspace::Scope scope(exec.workspace);
  const KpoolDims& d = indexer.dims();
  const Compute compute = indexer.where.compute;
  const MatmulKernels& kernels = compute == Compute::kF32 ? exec.kernels.f32 : exec.kernels.bf16;
  const Activations packed =
      pack(exec, kernels, queries + size(group.first_row) * size(d.num_heads * d.head_dim),
           size(d.head_dim), group.queries * d.num_heads, d.head_dim);
  const std::size_t key_bytes = size(d.head_dim) * element_bytes(compute);
  const std::size_t keys_bytes = (size(kPoolsPerTask) * key_bytes + 63) / 64 * 64;
  const std::size_t products =
      size(kQueriesPerTask) * size(d.num_heads) * size(kPoolsPerTask) * sizeof(float);
  WorkerScratch scratch(exec, keys_bytes + products + kernels.scratch_bytes(d.head_dim));
  const int query_tasks = ceil_div(group.queries, kQueriesPerTask);
  const int pool_tasks = ceil_div(group.num_pools, kPoolsPerTask);
  exec.pool.run(size(query_tasks * pool_tasks), [&](std::size_t task, int worker) {
    const int query = static_cast<int>(task) / pool_tasks * kQueriesPerTask;
    const int queries_here = std::min(kQueriesPerTask, group.queries - query);
    const int pool = static_cast<int>(task) % pool_tasks * kPoolsPerTask;
    const int pools = std::min(kPoolsPerTask, group.num_pools - pool);
    std::byte* keys = scratch.of(worker);
    auto* y = reinterpret_cast<float*>(keys + keys_bytes);
    for (int i = 0; i < pools; ++i) {
      std::memcpy(keys + size(i) * key_bytes,
                  indexer.pool_key(group.sequence, group.first_pool + pool + i), key_bytes);
    }
    MatmulArgs args;
    args.x = packed.block(query * d.num_heads);
    args.rows = queries_here * d.num_heads;
    args.k = d.head_dim;
    args.w = keys;
    args.w_stride = key_bytes;
    args.n1 = pools;
    args.y = y;
    args.y_stride = size(kPoolsPerTask);
    args.scratch = keys + keys_bytes + products;
    kernels.matmul(args);
    for (int i = 0; i < queries_here; ++i) {
      exec.kernels.weighted_relu(
          y + size(i * d.num_heads) * size(kPoolsPerTask), size(kPoolsPerTask),
          weights + size(group.first_row + query + i) * size(d.num_heads), d.num_heads, pools,
          group.scores + size(query + i) * size(group.num_pools) + pool);
    }
  });
}

void choose(Exec& exec, const Indexer& indexer, const ScoreGroup& group) {
  Workspace::Scope scope(exec.workspace);
  const KpoolSelection& selection = indexer.step.selection;
  const int k = indexer.dims().max_pools();
  WorkerScratch scratch(exec, size(group.num_pools) * sizeof(std::uint64_t));
  exec.pool.run(size(group.queries), [&](std::size_t query, int worker) {
    const std::size_t row = size(group.first_row) + query;
    std::int32_t* out = selection.pools + row * size(k);
    const int visible =
        indexer.whole_pools(group.position(static_cast<int>(query))) - group.first_pool;
    choose_best(group.scores + query * size(group.num_pools), visible, k,
                reinterpret_cast<std::uint64_t*>(scratch.of(worker)), out);
    for (int i = 0; i < k; ++i) out[i] += group.first_pool;
  });
}

}  // namespace

KpoolWeights bind_kpool(TensorBinder& b, const std::string& prefix, const KpoolDims& d) {
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    return b.matrix(prefix + name, rows, cols, MatrixUse::kKept);
  };
  KpoolWeights w;
  w.wq_b = matrix("wq_b.weight", d.num_heads * d.head_dim, d.q_lora_rank);
  w.wk = matrix("wk.weight", d.head_dim, d.hidden_size);
  w.k_norm = b.vector(prefix + "k_norm.weight", d.head_dim);
  w.k_norm_bias = b.vector(prefix + "k_norm.bias", d.head_dim);
  w.weights_proj = matrix("weights_proj.weight", d.num_heads, d.hidden_size);
  w.compress_gate = matrix("index_kpool_compress_gate", d.head_dim, d.hidden_size);
  w.compress_ape = b.values(prefix + "index_kpool_compress_ape", {d.pool, d.head_dim});
  return w;
}

std::uint64_t kpool_parameters(const KpoolDims& d) {
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  return u(d.num_heads) * u(d.head_dim) * u(d.q_lora_rank) +
         (2 * u(d.head_dim) + u(d.num_heads)) * u(d.hidden_size) + (2 + u(d.pool)) * u(d.head_dim);
}

std::size_t KpoolSelection::bytes(const KpoolDims& dims, const Batch& batch) {
  const bool chooses =
      std::any_of(batch.sequences.begin(), batch.sequences.end(),
                  [&](const SequenceSpan& s) { return s.start + s.count > dims.topk; });
  return batch.tokens.size() * (2 + (chooses ? size(dims.max_pools()) : 0)) * sizeof(std::int32_t);
}

KpoolSelection::KpoolSelection(std::size_t tokens, std::byte* memory)
    : count(reinterpret_cast<std::int32_t*>(memory)), tail(count + tokens), pools(tail + tokens) {}

std::size_t kpool_rows_bytes(const KpoolDims& dims) {
  return (size(num_rows(dims)) * size(raw_width(dims)) * sizeof(float) + 63) / 64 * 64;
}

std::size_t kpool_kept_bytes(const KpoolDims& dims) {
  return ((2 + size(dims.max_pools())) * sizeof(std::int32_t) + 63) / 64 * 64;
}

std::size_t kpool_page_bytes(const KpoolDims& dims) {
  return size(dims.pool - 1) * size(raw_width(dims)) * sizeof(float);
}

std::size_t kpool_keys_bytes(const KpoolDims& dims, Compute compute) {
  return size(kPageSize / dims.pool) * size(dims.head_dim) * element_bytes(compute);
}

void kpool_write(Exec& exec, const KpoolStep& step, const KpoolCache& where, float* keys,
                 const float* gates) {
  Workspace::Scope scope(exec.workspace);
  const Indexer indexer{step, where};
  const KpoolDims& d = step.dims;
  const std::size_t width = size(d.head_dim);
  const int tokens = static_cast<int>(where.batch.tokens.size());
  const float* ape = step.weights->compress_ape.data();
  auto* row_sequence = exec.workspace.array<std::int32_t>(size(tokens));
  for (std::size_t s = 0; s < indexer.sequences().size(); ++s) {
    const SequenceSpan& sequence = indexer.sequences()[s];
    std::fill_n(row_sequence + sequence.begin, sequence.count, static_cast<std::int32_t>(s));
  }
  take_up_pages(indexer);
  const std::size_t num_tasks = size(ceil_div(tokens, kTokensPerTask));
  exec.pool.run(num_tasks, [&](std::size_t task, int) {
    const std::size_t first = task * kTokensPerTask;
    for (std::size_t t = first; t < std::min(first + kTokensPerTask, size(tokens)); ++t)
      norm_key(d, *step.weights, keys + t * width);
  });
  WorkerScratch scratch(exec, width * sizeof(float) + 2 * size(d.pool) * sizeof(float*));
  exec.pool.run(num_tasks, [&](std::size_t task, int worker) {
    auto** pool_keys = reinterpret_cast<const float**>(scratch.of(worker));
    const float** pool_gates = pool_keys + d.pool;
    auto* made = reinterpret_cast<float*>(pool_gates + d.pool);
    const std::size_t first = task * kTokensPerTask;
    for (std::size_t t = first; t < std::min(first + kTokensPerTask, size(tokens)); ++t) {
      const SequenceSpan& sequence = indexer.sequences()[size(row_sequence[t])];
      const int position = sequence.start + static_cast<int>(t) - sequence.begin;
      const int pools = indexer.whole_pools(position);
      if (pools == 0 || indexer.pool_start(pools) != position + 1) continue;
      for (int s = 0; s < d.pool; ++s) {
        const int at = position - (d.pool - 1) + s;
        const std::size_t row = size(std::max(0, sequence.begin + at - sequence.start));
        const float* raw = at < sequence.start ? indexer.raw_row(sequence, at) : nullptr;
        pool_keys[s] = raw != nullptr ? raw : keys + row * width;
        pool_gates[s] = raw != nullptr ? raw + width : gates + row * width;
      }
      pool_tokens(d, pool_keys, pool_gates, ape, made);
      std::byte* to = indexer.pool_key(sequence, pools - 1);
      if (where.compute == Compute::kF32) {
        std::memcpy(to, made, width * sizeof(float));
      } else {
        exec.kernels.scale_to_bf16(made, 1.0f, d.head_dim, reinterpret_cast<bf16*>(to));
      }
    }
  });
  for (const SequenceSpan& sequence : indexer.sequences())
    if (sequence.count > 0) remember(indexer, sequence, keys, gates);
}

bool kpool_plan(const KpoolStep& step, const KpoolCache& where) {
  const Indexer indexer{step, where};
  const KpoolSelection& selection = step.selection;
  const int k = step.dims.max_pools();
  bool any = false;
  for (const SequenceSpan& sequence : indexer.sequences()) {
    for (int i = 0; i < sequence.count; ++i) {
      const std::size_t row = size(sequence.begin + i);
      if (step.reuses_kept) {
        const auto* kept =
            reinterpret_cast<const std::int32_t*>(sequence.state + *step.kept_offset);
        selection.count[row] = kept[0];
        selection.tail[row] = kept[1];
        if (kept[0] > 0) std::copy_n(kept + 2, k, selection.pools + row * size(k));
        continue;
      }
      const int whole = indexer.whole_pools(sequence.start + i);
      const bool chooses = whole - indexer.first_pool(sequence) > k;
      selection.count[row] = chooses ? k : KpoolSelection::kEverything;
      selection.tail[row] = indexer.pool_start(whole);
      any = any || chooses;
    }
  }
  return any;
}

void kpool_choose(Exec& exec, const KpoolStep& step, const KpoolCache& where, const float* queries,
                  float* weights) {
  const Indexer indexer{step, where};
  const KpoolDims& d = step.dims;
  // Both scales of the scores; they are positive, so they may follow the bound at zero.
  exec.kernels.scale_to_f32(weights, 1.0f / std::sqrt(static_cast<float>(d.num_heads * d.head_dim)),
                            static_cast<int>(where.batch.tokens.size()) * d.num_heads, weights);
  for (const SequenceSpan& sequence : indexer.sequences()) {
    const int end = sequence.begin + sequence.count;
    int row = sequence.begin;
    while (row < end && step.selection.count[row] == KpoolSelection::kEverything) ++row;
    while (row < end) {
      Workspace::Scope scope(exec.workspace);
      ScoreGroup group{sequence, row, 0, indexer.first_pool(sequence), 0, nullptr};
      const int all_pools =
          indexer.whole_pools(sequence.start + sequence.count - 1) - group.first_pool;
      const int most = std::max(1, static_cast<int>(kScoresAtOnce / size(all_pools)));
      group.queries = std::min(end - row, most);
      group.num_pools = indexer.whole_pools(group.position(group.queries - 1)) - group.first_pool;
      group.scores = exec.workspace.array<float>(size(group.queries) * size(group.num_pools));
      score(exec, indexer, group, queries, weights);
      choose(exec, indexer, group);
      row += group.queries;
    }
  }
}

void kpool_keep(const KpoolStep& step, const KpoolCache& where) {
  const int k = step.dims.max_pools();
  for (const SequenceSpan& sequence : where.batch.sequences) {
    if (sequence.count == 0) continue;
    const std::size_t last = size(sequence.begin + sequence.count - 1);
    auto* kept = reinterpret_cast<std::int32_t*>(sequence.state + *step.kept_offset);
    kept[0] = step.selection.count[last];
    kept[1] = step.selection.tail[last];
    if (kept[0] > 0) std::copy_n(step.selection.pools + last * size(k), k, kept + 2);
  }
}

int kpool_positions(const KpoolStep& step, int origin, int row, int position, std::int32_t* out) {
  const KpoolDims& d = step.dims;
  const KpoolSelection& selection = step.selection;
  const std::int32_t* pools = selection.pools + size(row) * size(d.max_pools());
  int n = 0;
  for (int i = 0; i < selection.count[row]; ++i) {
    for (int s = 0; s < d.pool; ++s) out[n++] = origin + pools[i] * d.pool + s;
  }
  for (int at = selection.tail[row]; at <= position; ++at) out[n++] = at;
  return n;
}

void choose_best(const float* scores, int n, int k, std::uint64_t* scratch, std::int32_t* out) {
  // The bin of the k-th best is found by counting; only its members are compared.
  constexpr int kBins = 2048;
  constexpr int kShift = 21;
  std::int32_t counts[kBins] = {};
  for (int i = 0; i < n; ++i) ++counts[ordered_bits(scores[i]) >> kShift];
  int bin = kBins - 1, left = k;
  for (; counts[bin] < left; --bin) left -= counts[bin];
  const auto rank = [&](int i) {
    return std::uint64_t{ordered_bits(scores[i])} << 32 | ~static_cast<std::uint32_t>(i);
  };
  int members = 0;
  for (int i = 0; i < n; ++i) {
    if (ordered_bits(scores[i]) >> kShift == static_cast<std::uint32_t>(bin))
      scratch[members++] = rank(i);
  }
  std::nth_element(scratch, scratch + left - 1, scratch + members, std::greater<>());
  const std::uint64_t worst = scratch[left - 1];
  for (int i = 0; i < n; ++i) {
    if (rank(i) >= worst) *out++ = i;
  }
}

}  // namespace glint
