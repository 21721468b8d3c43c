// Request bodies of any bytes: each is refused with a 400 that says why, or becomes messages and
// tools in their one shape.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "chat/messages.h"
#include "server/openai_chat.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  ApiSettings settings;
  settings.max_n = 16;
  const auto call = parse_chat_call({reinterpret_cast<const char*>(data), size}, settings);
  if (!call) {
    GLINT_CHECK(call.error().status == 400 && !call.error().message.empty());
    GLINT_CHECK(parse_json(error_object(call.error()).dump()).has_value());
    return 0;
  }
  GLINT_CHECK(call->n >= 1 && call->n <= 16);
  for (const ArgumentStyle style : {ArgumentStyle::kObject, ArgumentStyle::kString}) {
    const auto messages = normalise_messages(call->prompts[0].messages, style);
    if (!messages) {
      GLINT_CHECK(messages.error().message.starts_with("messages"));
      continue;
    }
    for (const Json& message : messages->as_array()) {
      GLINT_CHECK(message.find("role")->is_string() && message.find("content")->is_string());
    }
    // What is normal stays as it is.
    const auto again = normalise_messages(*messages, style);
    GLINT_CHECK(again.has_value());
  }
  const auto tools = normalise_tools(call->prompts[0].tools);
  if (!tools) {
    GLINT_CHECK(tools.error().message.starts_with("tools"));
  } else {
    GLINT_CHECK(normalise_tools(*tools).has_value());
  }
  return 0;
}
