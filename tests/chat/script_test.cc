#include "chat/script.h"

#include <gtest/gtest.h>

#include "fixture_text.h"

namespace glint {
namespace {

std::string script_error(const std::string& lines) {
  TextOptions options;
  options.script = lines;
  const auto text = make_text(options);
  EXPECT_FALSE(text.has_value()) << lines;
  return text ? "" : text.error().message;
}

TEST(script, the_first_line_whose_text_is_in_the_prompt_applies) {
  TextOptions options;
  options.chat_template = fixture_template("glm47");
  options.script =
      R"({"when": "<|user|>weather", "say": "a</think>b", "end": "none", "stall_s": 0.5, "nan_at": 3})"
      "\n\n"
      R"({"when": "e", "say": "second"})"
      "\r\n"
      R"({"when": "", "say": ""})";
  const auto text = make_text(options);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const Tokenizer& tokenizer = (*text)->tokenizer();
  const auto script_of = [&](const char* user) {
    ChatRequest request = chat_of("[]");
    Json message;
    message.set("role", Json("user"));
    message.set("content", Json(user));
    request.messages.push_back(message);
    const auto prompt = (*text)->prepare(request);
    EXPECT_TRUE(prompt.has_value());
    return (*text)->to_generate_request(request, *prompt, 100)->script;
  };
  const auto first = script_of("weather today");
  EXPECT_EQ(first->tokens, tokenizer.encode("a</think>b"));
  EXPECT_EQ(first->stall_s, 0.5);
  EXPECT_EQ(first->nan_at, 3);
  const auto second = script_of("never");
  std::vector<std::int32_t> said = tokenizer.encode("second");
  said.push_back((*text)->end_tokens().front());
  EXPECT_EQ(second->tokens, said);
  EXPECT_EQ(second->nan_at, -1);
  EXPECT_EQ(script_of("x")->tokens, said);  // the template itself has an "e"
}

TEST(script, without_a_match_there_is_none) {
  TextOptions options;
  options.chat_template = fixture_template("glm47");
  options.script = R"({"when": "nowhere", "say": "x"})";
  const auto text = make_text(options);
  const ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
  EXPECT_EQ((*text)->to_generate_request(request, *(*text)->prepare(request), 100)->script,
            nullptr);
}

TEST(script, errors_name_line_and_field) {
  EXPECT_EQ(script_error("\n7"), "script: line 2: must be an object");
  EXPECT_TRUE(script_error("{\"when\"").starts_with("script: line 1: "));
  EXPECT_EQ(script_error(R"({"say": "x"})"), "script: line 1: when: must be a string");
  EXPECT_EQ(script_error(R"({"when": "x", "say": 7})"), "script: line 1: say: must be a string");
  EXPECT_EQ(script_error(R"({"when": "x", "say": "", "end": "stop"})"),
            "script: line 1: end: must be \"eos\" or \"none\"");
  EXPECT_EQ(script_error(R"({"when": "x", "say": "", "stall_s": -1})"),
            "script: line 1: stall_s: must be 0 to 3600 seconds");
  EXPECT_EQ(script_error(R"({"when": "x", "say": "", "nan_at": 1.5})"),
            "script: line 1: nan_at: must be the number of a generated token, from 0");
  EXPECT_EQ(script_error(R"({"when": "x", "say": "", "wait": 1})"),
            "script: line 1: wait: is no field; use when, say, end, stall_s, nan_at");
}

}  // namespace
}  // namespace glint
