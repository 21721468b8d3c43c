#include "checkpoint/gguf_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "checkpoint/file_kind.h"
#include "checkpoint/gguf_family.h"
#include "checkpoint/gguf_tensors.h"

namespace glint {
namespace {

struct Architecture {
  std::string_view name;
  Result<GgufModel> (*translate)(const GgufFile&);
};
constexpr Architecture kArchitectures[] = {
    {"deepseek2", translate_gguf_deepseek2},
    {"glm4moe", translate_gguf_glm4moe},
    {"glm5-next", translate_gguf_glm5next},
    {"glm5next", translate_gguf_glm5next},
};

// llama.cpp's enum: 0 says nothing, 1 is softmax over all experts, 3 softmax over the chosen ones.
constexpr std::int64_t kNoGating = 0, kSigmoidGating = 2;

void read_gating(GgufKeys& keys, std::vector<std::string>& notes) {
  constexpr std::string_view kKey = "expert_gating_func";
  const std::int64_t gating = keys.integer_if(kKey).value_or(kNoGating);
  if (gating == kSigmoidGating) return;
  if (gating != kNoGating) {
    keys.refuse(kKey, fmt::format("is {}: only sigmoid routers (2) are supported", gating));
    return;
  }
  const auto& tensors = keys.file().tensors();
  if (std::none_of(tensors.begin(), tensors.end(),
                   [](const TensorRef& t) { return t.name.ends_with(".exp_probs_b.bias"); })) {
    keys.refuse(kKey,
                "is missing, and so is exp_probs_b, the bias of sigmoid routers: this may be a "
                "model with a softmax router, which is not supported");
    return;
  }
  notes.push_back("the file has no expert_gating_func: sigmoid is assumed, as this family has it");
}

void read_weights_scale(GgufKeys& keys, std::optional<double> fallback, Json& config,
                        std::vector<std::string>& notes) {
  constexpr std::string_view kKey = "expert_weights_scale";
  if (!keys.has(kKey) && fallback) {
    notes.push_back(fmt::format(
        "the file has no expert_weights_scale: {} is assumed, as this family has it", *fallback));
    config.set("routed_scaling_factor", *fallback);
    return;
  }
  const double scale = keys.number(kKey);
  if (scale <= 0) keys.contradiction(kKey, fmt::format("is {}, not a factor above 0", scale));
  config.set("routed_scaling_factor", scale);
}

void refuse_scaled_rope(GgufKeys& keys) {
  const auto type = keys.string_if("rope.scaling.type");
  if (type && *type != "none") {
    keys.refuse("rope.scaling.type",
                fmt::format("is {}: scaled ropes are not supported", quote_name(*type)));
  }
  keys.expect("rope.scaling.factor", 1, "scaled ropes are not implemented");
  keys.ignore({"rope.scaling.finetuned", "rope.scaling.original_context_length"});
}

void read_vocabulary(GgufKeys& keys, Json& config) {
  const TensorRef* embedding = find_gguf_tensor(keys.file(), "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    keys.fail(corrupt(
        fmt::format("{}: tensor \"token_embd.weight\" is missing or no matrix; is this a whole "
                    "model?",
                    keys.file_name())));
    return;
  }
  const std::int64_t rows = embedding->shape[0];
  const auto stated = keys.integer_if("vocab_size");
  if (stated && *stated != rows) {
    keys.contradiction("vocab_size",
                       fmt::format("is {}, but \"token_embd.weight\" has {} rows", *stated, rows));
  }
  config.set("vocab_size", rows);
  config.set("tie_word_embeddings", find_gguf_tensor(keys.file(), "output.weight") == nullptr);
}

}  // namespace

GgufBlocks read_gguf_blocks(GgufKeys& keys, Json& config) {
  GgufBlocks blocks;
  blocks.count = keys.integer("block_count");
  blocks.drafts = keys.integer_if("nextn_predict_layers").value_or(0);
  if (blocks.drafts >= blocks.count) {
    keys.contradiction("nextn_predict_layers",
                       fmt::format("is {}, which leaves nothing of the {} blocks of block_count",
                                   blocks.drafts, blocks.count));
  }
  config.set("num_hidden_layers", blocks.count - blocks.drafts);
  config.set("num_nextn_predict_layers", blocks.drafts);
  config.set("first_k_dense_replace", keys.integer("leading_dense_block_count"));
  return blocks;
}

void read_gguf_sizes(GgufKeys& keys, Json& config, bool has_positions) {
  read_vocabulary(keys, config);
  config.set("hidden_size", keys.integer("embedding_length"));
  config.set("intermediate_size", keys.integer("feed_forward_length"));
  config.set("max_position_embeddings", keys.integer("context_length"));
  config.set("num_attention_heads", keys.integer("attention.head_count"));
  config.set("rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon"));
  if (has_positions) config.set("rope_theta", keys.number("rope.freq_base"));
  config.set("hidden_act", "silu");
  refuse_scaled_rope(keys);
  Json ids = gguf_token_ids(keys.file());
  for (auto& [key, value] : ids.as_object()) config.set(key, std::move(value));
}

std::int64_t read_gguf_router(GgufKeys& keys, std::optional<double> default_scale, Json& config,
                              std::vector<std::string>& notes) {
  const std::int64_t experts = keys.integer("expert_count");
  config.set("n_routed_experts", experts);
  config.set("num_experts_per_tok", keys.integer("expert_used_count"));
  config.set("n_shared_experts", keys.integer("expert_shared_count"));
  config.set("moe_intermediate_size", keys.integer("expert_feed_forward_length"));
  // 0 and 1 groups are the same: none.
  for (const auto& [key, name] : {std::pair{"expert_group_count", "n_group"},
                                  std::pair{"expert_group_used_count", "topk_group"}}) {
    config.set(name, std::max<std::int64_t>(1, keys.integer_if(key).value_or(1)));
  }
  read_gating(keys, notes);
  read_weights_scale(keys, default_scale, config, notes);
  const auto norm = keys.boolean_if("expert_weights_norm");
  if (!norm) {
    notes.push_back("the file has no expert_weights_norm: true is assumed, as this family has it");
  }
  config.set("norm_topk_prob", norm.value_or(true));
  return experts;
}

std::vector<std::string> supported_gguf_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) names.emplace_back(architecture.name);
  return names;
}

Result<GgufModel> translate_gguf(const GgufFile& file) {
  const std::string name = file.path().string();
  const auto type = file.string("general.type");
  if (type && *type != "model") {
    return unsupported(
        fmt::format("{} is no model: its \"general.type\" is {}", name, quote_name(*type)));
  }
  const auto architecture = file.string("general.architecture");
  if (!architecture) {
    return corrupt(name + " has no \"general.architecture\"; is this a model?");
  }
  for (const Architecture& known : kArchitectures) {
    if (known.name == *architecture) return known.translate(file);
  }
  return unsupported(fmt::format("{}: architecture {} is not supported; supported: {}", name,
                                 quote_name(*architecture),
                                 fmt::join(supported_gguf_architectures(), ", ")));
}

}  // namespace glint
