#include "server/turn_fields.h"

#include <limits>
#include <optional>
#include <string>

#include "server/common_fields.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

// The name in {"type": "function", "function": {"name"}} or {"type": "function" | "tool", "name"}.
std::optional<std::string> chosen_name(const Json& choice) {
  const Json* function = choice.find("function");
  const Json* name = (function != nullptr ? function : &choice)->find("name");
  if (name == nullptr || !name->is_string()) return std::nullopt;
  return name->as_string();
}

void read_allowed_tools(FieldReader& fields, const Json& choice, ToolChoice& out) {
  const Json* body = choice.find("allowed_tools");
  if (body == nullptr) body = &choice;
  FieldReader inner(*body, "tool_choice.");
  const std::string mode = inner.string("mode").value_or("auto");
  if (mode != "auto" && mode != "required") inner.fail("mode", "must be \"auto\" or \"required\"");
  out.kind = mode == "required" ? ToolChoice::Kind::kRequired : ToolChoice::Kind::kAuto;
  const Json* tools = inner.array("tools");
  if (tools == nullptr || tools->as_array().empty()) {
    inner.fail("tools", "must name at least one tool", "missing_field");
  } else {
    for (const Json& tool : tools->as_array()) {
      const auto name = chosen_name(tool);
      if (!name) inner.fail("tools", "must hold objects with a name", "invalid_type");
      out.names.push_back(name.value_or(""));
    }
  }
  fields.adopt(inner);
}

}  // namespace

void read_tool_choice(FieldReader& fields, std::string_view field, const Json& choice,
                      ToolChoice& out) {
  using Kind = ToolChoice::Kind;
  if (choice == Json("auto")) return;
  if (choice == Json("none")) {
    out.kind = Kind::kNone;
  } else if (choice == Json("required") || choice == Json("any")) {
    out.kind = Kind::kRequired;
  } else if (!choice.is_object()) {
    fields.fail(field, "must be \"none\", \"auto\", \"required\" or an object that names a tool");
  } else if (choice.find("type") != nullptr && *choice.find("type") == Json("allowed_tools")) {
    read_allowed_tools(fields, choice, out);
  } else if (const auto name = chosen_name(choice)) {
    out.kind = Kind::kNamed;
    out.names = {*name};
  } else {
    fields.fail(field, "names no tool: {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
}

namespace {

void read_thinking_object(FieldReader& fields, ChatRequest& chat) {
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return;
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
  if (const auto budget = inner.integer("budget_tokens", 0, kMaxInt))
    chat.thinking_budget = static_cast<int>(*budget);
  fields.adopt(inner);
}

// Returns whether thoughts are to be shown.
bool read_reasoning_object(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat) {
  const Json* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) return true;
  FieldReader inner(*reasoning, "reasoning.");
  const auto enabled = inner.boolean("enabled");
  if (!chat.enable_thinking) chat.enable_thinking = enabled;
  if (const auto budget = inner.integer("max_tokens", 0, kMaxInt); budget && !chat.thinking_budget)
    chat.thinking_budget = static_cast<int>(*budget);
  if (const auto effort = inner.string("effort")) apply_effort(settings, *effort, chat);
  const bool is_shown = !inner.boolean_or("exclude", false);
  fields.adopt(inner);
  return is_shown;
}

}  // namespace

bool read_thinking(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat) {
  if (const Json* kwargs = fields.object("chat_template_kwargs")) chat.template_kwargs = *kwargs;
  const auto budget = fields.integer("thinking_token_budget", 0, kMaxInt);
  const auto alias = fields.integer("thinking_budget_tokens", 0, kMaxInt);
  chat.thinking_budget = as_int(budget ? budget : alias);
  if (const auto effort = fields.string("reasoning_effort")) apply_effort(settings, *effort, chat);
  read_thinking_object(fields, chat);
  const bool is_shown = read_reasoning_object(fields, settings, chat);
  return fields.boolean_or("include_reasoning", true) && is_shown;
}

}  // namespace glint
