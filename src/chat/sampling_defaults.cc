// Sampling values: a request's own, under them --override-generation-config's, then
// generation_config.json's, then neutral ones; and their ranges.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "chat/text_assets.h"

namespace glint {
namespace {

constexpr const char* kOverrides = "--override-generation-config";
constexpr std::array<std::string_view, 8> kOverridable = {
    "temperature",       "top_p",    "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "do_sample"};

Error range_error(const char* field, double value, const char* rule) {
  return invalid_argument(fmt::format("{}: must be {}, not {}", field, rule, value));
}

Status check_range(const char* field, float value, float low, float high, const char* rule) {
  if (value >= low && value <= high) return {};  // false for NaN
  return range_error(field, static_cast<double>(value), rule);
}

constexpr float kHuge = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

float default_float(const Json& defaults, const char* key, float otherwise) {
  const Json* value = defaults.find(key);
  return value == nullptr ? otherwise : static_cast<float>(value->as_double());
}

// Takes `from`'s values over into `defaults`.
Status take_defaults(const Json& from, const std::string& name,
                     std::span<const std::string_view> keys, Json& defaults) {
  for (const std::string_view key : keys) {
    const Json* value = from.find(key);
    if (value == nullptr || value->is_null() || key == "do_sample") continue;
    if (!value->is_number() || !std::isfinite(value->as_double()) ||
        std::abs(value->as_double()) > 1e9) {
      return corrupt(fmt::format("{}: {} must be a number", name, key));
    }
    defaults.set(std::string(key), *value);
  }
  if (const Json* do_sample = from.find("do_sample");
      do_sample != nullptr && *do_sample == Json(false)) {
    defaults.set("temperature", Json(0.0));
  }
  if (auto status = check_sampling(merge_sampling(ChatRequest(), defaults)); !status) {
    return corrupt(name + ": " + status.error().message);
  }
  return {};
}

Status take_overrides(const Json& overrides, Json& defaults) {
  if (overrides.is_null()) return {};
  if (!overrides.is_object()) {
    return invalid_argument(
        fmt::format("{}: must be an object, not {}", kOverrides, overrides.type_name()));
  }
  for (const auto& [key, value] : overrides.as_object()) {
    if (std::ranges::find(kOverridable, key) == kOverridable.end()) {
      return invalid_argument(
          fmt::format("{}: '{}' is none of {}", kOverrides, key, fmt::join(kOverridable, ", ")));
    }
  }
  if (auto status = take_defaults(overrides, kOverrides, kOverridable, defaults); !status) {
    return invalid_argument(status.error().message);  // no file of the checkpoint is at fault
  }
  return {};
}

}  // namespace

Status check_sampling(const SamplingParams& s) {
  GLINT_TRY_VOID(check_range("temperature", s.temperature, 0, kHuge, "at least 0"));
  GLINT_TRY_VOID(check_range("top_p", s.top_p, kTiny, 1, "above 0 and at most 1"));
  GLINT_TRY_VOID(check_range("min_p", s.min_p, 0, 1, "from 0 to 1"));
  GLINT_TRY_VOID(check_range("repetition_penalty", s.repetition_penalty, kTiny, kHuge, "above 0"));
  GLINT_TRY_VOID(check_range("presence_penalty", s.presence_penalty, -2, 2, "from -2 to 2"));
  GLINT_TRY_VOID(check_range("frequency_penalty", s.frequency_penalty, -2, 2, "from -2 to 2"));
  if (s.top_k < -1) return range_error("top_k", s.top_k, "0 or -1 (off) or at least 1");
  if (s.repeat_last_n < -1)
    return range_error("repeat_last_n", s.repeat_last_n, "-1 (all) or at least 0");
  if (s.top_logprobs < -1) return range_error("top_logprobs", s.top_logprobs, "at least 0");
  return {};
}

SamplingParams merge_sampling(const ChatRequest& request, const Json& defaults) {
  SamplingParams s;
  s.temperature = request.temperature.value_or(default_float(defaults, "temperature", 1.0f));
  s.top_p = request.top_p.value_or(default_float(defaults, "top_p", 1.0f));
  s.min_p = request.min_p.value_or(default_float(defaults, "min_p", 0.0f));
  s.repetition_penalty =
      request.repetition_penalty.value_or(default_float(defaults, "repetition_penalty", 1.0f));
  s.top_k = request.top_k.value_or(static_cast<int>(default_float(defaults, "top_k", 0.0f)));
  s.presence_penalty =
      request.presence_penalty.value_or(default_float(defaults, "presence_penalty", 0.0f));
  s.frequency_penalty =
      request.frequency_penalty.value_or(default_float(defaults, "frequency_penalty", 0.0f));
  s.repeat_last_n = request.repeat_last_n.value_or(-1);
  s.top_logprobs = request.top_logprobs;
  return s;
}

Result<Json> resolve_sampling_defaults(const Json& generation_config, const std::string& name,
                                       const std::string& model_type, const Json& overrides) {
  Json defaults(Json::Object{});
  if (generation_config.is_object()) {
    constexpr std::array<std::string_view, 5> kKeys = {"temperature", "top_p", "top_k", "min_p",
                                                       "repetition_penalty"};
    GLINT_TRY_VOID(take_defaults(generation_config, name, kKeys, defaults));
  } else if (model_type.starts_with("glm")) {
    defaults.set("temperature", Json(1.0));
    defaults.set("top_p", Json(0.95));
  }
  GLINT_TRY_VOID(take_overrides(overrides, defaults));
  return defaults;
}

}  // namespace glint
