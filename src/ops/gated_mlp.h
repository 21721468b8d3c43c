// SwiGLU feed-forward blocks over groups of rows: a dense MLP is one group of all rows, a mixture
// of experts is a group per expert that has rows. Each weight is read once per step, however many
// rows use it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "ops/matmul.h"

namespace glint {

// gate [f, d], up [f, d], down [d, f].
struct GatedMlp {
  Weight gate, up, down;
  // Bounds gate(x) from above and up(x) on both sides, before the activation.
  float limit = std::numeric_limits<float>::infinity();
};

// The rows that one block transforms.
struct MlpGroup {
  const GatedMlp* mlp = nullptr;
  std::span<const std::int32_t> rows;  // ascending; empty: all rows
  const float* scale = nullptr;        // one factor per row of the group, or null for 1
};

// y[r] = sum over groups that hold r, in the order of `groups`, of scale * down(silu(gate(x[r])) *
// up(x[r])). x and y are dense [num_rows, d]; y is overwritten, or with `accumulate` added to,
// which continues the sum of a former call.
void gated_mlp(Exec& exec, Compute compute, const float* x, int num_rows, int d,
               std::span<const MlpGroup> groups, float* y, bool accumulate = false);

}  // namespace glint
