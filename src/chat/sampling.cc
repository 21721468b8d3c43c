// Sampling values: a request's own, under them generation_config.json's, under those neutral ones;
// and their ranges.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "chat/text_assets.h"

namespace glint {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopChars = 1000;
constexpr float kMaxBias = 100.0f;
// Far below any logit, and finite, so that sums with it stay numbers.
constexpr float kMasked = -1e9f;

Error range_error(const char* field, double value, const char* rule) {
  return invalid_argument(fmt::format("{}: must be {}, not {}", field, rule, value));
}

Status check_range(const char* field, float value, float low, float high, const char* rule) {
  if (value >= low && value <= high) return {};  // false for NaN
  return range_error(field, static_cast<double>(value), rule);
}

constexpr float kHuge = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

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

std::size_t count_chars(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

Status check_limits(const ChatRequest& request) {
  if (request.max_tokens && *request.max_tokens < 1) {
    return range_error("max_tokens", *request.max_tokens, "at least 1");
  }
  if (request.min_tokens < 0) return range_error("min_tokens", request.min_tokens, "at least 0");
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return invalid_argument(fmt::format("min_tokens: {} is more than max_tokens {}",
                                        request.min_tokens, *request.max_tokens));
  }
  if (request.stop.size() > kMaxStops) {
    return invalid_argument(
        fmt::format("stop: at most {} strings, not {}", kMaxStops, request.stop.size()));
  }
  for (std::size_t index = 0; index < request.stop.size(); ++index) {
    const std::size_t chars = count_chars(request.stop[index]);
    if (chars == 0 || chars > kMaxStopChars) {
      return invalid_argument(fmt::format("stop[{}]: must have 1 to {} characters, not {}", index,
                                          kMaxStopChars, chars));
    }
  }
  return {};
}

Status check_token(const char* field, std::int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return invalid_argument(
      fmt::format("{}: token {} is not in the vocabulary of {} tokens", field, id, vocab_size));
}

float default_float(const Json& defaults, const char* key, float otherwise) {
  const Json* value = defaults.find(key);
  return value == nullptr ? otherwise : static_cast<float>(value->as_double());
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

SamplingParams merge_sampling(const ChatRequest& request, const Json& defaults) {
  SamplingParams s;
  s.temperature = request.temperature.value_or(default_float(defaults, "temperature", 1.0f));
  s.top_p = request.top_p.value_or(default_float(defaults, "top_p", 1.0f));
  s.min_p = request.min_p.value_or(default_float(defaults, "min_p", 0.0f));
  s.repetition_penalty =
      request.repetition_penalty.value_or(default_float(defaults, "repetition_penalty", 1.0f));
  s.top_k = request.top_k.value_or(static_cast<int>(default_float(defaults, "top_k", 0.0f)));
  s.presence_penalty = request.presence_penalty.value_or(0.0f);
  s.frequency_penalty = request.frequency_penalty.value_or(0.0f);
  s.repeat_last_n = request.repeat_last_n.value_or(-1);
  s.top_logprobs = request.top_logprobs;
  return s;
}

}  // namespace

Result<Json> resolve_sampling_defaults(const Json& generation_config, const std::string& name,
                                       const std::string& model_type) {
  Json defaults(Json::Object{});
  if (!generation_config.is_object()) {
    if (!model_type.starts_with("glm")) return defaults;
    defaults.set("temperature", Json(1.0));
    defaults.set("top_p", Json(0.95));
    return defaults;
  }
  for (const char* key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}) {
    const Json* value = generation_config.find(key);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_number() || !std::isfinite(value->as_double()) ||
        std::abs(value->as_double()) > 1e9) {
      return corrupt(fmt::format("{}: {} must be a number", name, key));
    }
    defaults.set(key, *value);
  }
  const Json* do_sample = generation_config.find("do_sample");
  if (do_sample != nullptr && do_sample->is_bool() && !do_sample->as_bool()) {
    defaults.set("temperature", Json(0.0));
  }
  if (auto status = check_sampling(merge_sampling(ChatRequest(), defaults)); !status) {
    return corrupt(name + ": " + status.error().message);
  }
  return defaults;
}

Result<GenerateRequest> TextAssets::to_generate_request(const ChatRequest& request,
                                                        const PreparedPrompt& prompt,
                                                        int context) const {
  const int vocab_size = state_->tokenizer->vocab_size();
  GenerateRequest out;
  out.sampling = merge_sampling(request, state_->sampling_defaults);
  GLINT_TRY_VOID(check_sampling(out.sampling));
  GLINT_TRY_VOID(check_limits(request));
  if (out.sampling.top_k < 0) out.sampling.top_k = 0;
  for (const auto& [id, bias] : request.logit_bias) {
    GLINT_TRY_VOID(check_token("logit_bias", id, vocab_size));
    if (std::isnan(bias)) return invalid_argument("logit_bias: a bias must be a number");
    out.sampling.logit_bias.emplace_back(id, std::clamp(bias, -kMaxBias, kMaxBias));
  }
  if (request.tool_choice.kind == ToolChoice::Kind::kNone && state_->tool_call_token) {
    out.sampling.logit_bias.emplace_back(*state_->tool_call_token, kMasked);
  }
  out.sampling.seed = request.seed ? *request.seed : random_seed();

  if (static_cast<std::size_t>(std::max(context, 0)) < prompt.ids.size() + 1) {
    return invalid_argument(
        fmt::format("messages: this model's maximum context length is {} tokens, but the prompt "
                    "has {} and at least 1 is needed "
                    "for the answer; shorten the messages or serve with a larger --ctx",
                    context, prompt.ids.size()));
  }
  const int room = context - static_cast<int>(prompt.ids.size());
  out.max_tokens = std::min(request.max_tokens.value_or(room), room);
  out.min_tokens = std::min(request.min_tokens, out.max_tokens);
  out.prompt = prompt.ids;
  if (!request.ignore_eos) out.stop_ids = state_->end_tokens;
  for (const std::int32_t id : request.stop_token_ids) {
    GLINT_TRY_VOID(check_token("stop_token_ids", id, vocab_size));
    if (std::ranges::find(out.stop_ids, id) == out.stop_ids.end()) out.stop_ids.push_back(id);
  }
  out.cache_salt = request.cache_salt;
  out.timeout_s = request.timeout_s;
  return out;
}

}  // namespace glint
