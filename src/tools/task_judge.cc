#include "tools/task_judge.h"

#include <fmt/format.h>

#include <optional>

namespace glint {
namespace {

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCallBegin = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kKeyBegin = "<arg_key>";
constexpr std::string_view kKeyEnd = "</arg_key><arg_value>";
constexpr std::string_view kValueEnd = "</arg_value>";

Result<std::string> string_field(const Json& object, std::string_view key) {
  const Json* field = object.find(key);
  if (field == nullptr || !field->is_string()) {
    return invalid_argument(fmt::format("\"{}\" must be a string", key));
  }
  return field->as_string();
}

Result<TaskItem> parse_item(std::string_view line) {
  GLINT_TRY(const Json object, parse_json(line));
  TaskItem item;
  GLINT_TRY(item.id, string_field(object, "id"));
  GLINT_TRY(item.task, string_field(object, "task"));
  const Json* messages = object.find("messages");
  if (messages == nullptr || !messages->is_array()) {
    return invalid_argument("\"messages\" must be a list");
  }
  item.messages = *messages;
  if (const Json* tools = object.find("tools"); tools != nullptr) item.tools = *tools;
  if (const Json* thinking = object.find("enable_thinking"); thinking != nullptr) {
    if (!thinking->is_bool()) return invalid_argument("\"enable_thinking\" must be true or false");
    item.enable_thinking = thinking->as_bool();
  }
  const Json* expected = object.find("expected");
  if (expected == nullptr) return invalid_argument("\"expected\" is missing");
  item.expected = *expected;
  return item;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The declared type of an argument, or "" when nothing declares one.
std::string_view declared_type(const TaskItem& item, std::string_view function,
                               std::string_view key) {
  if (!item.tools.is_array()) return "";
  for (const Json& tool : item.tools.as_array()) {
    const Json* declared = tool.find("function");
    if (declared == nullptr) continue;
    const Json* name = declared->find("name");
    if (name == nullptr || !name->is_string() || name->as_string() != function) continue;
    const Json* node = declared;
    for (const std::string_view step :
         {std::string_view("parameters"), std::string_view("properties"), key,
          std::string_view("type")}) {
      node = node == nullptr ? nullptr : node->find(step);
    }
    return node != nullptr && node->is_string() ? std::string_view(node->as_string()) : "";
  }
  return "";
}

// The arguments behind the name, or nothing when the markup is broken.
std::optional<Json> parse_arguments(std::string_view text, const TaskItem& item,
                                    std::string_view function) {
  Json arguments{Json::Object{}};
  while (!text.empty()) {
    if (!take(text, kKeyBegin)) return std::nullopt;
    const std::size_t key_end = text.find(kKeyEnd);
    if (key_end == std::string_view::npos) return std::nullopt;
    const std::string_view key = text.substr(0, key_end);
    text.remove_prefix(key_end + kKeyEnd.size());
    const std::size_t value_end = text.find(kValueEnd);
    if (value_end == std::string_view::npos) return std::nullopt;
    const std::string_view value = text.substr(0, value_end);
    text.remove_prefix(value_end + kValueEnd.size());
    Json parsed(value);
    if (declared_type(item, function, key) != "string") {
      if (auto json = parse_json(value); json) parsed = std::move(*json);
    }
    arguments.set(std::string(key), std::move(parsed));
  }
  return arguments;
}

std::optional<Json> parse_call(std::string_view text, const TaskItem& item) {
  // A newline never occurs inside a call of this format.
  if (text.find('\n') != std::string_view::npos) return std::nullopt;
  if (!take(text, kCallBegin) || !text.ends_with(kCallEnd)) return std::nullopt;
  text.remove_suffix(kCallEnd.size());
  const std::string_view name = text.substr(0, text.find(kKeyBegin));
  auto arguments = parse_arguments(text.substr(name.size()), item, name);
  if (!arguments) return std::nullopt;
  Json call;
  call.set("name", name);
  call.set("arguments", std::move(*arguments));
  return call;
}

}  // namespace

Result<std::vector<TaskItem>> parse_task_items(std::string_view text, std::string_view file_name) {
  std::vector<TaskItem> items;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto item = parse_item(line);
    if (!item) {
      return invalid_argument(
          fmt::format("{}, line {}: {}", file_name, number, item.error().message));
    }
    items.push_back(std::move(*item));
  }
  if (items.empty()) return invalid_argument(fmt::format("{}: no items", file_name));
  return items;
}

Json parse_answer(std::string_view output, const TaskItem& item) {
  if (item.enable_thinking) {
    const std::size_t end = output.find(kThinkEnd);
    if (end != std::string_view::npos) output.remove_prefix(end + kThinkEnd.size());
  }
  if (auto call = parse_call(output, item)) return std::move(*call);
  return output;
}

bool same_json(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_int() && b.is_int() ? a.as_int() == b.as_int() : a.as_double() == b.as_double();
  }
  if (a.is_array() && b.is_array()) {
    const Json::Array& x = a.as_array();
    const Json::Array& y = b.as_array();
    if (x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!same_json(x[i], y[i])) return false;
    }
    return true;
  }
  if (a.is_object() && b.is_object()) {
    if (a.as_object().size() != b.as_object().size()) return false;
    for (const auto& [key, value] : a.as_object()) {
      const Json* other = b.find(key);
      if (other == nullptr || !same_json(value, *other)) return false;
    }
    return true;
  }
  return a == b;
}

}  // namespace glint
