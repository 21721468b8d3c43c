#include "chat/templates.h"

#include <optional>
#include <utility>

namespace glint {
namespace {

constexpr std::size_t kMaxEntries = 8;
constexpr std::string_view kProbeText = R"({"glint_probe": "one"})";
constexpr std::string_view kPythonDict = "'glint_probe'";

// A conversation with one call whose arguments are `arguments`, or nothing when the template
// refuses it.
std::optional<std::string> render_probe(const ChatTemplate& chat_template, const Json& arguments) {
  Json function;
  function.set("name", Json("probe"));
  function.set("arguments", arguments);
  Json call;
  call.set("id", Json("functions.probe:0"));
  call.set("type", Json("function"));
  call.set("function", std::move(function));
  Json ask;
  ask.set("role", Json("user"));
  ask.set("content", Json("ask"));
  Json answer;
  answer.set("role", Json("assistant"));
  answer.set("content", Json(""));
  answer.set("tool_calls", Json(Json::Array{std::move(call)}));
  Json result;
  result.set("role", Json("tool"));
  result.set("tool_call_id", Json("functions.probe:0"));
  result.set("content", Json("result"));
  Json variables;
  variables.set("messages",
                Json(Json::Array{std::move(ask), std::move(answer), std::move(result)}));
  variables.set("add_generation_prompt", Json(true));
  auto rendered = chat_template.render(variables);
  if (!rendered) return std::nullopt;
  return std::move(*rendered);
}

ArgumentStyle style_of(const ChatTemplate& chat_template, std::string_view model_type) {
  const auto string = render_probe(chat_template, Json(kProbeText));
  Json object_arguments;
  object_arguments.set("glint_probe", Json("one"));
  const auto object = render_probe(chat_template, object_arguments);
  const bool string_works = string && string->find(kProbeText) != std::string::npos;
  const bool object_works = object && object->find("glint_probe") != std::string::npos &&
                            object->find(kPythonDict) == std::string::npos;
  if (string_works && (!object_works || *string == *object)) return ArgumentStyle::kString;
  if (object_works) return ArgumentStyle::kObject;
  const bool by_name = model_type.starts_with("kimi") || model_type.starts_with("deepseek");
  return by_name ? ArgumentStyle::kString : ArgumentStyle::kObject;
}

}  // namespace

Result<std::shared_ptr<const ParsedTemplate>> parse_template(std::string_view source,
                                                             std::string_view name,
                                                             std::string_view model_type) {
  auto out = std::make_shared<ParsedTemplate>();
  GLINT_TRY(out->chat_template, ChatTemplate::parse(source, name));
  out->argument_style = style_of(*out->chat_template, model_type);
  return std::shared_ptr<const ParsedTemplate>(std::move(out));
}

Result<std::shared_ptr<const ParsedTemplate>> TemplateCache::get(const std::string& source) {
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->source != source) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return entries_.front().parsed;
    }
  }
  // Parsed outside the lock: other requests need not wait. Two may parse the same one.
  auto parsed = parse_template(source, "chat_template", "");
  if (!parsed) {
    std::string message = std::move(parsed).error().message;
    if (!message.starts_with("chat_template: ")) message = "chat_template: " + message;
    return invalid_argument(std::move(message));
  }
  const std::lock_guard lock(mutex_);
  entries_.push_front({source, *parsed});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return std::move(*parsed);
}

}  // namespace glint
