// What TextAssets holds; shared by the sources of this folder only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat.h"
#include "chat/messages.h"

namespace glint {

struct TextAssets::State {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;       // null: none anywhere
  std::unique_ptr<ChatTemplate> tool_chat_template;  // a list's "tool_use", for requests with tools
  std::string template_source;
  ArgumentStyle argument_style = ArgumentStyle::kObject;
  Json token_variables;  // {"bos_token": "...", ...} as tokenizer_config.json has them
  std::vector<std::int32_t> end_tokens;
  std::optional<std::int32_t> tool_call_token;
  Json sampling_defaults;
};

// generation_config.json (which errors call `name`), or the family's published values without one,
// as {"temperature", "top_p", ...}.
Result<Json> resolve_sampling_defaults(const Json& generation_config, const std::string& name,
                                       const std::string& model_type);

}  // namespace glint
