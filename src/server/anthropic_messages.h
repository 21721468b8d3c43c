// Conversations and tools as the Messages API has them -> the shape that chat takes. JSON in, JSON
// out; errors name the client's own field. What has no meaning here is left out and noted, since
// agents send back whatever they once got.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace glint {

struct Conversation {
  Json messages;                     // not empty
  bool ends_with_assistant = false;  // the answer goes on with the last message
  std::vector<std::string> notes;
};

// `system` may be null. Parts of a turn keep their order, but results of tools come before the
// rest.
std::expected<Conversation, ApiError> read_anthropic_conversation(const Json* system,
                                                                  const Json& messages,
                                                                  bool takes_images);

struct AnthropicTools {
  Json tools;  // null when none is left
  std::vector<std::string> notes;
};

// Tools without a schema are run by the vendor's servers, so they are left out.
std::expected<AnthropicTools, ApiError> read_anthropic_tools(const Json& tools);

}  // namespace glint
