// Hyper-connections (arXiv 2409.19606) with mixing matrices near the doubly stochastic ones (mHC,
// arXiv 2512.24880): the residual of a token is a few streams; a sublayer reads a weighted sum of
// them, and its output is added to a mixture of them. All in float32.
#pragma once

#include <string>
#include <vector>

#include "models/tensor_binder.h"
#include "ops/exec.h"

namespace glint {

struct HyperDims {
  int streams = 0;
  int hidden_size = 0;
  float norm_eps = 0;         // of the unweighted norm over all streams
  float eps = 0;              // hc_eps: keeps weights and sums away from zero
  float post_multiplier = 1;  // of the weights that the sublayer's output is written with
  int iterations = 0;         // hc_sinkhorn_iters, the first (columns only) included

  int width() const { return streams * hidden_size; }
  int mixes() const { return streams * (streams + 2); }
};

// Of one sublayer.
struct HyperWeights {
  // [mixes, streams * hidden]: for reading, for writing, for mixing; in a few pieces by rows, which
  // are all the parallel work there is with a single token.
  std::vector<Weight> fn;
  std::vector<float> base;   // [mixes]
  std::vector<float> scale;  // [3]
};

// `prefix` ends in "hc_attn_" or "hc_ffn_".
HyperWeights bind_hyper(TensorBinder& binder, const std::string& prefix, const HyperDims& dims);
// How many values that is.
std::uint64_t hyper_parameters(const HyperDims& dims);

// How the sublayer's output meets the streams.
struct HyperMix {
  float* post = nullptr;  // [tokens, streams]
  float* comb = nullptr;  // [tokens, streams, streams]: from, to
};
// Borrows workspace memory: valid until the enclosing scope ends.
HyperMix allocate_mix(Exec& exec, const HyperDims& dims, int tokens);

// x [tokens, hidden] = what the sublayer reads of h [tokens, streams, hidden]; fills `mix`.
void hyper_collapse(Exec& exec, const HyperDims& dims, const HyperWeights& weights, const float* h,
                    int tokens, const HyperMix& mix, float* x);
// h = the streams after the sublayer, which made y [tokens, hidden] of x.
void hyper_expand(Exec& exec, const HyperDims& dims, const HyperMix& mix, const float* y,
                  int tokens, float* h);
// Every stream of h begins as x.
void hyper_spread(Exec& exec, const HyperDims& dims, const float* x, int tokens, float* h);
// x = the mean of the streams.
void hyper_mean(Exec& exec, const HyperDims& dims, const float* h, int tokens, float* x);

}  // namespace glint
