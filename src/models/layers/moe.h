// Mixture of experts with the sigmoid router of DeepSeek-V3 ("noaux_tc", arXiv 2412.19437): a bias
// that chooses but does not weigh, optional groups, one always-on shared expert.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/gated_mlp.h"
#include "ops/matmul.h"

namespace glint {

struct RouterDims {
  int num_experts = 0;
  int experts_per_token = 0;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
};

class ExpertStore;  // models/expert_store.h

struct MoeWeights {
  Weight gate;                                 // [experts, hidden]; multiplied in float32 always
  std::vector<float> e_score_correction_bias;  // [experts]
  std::vector<GatedMlp> experts;               // empty when they are streamed
  std::shared_ptr<ExpertStore> store;          // then it has them, as this layer of its own count
  int store_layer = 0;
  GatedMlp shared_experts;  // empty weights when the model has none
};

// The experts of each token, in selection order, and their weights: [tokens, experts_per_token].
struct Routing {
  std::int32_t* experts = nullptr;
  float* weights = nullptr;
};

// One token's choice from its sigmoid scores. `choice` [2 * num_experts] is scratch.
void select_experts(const RouterDims& dims, const float* scores, const float* bias, float* choice,
                    std::int32_t* experts, float* weights);

// x [tokens, hidden] float32 normed rows. Fills `routing` (workspace memory of the caller's scope).
void route(Exec& exec, const RouterDims& dims, const Weight& gate, const std::vector<float>& bias,
           const float* x, int tokens, int hidden, const Routing& routing);

// What streamed experts of the next sparse layer are guessed from: its router is shown the input of
// this layer's feed-forward half, and what it chooses is read while this layer computes.
struct LookAhead {
  const float* h = nullptr;  // [tokens, hidden], before the norm; null: nothing is guessed
  float norm_eps = 0;
};

// y = shared(x) + sum of weight_e expert_e(x), experts of a token in ascending order; [tokens,
// hidden]. Streamed experts are computed as they come, in the same order. When reading fails, y is
// zero, and the store knows why.
void moe(Exec& exec, Compute compute, const RouterDims& dims, const MoeWeights& weights,
         const float* x, int tokens, int hidden, const Routing& routing, float* y,
         const LookAhead& ahead = {});

}  // namespace glint
