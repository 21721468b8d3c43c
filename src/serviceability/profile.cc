#include "serviceability/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "serviceability/families.h"

namespace glint {
namespace {

struct Family {
  std::string_view model_type, architecture, name;
  void (*read)(ConfigView&, ModelProfile&);
  std::string_view router = "sigmoid";
};

constexpr std::array kFamilies = {
    Family{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", read_latent_family},
    Family{"glm4_moe", "Glm4MoeForCausalLM", "GLM-4.5 / 4.6 / 4.7", read_grouped_family},
    Family{"glm5_next", "Glm5NextForConditionalGeneration", "GLM-5.3-Flash", read_hybrid_family},
    Family{"glm_moe_dsa", "GlmMoeDsaForCausalLM", "GLM-5 / 5.1 / 5.2", read_latent_family},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2", read_latent_family, "softmax"},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3 / R1", read_latent_family},
    Family{"deepseek_v32", "DeepseekV32ForCausalLM", "DeepSeek-V3.2", read_latent_family},
    Family{"deepseek_v4", "DeepseekV4ForCausalLM", "DeepSeek-V4", read_deepseek_v4, "sqrtsoftplus"},
    Family{"kimi_k2", "DeepseekV3ForCausalLM", "Kimi-K2", read_latent_family},
    Family{"kimi_k25", "KimiK25ForConditionalGeneration", "Kimi-K2.5", read_latent_family},
    Family{"kimi_linear", "KimiLinearForCausalLM", "Kimi-Linear", read_hybrid_family},
    Family{"kimi_k3", "KimiK3ForConditionalGeneration", "Kimi-K3", read_hybrid_family},
};

const Family* by_model_type(std::string_view type) {
  for (const std::string_view suffix : {"_text", "_mtp"}) {
    if (type.ends_with(suffix)) type.remove_suffix(suffix.size());
  }
  const auto found = std::ranges::find(kFamilies, type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : &*found;
}

const Family* by_architecture(std::string_view architecture) {
  const auto found = std::ranges::find(kFamilies, architecture, &Family::architecture);
  return architecture.empty() || found == kFamilies.end() ? nullptr : &*found;
}

std::string word(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

std::string first_word(const Json& json, std::string_view key) {
  const Json* list = json.find(key);
  if (list == nullptr || !list->is_array() || list->as_array().empty()) return "";
  const Json& item = list->as_array().front();
  return item.is_string() ? item.as_string() : "";
}

void read_context(ConfigView& text, ModelProfile& p) {
  ContextLimits& c = p.context;
  c.positions = text.get({"max_position_embeddings", "model_max_length", "n_positions"}, 0, 0,
                         std::int64_t{1} << 40);
  c.theta = text.number({"rope_theta"});
  const Json* rope = text.value({"rope_scaling", "rope_parameters"});
  if (rope == nullptr) return;
  if (!rope->is_object()) {
    text.fail("\"rope_scaling\" must be an object");
    return;
  }
  ConfigView scaling(*rope, text.where() + ": \"rope_scaling\"");
  const std::string type = scaling.text({"rope_type", "type"}, "default");
  if (c.rope != "none") c.rope = type;
  if (const auto theta = scaling.number({"rope_theta"})) c.theta = theta;
  c.factor = scaling.number({"factor"}).value_or(1);
  c.original = scaling.get({"original_max_position_embeddings"}, 0, 0, std::int64_t{1} << 40);
  if (const Status status = scaling.status(); !status) text.fail(status.error().message);
}

Status read_vision(const Json& config, ModelProfile& p) {
  const Json* json = config.find("vision_config");
  if (json == nullptr || !json->is_object()) return {};
  ConfigView vision(*json, "config.json: \"vision_config\"");
  p.vision = true;
  p.vision_eps = vision.number({"rms_norm_eps"});
  if (p.family == "glm5_next") {
    p.vision_parameters = glm5_next_tower(vision);
  } else {
    p.notes.push_back("there is a vision tower; its parameters are not counted here");
  }
  return vision.status();
}

void add_up(ModelProfile& p) {
  double bytes = 0, active = 0;
  for (const ParameterPart& part : p.parts) {
    p.total_parameters += part.total;
    p.active_parameters += part.active;
    const double each = p.quantisation.bytes_of(part.kind);
    bytes += each * static_cast<double>(part.total.value());
    active += each * static_cast<double>(part.active.value());
  }
  // Exports by ModelOpt leave the draft layer as it was.
  const bool draft_kept = p.quantisation.method.starts_with("modelopt");
  for (const ParameterPart& part : p.mtp_parts) {
    p.mtp_parameters += part.total;
    bytes += (draft_kept ? 2 : p.quantisation.bytes_of(part.kind)) *
             static_cast<double>(part.total.value());
  }
  bytes += 2 * static_cast<double>(p.vision_parameters.value());
  constexpr double kMost = 9.2e18;
  p.weight_bytes = static_cast<std::uint64_t>(std::min(bytes, kMost));
  p.active_weight_bytes = static_cast<std::uint64_t>(std::min(active, kMost));
}

void note_dims(ModelProfile& p) {
  if (p.attention != AttentionKind::kMla) return;
  if (!p.has_head_dim)
    p.notes.push_back("head_dim is absent by design: no width follows from it under MLA");
  if (p.dim("qk_head_dim") != p.dim("v_head_dim"))
    p.notes.push_back(fmt::format("there is no single head width: queries have {}, values {}",
                                  p.dim("qk_head_dim"), p.dim("v_head_dim")));
}

}  // namespace

std::string_view attention_kind_name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kMla:
      return "mla";
    case AttentionKind::kSharedKv:
      return "shared-kv";
    case AttentionKind::kGqa:
      return "gqa";
    case AttentionKind::kMqa:
      return "mqa";
    case AttentionKind::kMha:
      return "mha";
  }
  return "";
}

std::int64_t ModelProfile::dim(std::string_view wanted) const {
  const auto found = std::ranges::find(dims, wanted, &ProfileDim::name);
  return found == dims.end() ? -1 : found->value;
}

double cache_read_bytes(const ModelProfile& p, std::int64_t context) {
  constexpr std::int64_t kMostChosenFrom = 4;  // rows for more tokens are all read
  double bytes = static_cast<double>(p.state_bytes.value() + p.window_bytes.value());
  for (const CachePart& part : p.cache) {
    std::int64_t rows = context / part.tokens_per_row;
    const bool chosen = p.index_topk && part.kind == CachePart::Kind::kLatent &&
                        part.tokens_per_row <= kMostChosenFrom;
    if (chosen) rows = std::min(rows, *p.index_topk);
    bytes += 2 * static_cast<double>(part.layers) * static_cast<double>(part.values()) *
             static_cast<double>(rows);
  }
  return bytes;
}

std::vector<std::string> profiled_families() {
  std::vector<std::string> types;
  for (const Family& family : kFamilies) types.emplace_back(family.model_type);
  return types;
}

Result<ModelProfile> read_profile(const Json& config, const Json& hf_quant_config) {
  const Json* inner = config.find("text_config");
  const bool nested = inner != nullptr && inner->is_object();
  const Json& body = nested ? *inner : config;
  ConfigView text(body, nested ? "config.json: \"text_config\"" : "config.json");

  ModelProfile p;
  p.model_type = word(config, "model_type");
  if (p.model_type.empty()) p.model_type = word(body, "model_type");
  p.architecture = first_word(config, "architectures");
  if (p.model_type.empty() && p.architecture.empty()) {
    return corrupt(
        "config.json has neither \"model_type\" nor \"architectures\"; is this a model's config?");
  }
  // The root's type wins: kimi_k3 wraps a text model that calls itself kimi_linear.
  const Family* family = by_model_type(p.model_type);
  if (family == nullptr) family = by_model_type(word(body, "model_type"));
  if (family == nullptr) family = by_architecture(p.architecture);
  p.family = family != nullptr ? std::string(family->model_type) : "generic";
  p.name = family != nullptr ? std::string(family->name) : p.model_type;
  p.router = text.text({"scoring_func", "moe_router_activation_func"},
                       family != nullptr ? family->router : "softmax");
  p.quantisation = read_quantisation(config, body, hf_quant_config);
  (family != nullptr ? family->read : read_unknown_family)(text, p);
  read_context(text, p);
  GLINT_TRY_VOID(text.status());
  if (p.experts == 0) p.router.clear();
  GLINT_TRY_VOID(read_vision(config, p));
  note_dims(p);
  add_up(p);
  p.layouts =
      cache_layouts(p.cache, p.mtp_cache, std::max<std::int64_t>(p.dim("qk_rope_head_dim"), 0));
  for (const Count count : {p.total_parameters + p.mtp_parameters, p.vision_parameters,
                            p.per_head_bytes, p.state_bytes, p.window_bytes, p.weight_bytes}) {
    if (count.saturated())
      return corrupt(fmt::format("{}: its sizes multiply to more than 2^63", text.where()));
  }
  return p;
}

}  // namespace glint
