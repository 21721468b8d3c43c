// What the architectures of GGUF files that glint knows say alike, and where each has its own file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_keys.h"
#include "checkpoint/gguf_model.h"

namespace glint {

// One file per architecture.
Result<GgufModel> translate_gguf_deepseek2(const GgufFile& file);
Result<GgufModel> translate_gguf_glm4moe(const GgufFile& file);

struct GgufBlocks {
  std::int64_t count = 0;   // block_count, draft layers included
  std::int64_t drafts = 0;  // nextn_predict_layers
};
// Also num_hidden_layers, num_nextn_predict_layers and first_k_dense_replace.
GgufBlocks read_gguf_blocks(GgufKeys& keys, Json& config);

// Widths, vocabulary, norm, rope base, activation, end tokens; refuses scaled ropes.
void read_gguf_sizes(GgufKeys& keys, Json& config);

// The router. `default_scale` stands in for a missing expert_weights_scale; nullopt: it must be
// there. A missing expert_gating_func is a sigmoid where the file has the bias that only sigmoid
// routers have. Returns expert_count.
std::int64_t read_gguf_router(GgufKeys& keys, std::optional<double> default_scale, Json& config,
                              std::vector<std::string>& notes);

}  // namespace glint
