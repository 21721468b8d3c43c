// Angles of rotary position embeddings (arXiv 2104.09864). Which values form a pair is the layer's
// affair.
#pragma once

#include <span>
#include <vector>

#include "models/batch.h"
#include "ops/exec.h"

namespace glint {

// cos and sin of one step's positions, [tokens, pairs] each.
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// theta^(-2j / rotated) for each pair j of `rotated` values.
std::vector<float> rope_frequencies(double theta, int rotated);

// Borrows workspace memory: valid until the enclosing scope ends.
RopeAngles rope_angles(Exec& exec, const Batch& batch, std::span<const float> frequencies);

}  // namespace glint
