// Request bodies of any bytes: each is refused with a 400 that says why, or becomes messages and
// tools that a template can take, and its answer can be sent back.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "chat/messages.h"
#include "server/responses.h"

namespace {

using namespace glint;

ChatDelta delta_of(ChatDelta::Kind kind, std::vector<OutputEvent> events) {
  ChatDelta delta;
  delta.kind = kind;
  delta.events = std::move(events);
  return delta;
}

// An answer with a thought, a text and a call of `name`, whose arguments come in two pieces.
Json answer_of(ApiCall& call, const std::string& name, std::string_view arguments) {
  using Kind = OutputEvent::Kind;
  const std::size_t half = arguments.size() / 2;
  call.writer->begin(AnswerStart());
  call.writer->take(0, delta_of(ChatDelta::Kind::kOutput,
                                {{Kind::kReasoning, "thought", -1}, {Kind::kContent, "text", -1}}));
  call.writer->take(0, delta_of(ChatDelta::Kind::kOutput,
                                {{Kind::kToolBegin, name, 0},
                                 {Kind::kToolArgs, std::string(arguments.substr(0, half)), 0},
                                 {Kind::kToolArgs, std::string(arguments.substr(half)), 0},
                                 {Kind::kToolEnd, "", 0}}));
  ChatDelta last = delta_of(ChatDelta::Kind::kFinished, {});
  last.finish_reason = "tool_calls";
  call.writer->take(0, last);
  call.writer->end();
  return call.writer->whole();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  auto call = parse_responses_call(body, ApiSettings());
  if (!call) {
    GLINT_CHECK(call.error().status == 400 && !call.error().message.empty());
    GLINT_CHECK(parse_json(error_object(call.error()).dump()).has_value());
    return 0;
  }
  const ChatRequest& chat = call->prompts.at(0);
  GLINT_CHECK(normalise_messages(chat.messages, ArgumentStyle::kObject).has_value());
  GLINT_CHECK(normalise_messages(chat.messages, ArgumentStyle::kString).has_value());
  GLINT_CHECK(normalise_tools(chat.tools).has_value());
  std::string name = "f";
  if (!chat.tools.is_null()) {
    name = chat.tools.as_array().front().find("function")->find("name")->as_string();
  }
  const bool shows_thoughts = body.find("include_reasoning") == std::string_view::npos &&
                              body.find("exclude") == std::string_view::npos;
  const Json response = answer_of(*call, name, body.substr(0, 4096));
  const Json& output = *response.find("output");
  GLINT_CHECK(output.as_array().size() == 3 || !shows_thoughts);
  const auto again =
      parse_responses_call(Json(Json::Object{{"input", output}}).dump(), ApiSettings());
  GLINT_CHECK(again.has_value());
  GLINT_CHECK(again->prompts.at(0).messages.as_array().size() == 1);
  return 0;
}
