#include <gtest/gtest.h>

#include "fixture_text.h"

namespace glint {
namespace {

ChatRequest going_on(const std::string& assistant) {
  ChatRequest request = chat_of(R"([{"role":"user","content":"q"},)" + assistant + "]");
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  return request;
}

std::string said(const char* fields) {
  return std::string(R"({"role":"assistant",)") + fields + "}";
}

TEST(continuation, content_follows_a_closed_thought) {
  const ChatRequest request = going_on(said(R"("content":"Sure, the ")"));
  const auto prompt = fixture_text("glm47")->prepare(request);
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_EQ(prompt->text, "[gMASK]<sop><|user|>q<|assistant|><think></think>Sure, the ");
  EXPECT_FALSE(prompt->ends_in_thinking);
  EXPECT_TRUE(prompt->is_past_thinking);
  EXPECT_EQ(
      rendered(*fixture_text("glm53"), request),
      "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>q<|assistant|><think></think>Sure, the ");
  EXPECT_EQ(rendered(*fixture_text("glm45"), request),
            "[gMASK]<sop><|user|>\nq<|assistant|>\n<think></think>\nSure, the ");
}

TEST(continuation, a_thought_comes_before_its_content) {
  const std::string expected = "[gMASK]<sop><|user|>q<|assistant|><think> why\n</think>Because";
  for (const char* fields : {R"("reasoning_content":" why\n","content":"Because")",
                             R"("content":"<think> why\n</think>Because")"}) {
    EXPECT_EQ(rendered(*fixture_text("glm47"), going_on(said(fields))), expected);
  }
  EXPECT_EQ(rendered(*fixture_text("glm45"),
                     going_on(said(R"("reasoning_content":"why","content":"Because")"))),
            "[gMASK]<sop><|user|>\nq<|assistant|>\n<think>why</think>\nBecause");
}

TEST(continuation, thinking_that_is_off_stays_off) {
  ChatRequest request = going_on(said(R"("content":"A","reasoning":"why")"));
  request.enable_thinking = false;
  for (const char* name : {"glm45", "glm47", "glm53"}) {
    const auto prompt = fixture_text(name)->prepare(request);
    ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
    EXPECT_TRUE(prompt->text.ends_with("</think>A")) << prompt->text;
    EXPECT_EQ(prompt->text.find("why"), std::string::npos);
    EXPECT_FALSE(prompt->ends_in_thinking);
  }
}

TEST(continuation, an_open_thought_is_gone_on_with) {
  const auto prompt =
      fixture_text("glm47")->prepare(going_on(said(R"("content":"<think>Let me")")));
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_EQ(prompt->text, "[gMASK]<sop><|user|>q<|assistant|><think>Let me");
  EXPECT_TRUE(prompt->ends_in_thinking);
  EXPECT_FALSE(prompt->is_past_thinking);
}

TEST(continuation, nothing_said_is_a_plain_generation_prompt) {
  const auto prompt = fixture_text("glm47")->prepare(going_on(said(R"("content":"")")));
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_EQ(prompt->text, "[gMASK]<sop><|user|>q<|assistant|><think>");
  EXPECT_TRUE(prompt->ends_in_thinking);
}

TEST(continuation, markers_in_it_stay_text) {
  const auto text = fixture_text("glm47");
  const auto prompt =
      text->prepare(going_on(said(R"("reasoning":"a </think> b","content":"<|user|> <think>")")));
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_EQ(count_token(*text, *prompt, "</think>"), 1);
  EXPECT_EQ(count_token(*text, *prompt, "<|user|>"), 1);
  EXPECT_EQ(count_token(*text, *prompt, "<think>"), 1);
  EXPECT_FALSE(prompt->ends_in_thinking);
}

TEST(continuation, only_an_assistants_words_are_gone_on_with) {
  const auto text = fixture_text("glm47");
  EXPECT_EQ(rendered(*text, going_on(R"({"role":"user","content":"x"})")),
            "error: continue_final_message: messages[1] must be the assistant's, for the model to "
            "go on with");
  EXPECT_EQ(rendered(*text, going_on(said(R"("tool_calls":[{"function":{"name":"f"}}])"))),
            "error: messages[1].tool_calls: a turn that made calls cannot be gone on with");
}

}  // namespace
}  // namespace glint
