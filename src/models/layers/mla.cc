#include "models/layers/mla.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/integers.h"
#include "ops/attention.h"

namespace glint {
namespace {

constexpr std::size_t kExpandedBytes = std::size_t{64}
                                       << 20;  // keys and values of the heads expanded at a time

static_assert(kPageSize == kAttendPage);

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}
// Everything one call passes between its steps.
struct Mla {
  Exec& exec;
  const MlaDims& dims;
  const MlaWeights& weights;
  const MlaStep& step;
  float* q;     // [tokens, heads, qk_head_dim], rope applied
  float* kv;    // [tokens, cache_width], before norm and rope
  float* attn;  // [tokens, heads, v_head_dim]

  int tokens() const { return static_cast<int>(step.batch.tokens.size()); }
  std::size_t element_bytes() const { return step.rows.element_bytes(); }
  std::size_t row_bytes() const { return step.rows.bytes(dims.cache_width()); }
  // n values as elements.
  void store(const float* x, int n, std::byte* out) const {
    step.rows.store_elements(exec.kernels, x, n, out);
  }
  const MatmulKernels& kernels(const Weight& weight) const {
    return matmul_kernels(exec.kernels, weight.format(), step.rows.compute);
  }
  // How many of a sequence's rows, its first, attend to everything before them.
  int dense_rows(const SequenceSpan& sequence) const {
    if (step.indexer == nullptr) return sequence.count;
    const std::int32_t* counts = step.indexer->selection.count + sequence.begin;
    return static_cast<int>(
        std::find_if(counts, counts + sequence.count,
                     [](std::int32_t n) { return n != KpoolSelection::kEverything; }) -
        counts);
  }
  KpoolCache pools() const {
    return {step.batch,        step.cache,    step.layer, size(kPageSize) * row_bytes(),
            step.rows.compute, step.first_key};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dims.qk_head_dim())); }
};

// Where each batch row goes in the cache.
std::byte* cache_row(const Mla& mla, const SequenceSpan& sequence, int position) {
  const PageId page = sequence.pages[size(position / kPageSize)];
  return mla.step.cache.rows(page, mla.step.layer) + size(position % kPageSize) * mla.row_bytes();
}

void clear_first_rows(const Mla& mla) {
  const int rows = mla.step.first_key;
  for (const SequenceSpan& sequence : mla.step.batch.sequences) {
    if (sequence.count == 0 || sequence.start != rows) continue;
    for (int position = 0; position < rows; ++position)
      std::memset(cache_row(mla, sequence, position), 0, mla.row_bytes());
  }
}

// Norms the latent, turns the rope parts of key and queries, and writes the cache rows.
void finish_projections(const Mla& mla) {
  const MlaDims& d = mla.dims;
  const KernelTable& table = mla.exec.kernels;
  const Batch& batch = mla.step.batch;
  const int half = d.qk_rope_head_dim / 2;
  clear_first_rows(mla);
  auto* row_sequence = mla.exec.workspace.array<std::int32_t>(batch.tokens.size());
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    std::fill_n(row_sequence + batch.sequences[s].begin, batch.sequences[s].count,
                static_cast<std::int32_t>(s));
  }
  mla.exec.pool.run(batch.tokens.size(), [&](std::size_t t, int) {
    const SequenceSpan& sequence = batch.sequences[size(row_sequence[t])];
    const float* cos = mla.step.rope.cos + t * size(half);
    const float* sin = mla.step.rope.sin + t * size(half);
    float* kv = mla.kv + t * size(d.cache_width());
    table.rms_norm(kv, mla.weights.kv_a_layernorm.data(), d.kv_lora_rank, d.latent_eps, kv);
    table.rope_interleaved(kv + d.kv_lora_rank, cos, sin, d.qk_rope_head_dim);
    const int position = sequence.start + static_cast<int>(t) - sequence.begin;
    mla.step.rows.store(table, kv, d.cache_width(), cache_row(mla, sequence, position));
    float* q = mla.q + t * size(d.num_heads * d.qk_head_dim());
    for (int head = 0; head < d.num_heads; ++head) {
      table.rope_interleaved(q + size(head * d.qk_head_dim() + d.qk_nope_head_dim), cos, sin,
                             d.qk_rope_head_dim);
    }
  });
}

// Packs rows x[row, head * head_stride ...] of every head: heads Activations of [rows, k].
Activations* pack_heads(const Mla& mla, const MatmulKernels& kernels, const float* x,
                        std::size_t row_stride, std::size_t head_stride, int rows, int k) {
  const int heads = mla.dims.num_heads;
  auto* packed = mla.exec.workspace.array<Activations>(size(heads));
  for (int head = 0; head < heads; ++head)
    packed[head] = allocate_activations(mla.exec, kernels, rows, k);
  const int blocks = ceil_div(rows, kRowBlock);
  mla.exec.pool.run(size(heads * blocks), [&](std::size_t task, int) {
    const int head = static_cast<int>(task) / blocks;
    const int first = static_cast<int>(task) % blocks * kRowBlock;
    kernels.pack(x + size(first) * row_stride + size(head) * head_stride, row_stride, nullptr,
                 std::min(kRowBlock, rows - first), k,
                 packed[head].data + kernels.packed_bytes(first, k));
  });
  return packed;
}

// One product per head, all in one region.
void matmul_heads(const Mla& mla, const Activations* x, const Weight* weights, float* y,
                  std::size_t y_stride, std::size_t head_stride) {
  auto* jobs = mla.exec.workspace.array<MatmulJob>(size(mla.dims.num_heads));
  for (int head = 0; head < mla.dims.num_heads; ++head) {
    jobs[head] = {x[head], weights + head, y + size(head) * head_stride, y_stride};
  }
  matmul(mla.exec, {jobs, size(mla.dims.num_heads)});
}

// The cache pages of one sequence in this layer.
std::span<const std::byte* const> layer_pages(const Mla& mla, const SequenceSpan& sequence,
                                              int keys) {
  const int count = ceil_div(keys, kPageSize);
  auto* pages = mla.exec.workspace.array<const std::byte*>(size(count));
  for (int i = 0; i < count; ++i)
    pages[i] = mla.step.cache.rows(sequence.pages[size(i)], mla.step.layer);
  return {pages, size(count)};
}

// Batch rows [first, first + rows) whose queries have gone through kv_b's key half.
struct AbsorbedRows {
  int first, rows;
  const std::byte* query;  // [rows, heads, cache_width], elements
  std::size_t query_stride;
  float* context;  // [rows, heads, kv_lora_rank]
  std::size_t context_stride;
};

// Those that attend to everything before them.
void attend_dense(const Mla& mla, const AbsorbedRows& absorbed) {
  const int heads = mla.dims.num_heads, c = mla.dims.kv_lora_rank, width = mla.dims.cache_width();
  auto* jobs = mla.exec.workspace.array<AttentionJob>(mla.step.batch.sequences.size());
  std::size_t num_jobs = 0;
  for (const SequenceSpan& sequence : mla.step.batch.sequences) {
    const int begin = std::max(absorbed.first, sequence.begin);
    const int end =
        std::min(absorbed.first + absorbed.rows, sequence.begin + mla.dense_rows(sequence));
    if (begin >= end) continue;
    AttentionJob job;
    job.q =
        absorbed.query + size(begin - absorbed.first) * absorbed.query_stride * mla.element_bytes();
    job.q_row_stride = size(width);
    job.q_stride = absorbed.query_stride;
    job.num_queries = end - begin;
    job.rows_per_query = heads;
    job.start = sequence.start + begin - sequence.begin;
    job.first_key = std::max(mla.step.first_key, sequence.first);
    const auto pages = layer_pages(mla, sequence, job.start + job.num_queries);
    job.kv = {pages, mla.row_bytes(), pages, mla.row_bytes()};
    job.dk = width;
    job.dv = c;
    job.scale = mla.scale();
    job.out = absorbed.context + size(begin - absorbed.first) * absorbed.context_stride;
    job.out_row_stride = size(c);
    job.out_stride = absorbed.context_stride;
    jobs[num_jobs++] = job;
  }
  attend(mla.exec, mla.step.rows, {jobs, num_jobs});
}

// Those that attend to what the indexer chose.
void attend_chosen(const Mla& mla, const AbsorbedRows& absorbed) {
  const KpoolStep& indexer = *mla.step.indexer;
  const std::size_t most = size(indexer.dims.topk + indexer.dims.pool + kMaxGuesses);
  auto* jobs = mla.exec.workspace.array<SelectedJob>(size(absorbed.rows));
  std::size_t num_jobs = 0;
  for (const SequenceSpan& sequence : mla.step.batch.sequences) {
    const int begin = std::max(absorbed.first, sequence.begin + mla.dense_rows(sequence));
    const int end = std::min(absorbed.first + absorbed.rows, sequence.begin + sequence.count);
    if (begin >= end) continue;
    const auto pages = layer_pages(mla, sequence, sequence.start + end - sequence.begin);
    for (int row = begin; row < end; ++row) {
      auto* positions = mla.exec.workspace.array<std::int32_t>(most);
      const int count = kpool_positions(indexer, mla.step.first_key, row,
                                        sequence.start + row - sequence.begin, positions);
      const std::size_t at = size(row - absorbed.first);
      jobs[num_jobs++] = {absorbed.query + at * absorbed.query_stride * mla.element_bytes(),
                          {positions, size(count)},
                          pages,
                          absorbed.context + at * absorbed.context_stride};
    }
  }
  const SelectedShape shape{mla.dims.num_heads, mla.dims.cache_width(), mla.dims.kv_lora_rank,
                            mla.row_bytes(), mla.scale()};
  attend_selected(mla.exec, mla.step.rows, shape, {jobs, num_jobs});
}

// Batch rows [first, first + rows) in the absorbed form: queries go through kv_b's key half,
// contexts through its value half, and the cache is read as it is.
void attend_absorbed(const Mla& mla, int first, int rows) {
  Workspace::Scope scope(mla.exec.workspace);
  const MlaDims& d = mla.dims;
  const int heads = d.num_heads, c = d.kv_lora_rank, width = d.cache_width();
  const std::size_t q_stride = size(heads) * size(d.qk_head_dim());
  const float* q = mla.q + size(first) * q_stride;

  const MatmulKernels& kernels = mla.kernels(mla.weights.k_b_heads[0]);
  const Activations* q_nope =
      pack_heads(mla, kernels, q, q_stride, size(d.qk_head_dim()), rows, d.qk_nope_head_dim);
  const std::size_t absorbed_stride = size(heads) * size(width);
  auto* absorbed = mla.exec.workspace.array<float>(size(rows) * absorbed_stride);
  matmul_heads(mla, q_nope, mla.weights.k_b_heads.data(), absorbed, absorbed_stride, size(width));
  std::byte* query = mla.exec.workspace.bytes(size(rows) * absorbed_stride * mla.element_bytes());
  mla.exec.pool.run(size(rows), [&](std::size_t t, int) {
    float* row = absorbed + t * absorbed_stride;
    for (int head = 0; head < heads; ++head) {
      std::memcpy(row + size(head * width + c),
                  q + t * q_stride + size(head * d.qk_head_dim() + d.qk_nope_head_dim),
                  size(d.qk_rope_head_dim) * sizeof(float));
    }
    mla.store(row, heads * width, query + t * absorbed_stride * mla.element_bytes());
  });

  const std::size_t context_stride = size(heads) * size(c);
  auto* context = mla.exec.workspace.array<float>(size(rows) * context_stride);
  const AbsorbedRows absorbed_rows{first, rows, query, absorbed_stride, context, context_stride};
  attend_dense(mla, absorbed_rows);
  if (mla.step.indexer != nullptr) attend_chosen(mla, absorbed_rows);

  const Activations* packed = pack_heads(mla, mla.kernels(mla.weights.v_b_heads[0]), context,
                                         context_stride, size(c), rows, c);
  const std::size_t out_stride = size(heads) * size(d.v_head_dim);
  matmul_heads(mla, packed, mla.weights.v_b_heads.data(), mla.attn + size(first) * out_stride,
               out_stride, size(d.v_head_dim));
}

// The latents of all keys of a sequence, packed to be multiplied by kv_b; `rope` [keys,
// qk_rope_head_dim] gets the elements behind them.
Activations pack_latents(const Mla& mla, const MatmulKernels& kernels,
                         std::span<const std::byte* const> pages, int keys, std::byte* rope) {
  static_assert(kPageSize % kRowBlock == 0);
  const int c = mla.dims.kv_lora_rank, width = mla.dims.cache_width();
  const std::size_t key_bytes = size(width) * mla.element_bytes();
  const std::size_t latent_bytes = size(c) * mla.element_bytes();
  const std::size_t elements_bytes = (size(kRowBlock) * key_bytes + 63) / 64 * 64;
  Activations packed = allocate_activations(mla.exec, kernels, keys, c);
  WorkerScratch scratch(mla.exec, elements_bytes + size(kRowBlock) * size(c) * sizeof(float));
  mla.exec.pool.run(size(ceil_div(keys, kRowBlock)), [&](std::size_t task, int worker) {
    const int first = static_cast<int>(task) * kRowBlock;
    const int count = std::min(kRowBlock, keys - first);
    std::byte* elements = scratch.of(worker);
    auto* wide = reinterpret_cast<float*>(elements + elements_bytes);
    mla.step.rows.load(mla.exec.kernels,
                       pages[size(first / kPageSize)] + size(first % kPageSize) * mla.row_bytes(),
                       mla.row_bytes(), count, width, elements);
    for (int r = 0; r < count; ++r) {
      const std::byte* row = elements + size(r) * key_bytes;
      if (mla.step.rows.compute == Compute::kF32) {
        std::memcpy(wide + size(r) * size(c), row, latent_bytes);
      } else {
        mla.exec.kernels.widen_bf16(reinterpret_cast<const bf16*>(row), c,
                                    wide + size(r) * size(c));
      }
      std::memcpy(rope + size(first + r) * (key_bytes - latent_bytes), row + latent_bytes,
                  key_bytes - latent_bytes);
    }
    kernels.pack(wide, size(c), nullptr, count, c, packed.data + kernels.packed_bytes(first, c));
  });
  return packed;
}

// Keys (nope | rope) and values of some heads, [heads][padded keys][width], elements.
struct Expanded {
  std::byte* k;
  std::byte* v;
  int padded_keys;
};

// Of all keys: the latents, packed for k_up and for v_b, and the rope keys, elements [keys, rope].
struct PackedLatents {
  Activations for_k, for_v;
  std::byte* rope;
};

void expand_heads(const Mla& mla, const PackedLatents& latents, int first_head, int num_heads,
                  const Expanded& out) {
  Workspace::Scope scope(mla.exec.workspace);
  const MlaDims& d = mla.dims;
  const int keys = latents.for_k.rows, both = d.qk_nope_head_dim + d.v_head_dim;
  const std::size_t element = mla.element_bytes();
  const int blocks = ceil_div(keys, kAttendSpan);
  const std::size_t result_floats = size(kAttendSpan) * size(both);
  WorkerScratch scratch(mla.exec,
                        result_floats * sizeof(float) +
                            std::max(latents.for_k.kernels->scratch_bytes(d.kv_lora_rank),
                                     latents.for_v.kernels->scratch_bytes(d.kv_lora_rank)));
  const auto expand = [&](const Activations& x, const Weight& weight, int first, float* y,
                          std::byte* kernel_scratch) {
    MatmulArgs args;
    args.x = x.block(first);
    args.rows = std::min(kAttendSpan, keys - first);
    args.k = d.kv_lora_rank;
    args.w = weight.data();
    args.w_stride = weight.stride();
    args.factor = weight.factor();
    args.source = panel_source(mla.exec.kernels, *x.kernels, weight);
    args.n1 = static_cast<int>(weight.rows());
    args.y = y;
    args.y_stride = size(both);
    args.scratch = kernel_scratch;
    x.kernels->matmul(args);
  };
  mla.exec.pool.run(size(num_heads * blocks), [&](std::size_t task, int worker) {
    const int head = static_cast<int>(task) / blocks;
    const int first = static_cast<int>(task) % blocks * kAttendSpan;
    const int count = std::min(kAttendSpan, keys - first);
    auto* result = reinterpret_cast<float*>(scratch.of(worker));
    std::byte* kernel_scratch = scratch.of(worker) + result_floats * sizeof(float);
    expand(latents.for_k, mla.weights.k_up_heads[size(first_head + head)], first, result,
           kernel_scratch);
    expand(latents.for_v, mla.weights.v_b_heads[size(first_head + head)], first,
           result + d.qk_nope_head_dim, kernel_scratch);
    for (int r = 0; r < count; ++r) {
      const std::size_t key = size(head) * size(out.padded_keys) + size(first + r);
      std::byte* k = out.k + key * size(d.qk_head_dim()) * element;
      mla.store(result + size(r * both), d.qk_nope_head_dim, k);
      const std::size_t rope_bytes = size(d.qk_rope_head_dim) * element;
      std::memcpy(k + size(d.qk_nope_head_dim) * element,
                  latents.rope + size(first + r) * rope_bytes, rope_bytes);
      mla.store(result + size(r * both + d.qk_nope_head_dim), d.v_head_dim,
                out.v + key * size(d.v_head_dim) * element);
    }
  });
}

// One sequence in the expanded form: per-head keys and values of all its positions, some heads at a
// time.
void attend_expanded(const Mla& mla, const SequenceSpan& sequence) {
  Workspace::Scope scope(mla.exec.workspace);
  const MlaDims& d = mla.dims;
  const std::size_t element = mla.element_bytes();
  const int keys = sequence.start + sequence.count;
  const auto pages = layer_pages(mla, sequence, keys);
  const MatmulKernels& k_kernels = mla.kernels(mla.weights.k_up_heads[0]);
  const MatmulKernels& v_kernels = mla.kernels(mla.weights.v_b_heads[0]);
  PackedLatents latents;
  latents.rope = mla.exec.workspace.bytes(size(keys) * size(d.qk_rope_head_dim) * element);
  latents.for_k = pack_latents(mla, k_kernels, pages, keys, latents.rope);
  latents.for_v = &k_kernels == &v_kernels
                      ? latents.for_k
                      : pack_latents(mla, v_kernels, pages, keys, latents.rope);

  const std::size_t q_stride = size(d.num_heads) * size(d.qk_head_dim());
  std::byte* q = mla.exec.workspace.bytes(size(sequence.count) * q_stride * element);
  mla.exec.pool.run(size(sequence.count), [&](std::size_t t, int) {
    mla.store(mla.q + (size(sequence.begin) + t) * q_stride, d.num_heads * d.qk_head_dim(),
              q + t * q_stride * element);
  });

  const int num_pages = static_cast<int>(pages.size());
  const int padded = num_pages * kPageSize;
  const std::size_t head_bytes = size(padded) * size(d.qk_head_dim() + d.v_head_dim) * element;
  const int group = std::clamp(static_cast<int>(kExpandedBytes / head_bytes),
                               std::min(d.num_heads, mla.exec.pool.num_threads()), d.num_heads);
  const std::size_t k_head = size(padded) * size(d.qk_head_dim()) * element;
  const std::size_t v_head = size(padded) * size(d.v_head_dim) * element;
  Expanded expanded{mla.exec.workspace.bytes(size(group) * k_head),
                    mla.exec.workspace.bytes(size(group) * v_head), padded};
  auto* k_pages = mla.exec.workspace.array<const std::byte*>(size(group) * size(num_pages));
  auto* v_pages = mla.exec.workspace.array<const std::byte*>(size(group) * size(num_pages));
  auto* jobs = mla.exec.workspace.array<AttentionJob>(size(group));
  const std::size_t out_stride = size(d.num_heads) * size(d.v_head_dim);
  for (int first_head = 0; first_head < d.num_heads; first_head += group) {
    const int heads = std::min(group, d.num_heads - first_head);
    expand_heads(mla, latents, first_head, heads, expanded);
    for (int i = 0; i < heads; ++i) {
      for (int page = 0; page < num_pages; ++page) {
        const std::size_t row = size(page) * kPageSize;
        k_pages[i * num_pages + page] =
            expanded.k + size(i) * k_head + row * size(d.qk_head_dim()) * element;
        v_pages[i * num_pages + page] =
            expanded.v + size(i) * v_head + row * size(d.v_head_dim) * element;
      }
      AttentionJob job;
      job.q = q + size((first_head + i) * d.qk_head_dim()) * element;
      job.q_stride = q_stride;
      job.num_queries = sequence.count;
      job.rows_per_query = 1;
      job.start = sequence.start;
      job.first_key = std::max(mla.step.first_key, sequence.first);
      job.kv = {{k_pages + i * num_pages, size(num_pages)},
                size(d.qk_head_dim()) * element,
                {v_pages + i * num_pages, size(num_pages)},
                size(d.v_head_dim) * element};
      job.dk = d.qk_head_dim();
      job.dv = d.v_head_dim;
      job.scale = mla.scale();
      job.out =
          mla.attn + size(sequence.begin) * out_stride + size((first_head + i) * d.v_head_dim);
      job.out_stride = out_stride;
      jobs[i] = job;
    }
    attend(mla.exec, mla.step.rows.elements(), {jobs, size(heads)});
  }
}

// What a layer reads, before its norm.
struct Input {
  const float* x;
  const std::vector<float>& norm;
  float eps;
};

// Lets the indexer choose the keys of the tokens that do not attend to everything.
void choose_keys(const Mla& mla, const Input& input, const Activations& q_latent,
                 const float* q_normed) {
  Workspace::Scope scope(mla.exec.workspace);
  const KpoolDims& d = mla.step.indexer->dims;
  const KpoolWeights& w = *mla.step.indexer->weights;
  const std::size_t width = size(d.num_heads) * size(d.head_dim);
  auto* queries = mla.exec.workspace.array<float>(size(mla.tokens()) * width);
  auto* head_weights = mla.exec.workspace.array<float>(size(mla.tokens()) * size(d.num_heads));
  const Projection projection{&w.weights_proj, head_weights, size(d.num_heads)};
  norm_project(mla.exec, Compute::kF32, input.x, size(d.hidden_size), input.norm.data(), input.eps,
               mla.tokens(), d.hidden_size, {&projection, 1});
  const MatmulKernels& kernels = mla.kernels(w.wq_b);
  const Activations latent =
      &kernels == q_latent.kernels
          ? q_latent
          : pack(mla.exec, kernels, q_normed, size(d.q_lora_rank), mla.tokens(), d.q_lora_rank);
  matmul(mla.exec, {latent, &w.wq_b, queries, width});
  kpool_choose(mla.exec, *mla.step.indexer, mla.pools(), queries, head_weights);
}

// All sequences, each in the form that is cheaper; absorbed neighbours share their products.
void attend_all(const Mla& mla) {
  int pending = 0;  // absorbed rows [pending, ...) wait for company
  const auto flush = [&](int end) {
    for (; pending < end; pending += kAbsorbTokens) {
      attend_absorbed(mla, pending, std::min(kAbsorbTokens, end - pending));
    }
  };
  for (SequenceSpan sequence : mla.step.batch.sequences) {
    sequence.count = mla.dense_rows(sequence);  // chosen keys are read as they are
    const LatentForm form = mla.step.form == LatentForm::kByCost
                                ? cheaper_latent_form(mla.dims, sequence.start, sequence.count)
                                : mla.step.form;
    if (form == LatentForm::kAbsorbed || sequence.count == 0) continue;
    flush(sequence.begin);
    attend_expanded(mla, sequence);
    pending = sequence.begin + sequence.count;
  }
  flush(mla.tokens());
}

}  // namespace

LatentForm cheaper_latent_form(const MlaDims& d, int start, int count) {
  const double queries = count, keys = start + count;
  const double pairs = queries * start + queries * (queries + 1) / 2;
  const double up = static_cast<double>(d.qk_nope_head_dim + d.v_head_dim) * d.kv_lora_rank;
  const double absorbed = queries * up + pairs * (2.0 * d.kv_lora_rank + d.qk_rope_head_dim);
  const double expanded = keys * up + pairs * (d.qk_head_dim() + d.v_head_dim);
  return expanded < 0.9 * absorbed ? LatentForm::kExpanded : LatentForm::kAbsorbed;
}

void mla_attention(Exec& exec, const MlaDims& dims, const MlaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const MlaStep& step,
                   const float* x, float* y) {
  Workspace::Scope scope(exec.workspace);
  const int tokens = static_cast<int>(step.batch.tokens.size());
  const int heads = dims.num_heads;
  Mla mla{exec,
          dims,
          weights,
          step,
          exec.workspace.array<float>(size(tokens) * size(heads) * size(dims.qk_head_dim())),
          exec.workspace.array<float>(size(tokens) * size(dims.cache_width())),
          exec.workspace.array<float>(size(tokens) * size(heads) * size(dims.v_head_dim))};
  const KpoolStep* indexer = step.indexer;
  const bool indexes = indexer != nullptr && indexer->weights != nullptr;
  const bool chooses = indexes && kpool_plan(*indexer, mla.pools());
  {
    Workspace::Scope inner(exec.workspace);
    auto* q_a = exec.workspace.array<float>(size(tokens) * size(dims.q_lora_rank));
    Projection projections[4] = {{&weights.q_a_proj, q_a, size(dims.q_lora_rank)},
                                 {&weights.kv_a_proj_with_mqa, mla.kv, size(dims.cache_width())}};
    float *keys = nullptr, *gates = nullptr, *q_normed = nullptr;
    if (indexes) {
      const std::size_t width = size(indexer->dims.head_dim);
      keys = exec.workspace.array<float>(size(tokens) * width);
      gates = exec.workspace.array<float>(size(tokens) * width);
      projections[2] = {&indexer->weights->wk, keys, width};
      projections[3] = {&indexer->weights->compress_gate, gates, width};
    }
    if (chooses) q_normed = exec.workspace.array<float>(size(tokens) * size(dims.q_lora_rank));
    norm_project(exec, step.rows.compute, x, size(dims.hidden_size), input_norm.data(), input_eps,
                 tokens, dims.hidden_size, {projections, size(indexes ? 4 : 2)});
    const Activations q_latent = rms_norm_pack(exec, mla.kernels(weights.q_b_proj), q_a,
                                               size(dims.q_lora_rank), weights.q_a_layernorm.data(),
                                               dims.latent_eps, tokens, dims.q_lora_rank, q_normed);
    matmul(exec, {q_latent, &weights.q_b_proj, mla.q, size(heads) * size(dims.qk_head_dim())});
    finish_projections(mla);
    if (indexes) kpool_write(exec, *indexer, mla.pools(), keys, gates);
    if (chooses) choose_keys(mla, {x, input_norm, input_eps}, q_latent, q_normed);
    if (indexes && indexer->kept_offset && !indexer->reuses_kept) kpool_keep(*indexer, mla.pools());
  }
  attend_all(mla);
  const int width = heads * dims.v_head_dim;
  const Activations out =
      pack(exec, mla.kernels(weights.o_proj), mla.attn, size(width), tokens, width);
  matmul(exec, {out, &weights.o_proj, y, size(dims.hidden_size)});
}

}  // namespace glint
