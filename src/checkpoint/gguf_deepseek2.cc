// Architecture deepseek2, as converters write GLM-4.7-Flash (glm4_moe_lite). DeepSeek's own models
// carry keys that say what differs (a scaled rope, softmax routing, no q_lora_rank) and are refused
// by them.
#include <fmt/format.h>

#include <utility>

#include "checkpoint/gguf_family.h"
#include "checkpoint/gguf_tensors.h"

namespace glint {
namespace {

constexpr double kFamilyScale = 1.8;  // routed_scaling_factor of GLM-4.7-Flash

constexpr GgufTensorName kLayerNames[] = {
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
};

// A head's width is key_length_mla where the file describes the cache's one latent row, and
// key_length where it describes the expanded heads.
GgufLatentDims read_dims(GgufKeys& keys, Json& config) {
  GgufLatentDims d;
  d.heads = keys.integer("attention.head_count");
  const auto kv_heads = keys.integer_if("attention.head_count_kv");
  if (kv_heads && *kv_heads != 1 && *kv_heads != d.heads) {
    keys.refuse("attention.head_count_kv",
                fmt::format("is {}: every head shares the latent, so it must be 1 or {}", *kv_heads,
                            d.heads));
  }
  if (!keys.has("attention.q_lora_rank")) {
    keys.refuse("attention.q_lora_rank",
                "is missing: queries without a low-rank projection are not supported");
  }
  config.set("q_lora_rank", keys.integer_if("attention.q_lora_rank").value_or(0));
  d.latent = keys.integer("attention.kv_lora_rank");
  d.rope = keys.integer("rope.dimension_count");
  const bool latent_row =
      keys.has("attention.key_length_mla") || keys.has("attention.value_length_mla");
  const char* key = latent_row ? "attention.key_length_mla" : "attention.key_length";
  d.nope = keys.integer(key) - d.rope;
  d.value = keys.integer(latent_row ? "attention.value_length_mla" : "attention.value_length");
  if (latent_row) keys.ignore({"attention.key_length", "attention.value_length"});
  if (d.nope < 1) keys.contradiction(key, "leaves nothing beside rope.dimension_count");
  set_gguf_latent_dims(d, config);
  return d;
}

}  // namespace

Result<GgufModel> translate_gguf_deepseek2(const GgufFile& file) {
  GgufKeys keys(file, "deepseek2");
  GgufModel model;
  model.config.set("model_type", "glm4_moe_lite");
  model.config.set("architectures", Json(Json::Array{Json("Glm4MoeLiteForCausalLM")}));
  const GgufBlocks blocks = read_gguf_blocks(keys, model.config);
  read_gguf_sizes(keys, model.config);
  const GgufLatentDims dims = read_dims(keys, model.config);
  const std::int64_t experts = read_gguf_router(keys, kFamilyScale, model.config, model.notes);
  model.config.set("topk_method", "noaux_tc");
  GLINT_TRY_VOID(keys.finish());
  GLINT_TRY(model.tensors,
            rename_gguf_tensors(
                file, {{kLayerNames, kGgufLatentNames}, blocks.count, blocks.drafts, experts}));
  GLINT_TRY_VOID(settle_gguf_kv_b(model.tensors, dims, model.notes));
  model.generation_config = gguf_generation_config(file);
  return model;
}

}  // namespace glint
