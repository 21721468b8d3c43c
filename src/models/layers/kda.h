// Kimi delta attention (arXiv 2510.26692; GLM-5.3-Flash, Kimi-Linear): linear attention whose state
// is one matrix per head. kernels/kda.h has its arithmetic; this file has the projections around it
// and what a sequence carries from step to step.
//
// The state of a layer: S of every head as it is at the last block's start up to which all tokens
// stand; keys, decays and corrected values of the tokens since; and the last raw projections, which
// the short convolutions reach back to. Tokens that may be taken back are kept as rows only, so
// the next step just starts before them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "models/batch.h"
#include "models/tensor_binder.h"
#include "ops/exec.h"
#include "ops/matmul.h"
#include "tensor/weight.h"

namespace glint {

struct KdaDims {
  int hidden_size = 0;
  int num_heads = 0;
  int head_dim = 0;  // of keys and of values
  // Log decays are bound * sigmoid(e^A_log u); without: -e^A_log softplus(u).
  std::optional<float> gate_lower_bound = {};
  float o_norm_eps = 0;

  int width() const { return num_heads * head_dim; }
};

struct KdaWeights {
  Weight q_proj, k_proj, v_proj;  // [heads * head_dim, hidden]
  // The taps of q, k and v: [kKdaTaps, 3 * heads * head_dim].
  std::vector<float> conv1d;
  Weight f_a_proj, f_b_proj;      // the gate: [head_dim, hidden], [heads * head_dim, head_dim]
  std::vector<float> decay_rate;  // [heads]: e^A_log
  std::vector<float> dt_bias;     // [heads * head_dim]
  Weight b_proj;                  // [heads, hidden]
  Weight g_a_proj, g_b_proj;      // the output's gate, as f
  std::vector<float> o_norm;      // [head_dim]
  Weight o_proj;                  // [hidden, heads * head_dim]
};

// `prefix` is "model.layers.N.self_attn.".
KdaWeights bind_kda(TensorBinder& binder, const std::string& prefix, const KdaDims& dims);

// Of one layer; multiples of 64. With kBf16 raw projections are bf16, with kF32 float32.
std::size_t kda_state_bytes(const KdaDims& dims, Compute compute);
std::size_t kda_snapshot_bytes(const KdaDims& dims, Compute compute);

// The state after `length` tokens, a multiple of kPageSize: from the snapshot that was taken there,
// or at length 0.
void start_kda_state(const KdaDims& dims, Compute compute, int length, const std::byte* snapshot,
                     std::byte* state);

// What a layer's attention runs with.
struct KdaStep {
  const Batch& batch;
  Compute compute;
  std::size_t state_offset = 0;     // of this layer in SequenceSpan::state, a multiple of 64
  std::size_t snapshot_offset = 0;  // in StateSnapshot::out
};

// y = attention(x): x [tokens, hidden] float32, normed by `input_norm` on the way in; y [tokens,
// hidden] is overwritten. Takes the sequences' states along and writes their snapshots.
void kda_attention(Exec& exec, const KdaDims& dims, const KdaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const KdaStep& step,
                   const float* x, float* y);

}  // namespace glint
