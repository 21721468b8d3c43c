// Architecture glm4moe: GLM-4.5, 4.6 and 4.7 (glm4_moe).
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "checkpoint/gguf_family.h"
#include "checkpoint/gguf_tensors.h"

namespace glint {
namespace {

constexpr GgufTensorName kLayerNames[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
};

// routed_scaling_factor of the models that were released, told apart by their experts: GLM-4.5-Air,
// and GLM-4.5, 4.6, 4.7.
std::optional<double> family_scale(std::int64_t num_experts) {
  if (num_experts == 128) return 1.0;
  if (num_experts == 160) return 2.5;
  return std::nullopt;
}

void read_attention(GgufKeys& keys, Json& config) {
  config.set("num_key_value_heads", keys.integer("attention.head_count_kv"));
  const std::int64_t width = keys.integer("attention.key_length");
  const auto value_width = keys.integer_if("attention.value_length");
  if (value_width && *value_width != width) {
    keys.refuse(
        "attention.value_length",
        fmt::format("is {}: only attention.key_length ({}) is supported", *value_width, width));
  }
  const std::int64_t rotated = keys.integer("rope.dimension_count");
  if (rotated < 1 || rotated > width) {
    keys.contradiction("rope.dimension_count",
                       fmt::format("is {}, not from 1 to attention.key_length", rotated));
  }
  config.set("head_dim", width);
  config.set("partial_rotary_factor",
             width == 0 ? 0.0 : static_cast<double>(rotated) / static_cast<double>(width));
  const auto has = [&](std::string_view name) {
    return find_gguf_tensor(keys.file(), name) != nullptr;
  };
  config.set("attention_bias", has("blk.0.attn_q.bias"));
  config.set("use_qk_norm", has("blk.0.attn_q_norm.weight"));
}

}  // namespace

Result<GgufModel> translate_gguf_glm4moe(const GgufFile& file) {
  GgufKeys keys(file, "glm4moe");
  GgufModel model;
  model.config.set("model_type", "glm4_moe");
  model.config.set("architectures", Json(Json::Array{Json("Glm4MoeForCausalLM")}));
  const GgufBlocks blocks = read_gguf_blocks(keys, model.config);
  read_gguf_sizes(keys, model.config);
  read_attention(keys, model.config);
  const auto scale = family_scale(keys.integer("expert_count"));
  const std::int64_t experts = read_gguf_router(keys, scale, model.config, model.notes);
  GLINT_TRY_VOID(keys.finish());
  GLINT_TRY(model.tensors,
            rename_gguf_tensors(file, {{kLayerNames}, blocks.count, blocks.drafts, experts}));
  model.generation_config = gguf_generation_config(file);
  return model;
}

}  // namespace glint
