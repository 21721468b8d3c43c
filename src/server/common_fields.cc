#include "server/common_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <utility>

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
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
                                    "cache_prompt",
                                    "id_slot",
                                    "spaces_between_special_tokens"};

// Known and not offered by this server: refused when present.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"logprob_token_ids", "not supported; use top_logprobs"},
    {"audio", "this model writes text only"},
    {"samplers", "the order of samplers is fixed"},
};

// Known switches and samplers that are off here: accepted only with the value that changes nothing.
struct Neutral {
  const char* name;
  double value;
};
constexpr Neutral kNeutral[] = {
    {"use_beam_search", 0}, {"length_penalty", 1}, {"typical_p", 1},       {"xtc_probability", 0},
    {"xtc_threshold", 0.1}, {"dry_multiplier", 0}, {"mirostat", 0},        {"dynatemp_range", 0},
    {"top_n_sigma", -1},    {"min_keep", 0},       {"adaptive_target", -1}};

void add_bias(FieldReader& fields, ChatRequest& chat, std::optional<std::int64_t> id,
              const Json& bias) {
  if (!id || *id < 0 || *id > kMaxInt)
    return fields.fail("logit_bias", "keys must be decimal token ids");
  if (!bias.is_number()) return fields.fail("logit_bias", "biases must be numbers", "invalid_type");
  chat.logit_bias.emplace_back(static_cast<std::int32_t>(*id),
                               static_cast<float>(bias.as_double()));
}

void read_logit_bias(FieldReader& fields, ChatRequest& chat) {
  const Json* biases = fields.get("logit_bias");
  if (biases == nullptr) return;
  if (biases->is_object()) {
    for (const auto& [key, bias] : biases->as_object()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size()) id = -1;
      add_bias(fields, chat, id, bias);
    }
  } else if (biases->is_array()) {
    for (const Json& pair : biases->as_array()) {
      if (!pair.is_array() || pair.as_array().size() != 2) {
        return fields.fail("logit_bias", "a list must hold [token id, bias] pairs", "invalid_type");
      }
      add_bias(fields, chat, integer_value(pair.as_array()[0]), pair.as_array()[1]);
    }
  } else {
    fields.fail("logit_bias", "must be an object", "invalid_type");
  }
}

void read_token_ids(FieldReader& fields, std::string_view name, std::vector<std::int32_t>& out) {
  const Json* ids = fields.array(name);
  if (ids == nullptr) return;
  for (const Json& one : ids->as_array()) {
    const auto id = integer_value(one);
    if (!id || *id < 0 || *id > kMaxInt) return fields.fail(name, "must hold token ids");
    out.push_back(static_cast<std::int32_t>(*id));
  }
}

// One string, or a list of them.
void read_strings(FieldReader& fields, std::string_view name, std::vector<std::string>& out) {
  const Json* value = fields.get(name);
  if (value == nullptr) return;
  if (value->is_string()) return out.push_back(value->as_string());
  if (!value->is_array()) {
    return fields.fail(name, "must be a string or a list of strings", "invalid_type");
  }
  for (const Json& one : value->as_array()) {
    if (!one.is_string()) return fields.fail(name, "must hold strings only", "invalid_type");
    out.push_back(one.as_string());
  }
}

bool is_unset(const Json* value) {
  return value == nullptr || *value == Json("") || *value == Json(false) ||
         (value->is_array() && value->as_array().empty());
}

// Sets the format unless one is set already: two of them cannot both hold.
class FormatSetter {
 public:
  FormatSetter(FieldReader& fields, AnswerFormat& format) : fields_(fields), format_(format) {}

  void set(AnswerFormat::Kind kind, std::string_view field) {
    if (format_.kind != AnswerFormat::Kind::kFree) {
      return fields_.fail(field, fmt::format("cannot be combined with {}", format_.field));
    }
    format_.kind = kind;
    format_.field = std::string(field);
  }
  void set_text(AnswerFormat::Kind kind, std::string_view field, const Json& value) {
    if (!value.is_string()) return fields_.fail(field, "must be a string", "invalid_type");
    set(kind, field);
    format_.text = value.as_string();
  }
  // A schema as an object, or as the text of one.
  void set_schema(std::string_view field, const Json& value) {
    Json schema = value;
    if (value.is_string()) {
      auto parsed = parse_json(value.as_string());
      if (!parsed) {
        return fields_.fail(field, "is not valid JSON: " + parsed.error().message,
                            "invalid_schema");
      }
      schema = std::move(*parsed);
    }
    if (!schema.is_object() && !schema.is_bool()) {
      return fields_.fail(field, "must be a JSON schema", "invalid_schema");
    }
    set(AnswerFormat::Kind::kJsonSchema, field);
    format_.schema = std::move(schema);
  }
  void set_choices(std::string_view field, const Json& value) {
    if (!value.is_array() || value.as_array().empty()) {
      return fields_.fail(field, "must be a list of at least one string", "invalid_type");
    }
    for (const Json& one : value.as_array()) {
      if (!one.is_string()) return fields_.fail(field, "must hold strings only", "invalid_type");
    }
    set(AnswerFormat::Kind::kChoice, field);
    for (const Json& one : value.as_array()) format_.choices.push_back(one.as_string());
  }
  // A grammar in Lark, or in GBNF, whose rules have "::=".
  void set_grammar(std::string_view field, const Json& value) {
    const bool is_gbnf = value.is_string() && value.as_string().find("::=") != std::string::npos;
    set_text(is_gbnf ? AnswerFormat::Kind::kGbnf : AnswerFormat::Kind::kLark, field, value);
  }

 private:
  FieldReader& fields_;
  AnswerFormat& format_;
};

void read_structured_outputs(FieldReader& fields, const Json& object, ChatRequest& chat) {
  FieldReader inner(object, "structured_outputs.");
  FormatSetter setter(inner, chat.format);
  if (const Json* value = inner.get("json")) setter.set_schema("json", *value);
  if (const Json* value = inner.get("regex"))
    setter.set_text(AnswerFormat::Kind::kRegex, "regex", *value);
  if (const Json* value = inner.get("choice")) setter.set_choices("choice", *value);
  if (const Json* value = inner.get("grammar")) setter.set_grammar("grammar", *value);
  if (inner.boolean_or("json_object", false))
    setter.set(AnswerFormat::Kind::kJsonObject, "json_object");
  if (!is_unset(inner.get("structural_tag"))) {
    inner.fail("structural_tag", "is not supported", "unsupported_value");
  }
  if (inner.boolean_or("disable_any_whitespace", false)) chat.format.any_whitespace = false;
  for (const std::string& name : inner.unknown_names()) {
    inner.fail(name, "is not a kind of structured output", "unsupported_value");
  }
  if (chat.format.kind != AnswerFormat::Kind::kFree) {
    chat.format.field = "structured_outputs." + chat.format.field;
  }
  fields.adopt(inner);
}

}  // namespace

std::optional<int> as_int(std::optional<std::int64_t> value) {
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

std::expected<Json, ApiError> parse_body(std::string_view body) {
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
  return std::move(*parsed);
}

void read_sampling(FieldReader& fields, ChatRequest& chat) {
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
  read_logit_bias(fields, chat);
  read_token_ids(fields, "allowed_token_ids", chat.allowed_token_ids);
  read_strings(fields, "bad_words", chat.bad_words);
}

void read_limits(FieldReader& fields, ChatRequest& chat) {
  chat.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, kMaxInt).value_or(0));
  chat.ignore_eos = fields.boolean_or("ignore_eos", false);
  chat.keep_last_prompt_tokens =
      static_cast<int>(fields.integer("truncate_prompt_tokens", 1, kMaxInt).value_or(0));
  chat.keep_special = !fields.boolean_or("skip_special_tokens", true);
  read_strings(fields, "stop", chat.stop);
  read_token_ids(fields, "stop_token_ids", chat.stop_token_ids);
}

void read_format_object(FieldReader& fields, std::string_view name, const Json& format,
                        ChatRequest& chat) {
  FieldReader inner(format, std::string(name) + ".");
  FormatSetter setter(inner, chat.format);
  const std::string type = inner.string("type").value_or("");
  if (type == "json_object") {
    setter.set(AnswerFormat::Kind::kJsonObject, "type");
    if (const Json* schema = inner.object("schema")) chat.format.schema = *schema;
  } else if (type == "json_schema") {
    // {"json_schema": {"name", "schema", "strict"}}, or the same without the inner object.
    const Json* wrapped = inner.object("json_schema");
    const std::string inner_name = wrapped != nullptr ? "json_schema." : "";
    FieldReader body(wrapped != nullptr ? *wrapped : format,
                     fmt::format("{}.{}", name, inner_name));
    FormatSetter body_setter(body, chat.format);
    const Json* schema = body.get("schema");
    if (schema == nullptr) {
      body.fail("schema", "is required", "missing_field");
    } else {
      body_setter.set_schema("schema", *schema);
    }
    chat.format.strict = body.boolean_or("strict", true);
    inner.adopt(body);
  } else if (type == "structural_tag") {
    inner.fail("type", "\"structural_tag\" is not supported", "unsupported_value");
  } else if (type != "text") {
    inner.fail("type", "must be \"text\", \"json_object\" or \"json_schema\"", "unsupported_value");
  }
  if (chat.format.kind != AnswerFormat::Kind::kFree) chat.format.field = std::string(name);
  fields.adopt(inner);
}

void read_answer_format(FieldReader& fields, ChatRequest& chat) {
  if (const Json* format = fields.object("response_format"))
    read_format_object(fields, "response_format", *format, chat);
  if (const Json* object = fields.object("structured_outputs"))
    read_structured_outputs(fields, *object, chat);
  FormatSetter setter(fields, chat.format);
  for (const char* name : {"guided_json", "json_schema"}) {
    const Json* value = fields.get(name);
    if (!is_unset(value)) setter.set_schema(name, *value);
  }
  if (const Json* value = fields.get("guided_regex"); !is_unset(value))
    setter.set_text(AnswerFormat::Kind::kRegex, "guided_regex", *value);
  if (const Json* value = fields.get("guided_choice"); !is_unset(value))
    setter.set_choices("guided_choice", *value);
  for (const char* name : {"guided_grammar", "grammar"}) {
    const Json* value = fields.get(name);
    if (!is_unset(value)) setter.set_grammar(name, *value);
  }
}

void read_serving(FieldReader& fields, const ApiSettings& settings, ApiCall& call,
                  ChatRequest& chat) {
  if (const auto salt = fields.string("cache_salt")) {
    if (salt->empty() || salt->size() > 128)
      fields.fail("cache_salt", "must have 1 to 128 characters");
    chat.cache_salt = std::hash<std::string>()(*salt);
  }
  chat.priority = static_cast<int>(fields.integer("priority", -kMaxInt, kMaxInt).value_or(0));
  if (chat.priority != 0 && !settings.by_priority) {
    fields.fail("priority", "must be 0 unless the server runs with --scheduling priority",
                "unsupported_value");
  }
  call.stream_interval =
      static_cast<int>(fields.integer("stream_interval", 1, kMaxInt).value_or(0));
}

void apply_effort(const ApiSettings& settings, const std::string& effort, ChatRequest& chat) {
  if (!chat.reasoning_effort) chat.reasoning_effort = effort;
  for (const auto& [name, budget] : settings.effort_budgets) {
    if (name == effort && !chat.thinking_budget) chat.thinking_budget = budget;
  }
}

void read_others(FieldReader& fields) {
  for (const char* name : kIgnored) fields.ignore(name);
  for (const auto& [name, why] : kRefused) {
    if (!is_unset(fields.get(name))) fields.fail(name, why, "unsupported_value");
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
  if (const Json* modalities = fields.array("modalities")) {
    for (const Json& modality : modalities->as_array()) {
      if (modality != Json("text"))
        fields.fail("modalities", "this model writes text only", "unsupported_value");
    }
  }
}

}  // namespace glint
