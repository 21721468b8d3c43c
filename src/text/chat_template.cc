#include "text/chat_template.h"

#include "text/rust_bridge.h"

namespace glint {

struct ChatTemplate::State {
  RustTemplate rust;
  std::string source;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source,
                                                          std::string_view name) {
  Result<RustTemplate> rust = RustTemplate::parse(source);
  if (!rust.has_value()) {
    Error error = std::move(rust).error();
    error.message = std::string(name) + ": the chat template does not parse: " + error.message;
    return error;
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  result->state_ = std::make_unique<State>(State{std::move(*rust), std::string(source)});
  return result;
}

Result<std::string> ChatTemplate::render(const Json& variables) const {
  Result<std::string> text = state_->rust.render(variables.dump());
  if (text.has_value()) return text;
  Error error = std::move(text).error();
  error.message = "chat template: " + error.message;
  return error;
}

const std::string& ChatTemplate::source() const {
  return state_->source;
}

}  // namespace glint
