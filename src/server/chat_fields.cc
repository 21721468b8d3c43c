#include "server/chat_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <utility>

#include "server/field_reader.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxTopLogprobs = 20;
// A parsed value takes many times the two bytes it may have as text, so that bodies are bounded in
// values too.
constexpr std::ptrdiff_t kMaxValues = 2'000'000;

// Accepted for their clients' sake; they change nothing that is promised.
constexpr const char* kIgnored[] = {"user",
                                    "metadata",
                                    "store",
                                    "service_tier",
                                    "safety_identifier",
                                    "verbosity",
                                    "prompt_cache_key",
                                    "prompt_cache_retention",
                                    "prompt_cache_options",
                                    "moderation",
                                    "web_search_options",
                                    "prediction",
                                    "request_id",
                                    "session_id",
                                    "stream_interval",
                                    "cache_prompt",
                                    "id_slot",
                                    "return_progress",
                                    "timings_per_token",
                                    "return_token_ids",
                                    "spaces_between_special_tokens"};

// Known and not offered by this server: refused when present.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"structured_outputs", "structured output is not supported"},
    {"guided_json", "structured output is not supported"},
    {"guided_regex", "structured output is not supported"},
    {"guided_choice", "structured output is not supported"},
    {"guided_grammar", "structured output is not supported"},
    {"grammar", "structured output is not supported"},
    {"json_schema", "structured output is not supported"},
    {"thinking_token_budget",
     "a thinking budget is not supported; use max_tokens or reasoning_effort"},
    {"thinking_budget_tokens",
     "a thinking budget is not supported; use max_tokens or reasoning_effort"},
    {"chat_template", "requests may not bring their own template; use chat_template_kwargs"},
    {"prompt_logprobs", "log-probabilities of the prompt are not supported"},
    {"bad_words", "not supported; use logit_bias"},
    {"allowed_token_ids", "not supported; use logit_bias"},
    {"logprob_token_ids", "not supported; use top_logprobs"},
    {"functions", "not supported; use tools"},
    {"function_call", "not supported; use tool_choice"},
    {"documents", "not supported; put the documents into messages"},
    {"audio", "this model writes text only"},
    {"samplers", "the order of samplers is fixed"},
};

// Known switches and samplers that are off here: accepted only with the value that changes nothing.
struct Neutral {
  const char* name;
  double value;
};
constexpr Neutral kNeutral[] = {{"use_beam_search", 0},
                                {"echo", 0},
                                {"continue_final_message", 0},
                                {"add_special_tokens", 0},
                                {"skip_special_tokens", 1},
                                {"return_tokens_as_token_ids", 0},
                                {"length_penalty", 1},
                                {"priority", 0},
                                {"typical_p", 1},
                                {"xtc_probability", 0},
                                {"dry_multiplier", 0},
                                {"mirostat", 0},
                                {"dynatemp_range", 0},
                                {"top_n_sigma", -1}};

void read_refused(FieldReader& fields) {
  for (const char* name : kIgnored) fields.ignore(name);
  for (const auto& [name, why] : kRefused) {
    const Json* value = fields.get(name);
    const bool is_empty = value != nullptr && value->is_array() && value->as_array().empty();
    if (value != nullptr && !is_empty && *value != Json(""))
      fields.fail(name, why, "unsupported_value");
  }
  for (const Neutral& neutral : kNeutral) {
    const Json* value = fields.get(neutral.name);
    if (value == nullptr) continue;
    const bool is_neutral = value->is_bool()
                                ? value->as_bool() == (neutral.value != 0)
                                : value->is_number() && value->as_double() == neutral.value;
    if (!is_neutral) {
      fields.fail(neutral.name, fmt::format("{} is not supported here", value->dump()),
                  "unsupported_value");
    }
  }
  if (const Json* format = fields.object("response_format")) {
    const Json* type = format->find("type");
    if (type == nullptr || *type != Json("text")) {
      fields.fail("response_format", "only {\"type\": \"text\"} is supported", "unsupported_value");
    }
  }
  if (const Json* modalities = fields.array("modalities")) {
    for (const Json& modality : modalities->as_array()) {
      if (modality != Json("text"))
        fields.fail("modalities", "this model writes text only", "unsupported_value");
    }
  }
}

void read_stream(FieldReader& fields, ChatCall& call) {
  call.stream = fields.boolean_or("stream", false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!call.stream) return fields.fail("stream_options", "is only allowed with stream: true");
  FieldReader inner(*options, "stream_options.");
  call.include_usage = inner.boolean_or("include_usage", false);
  call.continuous_usage = inner.boolean_or("continuous_usage_stats", false);
  fields.adopt(inner);
}

void read_lengths(FieldReader& fields, ChatCall& call) {
  const auto preferred = fields.integer("max_completion_tokens", 1, kMaxInt);
  const auto plain = fields.integer("max_tokens", 1, kMaxInt);
  const auto predict = fields.integer("n_predict", -1, kMaxInt);
  if (predict == 0) fields.fail("n_predict", "must be at least 1, or -1 for no limit");
  std::optional<std::int64_t> limit = preferred ? preferred : plain;
  if (!limit && predict > 0) limit = predict;
  if (limit) call.chat.max_tokens = static_cast<int>(*limit);
  call.chat.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, kMaxInt).value_or(0));
  call.chat.ignore_eos = fields.boolean_or("ignore_eos", false);
  call.chat.keep_last_prompt_tokens =
      static_cast<int>(fields.integer("truncate_prompt_tokens", 1, kMaxInt).value_or(0));
}

std::optional<int> as_int(std::optional<std::int64_t> value) {
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

void read_sampling(FieldReader& fields, ChatCall& call) {
  ChatRequest& chat = call.chat;
  chat.temperature = fields.number("temperature");
  chat.top_p = fields.number("top_p");
  chat.min_p = fields.number("min_p");
  chat.presence_penalty = fields.number("presence_penalty");
  chat.frequency_penalty = fields.number("frequency_penalty");
  chat.repetition_penalty = fields.number("repetition_penalty");
  const auto alias = fields.number("repeat_penalty");
  if (!chat.repetition_penalty) chat.repetition_penalty = alias;
  chat.top_k = as_int(fields.integer("top_k", -1, kMaxInt));
  chat.repeat_last_n = as_int(fields.integer("repeat_last_n", -1, kMaxInt));
  const auto seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max());
  if (seed && *seed != -1) chat.seed = static_cast<std::uint64_t>(*seed);
}

void add_bias(FieldReader& fields, ChatCall& call, std::optional<std::int64_t> id,
              const Json& bias) {
  if (!id || *id < 0 || *id > kMaxInt)
    return fields.fail("logit_bias", "keys must be decimal token ids");
  if (!bias.is_number()) return fields.fail("logit_bias", "biases must be numbers", "invalid_type");
  call.chat.logit_bias.emplace_back(static_cast<std::int32_t>(*id),
                                    static_cast<float>(bias.as_double()));
}

void read_logit_bias(FieldReader& fields, ChatCall& call) {
  const Json* biases = fields.get("logit_bias");
  if (biases == nullptr) return;
  if (biases->is_object()) {
    for (const auto& [key, bias] : biases->as_object()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size()) id = -1;
      add_bias(fields, call, id, bias);
    }
  } else if (biases->is_array()) {
    for (const Json& pair : biases->as_array()) {
      if (!pair.is_array() || pair.as_array().size() != 2) {
        return fields.fail("logit_bias", "a list must hold [token id, bias] pairs", "invalid_type");
      }
      add_bias(fields, call, integer_value(pair.as_array()[0]), pair.as_array()[1]);
    }
  } else {
    fields.fail("logit_bias", "must be an object", "invalid_type");
  }
}

void read_logprobs(FieldReader& fields, ChatCall& call) {
  const bool wanted = fields.boolean_or("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) return fields.fail("top_logprobs", "needs logprobs: true");
  call.chat.top_logprobs = wanted ? static_cast<int>(top.value_or(0)) : -1;
}

void read_stops(FieldReader& fields, ChatCall& call) {
  if (const Json* stop = fields.get("stop")) {
    if (stop->is_string()) {
      call.chat.stop.push_back(stop->as_string());
    } else if (stop->is_array()) {
      for (const Json& one : stop->as_array()) {
        if (!one.is_string()) return fields.fail("stop", "must hold strings only", "invalid_type");
        call.chat.stop.push_back(one.as_string());
      }
    } else {
      fields.fail("stop", "must be a string or a list of strings", "invalid_type");
    }
  }
  if (const Json* ids = fields.array("stop_token_ids")) {
    for (const Json& one : ids->as_array()) {
      const auto id = integer_value(one);
      if (!id || *id < 0 || *id > kMaxInt)
        return fields.fail("stop_token_ids", "must hold token ids");
      call.chat.stop_token_ids.push_back(static_cast<std::int32_t>(*id));
    }
  }
  call.include_stop_string = fields.boolean_or("include_stop_str_in_output", false);
}

void read_tools(FieldReader& fields, ChatCall& call) {
  if (const Json* tools = fields.array("tools"); tools != nullptr && !tools->as_array().empty()) {
    call.chat.tools = *tools;
  }
  call.chat.parallel_tool_calls = fields.boolean_or("parallel_tool_calls", true);
  const Json* choice = fields.get("tool_choice");
  if (choice == nullptr || *choice == Json("auto")) return;
  if (*choice == Json("none")) {
    call.chat.tool_choice.kind = ToolChoice::Kind::kNone;
  } else if (choice->is_object() || *choice == Json("required")) {
    fields.fail("tool_choice", "forcing a call is not supported; use \"auto\" or \"none\"",
                "unsupported_value");
  } else {
    fields.fail("tool_choice", "must be \"none\", \"auto\", \"required\" or an object");
  }
}

void read_thinking(FieldReader& fields, ChatCall& call) {
  ChatRequest& chat = call.chat;
  chat.reasoning_effort = fields.string("reasoning_effort");
  call.include_reasoning = fields.boolean_or("include_reasoning", true);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) chat.template_kwargs = *kwargs;
  if (const Json* thinking = fields.object("thinking")) {
    FieldReader inner(*thinking, "thinking.");
    const auto type = inner.string("type");
    if (type == "enabled" || type == "disabled") {
      chat.enable_thinking = type == "enabled";
    } else if (type) {
      inner.fail("type", "must be \"enabled\" or \"disabled\"");
    }
    const auto clear = inner.boolean("clear_thinking");
    if (clear && chat.template_kwargs.find("clear_thinking") == nullptr) {
      chat.template_kwargs.set("clear_thinking", Json(*clear));
    }
    fields.adopt(inner);
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    FieldReader inner(*reasoning, "reasoning.");
    const auto enabled = inner.boolean("enabled");
    if (!chat.enable_thinking) chat.enable_thinking = enabled;
    const auto effort = inner.string("effort");
    if (!chat.reasoning_effort) chat.reasoning_effort = effort;
    if (inner.boolean_or("exclude", false)) call.include_reasoning = false;
    if (inner.get("max_tokens") != nullptr) {
      inner.fail("max_tokens", "a thinking budget is not supported", "unsupported_value");
    }
    fields.adopt(inner);
  }
}

void read_salt(FieldReader& fields, ChatCall& call) {
  const auto salt = fields.string("cache_salt");
  if (!salt) return;
  if (salt->empty() || salt->size() > 128)
    return fields.fail("cache_salt", "must have 1 to 128 characters");
  call.chat.cache_salt = std::hash<std::string>()(*salt);
}

}  // namespace

std::expected<ChatCall, ApiError> parse_chat_call(std::string_view body, int max_n) {
  if (std::ranges::count_if(body, [](char c) { return c == ',' || c == '[' || c == '{'; }) >
      kMaxValues) {
    return std::unexpected(bad_request(
        "", fmt::format("The body has more than {} JSON values.", kMaxValues), "invalid_json"));
  }
  auto parsed = parse_json(body);
  if (!parsed) {
    return std::unexpected(
        bad_request("", "The body is not valid JSON: " + parsed.error().message, "invalid_json"));
  }
  if (!parsed->is_object()) {
    return std::unexpected(
        bad_request("", fmt::format("The body must be a JSON object, not {}.", parsed->type_name()),
                    "invalid_type"));
  }
  ChatCall call;
  FieldReader fields(*parsed);
  call.model = fields.string("model").value_or("");
  if (const Json* messages = fields.array("messages")) {
    call.chat.messages = *messages;
  } else {
    fields.fail("messages", "is required", "missing_field");
  }
  read_stream(fields, call);
  read_lengths(fields, call);
  read_sampling(fields, call);
  read_logit_bias(fields, call);
  read_logprobs(fields, call);
  read_stops(fields, call);
  read_tools(fields, call);
  read_thinking(fields, call);
  read_salt(fields, call);
  call.n = static_cast<int>(fields.integer("n", 1, max_n).value_or(1));
  call.chat.add_generation_prompt = fields.boolean_or("add_generation_prompt", true);
  read_refused(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  call.unknown_fields = fields.unknown_names();
  return call;
}

}  // namespace glint
