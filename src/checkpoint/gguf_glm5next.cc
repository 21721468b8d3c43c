// Architectures glm5-next and glm5next: GLM-5.3-Flash (glm5_next), as the converters of llama.cpp
// and of its forks name it.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checkpoint/gguf_family.h"
#include "checkpoint/gguf_tensors.h"

namespace glint {
namespace {

constexpr double kFamilyScale = 2.5;  // routed_scaling_factor of GLM-5.3-Flash

constexpr GgufTensorName kLayerNames[] = {
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"ssm_conv1d_q.weight", "self_attn.q_conv1d.weight"},
    {"ssm_conv1d_k.weight", "self_attn.k_conv1d.weight"},
    {"ssm_conv1d_v.weight", "self_attn.v_conv1d.weight"},
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight"},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight"},
    {"ssm_g_a.weight", "self_attn.g_a_proj.weight"},
    {"ssm_g_b.weight", "self_attn.g_b_proj.weight"},
    {"ssm_beta.weight", "self_attn.b_proj.weight"},
    {"ssm_a", "self_attn.A"},
    {"ssm_dt.bias", "self_attn.dt_bias"},
    {"ssm_norm.weight", "self_attn.o_norm.weight"},
    {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
    {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
    {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
    {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
    {"indexer.kpool_gate.weight", "self_attn.indexer.index_kpool_compress_gate"},
    {"indexer.kpool_ape.weight", "self_attn.indexer.index_kpool_compress_ape"},
    {"indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate"},
    {"indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"},
    {"hc_attn_fn.weight", "hc_attn_fn"},
    {"hc_attn_base.weight", "hc_attn_base"},
    {"hc_attn_scale.weight", "hc_attn_scale"},
    {"hc_ffn_fn.weight", "hc_ffn_fn"},
    {"hc_ffn_base.weight", "hc_ffn_base"},
    {"hc_ffn_scale.weight", "hc_ffn_scale"},
};

GgufLatentDims read_latent_attention(GgufKeys& keys, Json& text) {
  GgufLatentDims d;
  d.heads = keys.integer("attention.head_count");
  d.latent = keys.integer("attention.kv_lora_rank");
  d.nope = keys.integer("attention.key_length_mla");
  d.value = keys.integer("attention.value_length_mla");
  keys.ignore({"attention.key_length", "attention.value_length"});  // of the cached latent
  keys.expect("rope.dimension_count", 0, "the family has no positions");
  keys.ignore({"rope.freq_base"});
  set_gguf_latent_dims(d, text);
  text.set("q_lora_rank", keys.integer("attention.q_lora_rank"));
  text.set("mla_use_nope", true);
  return d;
}

// Which layers are linear: those without key and value heads.
void read_layers(GgufKeys& keys, const GgufBlocks& blocks, Json& text) {
  const auto kv_heads = keys.integers_if("attention.head_count_kv");
  const auto layers = static_cast<std::size_t>(blocks.count - blocks.drafts);
  if (kv_heads.size() < layers) {
    keys.contradiction(
        "attention.head_count_kv",
        fmt::format("does not say of each of {} layers whether it is linear (0)", layers));
    return;
  }
  const auto full = keys.integers_if("attention.indexer.types");
  if (!full.empty() && full.size() < layers) {
    keys.contradiction("attention.indexer.types",
                       fmt::format("does not say it of each of {} layers", layers));
    return;
  }
  Json types(Json::Array{}), indexers(Json::Array{});
  for (std::size_t i = 0; i < layers; ++i) {
    types.push_back(kv_heads[i] == 0 ? "linear_attention" : "deepseek_sparse_attention");
    indexers.push_back(full.empty() || full[i] != 0 ? "full" : "shared");
  }
  text.set("layer_types", std::move(types));
  text.set("indexer_types", std::move(indexers));
}

// The heads of linear layers have no key of their own; ssm_a has a value for each.
std::int64_t linear_heads(const GgufFile& file, std::int64_t fallback) {
  const auto found =
      std::find_if(file.tensors().begin(), file.tensors().end(), [](const TensorRef& tensor) {
        return tensor.name.ends_with(".ssm_a") && !tensor.shape.empty();
      });
  if (found == file.tensors().end()) return fallback;
  return *std::max_element(found->shape.begin(), found->shape.end());
}

void read_linear_attention(GgufKeys& keys, std::int64_t heads, Json& text) {
  Json linear;
  linear.set("num_heads", linear_heads(keys.file(), heads));
  linear.set("head_dim", keys.integer("kda.head_dim"));
  linear.set("short_conv_kernel_size", keys.integer("ssm.conv_kernel"));
  if (const auto bound = keys.number_if("kda.gate_lower_bound"))
    linear.set("gate_lower_bound", *bound);
  text.set("linear_attn_config", std::move(linear));
}

void read_indexer(GgufKeys& keys, Json& text) {
  constexpr std::string_view kPool = "attention.indexer.kpool",
                             kBlockSize = "attention.indexer.block_size";
  keys.expect("attention.layer_norm_epsilon", 1e-6, "it is fixed for the keys of this family");
  text.set("index_share_for_mtp_iteration",
           keys.boolean_if("attention.indexer.index_share_mtp").value_or(true));
  text.set("index_kpool_always_select_tail",
           keys.boolean_if("attention.indexer.kpool_select_tail").value_or(true));
  text.set("index_topk", keys.integer("attention.indexer.top_k"));
  text.set("index_n_heads", keys.integer("attention.indexer.head_count"));
  text.set("index_head_dim", keys.integer("attention.indexer.key_length"));
  const auto pool = keys.integer_if(kPool), block = keys.integer_if(kBlockSize);
  if (!pool && !block) {
    keys.contradiction(kPool, fmt::format("is missing, and so is {}: how many tokens a pool has is "
                                          "not known",
                                          kBlockSize));
  } else if (pool && block && *pool != *block) {
    keys.contradiction(kPool, fmt::format("is {}, but {} is {}", *pool, kBlockSize, *block));
  }
  text.set("index_kpool", pool ? *pool : block.value_or(0));
}

void read_streams(GgufKeys& keys, Json& text) {
  text.set("mhc", true);
  text.set("hc_mult", keys.integer("hyper_connection.count"));
  text.set("hc_sinkhorn_iters", keys.integer("hyper_connection.sinkhorn_iterations"));
  text.set("hc_eps", keys.number("hyper_connection.epsilon"));
}

// The bounds of SwiGLU; the dense layers have no key of their own.
void read_limit(GgufKeys& keys, Json& text, std::vector<std::string>& notes) {
  const auto limit = keys.number_if("swiglu_clamp_exp");
  if (!limit || *limit == 0) {
    notes.emplace_back("the file has no swiglu_clamp_exp: SwiGLU is not bounded");
    keys.ignore({"swiglu_clamp_shexp"});
    return;
  }
  keys.expect("swiglu_clamp_shexp", *limit, "all experts of this family have one bound");
  text.set("swiglu_limit", *limit);
}

}  // namespace

Result<GgufModel> translate_gguf_glm5next(const GgufFile& file) {
  GgufKeys keys(file, *file.string("general.architecture"), true);
  GgufModel model;
  model.config.set("model_type", "glm5_next");
  model.config.set("architectures", Json(Json::Array{Json("Glm5NextForConditionalGeneration")}));
  Json text;
  text.set("model_type", "glm5_next_text");
  const GgufBlocks blocks = read_gguf_blocks(keys, text);
  read_gguf_sizes(keys, text, false);
  const GgufLatentDims dims = read_latent_attention(keys, text);
  read_layers(keys, blocks, text);
  read_linear_attention(keys, dims.heads, text);
  read_indexer(keys, text);
  read_streams(keys, text);
  read_limit(keys, text, model.notes);
  const std::int64_t experts = read_gguf_router(keys, kFamilyScale, text, model.notes);
  keys.ignore({"expert_shared_feed_forward_length"});  // of the tensors themselves
  text.set("topk_method", "noaux_tc");
  GLINT_TRY_VOID(keys.finish());
  model.config.set("text_config", std::move(text));
  GLINT_TRY(model.tensors, rename_gguf_tensors(file, {{kLayerNames, kGgufLatentNames},
                                                      blocks.count,
                                                      blocks.drafts,
                                                      experts,
                                                      "model.language_model."}));
  GLINT_TRY_VOID(settle_gguf_kv_b(model.tensors, dims, model.notes));
  model.generation_config = gguf_generation_config(file);
  return model;
}

}  // namespace glint
