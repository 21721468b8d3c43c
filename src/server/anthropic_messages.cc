#include "server/anthropic_messages.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "chat/messages.h"
#include "server/field_reader.h"

namespace glint {
namespace {

// Clients put a hash of the request there, which would change the prompt's first tokens each turn.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

Json text_part(std::string text) {
  return Json(Json::Object{{"type", Json("text")}, {"text", Json(std::move(text))}});
}

// Fit for one line of a log, whatever a client calls things.
std::string log_name(const std::string& name) {
  constexpr std::size_t kMaxBytes = 64;
  return Json(name.substr(0, kMaxBytes)).dump();
}

// What was left out, by name, with how often.
class LeftOut {
 public:
  void add(const std::string& name) {
    constexpr std::size_t kMaxNames = 16;
    if (counts_.size() < kMaxNames || counts_.contains(name)) ++counts_[name];
  }
  // No notes, or one: "left out WHAT: "a" (2), "b" (1)".
  std::vector<std::string> notes(std::string_view what) const {
    if (counts_.empty()) return {};
    std::string note = fmt::format("left out {}: ", what);
    const char* separator = "";
    for (const auto& [name, count] : counts_) {
      note += fmt::format("{}{} ({})", std::exchange(separator, ", "), log_name(name), count);
    }
    return {note};
  }

 private:
  std::map<std::string, int> counts_;
};

class Conversion {
 public:
  explicit Conversion(bool takes_images) : takes_images_(takes_images) {}

  void add_system(const Json& content) {
    const std::string text = system_text(content, "system");
    if (!text.empty()) push("system", Json(text));
  }

  void add_message(const Json& message, std::size_t index) {
    const std::string path = fmt::format("messages[{}]", index);
    if (!message.is_object()) return fail(path, "must be an object", "invalid_type");
    FieldReader fields(message, path + ".");
    const auto role = fields.string("role");
    if (!role) fields.fail("role", "is required", "missing_field");
    const Json* content = fields.get("content");
    if (content == nullptr) fields.fail("content", "is required", "missing_field");
    adopt(fields);
    if (error_) return;
    if (!content->is_string() && !content->is_array()) {
      return fail(path + ".content", "must be a string or a list of blocks", "invalid_type");
    }
    const std::string inner = path + ".content";
    if (*role == "system") {
      push("system", Json(system_text(*content, inner)));
    } else if (*role == "assistant") {
      add_assistant(*content, inner);
    } else {
      add_user(*content, inner);
    }
  }

  std::expected<Conversation, ApiError> take() {
    if (error_) return std::unexpected(*error_);
    Conversation out;
    const Json& last = messages_.as_array().back();
    out.ends_with_assistant = *last.find("role") == Json("assistant");
    out.messages = std::move(messages_);
    out.notes = left_out_.notes("blocks");
    return out;
  }
  bool failed() const { return error_.has_value(); }

 private:
  void fail(const std::string& path, std::string_view what, std::string code = "invalid_value") {
    if (!error_) error_ = bad_request(path, fmt::format("{}: {}", path, what), std::move(code));
  }
  void adopt(const FieldReader& fields) {
    if (!error_) error_ = fields.error();
  }

  void push(const char* role, Json content) {
    messages_.push_back(Json(Json::Object{{"role", Json(role)}, {"content", std::move(content)}}));
  }

  // The type of a block, empty after an error.
  std::string type_of(const Json& block, const std::string& path) {
    if (!block.is_object()) {
      fail(path, "must be an object with a type", "invalid_type");
      return {};
    }
    FieldReader fields(block, path + ".");
    const auto type = fields.string("type");
    if (!type) fields.fail("type", "is required", "missing_field");
    adopt(fields);
    return type.value_or("");
  }

  std::string required_string(const Json& block, const std::string& path, const char* name) {
    FieldReader fields(block, path + ".");
    const auto text = fields.string(name);
    if (!text) fields.fail(name, "is required", "missing_field");
    adopt(fields);
    return text.value_or("");
  }

  // Blocks of text, one below the other.
  std::string system_text(const Json& content, const std::string& path) {
    if (content.is_string()) return without_billing(content.as_string());
    if (!content.is_array()) {
      fail(path, "must be a string or a list of text blocks", "invalid_type");
      return {};
    }
    std::string joined;
    bool has_text = false;
    for (std::size_t index = 0; index < content.as_array().size(); ++index) {
      const Json& block = content.as_array()[index];
      const std::string block_path = fmt::format("{}[{}]", path, index);
      const std::string type = type_of(block, block_path);
      const auto text = type.empty() ? std::nullopt : block_text(block, type, block_path);
      if (!text || text->starts_with(kBillingHeader)) continue;
      if (std::exchange(has_text, true)) joined += '\n';
      joined += *text;
    }
    return joined;
  }

  static std::string without_billing(const std::string& text) {
    if (!text.starts_with(kBillingHeader)) return text;
    const std::size_t end = text.find('\n');
    return end == std::string::npos ? std::string() : text.substr(end + 1);
  }

  // Blocks that are text, or can be told as text; nothing for all others, which are left out.
  std::optional<std::string> block_text(const Json& block, const std::string& type,
                                        const std::string& path) {
    if (type == "text") return required_string(block, path, "text");
    if (type == "document") return document_text(block, path);
    if (type == "search_result") return search_result_text(block);
    if (type == "web_search_tool_result") return web_results_text(block);
    if (type == "image") {
      fail(path, "an image cannot stand here", "unsupported_value");
      return std::nullopt;
    }
    left_out_.add(type);
    return std::nullopt;
  }

  std::string document_text(const Json& block, const std::string& path) {
    FieldReader fields(block, path + ".");
    const std::string title = fields.string("title").value_or("");
    const Json* source = fields.object("source");
    if (source == nullptr) fields.fail("source", "is required", "missing_field");
    adopt(fields);
    if (error_) return {};
    const std::string source_path = path + ".source";
    const std::string type = type_of(*source, source_path);
    std::string text;
    if (type == "text") {
      text = required_string(*source, source_path, "data");
    } else if (type == "content") {
      text = text_blocks(source->find("content"));
    } else if (type == "url" || type == "file") {
      fail(source_path, "this server fetches nothing; send the document as text",
           "unsupported_value");
    } else if (!type.empty()) {
      fail(source_path,
           fmt::format("this model reads text only, it cannot take a document of type "
                       "{}; send it as text",
                       log_name(type)),
           "unsupported_value");
    }
    return title.empty() ? text : title + "\n" + text;
  }

  // The texts in a string or in a list of blocks; whatever else is there has no say.
  static std::string text_blocks(const Json* content) {
    if (content == nullptr) return {};
    if (content->is_string()) return content->as_string();
    std::string joined;
    if (!content->is_array()) return joined;
    for (const Json& block : content->as_array()) {
      const Json* text = block.find("text");
      if (text == nullptr || !text->is_string()) continue;
      if (!joined.empty()) joined += '\n';
      joined += text->as_string();
    }
    return joined;
  }

  static std::string lines_of(const Json& block, std::initializer_list<const char*> names) {
    std::string lines;
    for (const char* name : names) {
      const Json* value = block.find(name);
      if (value != nullptr && value->is_string()) lines += value->as_string() + "\n";
    }
    return lines;
  }
  static std::string search_result_text(const Json& block) {
    return lines_of(block, {"title", "source"}) + text_blocks(block.find("content"));
  }
  static std::string web_results_text(const Json& block) {
    const Json* content = block.find("content");
    std::string text;
    if (content == nullptr || !content->is_array()) return text;
    for (const Json& result : content->as_array()) text += lines_of(result, {"title", "url"});
    return text;
  }

  // A part of a user's turn.
  std::optional<Json> user_part(const Json& block, const std::string& type,
                                const std::string& path) {
    if (type == "image") return image_part(block, path);
    auto text = block_text(block, type, path);
    if (!text) return std::nullopt;
    return text_part(std::move(*text));
  }

  std::optional<Json> image_part(const Json& block, const std::string& path) {
    const std::string source_path = path + ".source";
    FieldReader fields(block, path + ".");
    const Json* source = fields.object("source");
    if (source == nullptr) fields.fail("source", "is required", "missing_field");
    adopt(fields);
    if (error_) return std::nullopt;
    const std::string type = type_of(*source, source_path);
    std::string url;
    if (type == "base64") {
      url = fmt::format("data:{};base64,{}", required_string(*source, source_path, "media_type"),
                        required_string(*source, source_path, "data"));
    } else if (type == "url") {
      url = required_string(*source, source_path, "url");
    }
    if (error_) return std::nullopt;
    if (!url.starts_with("data:")) {
      fail(source_path, "this server fetches nothing; send the image itself as base64",
           "unsupported_value");
    } else if (!takes_images_) {
      fail(path, "this model reads text only, it cannot take an image", "unsupported_value");
    }
    if (error_) return std::nullopt;
    return Json(Json::Object{{"type", Json("image_url")},
                             {"image_url", Json(Json::Object{{"url", Json(std::move(url))}})}});
  }

  void add_user(const Json& content, const std::string& path) {
    if (content.is_string()) return push("user", content);
    Json::Array parts;
    bool has_results = false;
    for (std::size_t index = 0; index < content.as_array().size() && !error_; ++index) {
      const Json& block = content.as_array()[index];
      const std::string block_path = fmt::format("{}[{}]", path, index);
      const std::string type = type_of(block, block_path);
      if (error_) return;
      if (type == "tool_result") {
        has_results = true;
        add_result(block, block_path, parts);
      } else if (auto part = user_part(block, type, block_path)) {
        parts.push_back(std::move(*part));
      }
    }
    // The results are messages already, so that what is left comes after them.
    if (!parts.empty() || !has_results) push("user", Json(std::move(parts)));
  }

  // A message of its own; its images join the user's, for only those may have them.
  void add_result(const Json& block, const std::string& path, Json::Array& user_parts) {
    FieldReader fields(block, path + ".");
    const auto id = fields.string("tool_use_id");
    if (!id) fields.fail("tool_use_id", "is required", "missing_field");
    const Json* content = fields.get("content");
    adopt(fields);
    Json::Array parts;
    if (content != nullptr && content->is_string()) {
      parts.push_back(text_part(content->as_string()));
    } else if (content != nullptr && !content->is_array()) {
      fail(path + ".content", "must be a string or a list of blocks", "invalid_type");
    } else if (content != nullptr) {
      for (std::size_t index = 0; index < content->as_array().size() && !error_; ++index) {
        const Json& inner = content->as_array()[index];
        const std::string inner_path = fmt::format("{}.content[{}]", path, index);
        const std::string type = type_of(inner, inner_path);
        if (error_) return;
        auto part = user_part(inner, type, inner_path);
        if (part) (type == "image" ? user_parts : parts).push_back(std::move(*part));
      }
    }
    messages_.push_back(Json(Json::Object{{"role", Json("tool")},
                                          {"tool_call_id", Json(id.value_or(""))},
                                          {"content", Json(std::move(parts))}}));
  }

  void add_assistant(const Json& content, const std::string& path) {
    if (content.is_string()) return push("assistant", content);
    Json::Array parts;
    std::string reasoning;
    Json calls;
    for (std::size_t index = 0; index < content.as_array().size() && !error_; ++index) {
      const Json& block = content.as_array()[index];
      const std::string block_path = fmt::format("{}[{}]", path, index);
      const std::string type = type_of(block, block_path);
      if (error_) return;
      if (type == "thinking") {
        reasoning += required_string(block, block_path, "thinking");
      } else if (type == "tool_use") {
        add_call(block, block_path, calls);
      } else if (auto text = block_text(block, type, block_path)) {
        parts.push_back(text_part(std::move(*text)));
      }
    }
    Json message(Json::Object{{"role", Json("assistant")}, {"content", Json(std::move(parts))}});
    if (!reasoning.empty()) message.set("reasoning_content", Json(std::move(reasoning)));
    if (!calls.is_null()) message.set("tool_calls", std::move(calls));
    messages_.push_back(std::move(message));
  }

  void add_call(const Json& block, const std::string& path, Json& calls) {
    FieldReader fields(block, path + ".");
    const auto id = fields.string("id");
    const auto name = fields.string("name");
    if (!name || name->empty()) fields.fail("name", "must be a non-empty string", "missing_field");
    const Json* input = fields.get("input");
    if (input != nullptr && !input->is_object() && !input->is_string()) {
      fields.fail("input", "must be an object", "invalid_type");
    }
    adopt(fields);
    Json function(Json::Object{{"name", Json(name.value_or(""))},
                               {"arguments", input == nullptr ? Json(Json::Object{}) : *input}});
    Json call;
    if (id) call.set("id", Json(*id));
    call.set("type", Json("function"));
    call.set("function", std::move(function));
    calls.push_back(std::move(call));
  }

  const bool takes_images_;
  Json messages_ = Json(Json::Array{});
  LeftOut left_out_;
  std::optional<ApiError> error_;
};

// "tools[0].function.parameters.x" -> "tools[7].input_schema.x"
void rename_tool_path(std::string& text, std::size_t index) {
  const std::string place = fmt::format("tools[{}]", index);
  constexpr std::string_view kSchema = "tools[0].function.parameters";
  constexpr std::string_view kFunction = "tools[0].function.";
  constexpr std::string_view kTool = "tools[0]";
  if (text.starts_with(kSchema)) {
    text.replace(0, kSchema.size(), place + ".input_schema");
  } else if (text.starts_with(kFunction)) {
    text.replace(0, kFunction.size(), place + ".");
  } else if (text.starts_with(kTool)) {
    text.replace(0, kTool.size(), place);
  }
}

// The tool in the one shape of chat, checked there.
std::expected<Json, ApiError> converted_tool(const Json& tool, std::size_t index) {
  Json function;
  for (const char* name : {"name", "description"}) {
    const Json* value = tool.find(name);
    if (value != nullptr && !value->is_null()) function.set(name, *value);
  }
  function.set("parameters", *tool.find("input_schema"));
  if (const Json* strict = tool.find("strict"); strict != nullptr && strict->is_bool()) {
    function.set("strict", *strict);
  }
  Json one(Json::Object{{"type", Json("function")}, {"function", std::move(function)}});
  if (const auto checked = normalise_tools(Json(Json::Array{one})); !checked) {
    ApiError error = error_of(checked.error());
    rename_tool_path(error.message, index);
    rename_tool_path(error.param, index);
    return std::unexpected(std::move(error));
  }
  return one;
}

}  // namespace

std::expected<Conversation, ApiError> read_anthropic_conversation(const Json* system,
                                                                  const Json& messages,
                                                                  bool takes_images) {
  if (messages.as_array().empty()) {
    return std::unexpected(bad_request("messages", "messages: must not be empty"));
  }
  Conversion conversion(takes_images);
  if (system != nullptr) conversion.add_system(*system);
  for (std::size_t index = 0; index < messages.as_array().size() && !conversion.failed(); ++index) {
    conversion.add_message(messages.as_array()[index], index);
  }
  return conversion.take();
}

std::expected<AnthropicTools, ApiError> read_anthropic_tools(const Json& tools) {
  AnthropicTools out;
  LeftOut left_out;
  std::set<std::string> names;
  for (std::size_t index = 0; index < tools.as_array().size(); ++index) {
    const Json& tool = tools.as_array()[index];
    const std::string path = fmt::format("tools[{}]", index);
    if (!tool.is_object())
      return std::unexpected(bad_request(path, path + ": must be an object", "invalid_type"));
    const Json* schema = tool.find("input_schema");
    const Json* name = tool.find("name");
    if (schema == nullptr || schema->is_null()) {
      left_out.add(name != nullptr && name->is_string() ? name->as_string() : "unnamed");
      continue;
    }
    auto one = converted_tool(tool, index);
    if (!one) return std::unexpected(one.error());
    if (!names.insert(name->as_string()).second) {
      return std::unexpected(
          bad_request(path + ".name",
                      fmt::format("{}.name: two tools are called '{}'", path, name->as_string())));
    }
    out.tools.push_back(std::move(*one));
  }
  out.notes = left_out.notes("tools without input_schema");
  return out;
}

}  // namespace glint
