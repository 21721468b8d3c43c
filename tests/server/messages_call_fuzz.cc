// Request bodies of /v1/messages of any bytes: each is refused with a 400 that says why, or becomes
// messages and tools that chat takes as they are.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "chat/messages.h"
#include "server/anthropic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  ApiSettings settings;
  const auto call = parse_messages_call({reinterpret_cast<const char*>(data), size}, settings);
  if (!call) {
    GLINT_CHECK(call.error().status == 400 && !call.error().message.empty());
    GLINT_CHECK(parse_json(anthropic_error_object(call.error(), "r").dump()).has_value());
    return 0;
  }
  GLINT_CHECK(call->prompts.size() == 1 && call->n == 1 && call->accepts_any_model);
  const ChatRequest& chat = call->prompts.front();
  GLINT_CHECK(chat.max_tokens.value_or(0) >= 1);
  for (const ArgumentStyle style : {ArgumentStyle::kObject, ArgumentStyle::kString}) {
    GLINT_CHECK(normalise_messages(chat.messages, style).has_value());
  }
  GLINT_CHECK(normalise_tools(chat.tools).has_value());
  for (const std::string& note : call->notes) {
    GLINT_CHECK(note.find('\n') == std::string::npos && note.size() < 10'000);
  }
  return 0;
}
