// Turns under the real engine with a model that answers by rote.
#include <gtest/gtest.h>

#include "inbox.h"
#include "script_model.h"

namespace glint {
namespace {

ChatRequest ask(const std::string& user) {
  ChatRequest request;
  Json message;
  message.set("role", Json("user"));
  message.set("content", Json(user));
  request.messages.push_back(std::move(message));
  request.enable_thinking = false;
  return request;
}

Json weather_tool() {
  return *parse_json(
      R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}])");
}

constexpr const char* kCalls =
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</"
    "arg_key><arg_value>3</arg_value>"
    "</tool_call><tool_call>weather</tool_call>";

struct TurnTest : testing::Test {
  void SetUp() override {
    rig.model.add("Hi", "The quick brown fox");
    rig.model.add("Think", "I ponder own fox.</think>The quick brown fox");
    rig.model.add("Emoji", "a 👩‍👩‍👧 你 z");
    rig.model.add("Call", kCalls);
    rig.model.add("Loop", "round and ", true);
  }
  void TearDown() override {
    rig.engine.reset();
    rig.cache.check_integrity();
  }
  Turn start(const ChatRequest& request) {
    auto turn = start_turn(*rig.engine, rig.text, request, inbox.sink());
    EXPECT_TRUE(turn.has_value()) << turn.error().message;
    return turn.has_value() ? std::move(*turn) : Turn();
  }
  ScriptRig rig;
  Inbox inbox;
};

TEST_F(TurnTest, an_end_token_is_counted_and_not_shown) {
  rig.start();
  const Turn turn = start(ask("Hi"));
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(inbox.content(), "The quick brown fox");
  EXPECT_EQ(last.finish_reason, "stop");
  EXPECT_EQ(last.stop_token, rig.model.token("<|user|>"));
  EXPECT_EQ(last.usage.prompt_tokens, static_cast<int>(turn.prompt().ids.size()));
  EXPECT_EQ(last.usage.completion_tokens, static_cast<int>(inbox.tokens().size()));
  EXPECT_EQ(inbox.tokens().back(), rig.model.token("<|user|>"));
}

TEST_F(TurnTest, characters_are_never_split) {
  rig.start();
  const Turn turn = start(ask("Emoji"));
  inbox.wait();
  EXPECT_EQ(inbox.content(), "a 👩‍👩‍👧 你 z");
}

TEST_F(TurnTest, thinking_goes_apart) {
  rig.start();
  ChatRequest request = ask("Think");
  request.enable_thinking = true;
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kReasoning), "I ponder own fox.");
  EXPECT_EQ(inbox.content(), "The quick brown fox");
  EXPECT_GT(last.reasoning_tokens, 0);
  EXPECT_LT(last.reasoning_tokens, last.usage.completion_tokens);
}

TEST_F(TurnTest, a_stop_string_ends_the_answer_once) {
  rig.start();
  ChatRequest request = ask("Think");
  request.enable_thinking = true;
  request.stop = {"own fox"};  // in the thought it is ignored
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kReasoning), "I ponder own fox.");
  EXPECT_EQ(inbox.content(), "The quick br");
  EXPECT_EQ(last.finish_reason, "stop");
  EXPECT_EQ(last.stop_string, "own fox");
  EXPECT_EQ(last.stop_token, -1);
  EXPECT_EQ(last.usage.completion_tokens, static_cast<int>(inbox.tokens().size()));
  rig.engine->drain(60);
  EXPECT_EQ(inbox.num_finished(), 1);
}

TEST_F(TurnTest, a_stop_string_frees_the_slot_of_an_endless_answer) {
  rig.start();
  ChatRequest request = ask("Loop");
  request.stop = {"round and round"};
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(last.finish_reason, "stop");
  EXPECT_EQ(inbox.content(), "");
  EXPECT_TRUE(rig.engine->drain(60));
}

TEST_F(TurnTest, raw_prompts_have_stops_too) {
  rig.start();
  ChatRequest request;
  request.raw = true;
  request.raw_prompt = "[gMASK]<sop><|user|>Think<|assistant|><think>";
  request.stop = {"brown"};
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(inbox.content(), "I ponder own fox.</think>The quick ");
  EXPECT_EQ(last.stop_string, "brown");
  EXPECT_EQ(last.finish_reason, "stop");
}

TEST_F(TurnTest, length_cuts) {
  rig.start();
  ChatRequest request = ask("Loop");
  request.max_tokens = 4;
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(last.finish_reason, "length");
  EXPECT_EQ(last.usage.completion_tokens, 4);
}

TEST_F(TurnTest, calls_finish_as_tool_calls) {
  rig.start();
  ChatRequest request = ask("Call");
  request.tools = weather_tool();
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(last.finish_reason, "tool_calls");
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kToolBegin), "weatherweather");
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kToolArgs), R"({"city": "Paris", "days": 3}{})");
  EXPECT_EQ(inbox.content(), "");
}

TEST_F(TurnTest, one_call_only_when_asked) {
  rig.start();
  ChatRequest request = ask("Call");
  request.tools = weather_tool();
  request.parallel_tool_calls = false;
  const Turn turn = start(request);
  const ChatDelta last = inbox.wait();
  EXPECT_EQ(last.finish_reason, "tool_calls");
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kToolArgs), R"({"city": "Paris", "days": 3})");
}

TEST_F(TurnTest, forbidden_calls_are_never_begun) {
  rig.start();
  ChatRequest request = ask("Call");
  request.tools = weather_tool();
  request.tool_choice.kind = ToolChoice::Kind::kNone;
  request.max_tokens = 20;
  const Turn turn = start(request);
  inbox.wait();
  for (const std::int32_t token : inbox.tokens()) EXPECT_NE(token, rig.model.token("<tool_call>"));
  EXPECT_EQ(inbox.text(OutputEvent::Kind::kToolBegin), "");
}

TEST_F(TurnTest, every_token_has_its_logprobs) {
  rig.start();
  ChatRequest request = ask("Emoji");
  request.top_logprobs = 2;
  const Turn turn = start(request);
  inbox.wait();
  EXPECT_EQ(inbox.num_logprobs(), inbox.tokens().size());
}

TEST_F(TurnTest, destroying_a_turn_cancels_it_and_the_sink_hears_once) {
  rig.model.step_ms = 1;
  rig.start();
  {
    const Turn turn = start(ask("Loop"));
    inbox.wait_for_output();
  }
  EXPECT_EQ(inbox.wait().finish_reason, "cancelled");
  EXPECT_EQ(inbox.num_finished(), 1);
}

TEST_F(TurnTest, moving_over_a_turn_cancels_it) {
  rig.model.step_ms = 1;
  rig.start();
  Turn turn = start(ask("Loop"));
  inbox.wait_for_output();
  turn = Turn();
  EXPECT_EQ(inbox.wait().finish_reason, "cancelled");
}

TEST_F(TurnTest, refused_requests_never_reach_the_sink) {
  rig.start();
  ChatRequest request = ask("Hi");
  request.temperature = -1.0f;
  EXPECT_FALSE(start_turn(*rig.engine, rig.text, request, inbox.sink()).has_value());
  std::string long_text;
  for (int word = 0; word < 600; ++word) long_text += "word ";
  const auto too_long = start_turn(*rig.engine, rig.text, ask(long_text), inbox.sink());
  ASSERT_FALSE(too_long.has_value());
  EXPECT_NE(too_long.error().message.find("maximum context length is 512 tokens"),
            std::string::npos);
  EXPECT_EQ(inbox.num_finished(), 0);
}

TEST_F(TurnTest, an_engine_that_goes_away_finishes_its_turns) {
  rig.model.step_ms = 1;
  rig.start();
  const Turn turn = start(ask("Loop"));
  inbox.wait_for_output();
  rig.engine.reset();
  EXPECT_EQ(inbox.wait().finish_reason, "cancelled");
}

}  // namespace
}  // namespace glint
