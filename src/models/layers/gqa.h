// Grouped-query attention (arXiv 2305.13245): query heads in groups, each of which shares one key
// and value head; keys and values are cached per head after norm and rope.
#pragma once

#include <vector>

#include "cache/cache.h"
#include "models/batch.h"
#include "models/layers/rope.h"
#include "ops/cache_rows.h"
#include "ops/matmul.h"
#include "tensor/weight.h"

namespace glint {

struct GqaDims {
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads; query head i reads kv head i / group()
  int head_dim = 0;
  int rotary_dim = 0;  // the first values of a head that are rotated, pairs (j, rotary_dim / 2 + j)
  float norm_eps = 0;  // of q_norm and k_norm

  int group() const { return num_heads / num_kv_heads; }
  int q_width() const { return num_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
  int cache_width() const { return 2 * kv_width(); }  // values per token and layer
};

struct GqaWeights {
  Weight q_proj;                                // [heads * head_dim, hidden]
  Weight k_proj, v_proj;                        // [kv heads * head_dim, hidden]
  std::vector<float> q_proj_bias;               // [heads * head_dim], or empty
  std::vector<float> k_proj_bias, v_proj_bias;  // [kv heads * head_dim], or empty
  std::vector<float> q_norm, k_norm;            // [head_dim], or empty
  Weight o_proj;                                // [hidden, heads * head_dim]
};

// What a layer's attention runs with. A page of the cache holds, head after head, the page's keys
// of each kv head, kPageSize rows of head_dim, then its values likewise: one head's rows are
// neighbours.
struct GqaStep {
  const Batch& batch;
  Cache& cache;
  int layer;  // of the cache
  RopeAngles rope;
  CacheRows rows;  // each head's key, and its value, is one
  // Rows before it are not attended to; the step that starts there fills them with zeros.
  int first_key = 0;
};

// y = attention(x): x [tokens, hidden] float32, normed by `input_norm` on the way in; y [tokens,
// hidden] is overwritten. Writes the batch's rows of the cache.
void gqa_attention(Exec& exec, const GqaDims& dims, const GqaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const GqaStep& step,
                   const float* x, float* y);

}  // namespace glint
