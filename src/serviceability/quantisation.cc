#include "serviceability/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace glint {
namespace {

const Json* object_of(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_object() ? found : nullptr;
}

std::string word(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

std::int64_t integer(const Json& json, std::string_view key, std::int64_t fallback,
                     std::int64_t most) {
  const Json* found = json.find(key);
  if (found == nullptr || !found->is_int()) return fallback;
  return found->as_int() >= 1 && found->as_int() <= most ? found->as_int() : fallback;
}

std::string lowered(std::string text) {
  std::ranges::transform(text, text.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return text;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Names, globs or regular expressions of what is left alone; a word in them tells the kind. Names
// of single layers say nothing about the kind as a whole.
void read_kept(const Json& json, Quantisation& q) {
  for (const std::string_view key :
       {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
    const Json* list = json.find(key);
    if (list == nullptr || !list->is_array()) continue;
    for (const Json& item : list->as_array()) {
      if (!item.is_string()) continue;
      const std::string& name = item.as_string();
      const bool one_layer = has(name, "layers.") && name.find_first_of("*") == std::string::npos &&
                             name.find_first_of("0123456789") != std::string::npos;
      if (one_layer) continue;
      if (has(name, "self_attn") || has(name, "attention"))
        q.kept.push_back(WeightKind::kAttention);
      if (has(name, "shared_expert")) q.kept.push_back(WeightKind::kSharedExperts);
      if (has(name, "gate_proj") || has(name, "(gate|up")) q.kept.push_back(WeightKind::kDense);
      if (has(name, "indexer")) q.kept.push_back(WeightKind::kIndexer);
    }
  }
}

void set_scheme(Quantisation& q, std::string scheme, double bytes) {
  q.scheme = std::move(scheme);
  q.bytes_per_weight = q.expert_bytes_per_weight = bytes;
}

void integers_of(Quantisation& q, std::int64_t bits, std::int64_t group) {
  const double scale = group > 0 ? 2.0 / static_cast<double>(group) : 0;
  set_scheme(q,
             group > 0 ? fmt::format("INT{} in groups of {}", bits, group)
                       : fmt::format("INT{} by row", bits),
             static_cast<double>(bits) / 8 + scale);
}

// One group of compressed-tensors.
void read_group(const Json& group, std::string format, Quantisation& q) {
  if (const std::string own = word(group, "format"); !own.empty()) format = own;
  const Json* weights = object_of(group, "weights");
  const Json none(Json::Object{});
  const Json& w = weights != nullptr ? *weights : none;
  const std::int64_t bits = integer(w, "num_bits", has(format, "fp4") ? 4 : 8, 16);
  const std::int64_t size = integer(w, "group_size", 0, 1 << 20);
  const bool is_float = word(w, "type") == "float" || has(format, "fp4") || has(format, "float");
  if (has(format, "mxfp4")) {
    set_scheme(q, "MXFP4 (e2m1, UE8M0 scale per 32)", 0.5 + 1.0 / 32);
  } else if (has(format, "nvfp4") || (is_float && bits == 4)) {
    set_scheme(q, "NVFP4 (e2m1, e4m3 scale per 16)", 0.5 + 1.0 / 16);
  } else if (is_float) {
    const std::string strategy = word(w, "strategy");
    set_scheme(q, strategy == "block" ? "FP8 in blocks" : "FP8 by row", 1.0);
    q.float8 = true;
  } else {
    integers_of(q, bits, size);
  }
}

void read_compressed_tensors(const Json& json, Quantisation& q) {
  const std::string format = word(json, "format");
  const Json* groups = object_of(json, "config_groups");
  if (groups == nullptr || groups->as_object().empty()) {
    if (!format.empty()) read_group(Json(Json::Object{}), format, q);
    return;
  }
  // With several, the smallest is that of the experts, which are nearly everything.
  std::optional<Quantisation> least;
  for (const auto& [name, group] : groups->as_object()) {
    Quantisation one = q;
    read_group(group, format, one);
    if (!least || one.bytes_per_weight < least->bytes_per_weight) least = one;
  }
  q = *least;
  if (groups->as_object().size() > 1)
    q.scheme += fmt::format(" and {} more", groups->as_object().size() - 1);
}

}  // namespace

std::string_view weight_kind_name(WeightKind kind) {
  switch (kind) {
    case WeightKind::kAttention:
      return "attention";
    case WeightKind::kRoutedExperts:
      return "routed experts";
    case WeightKind::kSharedExperts:
      return "shared experts";
    case WeightKind::kDense:
      return "dense layers";
    case WeightKind::kRouter:
      return "routers";
    case WeightKind::kIndexer:
      return "indexers";
    case WeightKind::kOther:
      return "norms and the like";
    case WeightKind::kEmbedding:
      return "embedding";
    case WeightKind::kHead:
      return "head";
  }
  return "";
}

double Quantisation::bytes_of(WeightKind kind) const {
  constexpr double kPlain = 2;
  switch (kind) {
    case WeightKind::kRouter:
    case WeightKind::kOther:
    case WeightKind::kEmbedding:
    case WeightKind::kHead:
      return kPlain;
    case WeightKind::kRoutedExperts:
      return expert_bytes_per_weight;
    default:
      return std::ranges::find(kept, kind) != kept.end() ? kPlain : bytes_per_weight;
  }
}

Quantisation read_quantisation(const Json& config, const Json& text, const Json& hf_quant_config) {
  Quantisation q;
  const Json* json = object_of(config, "quantization_config");
  if (json == nullptr) json = object_of(text, "quantization_config");
  if (json == nullptr) json = object_of(hf_quant_config, "quantization");
  if (json == nullptr) return q;
  const std::string algorithm = lowered(word(*json, "quant_algo"));
  q.method = word(*json, "quant_method");
  if (q.method.empty()) q.method = algorithm.empty() ? "unknown" : "modelopt";
  q.cache = word(*json, "kv_cache_quant_algo");
  read_kept(*json, q);
  if (q.method == "compressed-tensors") {
    read_compressed_tensors(*json, q);
  } else if (q.method == "fp8" || has(algorithm, "fp8")) {
    const bool blocks = json->find("weight_block_size") != nullptr;
    set_scheme(q, blocks ? "FP8 in blocks" : "FP8", blocks ? 1.0 + 4.0 / (128 * 128) : 1.0);
    q.float8 = true;
  } else if (has(algorithm, "nvfp4") || q.method == "modelopt_fp4") {
    set_scheme(q, "NVFP4 (e2m1, e4m3 scale per 16)", 0.5 + 1.0 / 16);
  } else if (q.method == "mxfp4") {
    set_scheme(q, "MXFP4 (e2m1, UE8M0 scale per 32)", 0.5 + 1.0 / 32);
  } else if (q.method == "gptq" || q.method == "awq") {
    integers_of(q, integer(*json, "bits", 4, 16), integer(*json, "group_size", 128, 1 << 20));
  } else {
    q.scheme = "unknown: counted as bf16";
  }
  // DeepSeek-V4: FP8 everywhere but the experts.
  if (lowered(word(text, "expert_dtype")) == "fp4") {
    q.expert_bytes_per_weight = 0.5 + 1.0 / 32;
    q.scheme += ", experts MXFP4 (UE8M0 scale per 32)";
  }
  return q;
}

}  // namespace glint
