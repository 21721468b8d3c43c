#include "chat/continuation.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace glint {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

std::string_view without_space_behind(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool ends_with_open_think(std::string_view rendered) {
  return without_space_behind(rendered).ends_with(kThink);
}

bool ends_with_closed_think(std::string_view rendered) {
  return without_space_behind(rendered).ends_with(kThinkEnd);
}

Result<Continuation> take_continuation(Json& messages) {
  const std::string path = fmt::format("messages[{}]", messages.as_array().size() - 1);
  const Json last = std::move(messages.as_array().back());
  messages.as_array().pop_back();
  if (*last.find("role") != Json("assistant")) {
    return invalid_argument("continue_final_message: " + path +
                            " must be the assistant's, for the model to go on with");
  }
  if (last.find("tool_calls") != nullptr) {
    return invalid_argument(path + ".tool_calls: a turn that made calls cannot be gone on with");
  }
  Continuation out;
  out.content = last.find("content")->as_string();
  if (const Json* reasoning = last.find("reasoning_content")) {
    out.reasoning = reasoning->as_string();
  } else if (out.content.starts_with(kThink)) {  // never closed, or it would be apart
    out.reasoning = std::exchange(out.content, {}).substr(kThink.size());
    out.in_thought = true;
  }
  return out;
}

bool Continuation::append_to(std::string& rendered, ToolFormat tool_format,
                             ReasoningFormat reasoning_format, const Tokenizer* tokenizer) const {
  const auto text = [&](const std::string& said) {
    return tokenizer != nullptr ? tokenizer->guard(said) : said;
  };
  const bool says_something = !content.empty() || !reasoning.empty() || in_thought;
  if (reasoning_format == ReasoningFormat::kNone || !says_something ||
      ends_with_closed_think(rendered)) {
    rendered += text(content);
    return ends_with_open_think(rendered);
  }
  // GLM-4.5 writes newlines around a thought; its prompt leaves it to the model to open one.
  const std::string_view around = tool_format == ToolFormat::kGlm45 ? "\n" : "";
  if (!ends_with_open_think(rendered)) {
    rendered += around;
    rendered += kThink;
  }
  rendered += text(reasoning);
  if (in_thought) return true;
  rendered += kThinkEnd;
  rendered += around;
  rendered += text(content);
  return false;
}

}  // namespace glint
