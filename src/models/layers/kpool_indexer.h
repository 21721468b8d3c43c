// The indexer of sparse attention over pools of tokens (GLM-5.3-Flash): every `pool` neighbouring
// tokens have one key, a gated mean of theirs. A query attends to the tokens of the pools that
// score best, and to those behind the last whole pool. Written after transformers 5.24
// (modeling_glm5_next.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "models/batch.h"
#include "models/tensor_binder.h"
#include "ops/matmul.h"

namespace glint {

struct KpoolDims {
  int hidden_size = 0;
  int q_lora_rank = 0;
  int num_heads = 0;
  int head_dim = 0;
  int pool = 0;            // tokens; divides kPageSize
  int topk = 0;            // tokens in the chosen pools, a multiple of pool
  float key_norm_eps = 0;  // of the layer norm of tokens' keys

  int max_pools() const { return topk / pool; }
};

struct KpoolWeights {
  Weight wq_b;                             // [heads * head_dim, q_lora_rank]
  Weight wk;                               // [head_dim, hidden]
  std::vector<float> k_norm, k_norm_bias;  // [head_dim]
  Weight weights_proj;                     // [heads, hidden]; multiplied in float32 always
  Weight compress_gate;                    // [head_dim, hidden]
  std::vector<float> compress_ape;         // [pool, head_dim]
};

// `prefix` ends in "self_attn.indexer.".
KpoolWeights bind_kpool(TensorBinder& binder, const std::string& prefix, const KpoolDims& dims);
// How many values that is.
std::uint64_t kpool_parameters(const KpoolDims& dims);

// What the tokens of a step attend to.
struct KpoolSelection {
  static constexpr std::int32_t kEverything = -1;

  std::int32_t* count = nullptr;  // [tokens]: chosen pools, or kEverything before the token
  std::int32_t* tail = nullptr;   // [tokens]: what lies from there on is attended to as well
  std::int32_t* pools = nullptr;  // [tokens, max_pools]: ascending

  // Of memory for a batch; without pools where no token can have more than would be chosen.
  static std::size_t bytes(const KpoolDims& dims, const Batch& batch);
  KpoolSelection(std::size_t tokens, std::byte* memory);
};

// Bytes in SequenceSpan::state of the rows that a layer's unfinished pool, or one that guesses
// finished, may still need; of a draft layer's selection, which later passes over its own guesses
// reuse.
std::size_t kpool_rows_bytes(const KpoolDims& dims);
std::size_t kpool_kept_bytes(const KpoolDims& dims);
// Bytes of the pool that a draft layer leaves unfinished at the end of a page, where its slots
// begin at 1: CacheSpec::page_model_bytes.
std::size_t kpool_page_bytes(const KpoolDims& dims);
// Bytes of the keys of the pools that end in a page, which lie behind its `kPageSize` other rows.
std::size_t kpool_keys_bytes(const KpoolDims& dims, Compute compute);

// What the indexer of a layer runs with.
struct KpoolStep {
  const KpoolDims& dims;
  const KpoolWeights* weights;  // null: the layer attends to what the one before it chose
  KpoolSelection selection;     // of the step, across its layers
  std::size_t rows_offset;      // in SequenceSpan::state
  // Of a draft layer, likewise; the passes after the first take the selection that lies there.
  std::optional<std::size_t> kept_offset = {};
  bool reuses_kept = false;
};

// Where the keys of pools lie.
struct KpoolCache {
  const Batch& batch;
  Cache& cache;
  int layer;
  std::size_t keys_offset;  // in a page of the layer
  Compute compute;
  int origin;  // position of the first pool's first token
};

// Takes in the step's tokens: `keys` = wk(x), which are normed in place, `gates` =
// compress_gate(x), both [tokens, head_dim]. Writes the keys of the pools they finish.
void kpool_write(Exec& exec, const KpoolStep& step, const KpoolCache& where, float* keys,
                 const float* gates);
// Says of each token whether it attends to everything, which is when no more pools are before it
// than would be chosen. Returns whether any does not: then kpool_choose() must follow.
bool kpool_plan(const KpoolStep& step, const KpoolCache& where);
// Chooses for the others: `queries` [tokens, heads, head_dim] = wq_b(latent), `weights` [tokens,
// heads] = weights_proj(x), which are scaled in place.
void kpool_choose(Exec& exec, const KpoolStep& step, const KpoolCache& where, const float* queries,
                  float* weights);
// Keeps the selection of the last token of each sequence for the passes to come.
void kpool_keep(const KpoolStep& step, const KpoolCache& where);

// Positions that token `row` of the batch, at `position`, attends to when its count is not
// kEverything, ascending; returns how many. out [max_pools * pool + pool + kMaxGuesses].
int kpool_positions(const KpoolStep& step, int origin, int row, int position, std::int32_t* out);
// The `k` best of n > k scores, ascending; the lower one of equals. `scratch` [n].
void choose_best(const float* scores, int n, int k, std::uint64_t* scratch, std::int32_t* out);

}  // namespace glint
