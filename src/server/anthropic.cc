#include "server/anthropic.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <limits>
#include <utility>

#include "server/anthropic_messages.h"
#include "server/anthropic_writer.h"
#include "server/common_fields.h"
#include "server/field_reader.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

// Accepted for their clients' sake; they change nothing that is promised.
constexpr const char* kIgnored[] = {"metadata",  "service_tier", "cache_control",
                                    "container", "betas",        "context_management"};

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  std::ranges::move(more, std::back_inserter(to));
}

void read_messages(FieldReader& fields, const ApiSettings& settings, ApiCall& call,
                   ChatRequest& chat) {
  const Json* system = fields.get("system");
  const Json* messages = fields.array("messages");
  if (messages == nullptr) return fields.fail("messages", "is required", "missing_field");
  if (fields.error()) return;
  auto conversation = read_anthropic_conversation(system, *messages, settings.takes_images);
  if (!conversation) return fields.fail(conversation.error());
  chat.messages = std::move(conversation->messages);
  chat.continue_final_message = conversation->ends_with_assistant;
  append(call.notes, std::move(conversation->notes));
}

void read_tool_choice(FieldReader& fields, ChatRequest& chat) {
  using Kind = ToolChoice::Kind;
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  FieldReader inner(*choice, "tool_choice.");
  const auto type = inner.string("type");
  chat.parallel_tool_calls = !inner.boolean_or("disable_parallel_tool_use", false);
  if (!type) {
    inner.fail("type", "is required", "missing_field");
  } else if (*type == "none") {
    chat.tool_choice.kind = Kind::kNone;
  } else if (*type == "any") {
    chat.tool_choice.kind = Kind::kRequired;
  } else if (*type == "tool") {
    chat.tool_choice.kind = Kind::kNamed;
    const auto name = inner.string("name");
    if (!name) inner.fail("name", "is required", "missing_field");
    chat.tool_choice.names = {name.value_or("")};
  } else if (*type != "auto") {
    inner.fail("type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
  }
  fields.adopt(inner);
}

bool has_tool(const Json& tools, const std::string& name) {
  if (tools.is_null()) return false;
  return std::ranges::any_of(tools.as_array(), [&](const Json& tool) {
    return *tool.find("function")->find("name") == Json(name);
  });
}

void read_tools(FieldReader& fields, ApiCall& call, ChatRequest& chat) {
  using Kind = ToolChoice::Kind;
  if (const Json* tools = fields.array("tools")) {
    auto read = read_anthropic_tools(*tools);
    if (!read) return fields.fail(read.error());
    chat.tools = std::move(read->tools);
    append(call.notes, std::move(read->notes));
  }
  read_tool_choice(fields, chat);
  const ToolChoice& choice = chat.tool_choice;
  if (choice.kind == Kind::kRequired && chat.tools.is_null()) {
    fields.fail("tool_choice", "needs a tool with an input_schema; server tools are not run here");
  } else if (choice.kind == Kind::kNamed && !has_tool(chat.tools, choice.names.front())) {
    fields.fail("tool_choice.name",
                "names no tool that has an input_schema; server tools are not run here");
  }
}

void read_thinking(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat) {
  constexpr int kLeastBudget = 1024;
  chat.enable_thinking = settings.anthropic_thinking;
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return;
  FieldReader inner(*thinking, "thinking.");
  const auto type = inner.string("type");
  const auto budget = inner.integer("budget_tokens", kLeastBudget, kMaxInt);
  if (type == "enabled") {
    chat.enable_thinking = true;
    chat.thinking_budget = as_int(budget);
  } else if (type == "disabled") {
    chat.enable_thinking = false;
  } else if (type != "adaptive") {
    inner.fail("type", "must be \"enabled\", \"disabled\" or \"adaptive\"");
  }
  fields.adopt(inner);
}

void read_effort(FieldReader& inner, const ApiSettings& settings, ChatRequest& chat) {
  constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const auto effort = inner.string("effort");
  if (!effort) return;
  if (std::ranges::find(kEfforts, *effort) == std::end(kEfforts)) {
    return inner.fail("effort",
                      "must be \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or "
                      "\"max\"");
  }
  apply_effort(settings, *effort, chat);
}

void read_output(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat) {
  if (const Json* config = fields.object("output_config")) {
    FieldReader inner(*config, "output_config.");
    read_effort(inner, settings, chat);
    const Json* format = inner.object("format");
    fields.adopt(inner);
    if (format != nullptr) read_format_object(fields, "output_config.format", *format, chat);
  }
  // As it was called before it moved.
  if (const Json* format = fields.object("output_format"))
    read_format_object(fields, "output_format", *format, chat);
}

void read_values(FieldReader& fields, ChatRequest& chat) {
  chat.temperature = fields.number("temperature");
  if (chat.temperature && !(*chat.temperature >= 0 && *chat.temperature <= 1)) {
    fields.fail("temperature", "must be from 0 to 1");
  }
  chat.top_p = fields.number("top_p");
  chat.top_k = as_int(fields.integer("top_k", -1, kMaxInt));
  if (const Json* kwargs = fields.object("chat_template_kwargs")) chat.template_kwargs = *kwargs;
  const Json* stops = fields.array("stop_sequences");
  if (stops == nullptr) return;
  for (const Json& stop : stops->as_array()) {
    if (!stop.is_string())
      return fields.fail("stop_sequences", "must hold strings only", "invalid_type");
    if (stop.as_string().empty())
      return fields.fail("stop_sequences", "must not hold an empty string");
    chat.stop.push_back(stop.as_string());
  }
}

std::expected<ApiCall, ApiError> parse_call(std::string_view body, const ApiSettings& settings,
                                            bool needs_max_tokens) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  ApiCall call;
  ChatRequest chat;
  FieldReader fields(*parsed);
  call.model = fields.string("model").value_or("");
  call.accepts_any_model = true;  // agents send their vendor's names for requests on the side
  call.stream = fields.boolean_or("stream", false);
  chat.max_tokens = as_int(fields.integer("max_tokens", 1, kMaxInt));
  if (!chat.max_tokens && needs_max_tokens) {
    fields.fail("max_tokens", "is required", "missing_field");
  }
  read_messages(fields, settings, call, chat);
  read_tools(fields, call, chat);
  read_thinking(fields, settings, chat);
  read_output(fields, settings, chat);
  read_values(fields, chat);
  for (const char* name : kIgnored) fields.ignore(name);
  if (fields.error()) return std::unexpected(*fields.error());
  call.unknown_fields = fields.unknown_names();
  call.prompts.push_back(std::move(chat));
  call.writer = make_messages_writer(call.stream);
  return call;
}

// Unix time as in RFC 3339.
std::string time_text(std::int64_t seconds) {
  const std::time_t time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "1970-01-01T00:00:00Z";
  char text[40];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, length);
}

}  // namespace

std::expected<ApiCall, ApiError> parse_messages_call(std::string_view body,
                                                     const ApiSettings& settings) {
  return parse_call(body, settings, true);
}

std::expected<Json, ApiError> count_message_tokens(const ServedModel& model,
                                                   std::string_view body) {
  auto call = parse_call(body, model.api, false);
  if (!call) return std::unexpected(call.error());
  const auto prompt = prepare_prompt(model, call->prompts.front());
  if (!prompt) return std::unexpected(prompt.error());
  return Json(Json::Object{{"input_tokens", Json(static_cast<std::int64_t>(prompt->ids.size()))}});
}

Json anthropic_model(const Json& openai_model) {
  const Json& id = *openai_model.find("id");
  return Json(
      Json::Object{{"type", Json("model")},
                   {"id", id},
                   {"display_name", id},
                   {"created_at", Json(time_text(openai_model.find("created")->as_int()))}});
}

Json anthropic_models(const Json& openai_models) {
  Json data(Json::Array{});
  for (const Json& model : openai_models.as_array()) data.push_back(anthropic_model(model));
  const bool is_empty = data.as_array().empty();
  const Json first = is_empty ? Json() : *data.as_array().front().find("id");
  const Json last = is_empty ? Json() : *data.as_array().back().find("id");
  return Json(Json::Object{{"data", std::move(data)},
                           {"has_more", Json(false)},
                           {"first_id", first},
                           {"last_id", last}});
}

}  // namespace glint
