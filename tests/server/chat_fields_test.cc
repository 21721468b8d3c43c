#include "server/chat_fields.h"

#include <gtest/gtest.h>

namespace glint {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"Hi"}])";

std::expected<ChatCall, ApiError> parse(const std::string& fields) {
  return parse_chat_call(std::string("{") + kMessages + (fields.empty() ? "" : "," + fields) + "}",
                         4);
}

ChatCall good(const std::string& fields) {
  auto call = parse(fields);
  EXPECT_TRUE(call.has_value()) << fields << ": " << call.error().message;
  return call ? std::move(*call) : ChatCall();
}

// "param code"
std::string bad(const std::string& fields) {
  const auto call = parse(fields);
  if (call.has_value()) return "accepted";
  EXPECT_EQ(call.error().status, 400);
  EXPECT_EQ(call.error().type, "invalid_request_error");
  return call.error().param + " " + call.error().code;
}

TEST(chat_fields, absent_and_null_are_the_same) {
  const ChatCall call = good(
      R"("temperature":null,"max_tokens":null,"stop":null,"tools":null,"stream":null,"seed":null)");
  EXPECT_FALSE(call.chat.temperature.has_value());
  EXPECT_FALSE(call.chat.max_tokens.has_value());
  EXPECT_FALSE(call.chat.seed.has_value());
  EXPECT_FALSE(call.stream);
  EXPECT_EQ(call.n, 1);
  EXPECT_EQ(call.chat.top_logprobs, -1);
}

TEST(chat_fields, sampling_values_are_read) {
  const ChatCall call = good(
      R"("temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
         "repeat_penalty":1.1,"repeat_last_n":64,"seed":7,"min_tokens":2,"ignore_eos":true,"logit_bias":{"5":-3,"6":2.5})");
  EXPECT_EQ(call.chat.temperature, 0.5f);
  EXPECT_EQ(call.chat.top_p, 0.9f);
  EXPECT_EQ(call.chat.top_k, 5);
  EXPECT_EQ(call.chat.min_p, 0.1f);
  EXPECT_EQ(call.chat.presence_penalty, 1.0f);
  EXPECT_EQ(call.chat.frequency_penalty, -1.0f);
  EXPECT_EQ(call.chat.repetition_penalty, 1.1f);
  EXPECT_EQ(call.chat.repeat_last_n, 64);
  EXPECT_EQ(call.chat.seed, 7u);
  EXPECT_EQ(call.chat.min_tokens, 2);
  EXPECT_TRUE(call.chat.ignore_eos);
  EXPECT_EQ(call.chat.logit_bias,
            (std::vector<std::pair<std::int32_t, float>>{{5, -3.0f}, {6, 2.5f}}));
  EXPECT_EQ(good(R"("logit_bias":[[5,1]])").chat.logit_bias.size(), 1u);
  EXPECT_FALSE(good(R"("seed":-1)").chat.seed.has_value());
}

TEST(chat_fields, lengths_have_an_order) {
  EXPECT_EQ(good(R"("max_tokens":5)").chat.max_tokens, 5);
  EXPECT_EQ(good(R"("max_tokens":5,"max_completion_tokens":6)").chat.max_tokens, 6);
  EXPECT_EQ(good(R"("n_predict":7)").chat.max_tokens, 7);
  EXPECT_FALSE(good(R"("n_predict":-1)").chat.max_tokens.has_value());
  EXPECT_EQ(bad(R"("max_completion_tokens":0)"), "max_completion_tokens invalid_value");
  EXPECT_EQ(bad(R"("max_tokens":1e30)"), "max_tokens invalid_type");
  EXPECT_EQ(bad(R"("max_tokens":18446744073709551615)"), "max_tokens invalid_value");
  EXPECT_EQ(good(R"("max_tokens":5.0)").chat.max_tokens, 5);
}

TEST(chat_fields, wrong_types_name_their_field) {
  EXPECT_EQ(bad(R"("temperature":"hot")"), "temperature invalid_type");
  EXPECT_EQ(bad(R"("stream":"yes")"), "stream invalid_type");
  EXPECT_EQ(bad(R"("n":1.5)"), "n invalid_type");
  EXPECT_EQ(bad(R"("n":5)"), "n invalid_value");
  EXPECT_EQ(bad(R"("stop":7)"), "stop invalid_type");
  EXPECT_EQ(bad(R"("stop":["a",7])"), "stop invalid_type");
  EXPECT_EQ(bad(R"("stop_token_ids":["a"])"), "stop_token_ids invalid_value");
  EXPECT_EQ(bad(R"("tools":{})"), "tools invalid_type");
  EXPECT_EQ(bad(R"("logit_bias":{"x":1})"), "logit_bias invalid_value");
  EXPECT_EQ(bad(R"("logit_bias":{"1":"x"})"), "logit_bias invalid_type");
  EXPECT_EQ(bad(R"("top_logprobs":2)"), "top_logprobs invalid_value");
  EXPECT_EQ(bad(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs invalid_value");
  EXPECT_EQ(bad(R"("stream_options":{})"), "stream_options invalid_value");
  EXPECT_EQ(bad(R"("stream":true,"stream_options":{"include_usage":1})"),
            "stream_options.include_usage invalid_type");
  EXPECT_EQ(bad(R"("cache_salt":"")"), "cache_salt invalid_value");
}

TEST(chat_fields, what_cannot_be_honoured_is_refused) {
  for (const char* field :
       {"response_format", "structured_outputs", "guided_json", "grammar", "json_schema",
        "thinking_token_budget", "chat_template", "functions", "bad_words", "prompt_logprobs"}) {
    EXPECT_EQ(bad(std::string("\"") + field + R"(":{"type":"json_object"})"),
              std::string(field) + " unsupported_value");
    EXPECT_EQ(bad(std::string("\"") + field + "\":null"), "accepted");
  }
  EXPECT_EQ(bad(R"("response_format":{"type":"text"})"), "accepted");
  EXPECT_EQ(bad(R"("tools":[{"name":"f"}],"tool_choice":"required")"),
            "tool_choice unsupported_value");
  EXPECT_EQ(
      bad(R"("tools":[{"name":"f"}],"tool_choice":{"type":"function","function":{"name":"f"}})"),
      "tool_choice unsupported_value");
  EXPECT_EQ(bad(R"("tool_choice":"sometimes")"), "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("use_beam_search":true)"), "use_beam_search unsupported_value");
  EXPECT_EQ(
      bad(R"("use_beam_search":false,"typical_p":1.0,"mirostat":0,"skip_special_tokens":true)"),
      "accepted");
  EXPECT_EQ(bad(R"("typical_p":0.5)"), "typical_p unsupported_value");
  EXPECT_EQ(bad(R"("modalities":["text","audio"])"), "modalities unsupported_value");
  EXPECT_EQ(bad(R"("reasoning":{"max_tokens":5})"), "reasoning.max_tokens unsupported_value");
}

TEST(chat_fields, unknown_fields_are_listed_and_ignored) {
  EXPECT_EQ(good(R"("shiny_new":1,"user":"u","store":true)").unknown_fields,
            std::vector<std::string>{"shiny_new"});
}

TEST(chat_fields, tools_may_be_empty_and_choices_none) {
  EXPECT_TRUE(good(R"("tools":[])").chat.tools.is_null());
  EXPECT_FALSE(good(R"("tools":[{"name":"f"}])").chat.tools.is_null());
  EXPECT_EQ(good(R"("tools":[{"name":"f"}],"tool_choice":"none")").chat.tool_choice.kind,
            ToolChoice::Kind::kNone);
  EXPECT_EQ(good(R"("tools":[{"name":"f"}],"tool_choice":"auto")").chat.tool_choice.kind,
            ToolChoice::Kind::kAuto);
  EXPECT_FALSE(good(R"("parallel_tool_calls":false)").chat.parallel_tool_calls);
}

TEST(chat_fields, thinking_has_many_spellings) {
  EXPECT_EQ(good(R"("thinking":{"type":"disabled"})").chat.enable_thinking, false);
  EXPECT_EQ(
      good(R"("thinking":{"type":"enabled"},"reasoning":{"enabled":false})").chat.enable_thinking,
      true);
  EXPECT_EQ(good(R"("reasoning":{"enabled":false})").chat.enable_thinking, false);
  EXPECT_EQ(good(R"("reasoning":{"effort":"low","exclude":true})").chat.reasoning_effort, "low");
  EXPECT_FALSE(good(R"("reasoning":{"exclude":true})").include_reasoning);
  EXPECT_FALSE(good(R"("include_reasoning":false)").include_reasoning);
  EXPECT_EQ(good(R"("reasoning_effort":"high")").chat.reasoning_effort, "high");
  EXPECT_EQ(good(R"("thinking":{"clear_thinking":false})").chat.template_kwargs.dump(),
            R"({"clear_thinking":false})");
  EXPECT_EQ(bad(R"("thinking":{"type":"maybe"})"), "thinking.type invalid_value");
}

TEST(chat_fields, bodies_that_are_no_request) {
  const auto code = [](std::string_view body) {
    const auto call = parse_chat_call(body, 4);
    return call ? "accepted" : call.error().param + " " + call.error().code;
  };
  EXPECT_EQ(code("{"), " invalid_json");
  EXPECT_EQ(code(""), " invalid_json");
  EXPECT_EQ(code("[]"), " invalid_type");
  EXPECT_EQ(code("{}"), "messages missing_field");
  EXPECT_EQ(code(R"({"messages":"Hi"})"), "messages invalid_type");
  EXPECT_EQ(code("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"), " invalid_json");
  std::string deep = R"({"messages":[],"x":)";
  for (int level = 0; level < 10000; ++level) deep += "[";
  EXPECT_EQ(code(deep), " invalid_json");
  for (int level = 0; level < 10000; ++level) deep += "]";
  EXPECT_EQ(code(deep + "}"), " invalid_json");
  std::string wide = R"({"messages":[],"x":[0)";
  for (int value = 0; value < 2'000'000; ++value) wide += ",0";
  EXPECT_EQ(code(wide + "]}"), " invalid_json");
}

}  // namespace
}  // namespace glint
