#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>

#include "server/common_fields.h"
#include "server/field_reader.h"
#include "server/responses_input.h"
#include "server/responses_writer.h"
#include "server/turn_fields.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

// Needs what this server does not keep or have.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"previous_response_id", "this server stores no responses; send the conversation as input"},
    {"conversation", "this server stores no conversations; send the conversation as input"},
    {"background", "this server stores no responses to be fetched later; use stream"},
    {"prompt", "this server stores no prompts; send instructions and input"},
    {"context_management", "this server compacts no conversations"},
    {"chat_template", "is for /v1/chat/completions"},
    {"documents", "is for /v1/chat/completions"},
    {"continue_final_message", "is for /v1/chat/completions"},
    {"echo", "is for /v1/completions"},
    {"prompt_logprobs", "is for /v1/chat/completions"},
    {"return_token_ids", "is for /v1/chat/completions"},
    {"return_progress", "is for /v1/chat/completions"},
};

bool is_unset(const Json* value) {
  return value == nullptr || *value == Json(false) ||
         (value->is_array() && value->as_array().empty());
}

void read_refused(FieldReader& fields) {
  for (const auto& [name, why] : kRefused) {
    if (!is_unset(fields.get(name))) fields.fail(name, why, "unsupported_value");
  }
  if (const Json* n = fields.get("n"); n != nullptr && integer_value(*n) != 1)
    fields.fail("n", "a response is one answer; ask several times", "unsupported_value");
}

void read_length(FieldReader& fields, ChatRequest& chat) {
  auto limit = fields.integer("max_output_tokens", 1, kMaxInt);
  for (const char* alias : {"max_completion_tokens", "max_tokens"}) {
    const auto other = fields.integer(alias, 1, kMaxInt);
    if (!limit) limit = other;
  }
  chat.max_tokens = as_int(limit);
}

void read_include(FieldReader& fields, ResponseShape& shape) {
  // What the others would add never occurs here.
  constexpr std::array<std::string_view, 7> kNeverThere = {"file_search_call.results",
                                                           "web_search_call.results",
                                                           "web_search_call.action.sources",
                                                           "message.input_image.image_url",
                                                           "code_interpreter_call.outputs",
                                                           "computer_call_output.output.image_url",
                                                           "mcp_list_tools.tools"};
  const Json* include = fields.array("include");
  if (include == nullptr) return;
  for (const Json& one : include->as_array()) {
    if (!one.is_string()) return fields.fail("include", "must hold strings only", "invalid_type");
    const std::string& name = one.as_string();
    if (name == "reasoning.encrypted_content") {
      shape.seals_thoughts = true;
    } else if (name == "message.output_text.logprobs") {
      shape.logprobs = true;
    } else if (std::ranges::find(kNeverThere, name) == kNeverThere.end()) {
      fields.fail("include", fmt::format("'{}' is nothing that a response has", name),
                  "unsupported_value");
    }
  }
}

void read_logprobs(FieldReader& fields, const ApiSettings& settings, ResponseShape& shape,
                   ChatRequest& chat) {
  const std::int64_t most = settings.max_logprobs < 0 ? kMaxInt : settings.max_logprobs;
  const auto top = fields.integer("top_logprobs", 0, most);
  if (top.value_or(0) > 0) shape.logprobs = true;
  if (shape.logprobs) chat.top_logprobs = static_cast<int>(top.value_or(0));
}

void read_effort(FieldReader& fields, const ApiSettings& settings, ResponseShape& shape,
                 ChatRequest& chat) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  shape.shows_reasoning = read_thinking(fields, settings, chat);
  if (chat.reasoning_effort &&
      std::ranges::find(kEfforts, *chat.reasoning_effort) == kEfforts.end()) {
    fields.fail("reasoning.effort", fmt::format("'{}' is none of none, minimal, low, medium, high, "
                                                "xhigh, max",
                                                *chat.reasoning_effort));
  }
}

void read_choice(FieldReader& fields, ChatRequest& chat) {
  chat.parallel_tool_calls = fields.boolean_or("parallel_tool_calls", true);
  if (const Json* choice = fields.get("tool_choice"))
    read_tool_choice(fields, "tool_choice", *choice, chat.tool_choice);
  const ToolChoice& choice = chat.tool_choice;
  const bool forces =
      choice.kind == ToolChoice::Kind::kRequired || choice.kind == ToolChoice::Kind::kNamed;
  if (forces && chat.tools.is_null()) return fields.fail("tool_choice", "needs tools");
  for (const std::string& name : choice.names) {
    const bool is_there =
        chat.tools.is_array() && std::ranges::any_of(chat.tools.as_array(), [&](const Json& tool) {
          return *tool.find("function")->find("name") == Json(name);
        });
    if (!is_there) fields.fail("tool_choice", fmt::format("'{}' is not among the tools", name));
  }
}

void read_text(FieldReader& fields, ChatRequest& chat) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  FieldReader inner(*text, "text.");
  if (const Json* format = inner.object("format"))
    read_format_object(fields, "text.format", *format, chat);
  inner.string("verbosity");  // a wish that no template knows
  fields.adopt(inner);
}

// A prompt that fits is served whole either way, and one that does not is refused: what "auto"
// permits is never made use of, so that no conversation loses its beginning unnoticed.
void read_truncation(FieldReader& fields) {
  const auto truncation = fields.string("truncation");
  if (truncation && truncation != "auto" && truncation != "disabled")
    fields.fail("truncation", "must be \"auto\" or \"disabled\"");
}

// Members of a response that repeat its request, or say what holds here.
Json::Object echo_of(const Json& body, const ChatRequest& chat) {
  const auto own = [&body](std::string_view name, Json otherwise = {}) {
    const Json* value = body.find(name);
    return value == nullptr || value->is_null() ? std::move(otherwise) : *value;
  };
  Json text = own("text", Json(Json::Object{}));
  if (const Json* format = text.find("format"); format == nullptr || format->is_null())
    text.set("format", Json(Json::Object{{"type", Json("text")}}));
  Json reasoning = own("reasoning", Json(Json::Object{}));
  for (const char* name : {"effort", "summary"}) {
    if (reasoning.find(name) == nullptr) reasoning.set(name, Json());
  }
  return {{"background", Json(false)},
          {"instructions", own("instructions")},
          {"max_output_tokens", chat.max_tokens ? Json(*chat.max_tokens) : Json()},
          {"max_tool_calls", own("max_tool_calls")},
          {"metadata", own("metadata", Json(Json::Object{}))},
          {"parallel_tool_calls", Json(chat.parallel_tool_calls)},
          {"previous_response_id", Json()},
          {"prompt_cache_key", own("prompt_cache_key")},
          {"reasoning", std::move(reasoning)},
          {"safety_identifier", own("safety_identifier")},
          {"service_tier", Json("default")},
          {"store", Json(false)},
          {"temperature", own("temperature")},
          {"text", std::move(text)},
          {"tool_choice", own("tool_choice", Json("auto"))},
          {"tools", own("tools", Json(Json::Array{}))},
          {"top_logprobs", Json(std::max(chat.top_logprobs, 0))},
          {"top_p", own("top_p")},
          {"truncation", Json("disabled")},
          {"user", own("user")}};
}

}  // namespace

std::expected<ApiCall, ApiError> parse_responses_call(std::string_view body,
                                                      const ApiSettings& settings) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  ApiCall call;
  ChatRequest chat;
  ResponseShape shape;
  FieldReader fields(*parsed);
  call.conversation = "input";
  call.model = fields.string("model").value_or("");
  read_refused(fields);
  read_input(fields, settings.takes_images, chat, call.notes);
  call.stream = shape.stream = fields.boolean_or("stream", false);
  fields.object("stream_options");  // include_obfuscation, which there is none of
  read_length(fields, chat);
  read_sampling(fields, chat);
  read_limits(fields, chat);
  shape.include_stop_string = fields.boolean_or("include_stop_str_in_output", false);
  read_include(fields, shape);
  read_logprobs(fields, settings, shape, chat);
  read_response_tools(fields, chat, shape.tools, call.notes);
  read_choice(fields, chat);
  read_effort(fields, settings, shape, chat);
  read_text(fields, chat);
  read_answer_format(fields, chat);
  read_truncation(fields);
  read_serving(fields, settings, call, chat);
  fields.object("metadata");
  fields.integer("max_tool_calls", 0, kMaxInt);  // of tools that run at the provider's
  fields.ignore("client_metadata");
  read_others(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  shape.echo = echo_of(*parsed, chat);
  call.unknown_fields = fields.unknown_names();
  call.prompts.push_back(std::move(chat));
  call.writer = make_response_writer(std::move(shape));
  return call;
}

}  // namespace glint
