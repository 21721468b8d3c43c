#include "chat/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/images.h"
#include "text/json_text.h"

namespace glint {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The text of one content part, or an error naming it.
Result<std::string> part_text(const Json& part, const std::string& path) {
  if (part.is_string()) return part.as_string();
  if (!part.is_object()) {
    return invalid_argument(
        fmt::format("{}: must be an object with a type, not {}", path, part.type_name()));
  }
  const Json* type = part.find("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_argument(fmt::format("{}.type: must be a string", path));
  }
  const std::string& name = type->as_string();
  const bool is_refusal = name == "refusal";
  if (name != "text" && name != "input_text" && name != "output_text" && !is_refusal) {
    if (name == "video_url" || name == "video" || name == "input_video") {
      return unsupported(
          path + ": videos are not taken; send some of its frames as images to a model that sees");
    }
    if (is_image_part(part) || name == "input_audio" || name == "file") {
      return unsupported(fmt::format(
          "{}: this model reads text only, it cannot take a part of type '{}'", path, name));
    }
    return invalid_argument(fmt::format("{}.type: unknown part type '{}'", path, name));
  }
  const std::string_view key = is_refusal ? "refusal" : "text";
  const Json* text = part.find(key);
  if (text == nullptr || !text->is_string()) {
    return invalid_argument(fmt::format("{}.{}: must be a string", path, key));
  }
  return text->as_string();
}

bool holds_images(const Json* content) {
  return content != nullptr && content->is_array() &&
         std::ranges::any_of(content->as_array(), is_image_part);
}

// The parts of a content that holds images, which go to `images`.
Result<Json> content_parts(const Json& content, const std::string& path,
                           std::vector<ImagePart>& images) {
  Json parts(Json::Array{});
  for (std::size_t index = 0; index < content.as_array().size(); ++index) {
    const Json& part = content.as_array()[index];
    const std::string part_path = fmt::format("{}[{}]", path, index);
    if (is_image_part(part)) {
      GLINT_TRY(ImagePart image, read_image_part(part, part_path));
      images.push_back(std::move(image));
      parts.push_back(Json(Json::Object{{"type", Json("image")}}));
    } else {
      GLINT_TRY(std::string text, part_text(part, part_path));
      parts.push_back(Json(Json::Object{{"type", Json("text")}, {"text", Json(std::move(text))}}));
    }
  }
  return parts;
}

Result<std::string> content_text(const Json* content, const std::string& path,
                                 std::string_view separator) {
  if (content == nullptr || content->is_null()) return std::string();
  if (content->is_string()) return content->as_string();
  if (!content->is_array()) {
    return invalid_argument(
        fmt::format("{}: must be a string or a list of parts, not {}", path, content->type_name()));
  }
  std::string joined;
  const Json::Array& parts = content->as_array();
  for (std::size_t index = 0; index < parts.size(); ++index) {
    GLINT_TRY(const std::string text, part_text(parts[index], fmt::format("{}[{}]", path, index)));
    if (index > 0) joined += separator;
    joined += text;
  }
  return joined;
}

// As templates print it, and as models saw it: with Python's separators.
std::string python_json(const Json& value) {
  std::string text = value.dump();
  const auto spaced = read_json_text(text, JsonDialect::kStrict);
  return spaced ? spaced->text : text;
}

Result<Json> normalise_call(const Json& call, const std::string& path, ArgumentStyle style) {
  if (!call.is_object()) return invalid_argument(path + ": must be an object");
  const Json* function = call.find("function");
  if (function == nullptr) function = &call;
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string() || name->as_string().empty()) {
    return invalid_argument(path + ".function.name: must be a non-empty string");
  }
  const Json* arguments = function->find("arguments");
  Json normal;
  if (arguments == nullptr || arguments->is_null()) {
    normal = Json(Json::Object{});
  } else if (arguments->is_object()) {
    normal = *arguments;
  } else if (arguments->is_string()) {
    normal = arguments_object(arguments->as_string());
  } else {
    return invalid_argument(
        fmt::format("{}.function.arguments: must be a string or an object, not {}", path,
                    arguments->type_name()));
  }
  if (style == ArgumentStyle::kString) {
    const bool keep = arguments != nullptr && arguments->is_string();
    normal = Json(keep ? arguments->as_string() : python_json(normal));
  }
  Json inner;
  inner.set("name", *name);
  inner.set("arguments", std::move(normal));
  Json out;
  if (const Json* id = call.find("id"); id != nullptr && !id->is_null()) out.set("id", *id);
  out.set("type", Json("function"));
  out.set("function", std::move(inner));
  return out;
}

Status add_calls(const Json& message, const std::string& path, ArgumentStyle style, Json& out) {
  const Json* calls = message.find("tool_calls");
  Json normal;
  if (calls != nullptr && !calls->is_null()) {
    if (!calls->is_array()) return invalid_argument(path + ".tool_calls: must be a list");
    for (std::size_t index = 0; index < calls->as_array().size(); ++index) {
      GLINT_TRY(Json call, normalise_call(calls->as_array()[index],
                                          fmt::format("{}.tool_calls[{}]", path, index), style));
      normal.push_back(std::move(call));
    }
  } else if (const Json* call = message.find("function_call");
             call != nullptr && !call->is_null()) {
    GLINT_TRY(Json one, normalise_call(*call, path + ".function_call", style));
    normal.push_back(std::move(one));
  }
  if (!normal.is_null()) out.set("tool_calls", std::move(normal));
  return {};
}

// Clients that cannot send reasoning apart send it inside the content, in front.
void split_inline_reasoning(std::string& content, std::optional<std::string>& reasoning) {
  const std::string_view text = content;
  const std::size_t begin = text.find_first_not_of(kBlanks);
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  if (begin == std::string_view::npos || !text.substr(begin).starts_with(kOpen)) return;
  const std::size_t end = text.find(kClose, begin + kOpen.size());
  if (end == std::string_view::npos) return;
  reasoning = std::string(text.substr(begin + kOpen.size(), end - begin - kOpen.size()));
  content = std::string(text.substr(end + kClose.size()));
}

Result<std::optional<std::string>> reasoning_of(const Json& message, const std::string& path) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const Json* value = message.find(key);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_string()) {
      return invalid_argument(
          fmt::format("{}.{}: must be a string, not {}", path, key, value->type_name()));
    }
    return std::optional<std::string>(value->as_string());
  }
  return std::optional<std::string>();
}

Result<std::string> role_of(const Json& message, const std::string& path) {
  const Json* role = message.find("role");
  if (role == nullptr || !role->is_string())
    return invalid_argument(path + ".role: must be a string");
  const std::string& name = role->as_string();
  if (name == "developer") return std::string("system");
  if (name == "function") return std::string("tool");
  if (name == "system" || name == "user" || name == "assistant" || name == "tool") return name;
  return invalid_argument(fmt::format(
      "{}.role: unknown role '{}'; use system, developer, user, assistant or tool", path, name));
}

Result<Json> normalise_message(const Json& message, const std::string& path, ArgumentStyle style,
                               std::vector<ImagePart>* images) {
  if (!message.is_object()) {
    return invalid_argument(
        fmt::format("{}: must be an object, not {}", path, message.type_name()));
  }
  GLINT_TRY(const std::string role, role_of(message, path));
  const Json* given = message.find("content");
  const bool has_images =
      images != nullptr && (role == "user" || role == "tool") && holds_images(given);
  if (images != nullptr && !has_images && holds_images(given)) {
    return unsupported(path + ".content: images are taken from users and tools only");
  }
  std::string content;
  if (!has_images) {
    GLINT_TRY(content, content_text(given, path + ".content", role == "tool" ? "\n" : ""));
  }
  Json out;
  out.set("role", Json(role));
  if (has_images) {
    GLINT_TRY(Json parts, content_parts(*given, path + ".content", *images));
    out.set("content", std::move(parts));
  } else if (role == "assistant") {
    GLINT_TRY(std::optional<std::string> reasoning, reasoning_of(message, path));
    if (!reasoning) split_inline_reasoning(content, reasoning);
    out.set("content", Json(std::move(content)));
    if (reasoning) out.set("reasoning_content", Json(std::move(*reasoning)));
    GLINT_TRY_VOID(add_calls(message, path, style, out));
  } else {
    out.set("content", Json(std::move(content)));
  }
  constexpr std::array<std::string_view, 6> kDone = {"role",      "content",    "reasoning_content",
                                                     "reasoning", "tool_calls", "function_call"};
  for (const auto& [key, value] : message.as_object()) {
    if (!value.is_null() && std::ranges::find(kDone, key) == kDone.end()) out.set(key, value);
  }
  return out;
}

// Closes what is open at the end of `text`, so that a cut-off object parses.
std::string close_open_json(std::string_view text) {
  std::string out;
  std::vector<char> closers;
  bool in_string = false, escaped = false;
  for (const char c : text) {
    out.push_back(c);
    if (in_string) {
      if (escaped) {
        escaped = false;
      } else if (c == '\\') {
        escaped = true;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      closers.push_back(c == '{' ? '}' : ']');
    } else if ((c == '}' || c == ']') && !closers.empty()) {
      closers.pop_back();
    }
  }
  if (escaped) out.pop_back();
  if (in_string) out.push_back('"');
  while (!out.empty() && kBlanks.find(out.back()) != std::string_view::npos) out.pop_back();
  if (!out.empty() && out.back() == ',') out.pop_back();
  if (!out.empty() && out.back() == ':') out += "null";
  for (auto closer = closers.rbegin(); closer != closers.rend(); ++closer) out.push_back(*closer);
  return out;
}

}  // namespace

Json arguments_object(std::string_view text) {
  const std::string_view body = trimmed(text);
  if (body.empty() || body == "null") return Json(Json::Object{});
  for (const std::string& candidate : {std::string(body), close_open_json(body)}) {
    if (auto parsed = parse_json(candidate); parsed && parsed->is_object())
      return std::move(*parsed);
  }
  Json raw;
  raw.set("_raw", Json(std::string(text)));
  return raw;
}

Result<Json> normalise_messages(const Json& messages, ArgumentStyle style,
                                std::vector<ImagePart>* images) {
  if (!messages.is_array()) {
    return invalid_argument(
        fmt::format("messages: must be a list of messages, not {}", messages.type_name()));
  }
  if (messages.as_array().empty()) return invalid_argument("messages: must not be empty");
  Json out(Json::Array{});
  for (std::size_t index = 0; index < messages.as_array().size(); ++index) {
    GLINT_TRY(Json message, normalise_message(messages.as_array()[index],
                                              fmt::format("messages[{}]", index), style, images));
    out.push_back(std::move(message));
  }
  return out;
}

Json guard_strings(const Json& value, const Tokenizer& tokenizer) {
  if (value.is_string()) return Json(tokenizer.guard(value.as_string()));
  if (value.is_array()) {
    Json::Array out;
    out.reserve(value.as_array().size());
    for (const Json& item : value.as_array()) out.push_back(guard_strings(item, tokenizer));
    return Json(std::move(out));
  }
  if (value.is_object()) {
    Json::Object out;
    out.reserve(value.as_object().size());
    for (const auto& [key, item] : value.as_object()) {
      out.emplace_back(tokenizer.guard(key), guard_strings(item, tokenizer));
    }
    return Json(std::move(out));
  }
  return value;
}

}  // namespace glint
