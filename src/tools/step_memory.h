// What the steps of a model need beside weights and cache: bounds from above, from its shapes,
// which tests compare with what forward passes took.
#pragma once

#include <cstdint>

#include "models/model.h"

namespace glint {

// The largest step there may be.
struct StepShape {
  int tokens = 0;
  int sequences = 1;
  int context = 0;  // longest of the sequences
  int threads = 1;
};

// Bytes of the Workspace: all layers use the same.
std::uint64_t workspace_bound(const ModelInfo& info, const LoadOptions& load,
                              const StepShape& shape);

// Bytes of logits that are sampled from or judge prompts, and of what samples them; with a draft
// layer those of its guesses, and the states that it starts from.
std::uint64_t logits_bound(const ModelInfo& info, const LoadOptions& load, const StepShape& shape);

// Bytes for one image at a time of at most so many tokens: decoded, scaled, cut into patches, and
// on its way through the tower. 0 where no tower is loaded.
std::uint64_t image_bound(const ModelInfo& info, const LoadOptions& load, int max_tokens);

}  // namespace glint
