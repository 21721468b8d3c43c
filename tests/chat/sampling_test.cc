// What reaches the engine besides the prompt and the values of text_assets_test.cc.
#include <gtest/gtest.h>

#include "fixture_text.h"

namespace glint {
namespace {

PreparedPrompt some_prompt() {
  PreparedPrompt prompt;
  prompt.ids = {1, 2};
  return prompt;
}

std::string error_of(const ChatRequest& request) {
  const auto out = demo_text()->to_generate_request(request, some_prompt(), 100);
  return out ? "" : out.error().message;
}

TEST(sampling, bad_words_stand_with_and_without_a_space) {
  const auto text = demo_text();
  ChatRequest request;
  request.bad_words = {"hello", "<tool_call>"};
  const auto out = text->to_generate_request(request, some_prompt(), 100);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const auto& sequences = out->sampling.bad_sequences;
  for (const char* form : {"hello", " hello", "<tool_call>"}) {
    EXPECT_NE(std::ranges::find(sequences, text->tokenizer().encode(form)), sequences.end())
        << form;
  }
  request.bad_words = {"a", ""};
  EXPECT_TRUE(error_of(request).starts_with("bad_words[1]: "));
  request.bad_words.assign(257, "a");
  EXPECT_TRUE(error_of(request).starts_with("bad_words: at most 256"));
}

TEST(sampling, token_lists_are_checked_against_the_vocabulary) {
  ChatRequest request;
  request.allowed_token_ids = {3, 5};
  EXPECT_EQ(demo_text()->to_generate_request(request, some_prompt(), 100)->sampling.allowed_tokens,
            request.allowed_token_ids);
  request.allowed_token_ids = {3, 1536};
  EXPECT_EQ(error_of(request),
            "allowed_token_ids: token 1536 is not in the vocabulary of 1536 tokens");
}

TEST(sampling, the_other_fields_go_through) {
  ChatRequest request;
  request.prompt_logprobs = 3;
  request.progress = true;
  request.priority = -2;
  request.timeout_s = 7;
  const auto out = demo_text()->to_generate_request(request, some_prompt(), 100);
  EXPECT_EQ(out->prompt_logprobs, 3);
  EXPECT_TRUE(out->progress);
  EXPECT_EQ(out->priority, -2);
  EXPECT_EQ(out->timeout_s, 7);
  EXPECT_EQ(out->constraint, nullptr);
  request.prompt_logprobs = -2;
  EXPECT_TRUE(error_of(request).starts_with("prompt_logprobs: "));
  request = ChatRequest();
  request.thinking_budget = -1;
  EXPECT_TRUE(error_of(request).starts_with("thinking_budget: "));
  request = ChatRequest();
  request.keep_last_prompt_tokens = -1;
  EXPECT_TRUE(error_of(request).starts_with("truncate_prompt_tokens: "));
}

TEST(sampling, answers_have_a_default_cap) {  // C20
  TextOptions options;
  options.default_max_tokens = 10;
  const auto text = make_text(options);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  ChatRequest request;
  EXPECT_EQ((*text)->to_generate_request(request, some_prompt(), 100)->max_tokens, 10);
  EXPECT_EQ((*text)->to_generate_request(request, some_prompt(), 5)->max_tokens, 3);
  request.max_tokens = 50;
  EXPECT_EQ((*text)->to_generate_request(request, some_prompt(), 100)->max_tokens, 50);
  options.default_max_tokens = -1;
  EXPECT_FALSE(make_text(options).has_value());
}

TEST(sampling, overrides_win_over_the_files) {
  TextOptions options;
  options.sampling_overrides =
      as_json(R"({"temperature": 0.25, "presence_penalty": 1, "top_k": 7})");
  const auto text = make_text(options, as_json(R"({"model_type": "glm4_moe"})"));
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const auto sampling = (*text)->to_generate_request({}, some_prompt(), 100)->sampling;
  EXPECT_FLOAT_EQ(sampling.temperature, 0.25f);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.95f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, 1.0f);
  EXPECT_EQ(sampling.top_k, 7);
  const auto error = [](const char* overrides) {
    TextOptions wrong;
    wrong.sampling_overrides = as_json(overrides);
    const auto refused = make_text(wrong);
    EXPECT_FALSE(refused.has_value());
    return refused ? "" : refused.error().message;
  };
  EXPECT_TRUE(
      error(R"({"temperature": "hot"})").starts_with("--override-generation-config: temperature"));
  EXPECT_TRUE(error(R"({"top_p": 2})").starts_with("--override-generation-config: top_p"));
  EXPECT_TRUE(
      error(R"({"topp": 1})").starts_with("--override-generation-config: 'topp' is none of"));
  EXPECT_TRUE(error("[]").starts_with("--override-generation-config: must be an object"));
}

TEST(formats, are_guessed_or_named) {
  const auto demo = demo_text();
  EXPECT_EQ(demo->tool_format(), ToolFormat::kGlm47);
  EXPECT_EQ(demo->reasoning_format(), ReasoningFormat::kThink);
  EXPECT_EQ(fixture_text("glm45")->tool_format(), ToolFormat::kGlm45);
  EXPECT_EQ(fixture_text("kimi_k2")->tool_format(), ToolFormat::kKimiK2);
  TextOptions options;
  options.tool_format = ToolFormat::kNone;
  options.reasoning_format = ReasoningFormat::kNone;
  const auto none = fixture_text("glm47", options);
  EXPECT_EQ(none->tool_format(), ToolFormat::kNone);
  EXPECT_EQ(none->reasoning_format(), ReasoningFormat::kNone);
}

}  // namespace
}  // namespace glint
