// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one shared latent and one rope key
// per token and layer are cached; the per-head up-projection kv_b is absorbed into queries and
// outputs, or expanded for long prefill chunks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "models/batch.h"
#include "models/layers/kpool_indexer.h"
#include "models/layers/rope.h"
#include "models/model.h"
#include "models/tensor_binder.h"
#include "ops/cache_rows.h"
#include "ops/matmul.h"
#include "tensor/weight.h"

namespace glint {

struct MlaDims {
  int hidden_size = 0;
  int num_heads = 0;
  int q_lora_rank = 0;
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  float latent_eps = 0;  // of q_a_layernorm and kv_a_layernorm

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int cache_width() const { return kv_lora_rank + qk_rope_head_dim; }  // values per token and layer
};

struct MlaWeights {
  Weight q_a_proj;                   // [q_lora_rank, hidden]
  std::vector<float> q_a_layernorm;  // [q_lora_rank]
  Weight q_b_proj;            // [heads * qk_head_dim, q_lora_rank], each head nope first, rope last
  Weight kv_a_proj_with_mqa;  // [kv_lora_rank + rope, hidden]
  std::vector<float> kv_a_layernorm;  // [kv_lora_rank]
  Weight o_proj;                      // [hidden, heads * v]

  // kv_b by head. The absorbed form multiplies by k_b, the expanded one by k_up, which is k_b
  // transposed; a checkpoint holds one of the two, complete_kv_b() makes the other (0.3 % of a
  // released model).
  std::vector<Weight> k_b_heads;   // [kv_lora_rank, nope]
  std::vector<Weight> k_up_heads;  // [nope, kv_lora_rank]
  std::vector<Weight> v_b_heads;   // [v, kv_lora_rank]
};

// `prefix` ends in "self_attn.".
MlaWeights bind_mla(TensorBinder& binder, const std::string& prefix, const MlaDims& dims);
// How many values that is.
std::uint64_t mla_parameters(const MlaDims& dims);

// Fills whichever of k_b_heads and k_up_heads is empty: element types stay what they are, low-bit
// weights become bf16, or float32 with kF32.
void complete_kv_b(MlaWeights& weights, Compute compute);

// How many tokens' query latents are expanded at once in the absorbed form; bounds memory, not
// results.
inline constexpr int kAbsorbTokens = 256;

// The form with fewer multiply-adds for `count` queries at positions [start, start + count).
LatentForm cheaper_latent_form(const MlaDims& dims, int start, int count);

// What a layer's attention runs with.
struct MlaStep {
  const Batch& batch;
  Cache& cache;
  int layer;  // of the cache
  RopeAngles rope;
  CacheRows rows;  // a token's latent and rope key are one
  LatentForm form;
  // Rows before it are not attended to; the step that starts there fills them with zeros.
  int first_key = 0;
  const KpoolStep* indexer = nullptr;  // chooses the keys; null: all before a token
};

// y = attention(x): x [tokens, hidden] float32, normed by `input_norm` on the way in; y [tokens,
// hidden] is overwritten. Writes the batch's rows of the cache.
void mla_attention(Exec& exec, const MlaDims& dims, const MlaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const MlaStep& step,
                   const float* x, float* y);

}  // namespace glint
