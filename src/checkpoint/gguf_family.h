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
#include "checkpoint/gguf_tensors.h"

namespace glint {

// One file per architecture.
Result<GgufModel> translate_gguf_deepseek2(const GgufFile& file);
Result<GgufModel> translate_gguf_glm4moe(const GgufFile& file);
Result<GgufModel> translate_gguf_glm5next(const GgufFile& file);

struct GgufBlocks {
  std::int64_t count = 0;   // block_count, draft layers included
  std::int64_t drafts = 0;  // nextn_predict_layers
};
// Also num_hidden_layers, num_nextn_predict_layers and first_k_dense_replace.
GgufBlocks read_gguf_blocks(GgufKeys& keys, Json& config);

// Widths, vocabulary, norm, activation, end tokens; with positions the rope base too. Refuses
// scaled ropes.
void read_gguf_sizes(GgufKeys& keys, Json& config, bool has_positions = true);

// The router. `default_scale` stands in for a missing expert_weights_scale; nullopt: it must be
// there. A missing expert_gating_func is a sigmoid where the file has the bias that only sigmoid
// routers have. Returns expert_count.
std::int64_t read_gguf_router(GgufKeys& keys, std::optional<double> default_scale, Json& config,
                              std::vector<std::string>& notes);

// The layouts of kv_b (checkpoint/gguf_model.h).
struct GgufLatentDims {
  std::int64_t heads = 0, latent = 0, nope = 0, rope = 0, value = 0;
};
inline constexpr std::string_view kGgufFusedKvB = "self_attn.kv_b_proj.weight",
                                  kGgufSplitKB = "self_attn.k_b_proj.weight",
                                  kGgufSplitVB = "self_attn.v_b_proj.weight";
inline constexpr GgufTensorName kGgufLatentNames[] = {
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", kGgufFusedKvB},
    {"attn_k_b.weight", kGgufSplitKB},
    {"attn_v_b.weight", kGgufSplitVB},
};
// As the config has them; the rank of queries is not among them.
void set_gguf_latent_dims(const GgufLatentDims& dims, Json& config);
// One of them per layer: the split one where it is whole, else the fused one.
Status settle_gguf_kv_b(std::vector<TensorRef>& tensors, const GgufLatentDims& dims,
                        std::vector<std::string>& notes);

}  // namespace glint
