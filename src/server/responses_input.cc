#include "server/responses_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/base64.h"
#include "chat/images.h"
#include "chat/messages.h"

namespace glint {
namespace {

constexpr std::string_view kSeal = "glint thought 1:";

// A client's word as the log may show it.
std::string loggable(const std::string& word) {
  constexpr std::size_t kLongest = 64;
  const bool is_plain = std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  return is_plain && word.size() <= kLongest ? word : "?";
}

// The function that stands for a namespace's tool.
std::string qualified(const std::string& name_space, const std::string& name) {
  if (name_space.empty()) return name;
  return name_space + (name_space.ends_with("__") ? "" : "__") + name;
}

// Input items -> messages. Stops taking any after the first error.
class InputReader {
 public:
  InputReader(FieldReader& fields, bool takes_images)
      : fields_(fields), takes_images_(takes_images) {}

  void add_message(const char* role, Json content) {
    close_turn();
    messages_.push_back(Json(Json::Object{{"role", Json(role)}, {"content", std::move(content)}}));
  }
  void add_items(const Json& items) {
    for (std::size_t i = 0; i < items.as_array().size() && !fields_.error(); ++i)
      add_item(items.as_array()[i], fmt::format("input[{}]", i));
  }
  Json take() {
    close_turn();
    return Json(std::move(messages_));
  }
  const std::map<std::string, int>& left_out() const { return left_out_; }

 private:
  struct Turn {
    std::optional<std::string> reasoning;
    std::string content;
    Json::Array calls;
  };

  void fail(const std::string& path, std::string_view what, std::string code = "invalid_value") {
    fields_.fail(path, what, std::move(code));
  }
  Turn& turn() {
    if (!turn_) turn_.emplace();
    return *turn_;
  }
  void close_turn();
  void add_item(const Json& item, const std::string& path);
  void add_message_item(const Json& item, const std::string& path);
  void add_call(const Json& item, const std::string& path, bool is_custom);
  void add_output(const Json& item, const std::string& path);
  void add_reasoning(const Json& item, const std::string& path);
  std::string required_string(const Json& item, const char* key, const std::string& path);
  std::string call_id(const Json& item, const std::string& path);
  std::string content_text(const Json* content, const std::string& path,
                           std::string_view separator);
  // The same, or a list of parts where some are images.
  Json content_of(const Json* content, const std::string& path, std::string_view separator);
  std::string part_text(const Json& part, const std::string& path);

  FieldReader& fields_;
  const bool takes_images_;
  Json::Array messages_;
  std::optional<Turn> turn_;  // the assistant's, still growing
  std::map<std::string, int> left_out_;
};

void InputReader::close_turn() {
  if (!turn_) return;
  Json message(Json::Object{{"role", Json("assistant")}});
  message.set("content", Json(std::move(turn_->content)));
  if (turn_->reasoning) message.set("reasoning_content", Json(std::move(*turn_->reasoning)));
  if (!turn_->calls.empty()) message.set("tool_calls", Json(std::move(turn_->calls)));
  messages_.push_back(std::move(message));
  turn_.reset();
}

std::string InputReader::part_text(const Json& part, const std::string& path) {
  const Json* type = part.find("type");
  if (type == nullptr || !type->is_string()) {
    fail(path, "must be an object with a type", "invalid_type");
    return {};
  }
  const std::string& name = type->as_string();
  constexpr std::array<std::string_view, 5> kMedia = {"input_image", "input_file", "input_audio",
                                                      "image_url", "computer_screenshot"};
  if (std::ranges::find(kMedia, name) != kMedia.end()) {
    fail(path,
         takes_images_ && name == "input_image"
             ? "images are taken from users and tools only"
             : fmt::format("this model reads text only, it cannot take a part of type '{}'", name),
         "unsupported_value");
    return {};
  }
  const bool is_text = name == "input_text" || name == "output_text" || name == "text" ||
                       name == "reasoning_text" || name == "summary_text";
  if (!is_text && name != "refusal") {
    fail(path + ".type", fmt::format("unknown part type '{}'", name));
    return {};
  }
  return required_string(part, is_text ? "text" : "refusal", path);
}

std::string InputReader::content_text(const Json* content, const std::string& path,
                                      std::string_view separator) {
  if (content == nullptr || content->is_null()) return {};
  if (content->is_string()) return content->as_string();
  if (!content->is_array()) {
    fail(path, fmt::format("must be a string or a list of parts, not {}", content->type_name()),
         "invalid_type");
    return {};
  }
  std::string joined;
  const Json::Array& parts = content->as_array();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += part_text(parts[i], fmt::format("{}[{}]", path, i));
  }
  return joined;
}

Json InputReader::content_of(const Json* content, const std::string& path,
                             std::string_view separator) {
  const bool has_images = takes_images_ && content != nullptr && content->is_array() &&
                          std::ranges::any_of(content->as_array(), is_image_part);
  if (!has_images) return Json(content_text(content, path, separator));
  Json parts(Json::Array{});
  for (std::size_t i = 0; i < content->as_array().size(); ++i) {
    const Json& part = content->as_array()[i];
    if (is_image_part(part)) {
      parts.push_back(part);
    } else {
      parts.push_back(
          Json(Json::Object{{"type", Json("text")},
                            {"text", Json(part_text(part, fmt::format("{}[{}]", path, i)))}}));
    }
  }
  return parts;
}

std::string InputReader::required_string(const Json& item, const char* key,
                                         const std::string& path) {
  const Json* value = item.find(key);
  if (value != nullptr && value->is_string()) return value->as_string();
  const bool is_absent = value == nullptr || value->is_null();
  fail(fmt::format("{}.{}", path, key), is_absent ? "is required" : "must be a string",
       is_absent ? "missing_field" : "invalid_type");
  return {};
}

std::string InputReader::call_id(const Json& item, const std::string& path) {
  return required_string(item, "call_id", path);
}

void InputReader::add_message_item(const Json& item, const std::string& path) {
  const std::string role = required_string(item, "role", path);
  Json content = role == "user" ? content_of(item.find("content"), path + ".content", "")
                                : Json(content_text(item.find("content"), path + ".content", ""));
  if (fields_.error()) return;
  if (role == "assistant") {
    turn().content += content.as_string();
  } else if (role == "user" || role == "system" || role == "developer") {
    add_message(role.c_str(), std::move(content));
  } else {
    fail(path + ".role",
         fmt::format("unknown role '{}'; use user, system, developer or assistant", role));
  }
}

void InputReader::add_call(const Json& item, const std::string& path, bool is_custom) {
  std::string name = required_string(item, "name", path);
  if (name.empty()) fail(path + ".name", "must not be empty");
  const Json* name_space = item.find("namespace");
  if (name_space != nullptr && name_space->is_string())
    name = qualified(name_space->as_string(), name);
  std::string id = call_id(item, path);
  Json arguments;
  if (is_custom) {
    arguments.set("input", Json(required_string(item, "input", path)));
  } else if (const Json* given = item.find("arguments"); given != nullptr) {
    if (!given->is_null() && !given->is_string() && !given->is_object())
      fail(path + ".arguments", "must be a string of JSON", "invalid_type");
    arguments = *given;
  }
  if (fields_.error()) return;
  Json function(Json::Object{{"name", Json(std::move(name))}, {"arguments", std::move(arguments)}});
  turn().calls.push_back(Json(Json::Object{
      {"id", Json(std::move(id))}, {"type", Json("function")}, {"function", std::move(function)}}));
}

void InputReader::add_output(const Json& item, const std::string& path) {
  std::string id = call_id(item, path);
  const Json* output = item.find("output");
  if (output == nullptr || output->is_null())
    fail(path + ".output", "is required", "missing_field");
  Json content = content_of(output, path + ".output", "\n");
  if (fields_.error()) return;
  close_turn();
  messages_.push_back(Json(Json::Object{{"role", Json("tool")},
                                        {"tool_call_id", Json(std::move(id))},
                                        {"content", std::move(content)}}));
}

// Its text, else what we sealed; a summary alone, or another maker's seal, is no thought of ours.
void InputReader::add_reasoning(const Json& item, const std::string& path) {
  std::string text = content_text(item.find("content"), path + ".content", "");
  const Json* sealed = item.find("encrypted_content");
  if (text.empty() && sealed != nullptr && sealed->is_string())
    text = open_thought(sealed->as_string()).value_or("");
  if (text.empty() || fields_.error()) return;
  // A turn thinks before it speaks.
  if (turn_ && (!turn_->content.empty() || !turn_->calls.empty())) close_turn();
  Turn& own = turn();
  own.reasoning = own.reasoning.value_or("") + text;
}

void InputReader::add_item(const Json& item, const std::string& path) {
  if (!item.is_object()) {
    return fail(path, fmt::format("must be an object, not {}", item.type_name()), "invalid_type");
  }
  const Json* given = item.find("type");
  const bool is_message = (given == nullptr || given->is_null()) && item.find("role") != nullptr;
  const std::string type = is_message ? "message" : required_string(item, "type", path);
  if (fields_.error()) return;
  if (type == "message") return add_message_item(item, path);
  if (type == "function_call") return add_call(item, path, false);
  if (type == "custom_tool_call") return add_call(item, path, true);
  if (type == "function_call_output" || type == "custom_tool_call_output")
    return add_output(item, path);
  if (type == "reasoning") return add_reasoning(item, path);
  if (type == "item_reference") {
    return fail(path, "this server stores no items to refer to; send the item itself",
                "unsupported_value");
  }
  ++left_out_[loggable(type)];
}

// --- tools ---

// {"type": "function", "name", ...} or {"type": "function", "function": {...}} as the latter.
Json function_tool(const Json& tool) {
  const Json* wrapped = tool.find("function");
  Json inner(Json::Object{});
  for (const auto& [key, value] :
       (wrapped != nullptr && wrapped->is_object() ? *wrapped : tool).as_object()) {
    // All tools are in the prompt: there is no search that would load one later.
    if (key != "type" && key != "defer_loading" && !value.is_null()) inner.set(key, value);
  }
  return Json(Json::Object{{"type", Json("function")}, {"function", std::move(inner)}});
}

// What a custom tool takes is told in words: the model writes it as the one argument.
Json custom_tool(const Json& tool) {
  std::string description;
  if (const Json* own = tool.find("description"); own != nullptr && own->is_string())
    description = own->as_string();
  std::string syntax, definition;
  if (const Json* format = tool.find("format"); format != nullptr) {
    const Json* own_syntax = format->find("syntax");
    const Json* own_definition = format->find("definition");
    if (own_syntax != nullptr && own_syntax->is_string()) syntax = own_syntax->as_string();
    if (own_definition != nullptr && own_definition->is_string())
      definition = own_definition->as_string();
  }
  if (!definition.empty()) {
    description += fmt::format("{}The input has to match this grammar ({}):\n{}",
                               description.empty() ? "" : "\n\n", syntax, definition);
  }
  Json input(Json::Object{{"type", Json("string")}});
  Json parameters(Json::Object{{"type", Json("object")},
                               {"properties", Json(Json::Object{{"input", std::move(input)}})},
                               {"required", Json(Json::Array{Json("input")})}});
  Json inner;
  if (const Json* name = tool.find("name")) inner.set("name", *name);
  inner.set("description", Json(std::move(description)));
  inner.set("parameters", std::move(parameters));
  return Json(Json::Object{{"type", Json("function")}, {"function", std::move(inner)}});
}

// Tools one by one, so that errors have the client's numbers and paths.
class ToolReader {
 public:
  ToolReader(FieldReader& fields, ClientTools& tools) : fields_(fields), tools_(tools) {}

  void add(const Json& tool, const std::string& path) {
    const std::string type = type_of(tool, path);
    if (type == "namespace") {
      add_namespace(tool, path);
    } else if (type == "function" || type == "custom") {
      add_tool(tool, path, {.name = "", .name_space = "", .is_custom = type == "custom"});
    } else if (!type.empty()) {
      ++left_out_[loggable(type)];
    }
  }
  Json take() { return functions_.empty() ? Json() : Json(std::move(functions_)); }
  const std::map<std::string, int>& left_out() const { return left_out_; }

 private:
  // Empty after an error.
  std::string type_of(const Json& tool, const std::string& path) {
    if (!tool.is_object()) {
      fields_.fail(path, "must be an object", "invalid_type");
      return {};
    }
    const Json* given = tool.find("type");
    if (given == nullptr) return "function";
    if (given->is_string() && !given->as_string().empty()) return given->as_string();
    fields_.fail(path + ".type", "must be a string", "invalid_type");
    return {};
  }

  void add_namespace(const Json& group, const std::string& path) {
    const Json* name = group.find("name");
    const Json* tools = group.find("tools");
    if (name == nullptr || !name->is_string() || name->as_string().empty())
      return fields_.fail(path + ".name", "must be a non-empty string", "invalid_type");
    if (tools == nullptr || !tools->is_array())
      return fields_.fail(path + ".tools", "must be a list", "invalid_type");
    for (std::size_t i = 0; i < tools->as_array().size(); ++i) {
      const Json& tool = tools->as_array()[i];
      const std::string inner = fmt::format("{}.tools[{}]", path, i);
      const std::string type = type_of(tool, inner);
      if (type == "function" || type == "custom") {
        add_tool(tool, inner,
                 {.name = "", .name_space = name->as_string(), .is_custom = type == "custom"});
      } else if (!type.empty()) {
        ++left_out_[loggable(type)];
      }
    }
  }

  void add_tool(const Json& tool, const std::string& path, ClientTool client) {
    Json wrapped = client.is_custom ? custom_tool(tool) : function_tool(tool);
    Json& function = *wrapped.find("function");
    if (const Json* name = function.find("name"); name != nullptr && name->is_string()) {
      client.name = name->as_string();
      if (!client.name.empty())
        function.set("name", Json(qualified(client.name_space, client.name)));
    }
    if (!check(wrapped, path)) return;
    const std::string name = function.find("name")->as_string();
    if (!tools_.emplace(name, std::move(client)).second)
      return fields_.fail(path + ".name", fmt::format("two tools are called '{}'", name));
    functions_.push_back(std::move(wrapped));
  }

  bool check(const Json& function, const std::string& path) {
    const auto normal = normalise_tools(Json(Json::Array{function}));
    if (normal) return true;
    constexpr std::string_view kPath = "tools[0]", kFunction = ".function";
    std::string_view rest = normal.error().message;
    if (rest.starts_with(kPath)) rest.remove_prefix(kPath.size());
    if (rest.starts_with(kFunction)) rest.remove_prefix(kFunction.size());
    const std::size_t colon = std::min(rest.find(": "), rest.size());
    const std::string_view field = rest.substr(0, colon);
    const std::string_view what = colon < rest.size() ? rest.substr(colon + 2) : rest;
    fields_.fail(path + std::string(field), what,
                 field.starts_with(".parameters") ? "invalid_schema" : "invalid_value");
    return false;
  }

  FieldReader& fields_;
  ClientTools& tools_;
  Json::Array functions_;
  std::map<std::string, int> left_out_;
};

void note_left_out(const std::map<std::string, int>& left_out, const char* what,
                   std::vector<std::string>& notes) {
  for (const auto& [type, count] : left_out)
    notes.push_back(fmt::format("left out {} {} of type {}", count, what, type));
}

}  // namespace

void read_input(FieldReader& fields, bool takes_images, ChatRequest& chat,
                std::vector<std::string>& notes) {
  InputReader reader(fields, takes_images);
  if (auto instructions = fields.string("instructions"); instructions && !instructions->empty())
    reader.add_message("system", Json(std::move(*instructions)));
  const Json* input = fields.get("input");
  if (input == nullptr) return fields.fail("input", "is required", "missing_field");
  if (input->is_string()) {
    reader.add_message("user", *input);
  } else if (input->is_array()) {
    reader.add_items(*input);
  } else {
    fields.fail("input", "must be a string or a list of items", "invalid_type");
  }
  chat.messages = reader.take();
  if (chat.messages.as_array().empty())
    fields.fail("input", "must hold at least one message, call or result");
  note_left_out(reader.left_out(), "input items", notes);
}

void read_response_tools(FieldReader& fields, ChatRequest& chat, ClientTools& client_tools,
                         std::vector<std::string>& notes) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return;
  ToolReader reader(fields, client_tools);
  for (std::size_t i = 0; i < tools->as_array().size(); ++i)
    reader.add(tools->as_array()[i], fmt::format("tools[{}]", i));
  chat.tools = reader.take();
  note_left_out(reader.left_out(), "tools", notes);
}

std::string seal_thought(std::string_view text) {
  return base64_encode(std::string(kSeal) + std::string(text));
}

std::optional<std::string> open_thought(std::string_view sealed) {
  const auto opened = base64_decode(sealed);
  if (!opened || !opened->starts_with(kSeal)) return std::nullopt;
  std::string text = opened->substr(kSeal.size());
  if (!is_utf8(text)) return std::nullopt;
  return text;
}

}  // namespace glint
