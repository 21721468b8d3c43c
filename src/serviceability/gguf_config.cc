#include "serviceability/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace glint {
namespace {

struct Key {
  std::string_view gguf, config;
};

// llama.cpp, src/llama-arch.cpp: the names behind the architecture's.
constexpr std::array kKeys = {
    Key{"context_length", "max_position_embeddings"},
    Key{"embedding_length", "hidden_size"},
    Key{"feed_forward_length", "intermediate_size"},
    Key{"expert_feed_forward_length", "moe_intermediate_size"},
    Key{"expert_count", "n_routed_experts"},
    Key{"expert_used_count", "num_experts_per_tok"},
    Key{"expert_shared_count", "n_shared_experts"},
    Key{"leading_dense_block_count", "first_k_dense_replace"},
    Key{"nextn_predict_layers", "num_nextn_predict_layers"},
    Key{"attention.head_count", "num_attention_heads"},
    Key{"attention.q_lora_rank", "q_lora_rank"},
    Key{"attention.kv_lora_rank", "kv_lora_rank"},
    Key{"attention.indexer.head_count", "index_n_heads"},
    Key{"attention.indexer.key_length", "index_head_dim"},
    Key{"attention.indexer.top_k", "index_topk"},
};

struct ArchitectureName {
  std::string_view gguf, model_type;
};
constexpr std::array kArchitectures = {
    ArchitectureName{"glm4moe", "glm4_moe"},
    ArchitectureName{"glm-dsa", "glm_moe_dsa"},
    ArchitectureName{"deepseek32", "deepseek_v32"},
};

std::string prefix_of(const GgufFile& file) {
  const auto name = file.string("general.architecture");
  return name ? std::string(*name) + "." : "";
}

std::string model_type_of(std::string_view architecture) {
  const auto found = std::ranges::find(kArchitectures, architecture, &ArchitectureName::gguf);
  return std::string(found != kArchitectures.end() ? found->model_type : architecture);
}

// deepseek2 is what DeepSeek-V2, V3, Kimi-K2 and GLM-4.7-Flash are written as. The widths of heads
// lie in key_length_mla where key_length is that of the cache's row.
void set_latent(const GgufFile& file, const std::string& prefix, Json& config) {
  const auto number = [&](std::string_view key) { return file.integer(prefix + std::string(key)); };
  if (!number("attention.kv_lora_rank")) return;
  const bool row = number("attention.key_length_mla").has_value();
  const auto key = number(row ? "attention.key_length_mla" : "attention.key_length");
  const auto value = number(row ? "attention.value_length_mla" : "attention.value_length");
  const auto rope = number("rope.dimension_count");
  if (!key || !value || !rope) return;
  config.set("qk_rope_head_dim", *rope);
  config.set("qk_nope_head_dim", *key - *rope);
  config.set("v_head_dim", *value);
  if (file.string("general.architecture") != "deepseek2") return;
  const bool bias = std::ranges::any_of(file.tensors(), [](const TensorRef& tensor) {
    return tensor.name.ends_with(".exp_probs_b.bias");
  });
  config.set("model_type", bias ? "deepseek_v3" : "deepseek_v2");
}

}  // namespace

bool gguf_lacks_gating(const GgufFile& file) {
  const std::string prefix = prefix_of(file);
  return file.integer(prefix + "expert_count").value_or(0) > 0 &&
         file.integer(prefix + "expert_gating_func").value_or(0) == 0;
}

Result<Json> config_of_gguf(const GgufFile& file) {
  const auto architecture = file.string("general.architecture");
  const std::string prefix = prefix_of(file);
  Json config(Json::Object{});
  if (!architecture) {
    return unsupported(fmt::format(
        "{}: there is no general.architecture: what it is cannot be told", file.path().string()));
  }
  config.set("model_type", model_type_of(*architecture));
  for (const Key& key : kKeys) {
    if (const auto value = file.integer(prefix + std::string(key.gguf)))
      config.set(std::string(key.config), *value);
  }
  const std::int64_t drafts = file.integer(prefix + "nextn_predict_layers").value_or(0);
  if (const auto blocks = file.integer(prefix + "block_count"); blocks && *blocks > drafts)
    config.set("num_hidden_layers", *blocks - drafts);
  if (const auto kv = file.integer(prefix + "attention.head_count_kv"))
    config.set("num_key_value_heads", *kv);
  const bool latent = file.integer(prefix + "attention.kv_lora_rank").has_value();
  if (const auto dim = file.integer(prefix + "attention.key_length"); dim && !latent)
    config.set("head_dim", *dim);
  set_latent(file, prefix, config);
  const auto embedding =
      std::ranges::find(file.tensors(), std::string_view("token_embd.weight"), &TensorRef::name);
  if (const auto words = file.integer(prefix + "vocab_size")) {
    config.set("vocab_size", *words);
  } else if (embedding != file.tensors().end() && !embedding->shape.empty()) {
    config.set("vocab_size", embedding->shape.front());
  } else if (const auto* tokens = file.strings("tokenizer.ggml.tokens")) {
    config.set("vocab_size", static_cast<std::uint64_t>(tokens->size()));
  }
  return config;
}

}  // namespace glint
