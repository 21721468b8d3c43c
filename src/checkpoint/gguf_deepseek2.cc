// Architecture deepseek2, as converters write GLM-4.7-Flash (glm4_moe_lite). DeepSeek's own models
// carry keys that say what differs (a scaled rope, softmax routing, no q_lora_rank) and are refused
// by them.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/gguf_family.h"
#include "checkpoint/gguf_tensors.h"

namespace glint {
namespace {

constexpr double kFamilyScale = 1.8;  // routed_scaling_factor of GLM-4.7-Flash

constexpr GgufTensorName kLayerNames[] = {
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", kGgufFusedKvB},
    {"attn_k_b.weight", kGgufSplitKB},
    {"attn_v_b.weight", kGgufSplitVB},
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
  config.set("num_key_value_heads", d.heads);
  config.set("kv_lora_rank", d.latent);
  config.set("qk_nope_head_dim", d.nope);
  config.set("qk_rope_head_dim", d.rope);
  config.set("v_head_dim", d.value);
  config.set("attention_bias", false);
  return d;
}

bool is_part(const TensorRef& tensor, std::string_view part) {
  return tensor.name.ends_with(part);
}

std::string layer_prefix(const TensorRef& tensor, std::string_view part) {
  return tensor.name.substr(0, tensor.name.size() - part.size());
}

// The layers that have `part`.
std::set<std::string> layers_with(const std::vector<TensorRef>& tensors, std::string_view part) {
  std::set<std::string> layers;
  for (const TensorRef& tensor : tensors) {
    if (is_part(tensor, part)) layers.insert(layer_prefix(tensor, part));
  }
  return layers;
}

// Plain matrices of all heads below each other are the same bytes as a matrix per head.
Status shape_per_head(TensorRef& tensor, std::vector<std::int64_t> shape) {
  const std::vector<std::int64_t> flat = {shape[0] * shape[1], shape[2]};
  if (tensor.shape != shape && tensor.shape != flat) {
    return corrupt(
        fmt::format("{} does not have the shape that head_count, kv_lora_rank, "
                    "key_length and value_length ask for; convert the model again",
                    gguf_tensor_place(tensor)));
  }
  tensor.shape = std::move(shape);
  return {};
}

}  // namespace

Status settle_gguf_kv_b(std::vector<TensorRef>& tensors, const GgufLatentDims& d,
                        std::vector<std::string>& notes) {
  const auto fused = layers_with(tensors, kGgufFusedKvB);
  const auto keys = layers_with(tensors, kGgufSplitKB), values = layers_with(tensors, kGgufSplitVB);
  const auto is_split = [&](const std::string& layer) {
    return keys.contains(layer) && values.contains(layer);
  };
  std::size_t both = 0;
  for (const std::string& layer : fused) both += is_split(layer) ? 1 : 0;
  std::erase_if(tensors, [&](const TensorRef& tensor) {
    if (is_part(tensor, kGgufFusedKvB)) return is_split(layer_prefix(tensor, kGgufFusedKvB));
    for (const std::string_view part : {kGgufSplitKB, kGgufSplitVB}) {
      if (!is_part(tensor, part)) continue;
      const std::string layer = layer_prefix(tensor, part);
      return fused.contains(layer) && !is_split(layer);
    }
    return false;
  });
  if (both > 0) {
    notes.push_back(
        fmt::format("attn_kv_b of {} layers is ignored: attn_k_b and attn_v_b say the same", both));
  }
  for (TensorRef& tensor : tensors) {
    if (is_part(tensor, kGgufSplitKB)) {
      GLINT_TRY_VOID(shape_per_head(tensor, {d.heads, d.latent, d.nope}));
    } else if (is_part(tensor, kGgufSplitVB)) {
      GLINT_TRY_VOID(shape_per_head(tensor, {d.heads, d.value, d.latent}));
    }
  }
  return {};
}

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
            rename_gguf_tensors(file, {kLayerNames, blocks.count, blocks.drafts, experts}));
  GLINT_TRY_VOID(settle_gguf_kv_b(model.tensors, dims, model.notes));
  model.generation_config = gguf_generation_config(file);
  return model;
}

}  // namespace glint
