#include "serviceability/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace glint {
namespace {

// Of sequences of this many tokens the text of rules may speak.
constexpr std::int64_t kUsualBlock = 64;

void set_dims(const ModelProfile& p, Facts& facts) {
  for (const std::string_view name :
       {"qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "kv_lora_rank",
        "q_lora_rank", "head_dim", "cache_row", "index_head_dim", "kda_head_dim",
        "sliding_window"}) {
    const std::int64_t value = p.dim(name);
    if (value >= 0) facts.set(std::string(name), value);
  }
}

void set_cache(const ModelProfile& p, Facts& facts) {
  for (const CacheLayout& layout : p.layouts) {
    std::string name = layout.name;
    std::ranges::replace(name, '-', '_');
    facts.set("cache_bytes_" + name, number_json(layout.bytes_per_token));
  }
  if (p.per_head_bytes.value() > 0 && !p.layouts.empty()) {
    facts.set("cache_bytes_per_head", p.per_head_bytes.value());
    const double ratio =
        static_cast<double>(p.per_head_bytes.value()) / p.layouts.front().bytes_per_token;
    facts.set("per_head_ratio", std::round(ratio * 10) / 10);
  }
  if (p.least_compression > 0) {
    facts.set("compression", p.least_compression);
    facts.set("compressed_page_at_64", kUsualBlock / p.least_compression);
  }
  if (p.window_bytes.value() > 0) facts.set("window_bytes", p.window_bytes.value());
  if (p.hybrid) {
    facts.set("state_bytes", p.state_bytes.value());
    facts.set("state_layers", p.state_layers);
  }
}

void set_files(const CheckpointFacts& files, Facts& facts) {
  facts.set("container", files.container);
  facts.set("mtp_unlisted", files.mtp_unlisted);
  facts.set("mtp_missing", files.mtp_missing);
  if (files.fp8_matrices > 0) facts.set("fp8_matrices", files.fp8_matrices);
  if (files.fp8_unpaired > 0) {
    facts.set("fp8_unpaired", files.fp8_unpaired);
    facts.set("fp8_unpaired_example", files.fp8_example);
  }
  if (!files.gguf_architecture.empty()) facts.set("gguf_architecture", files.gguf_architecture);
  facts.set("gguf_lacks_gating", files.gguf_lacks_gating);
}

}  // namespace

const Json* Facts::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

Facts facts_of(const ModelProfile& p, const CheckpointFacts& files, std::optional<int> gpu) {
  Facts facts;
  facts.set("model_type", p.model_type);
  facts.set("architecture", p.architecture);
  facts.set("family", p.family);
  facts.set("guessed", p.guessed);
  facts.set("attention", attention_kind_name(p.attention));
  facts.set("sparse", p.sparse);
  facts.set("hybrid", p.hybrid);
  facts.set("layers", p.layers);
  facts.set("hidden_size", p.hidden_size);
  facts.set("vocab_size", p.vocab_size);
  facts.set("heads", p.heads);
  facts.set("kv_heads", p.kv_heads);
  facts.set("has_head_dim", p.has_head_dim);
  set_dims(p, facts);
  if (p.dim("qk_nope_head_dim") >= 0)
    facts.set("nope_equals_rope", p.dim("qk_nope_head_dim") == p.dim("qk_rope_head_dim"));
  set_cache(p, facts);
  facts.set("total_parameters", p.total_parameters.value());
  facts.set("active_parameters", p.active_parameters.value());
  facts.set("mtp_parameters", p.mtp_parameters.value());
  facts.set("weight_bytes", p.weight_bytes.value());
  facts.set("active_weight_bytes", p.active_weight_bytes.value());
  facts.set("experts", p.experts);
  facts.set("experts_per_token", p.experts_per_token);
  facts.set("shared_experts", p.shared_experts);
  facts.set("router", p.router);
  if (p.index_topk) facts.set("index_topk", *p.index_topk);
  if (p.index_pool) facts.set("index_pool", *p.index_pool);
  facts.set("residual_streams", p.residual_streams);
  facts.set("context", p.context.positions);
  facts.set("rope", p.context.rope);
  facts.set("rope_factor", number_json(p.context.factor));
  facts.set("mtp_layers", p.mtp_layers);
  facts.set("quantisation", p.quantisation.scheme);
  facts.set("quant_method", p.quantisation.method);
  facts.set("nvfp4", p.quantisation.scheme.starts_with("NVFP4"));
  facts.set("fp8_weights", p.quantisation.float8);
  facts.set("vision", p.vision);
  if (p.vision_parameters.value() > 0) facts.set("vision_parameters", p.vision_parameters.value());
  if (p.vision_eps) facts.set("vision_eps", *p.vision_eps);
  set_files(files, facts);
  if (gpu) facts.set("gpu", *gpu);
  return facts;
}

const std::vector<std::string_view>& fact_names() {
  static const std::vector<std::string_view> kNames = {"active_parameters",
                                                       "active_weight_bytes",
                                                       "architecture",
                                                       "attention",
                                                       "cache_bytes_bf16",
                                                       "cache_bytes_flashmla_288",
                                                       "cache_bytes_flashmla_528",
                                                       "cache_bytes_flashmla_584",
                                                       "cache_bytes_flashmla_656",
                                                       "cache_bytes_fp4",
                                                       "cache_bytes_fp8",
                                                       "cache_bytes_per_head",
                                                       "cache_row",
                                                       "compressed_page_at_64",
                                                       "compression",
                                                       "container",
                                                       "context",
                                                       "experts",
                                                       "experts_per_token",
                                                       "family",
                                                       "fp8_matrices",
                                                       "fp8_unpaired",
                                                       "fp8_unpaired_example",
                                                       "fp8_weights",
                                                       "gguf_architecture",
                                                       "gguf_lacks_gating",
                                                       "gpu",
                                                       "guessed",
                                                       "has_head_dim",
                                                       "head_dim",
                                                       "heads",
                                                       "hidden_size",
                                                       "hybrid",
                                                       "index_head_dim",
                                                       "index_pool",
                                                       "index_topk",
                                                       "kda_head_dim",
                                                       "kv_heads",
                                                       "kv_lora_rank",
                                                       "layers",
                                                       "model_type",
                                                       "mtp_layers",
                                                       "mtp_missing",
                                                       "mtp_parameters",
                                                       "mtp_unlisted",
                                                       "nope_equals_rope",
                                                       "nvfp4",
                                                       "per_head_ratio",
                                                       "q_lora_rank",
                                                       "qk_head_dim",
                                                       "qk_nope_head_dim",
                                                       "qk_rope_head_dim",
                                                       "quant_method",
                                                       "quantisation",
                                                       "residual_streams",
                                                       "rope",
                                                       "rope_factor",
                                                       "router",
                                                       "shared_experts",
                                                       "sliding_window",
                                                       "sparse",
                                                       "state_bytes",
                                                       "state_layers",
                                                       "total_parameters",
                                                       "v_head_dim",
                                                       "vision",
                                                       "vision_eps",
                                                       "vision_parameters",
                                                       "vocab_size",
                                                       "weight_bytes",
                                                       "window_bytes"};
  return kNames;
}

std::string grouped_number(std::uint64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string fact_text(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_int() && value.as_int() >= 0)
    return grouped_number(static_cast<std::uint64_t>(value.as_int()));
  if (value.is_bool()) return value.as_bool() ? "yes" : "no";
  return value.dump();
}

Json number_json(double value) {
  if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace glint
