#include "server/openai_completions.h"

#include <gtest/gtest.h>

#include "../chat/script_model.h"

namespace glint {
namespace {

std::expected<ApiCall, ApiError> parse(const std::string& fields) {
  ApiSettings settings;
  settings.max_n = 4;
  return parse_completions_call("{" + fields + "}", settings);
}

ApiCall good(const std::string& fields) {
  auto call = parse(fields);
  EXPECT_TRUE(call.has_value()) << fields << ": " << call.error().message;
  return call ? std::move(*call) : ApiCall();
}

std::string bad(const std::string& fields) {
  const auto call = parse(fields);
  return call ? "accepted" : call.error().param + " " + call.error().code;
}

TEST(openai_completions, prompts_come_in_four_shapes) {
  EXPECT_EQ(good(R"("prompt":"a")").prompts.at(0).raw_prompt, "a");
  EXPECT_EQ(good(R"("prompt":["a","b"])").prompts.at(1).raw_prompt, "b");
  EXPECT_EQ(good(R"("prompt":[1,2])").prompts.at(0).raw_ids, (std::vector<std::int32_t>{1, 2}));
  const ApiCall batch = good(R"("prompt":[[1],[2,3]],"n":2)");
  EXPECT_EQ(batch.prompts.size(), 2u);
  EXPECT_EQ(batch.n, 2);
  EXPECT_EQ(batch.prompts[1].raw_ids, (std::vector<std::int32_t>{2, 3}));
  for (const char* nothing : {R"("x":1)", R"("prompt":null)", R"("prompt":"")"}) {
    EXPECT_TRUE(good(nothing).prompts.at(0).raw_prompt.empty());
    EXPECT_TRUE(good(nothing).prompts.at(0).raw);
  }
  EXPECT_EQ(bad(R"("prompt":[1,"a"])"), "prompt invalid_value");
  EXPECT_EQ(bad(R"("prompt":[[1],{}])"), "prompt invalid_type");
  EXPECT_EQ(bad(R"("prompt":7)"), "prompt invalid_type");
}

TEST(openai_completions, lengths_and_choices) {
  EXPECT_EQ(good(R"("prompt":"a")").prompts[0].max_tokens, 16);
  EXPECT_EQ(good(R"("prompt":"a","max_tokens":3)").prompts[0].max_tokens, 3);
  EXPECT_FALSE(good(R"("prompt":"a","n_predict":-1)").prompts[0].max_tokens.has_value());
  EXPECT_EQ(bad(R"("prompt":"a","max_tokens":0)"), "max_tokens invalid_value");
  EXPECT_EQ(good(R"("prompt":"a","max_tokens":0,"echo":true)").prompts[0].max_tokens, 1);
  EXPECT_EQ(bad(R"("prompt":"a","best_of":2)"), "best_of unsupported_value");
  EXPECT_EQ(bad(R"("prompt":"a","best_of":2,"n":2)"), "accepted");
  EXPECT_EQ(good(R"("prompt":"a","echo":true,"logprobs":2)").prompts[0].prompt_logprobs, 2);
  EXPECT_EQ(good(R"("prompt":"a","logprobs":0)").prompts[0].prompt_logprobs, -1);
  EXPECT_EQ(bad(R"("prompt":"a","logprobs":true)"), "logprobs invalid_type");
  EXPECT_EQ(good(R"("prompt":"a","suffix":"b")").prompts[0].fill_suffix, "b");
  EXPECT_EQ(bad(R"("prompt":[1],"suffix":"b")"), "suffix invalid_value");
}

// An answer of two prompts with two choices each, as events of a stream and as a whole.
struct WriterTest : testing::Test {
  static ChatDelta output(const std::string& text, std::int32_t token) {
    ChatDelta delta;
    delta.events.push_back({OutputEvent::Kind::kContent, text, -1});
    delta.tokens = {token};
    TokenEvent event;
    event.token = token;
    event.logprob = -0.5f;
    event.top_logprobs = {{token, -0.5f}};
    delta.logprobs = {event};
    return delta;
  }
  static ChatDelta finished() {
    ChatDelta delta;
    delta.kind = ChatDelta::Kind::kFinished;
    delta.finish_reason = "stop";
    delta.usage.prompt_tokens = 2;
    delta.usage.completion_tokens = 1;
    return delta;
  }
  std::string run(ApiCall& call) {
    AnswerStart start;
    start.text = demo_text();
    start.model = "m";
    for (const ChatRequest& chat : call.prompts) {
      auto prompt = start.text->prepare(chat);
      EXPECT_TRUE(prompt.has_value());
      start.prompts.push_back(std::make_shared<const PreparedPrompt>(*prompt));
    }
    std::string text = call.writer->begin(start);
    const int choices = static_cast<int>(call.prompts.size()) * call.n;
    for (int choice = 0; choice < choices; ++choice) {
      ChatDelta prompt;
      prompt.kind = ChatDelta::Kind::kPrompt;
      bool first = true;
      const std::size_t index = static_cast<std::size_t>(choice / call.n);
      for (const std::int32_t id : start.prompts[index]->ids) {
        prompt.prompt_logprobs.push_back({id, !first, -1.0f, 1, {}});
        first = false;
      }
      if (call.prompts[index].prompt_logprobs >= 0) text += call.writer->take(choice, prompt);
      text += call.writer->take(choice, output("x" + std::to_string(choice), 100 + choice));
      text += call.writer->take(choice, finished());
    }
    return text + call.writer->end();
  }
};

TEST_F(WriterTest, choices_are_numbered_prompt_by_prompt) {
  ApiCall call = good(R"("prompt":["ab","cd"],"n":2)");
  run(call);
  const Json whole = call.writer->whole();
  ASSERT_EQ(whole.find("choices")->as_array().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Json& choice = whole.find("choices")->as_array()[static_cast<std::size_t>(i)];
    EXPECT_EQ(choice.find("index")->as_int(), i);
    EXPECT_EQ(choice.find("text")->as_string(), "x" + std::to_string(i));
    EXPECT_EQ(choice.find("finish_reason")->as_string(), "stop");
  }
  EXPECT_EQ(whole.find("usage")->find("prompt_tokens")->as_int(), 4);
  EXPECT_EQ(whole.find("usage")->find("completion_tokens")->as_int(), 4);
}

TEST_F(WriterTest, an_echo_begins_with_the_prompt_and_its_logprobs) {
  ApiCall call =
      good(R"("prompt":"Hello you","echo":true,"logprobs":1,"add_special_tokens":false)");
  run(call);
  const Json whole = call.writer->whole();
  const Json& choice = whole.find("choices")->as_array()[0];
  EXPECT_EQ(choice.find("text")->as_string(), "Hello youx0");
  const Json& table = *choice.find("logprobs");
  const std::size_t n = table.find("tokens")->as_array().size();
  EXPECT_GE(n, 2u);
  EXPECT_EQ(table.find("token_logprobs")->as_array().size(), n);
  EXPECT_EQ(table.find("text_offset")->as_array().size(), n);
  EXPECT_TRUE(table.find("token_logprobs")->as_array()[0].is_null());
  EXPECT_TRUE(table.find("top_logprobs")->as_array()[0].is_null());
  EXPECT_EQ(table.find("text_offset")->as_array()[0].as_int(), 0);
  EXPECT_EQ(table.find("text_offset")->as_array()[n - 1].as_int(), 9);
}

TEST_F(WriterTest, nothing_is_shown_of_an_answer_of_no_tokens) {
  ApiCall call = good(
      R"("prompt":"Hello","echo":true,"max_tokens":0,"logprobs":1,"add_special_tokens":false)");
  run(call);
  const Json whole = call.writer->whole();
  const Json& choice = whole.find("choices")->as_array()[0];
  EXPECT_EQ(choice.find("text")->as_string(), "Hello");
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "length");
  EXPECT_EQ(whole.find("usage")->find("completion_tokens")->as_int(), 0);
}

}  // namespace
}  // namespace glint
