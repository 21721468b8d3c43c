// The tools half of messages.h: what a tool may look like, checked far enough that a malformed
// schema is the client's 400 and never a surprise later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "chat/messages.h"

namespace glint {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "object", "array",  "null"};

// A regular expression whose groups and classes are closed and whose escapes are complete.
bool pattern_is_balanced(std::string_view pattern) {
  int groups = 0;
  bool in_class = false;
  for (std::size_t index = 0; index < pattern.size(); ++index) {
    const char c = pattern[index];
    if (c == '\\') {
      if (++index == pattern.size()) return false;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      // A ']' that comes first is itself a member of the class.
      if (index + 1 < pattern.size() && pattern[index + 1] == '^') ++index;
      if (index + 1 < pattern.size() && pattern[index + 1] == ']') ++index;
    } else if (c == '(') {
      ++groups;
    } else if (c == ')' && --groups < 0) {
      return false;
    }
  }
  return groups == 0 && !in_class;
}

Status check_type(const Json& type, const std::string& path) {
  const auto known = [](const Json& name) {
    return name.is_string() && std::ranges::find(kTypes, name.as_string()) != kTypes.end();
  };
  if (known(type)) return {};
  if (type.is_array() && !type.as_array().empty() && std::ranges::all_of(type.as_array(), known))
    return {};
  return invalid_argument(fmt::format(
      "{}: must be one of string, number, integer, boolean, object, array, null, or a list of them",
      path));
}

Status check_schema(const Json& schema, const std::string& path, int depth) {
  constexpr int kMaxDepth = 64;
  if (schema.is_bool()) return {};
  if (!schema.is_object()) {
    return invalid_argument(
        fmt::format("{}: must be a schema object, not {}", path, schema.type_name()));
  }
  if (depth > kMaxDepth) {
    return invalid_argument(fmt::format("{}: schemas nest at most {} deep", path, kMaxDepth));
  }
  if (const Json* type = schema.find("type")) GLINT_TRY_VOID(check_type(*type, path + ".type"));
  if (const Json* pattern = schema.find("pattern")) {
    if (!pattern->is_string() || !pattern_is_balanced(pattern->as_string())) {
      return invalid_argument(path + ".pattern: is not a well-formed regular expression");
    }
  }
  for (const char* key : {"properties", "$defs", "definitions"}) {
    const Json* members = schema.find(key);
    if (members == nullptr) continue;
    if (!members->is_object())
      return invalid_argument(fmt::format("{}.{}: must be an object", path, key));
    for (const auto& [name, member] : members->as_object()) {
      GLINT_TRY_VOID(check_schema(member, fmt::format("{}.{}.{}", path, key, name), depth + 1));
    }
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const Json* branches = schema.find(key);
    if (branches == nullptr) continue;
    if (!branches->is_array())
      return invalid_argument(fmt::format("{}.{}: must be a list", path, key));
    for (std::size_t index = 0; index < branches->as_array().size(); ++index) {
      GLINT_TRY_VOID(check_schema(branches->as_array()[index],
                                  fmt::format("{}.{}[{}]", path, key, index), depth + 1));
    }
  }
  if (const Json* items = schema.find("items"); items != nullptr && !items->is_array()) {
    GLINT_TRY_VOID(check_schema(*items, path + ".items", depth + 1));
  }
  if (const Json* required = schema.find("required")) {
    const auto is_name = [](const Json& name) { return name.is_string(); };
    if (!required->is_array() || !std::ranges::all_of(required->as_array(), is_name)) {
      return invalid_argument(path + ".required: must be a list of strings");
    }
  }
  return {};
}

bool name_is_valid(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("_.:/-").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, allowed);
}

// {"name", "parameters"} and {"name", "input_schema"} are understood too.
Json wrapped(const Json& tool) {
  if (tool.find("function") != nullptr || tool.find("name") == nullptr) return tool;
  Json inner;
  for (const auto& [key, value] : tool.as_object()) {
    if (key != "type") inner.set(key == "input_schema" ? "parameters" : key, value);
  }
  Json out;
  out.set("type", Json("function"));
  out.set("function", std::move(inner));
  return out;
}

Status check_tool(const Json& tool, const std::string& path, std::set<std::string>& names) {
  if (const Json* type = tool.find("type"); type != nullptr && *type != Json("function")) {
    return unsupported(path + ".type: only tools of type 'function' are supported");
  }
  const Json* function = tool.find("function");
  if (function == nullptr || !function->is_object()) {
    return invalid_argument(path + ".function: must be an object");
  }
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string() || !name_is_valid(name->as_string())) {
    return invalid_argument(path + ".function.name: must be 1 to 128 of A-Z a-z 0-9 _ . : / -");
  }
  if (!names.insert(name->as_string()).second) {
    return invalid_argument(
        fmt::format("{}.function.name: two tools are called '{}'", path, name->as_string()));
  }
  const Json* description = function->find("description");
  if (description != nullptr && !description->is_null() && !description->is_string()) {
    return invalid_argument(path + ".function.description: must be a string");
  }
  const Json* parameters = function->find("parameters");
  if (parameters == nullptr || parameters->is_null()) return {};
  if (!parameters->is_object())
    return invalid_argument(path + ".function.parameters: must be an object");
  return check_schema(*parameters, path + ".function.parameters", 0);
}

}  // namespace

Result<Json> normalise_tools(const Json& tools) {
  if (tools.is_null()) return Json();
  if (!tools.is_array()) {
    return invalid_argument(fmt::format("tools: must be a list, not {}", tools.type_name()));
  }
  std::set<std::string> names;
  Json out;
  for (std::size_t index = 0; index < tools.as_array().size(); ++index) {
    const std::string path = fmt::format("tools[{}]", index);
    if (!tools.as_array()[index].is_object()) return invalid_argument(path + ": must be an object");
    Json tool = wrapped(tools.as_array()[index]);
    GLINT_TRY_VOID(check_tool(tool, path, names));
    out.push_back(std::move(tool));
  }
  return out;
}

}  // namespace glint
