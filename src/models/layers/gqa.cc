#include "models/layers/gqa.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/integers.h"
#include "ops/attention.h"

namespace glint {
namespace {

static_assert(kPageSize == kAttendPage);

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// Everything one call passes between its steps.
struct Gqa {
  Exec& exec;
  const GqaDims& dims;
  const GqaWeights& weights;
  const GqaStep& step;
  float* q;            // [tokens, heads, head_dim], as projected
  float* k;            // [tokens, kv heads, head_dim]
  float* v;            // [tokens, kv heads, head_dim]
  std::byte* queries;  // q after norm and rope, elements of the cache's rows
  float* attn;         // [tokens, heads, head_dim]

  std::size_t tokens() const { return step.batch.tokens.size(); }
  std::size_t element_bytes() const { return step.rows.element_bytes(); }
  std::size_t head_bytes() const { return step.rows.bytes(dims.head_dim); }
  // Bytes from a page's first key to the first key (0 .. kv heads) or value (after them) of a head.
  std::size_t head_offset(int head) const { return size(head) * kPageSize * head_bytes(); }
  // The row of a head's key or value.
  void store(const float* from, std::byte* to) const {
    step.rows.store(exec.kernels, from, dims.head_dim, to);
  }
};

void project(const Gqa& gqa, const std::vector<float>& input_norm, float input_eps,
             const float* x) {
  const GqaDims& d = gqa.dims;
  const Projection projections[] = {{&gqa.weights.q_proj, gqa.q, size(d.q_width())},
                                    {&gqa.weights.k_proj, gqa.k, size(d.kv_width())},
                                    {&gqa.weights.v_proj, gqa.v, size(d.kv_width())}};
  norm_project(gqa.exec, gqa.step.rows.compute, x, size(d.hidden_size), input_norm.data(),
               input_eps, static_cast<int>(gqa.tokens()), d.hidden_size, projections);
}

// Norm and rope of one head's row, in place.
void finish_head(const Gqa& gqa, const std::vector<float>& norm, std::size_t token, float* head) {
  const GqaDims& d = gqa.dims;
  if (!norm.empty()) gqa.exec.kernels.rms_norm(head, norm.data(), d.head_dim, d.norm_eps, head);
  const std::size_t angles = token * size(d.rotary_dim / 2);
  gqa.exec.kernels.rope_half(head, gqa.step.rope.cos + angles, gqa.step.rope.sin + angles,
                             d.rotary_dim);
}

void finish_query(const Gqa& gqa, std::size_t token) {
  const GqaDims& d = gqa.dims;
  float* q = gqa.q + token * size(d.q_width());
  if (!gqa.weights.q_proj_bias.empty())
    gqa.exec.kernels.add(gqa.weights.q_proj_bias.data(), d.q_width(), q);
  for (int head = 0; head < d.num_heads; ++head)
    finish_head(gqa, gqa.weights.q_norm, token, q + size(head * d.head_dim));
  gqa.step.rows.store_elements(gqa.exec.kernels, q, d.q_width(),
                               gqa.queries + token * size(d.q_width()) * gqa.element_bytes());
}

// `row` is where the token's row of the first key head lies in its page.
void finish_key_and_value(const Gqa& gqa, std::size_t token, std::byte* row) {
  const GqaDims& d = gqa.dims;
  float* k = gqa.k + token * size(d.kv_width());
  float* v = gqa.v + token * size(d.kv_width());
  if (!gqa.weights.k_proj_bias.empty()) {
    gqa.exec.kernels.add(gqa.weights.k_proj_bias.data(), d.kv_width(), k);
    gqa.exec.kernels.add(gqa.weights.v_proj_bias.data(), d.kv_width(), v);
  }
  for (int head = 0; head < d.num_kv_heads; ++head) {
    finish_head(gqa, gqa.weights.k_norm, token, k + size(head * d.head_dim));
    gqa.store(k + size(head * d.head_dim), row + gqa.head_offset(head));
    gqa.store(v + size(head * d.head_dim), row + gqa.head_offset(d.num_kv_heads + head));
  }
}

// The row of a position in its page, of the first key head.
std::byte* cache_row(const Gqa& gqa, const SequenceSpan& sequence, int position) {
  const PageId page = sequence.pages[size(position / kPageSize)];
  return gqa.step.cache.rows(page, gqa.step.layer) + size(position % kPageSize) * gqa.head_bytes();
}

void clear_first_rows(const Gqa& gqa) {
  const int rows = gqa.step.first_key;
  for (const SequenceSpan& sequence : gqa.step.batch.sequences) {
    if (sequence.count == 0 || sequence.start != rows) continue;
    for (int position = 0; position < rows; ++position) {
      for (int head = 0; head < 2 * gqa.dims.num_kv_heads; ++head) {
        std::memset(cache_row(gqa, sequence, position) + gqa.head_offset(head), 0,
                    gqa.head_bytes());
      }
    }
  }
}

void finish_projections(const Gqa& gqa) {
  const Batch& batch = gqa.step.batch;
  clear_first_rows(gqa);
  auto* row_sequence = gqa.exec.workspace.array<std::int32_t>(batch.tokens.size());
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    std::fill_n(row_sequence + batch.sequences[s].begin, batch.sequences[s].count,
                static_cast<std::int32_t>(s));
  }
  gqa.exec.pool.run(batch.tokens.size(), [&](std::size_t t, int) {
    const SequenceSpan& sequence = batch.sequences[size(row_sequence[t])];
    const int position = sequence.start + static_cast<int>(t) - sequence.begin;
    finish_query(gqa, t);
    finish_key_and_value(gqa, t, cache_row(gqa, sequence, position));
  });
}

// The pages of one sequence, for each key head and then each value head: [2 * kv heads][pages].
const std::byte** head_pages(const Gqa& gqa, const SequenceSpan& sequence, int count) {
  const int heads = 2 * gqa.dims.num_kv_heads;
  auto* pages = gqa.exec.workspace.array<const std::byte*>(size(heads) * size(count));
  for (int i = 0; i < count; ++i) {
    const std::byte* page = gqa.step.cache.rows(sequence.pages[size(i)], gqa.step.layer);
    for (int head = 0; head < heads; ++head)
      pages[size(head) * size(count) + size(i)] = page + gqa.head_offset(head);
  }
  return pages;
}

// One job per sequence and kv head, all in one call.
void attend_all(const Gqa& gqa) {
  const GqaDims& d = gqa.dims;
  auto* jobs = gqa.exec.workspace.array<AttentionJob>(gqa.step.batch.sequences.size() *
                                                      size(d.num_kv_heads));
  std::size_t num_jobs = 0;
  for (const SequenceSpan& sequence : gqa.step.batch.sequences) {
    if (sequence.count == 0) continue;
    const int num_pages = ceil_div(sequence.start + sequence.count, kPageSize);
    const std::byte** pages = head_pages(gqa, sequence, num_pages);
    for (int head = 0; head < d.num_kv_heads; ++head) {
      const std::size_t first =
          size(sequence.begin) * size(d.q_width()) + size(head * d.group() * d.head_dim);
      AttentionJob job;
      job.q = gqa.queries + first * gqa.element_bytes();
      job.q_row_stride = size(d.head_dim);
      job.q_stride = size(d.q_width());
      job.num_queries = sequence.count;
      job.rows_per_query = d.group();
      job.start = sequence.start;
      job.first_key = std::max(gqa.step.first_key, sequence.first);
      const auto of_head = [&](int which) -> std::span<const std::byte* const> {
        return {pages + size(which) * size(num_pages), size(num_pages)};
      };
      job.kv = {of_head(head), gqa.head_bytes(), of_head(d.num_kv_heads + head), gqa.head_bytes()};
      job.dk = d.head_dim;
      job.dv = d.head_dim;
      job.scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
      job.out = gqa.attn + first;
      job.out_row_stride = size(d.head_dim);
      job.out_stride = size(d.q_width());
      jobs[num_jobs++] = job;
    }
  }
  attend(gqa.exec, gqa.step.rows, {jobs, num_jobs});
}

}  // namespace

void gqa_attention(Exec& exec, const GqaDims& dims, const GqaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const GqaStep& step,
                   const float* x, float* y) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t tokens = step.batch.tokens.size();
  const std::size_t q_values = tokens * size(dims.q_width());
  const std::size_t kv_values = tokens * size(dims.kv_width());
  Gqa gqa{exec,
          dims,
          weights,
          step,
          exec.workspace.array<float>(q_values),
          exec.workspace.array<float>(kv_values),
          exec.workspace.array<float>(kv_values),
          nullptr,
          exec.workspace.array<float>(q_values)};
  gqa.queries = exec.workspace.bytes(q_values * gqa.element_bytes());
  {
    Workspace::Scope inner(exec.workspace);
    project(gqa, input_norm, input_eps, x);
    finish_projections(gqa);
  }
  attend_all(gqa);
  const MatmulKernels& kernels =
      matmul_kernels(exec.kernels, weights.o_proj.format(), step.rows.compute);
  const Activations out =
      pack(exec, kernels, gqa.attn, size(dims.q_width()), static_cast<int>(tokens), dims.q_width());
  matmul(exec, {out, &weights.o_proj, y, size(dims.hidden_size)});
}

}  // namespace glint
