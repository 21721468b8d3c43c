#include "server/openai_chat.h"

#include <gtest/gtest.h>

namespace glint {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"Hi"}])";

ApiSettings settings() {
  ApiSettings settings;
  settings.max_n = 4;
  return settings;
}

std::expected<ApiCall, ApiError> parse(const std::string& fields) {
  return parse_chat_call(std::string("{") + kMessages + (fields.empty() ? "" : "," + fields) + "}",
                         settings());
}

ApiCall good(const std::string& fields) {
  auto call = parse(fields);
  EXPECT_TRUE(call.has_value()) << fields << ": " << call.error().message;
  return call ? std::move(*call) : ApiCall();
}

// "param code"
std::string bad(const std::string& fields) {
  const auto call = parse(fields);
  if (call.has_value()) return "accepted";
  EXPECT_EQ(call.error().status, 400);
  EXPECT_EQ(call.error().type, "invalid_request_error");
  return call.error().param + " " + call.error().code;
}

TEST(openai_chat, absent_and_null_are_the_same) {
  const ApiCall call = good(
      R"("temperature":null,"max_tokens":null,"stop":null,"tools":null,"stream":null,"seed":null)");
  EXPECT_FALSE(call.prompts[0].temperature.has_value());
  EXPECT_FALSE(call.prompts[0].max_tokens.has_value());
  EXPECT_FALSE(call.prompts[0].seed.has_value());
  EXPECT_FALSE(call.stream);
  EXPECT_EQ(call.n, 1);
  EXPECT_EQ(call.prompts[0].top_logprobs, -1);
}

TEST(openai_chat, sampling_values_are_read) {
  const ApiCall call = good(
      R"("temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
         "repeat_penalty":1.1,"repeat_last_n":64,"seed":7,"min_tokens":2,"ignore_eos":true,"logit_bias":{"5":-3,"6":2.5})");
  EXPECT_EQ(call.prompts[0].temperature, 0.5f);
  EXPECT_EQ(call.prompts[0].top_p, 0.9f);
  EXPECT_EQ(call.prompts[0].top_k, 5);
  EXPECT_EQ(call.prompts[0].min_p, 0.1f);
  EXPECT_EQ(call.prompts[0].presence_penalty, 1.0f);
  EXPECT_EQ(call.prompts[0].frequency_penalty, -1.0f);
  EXPECT_EQ(call.prompts[0].repetition_penalty, 1.1f);
  EXPECT_EQ(call.prompts[0].repeat_last_n, 64);
  EXPECT_EQ(call.prompts[0].seed, 7u);
  EXPECT_EQ(call.prompts[0].min_tokens, 2);
  EXPECT_TRUE(call.prompts[0].ignore_eos);
  EXPECT_EQ(call.prompts[0].logit_bias,
            (std::vector<std::pair<std::int32_t, float>>{{5, -3.0f}, {6, 2.5f}}));
  EXPECT_EQ(good(R"("logit_bias":[[5,1]])").prompts[0].logit_bias.size(), 1u);
  EXPECT_FALSE(good(R"("seed":-1)").prompts[0].seed.has_value());
}

TEST(openai_chat, lengths_have_an_order) {
  EXPECT_EQ(good(R"("max_tokens":5)").prompts[0].max_tokens, 5);
  EXPECT_EQ(good(R"("max_tokens":5,"max_completion_tokens":6)").prompts[0].max_tokens, 6);
  EXPECT_EQ(good(R"("n_predict":7)").prompts[0].max_tokens, 7);
  EXPECT_FALSE(good(R"("n_predict":-1)").prompts[0].max_tokens.has_value());
  EXPECT_EQ(bad(R"("max_completion_tokens":0)"), "max_completion_tokens invalid_value");
  EXPECT_EQ(bad(R"("max_tokens":1e30)"), "max_tokens invalid_type");
  EXPECT_EQ(bad(R"("max_tokens":18446744073709551615)"), "max_tokens invalid_value");
  EXPECT_EQ(good(R"("max_tokens":5.0)").prompts[0].max_tokens, 5);
}

TEST(openai_chat, wrong_types_name_their_field) {
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

TEST(openai_chat, what_cannot_be_honoured_is_refused) {
  EXPECT_EQ(bad(R"("tools":[{"name":"f"}],"tool_choice":"sometimes")"),
            "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("tool_choice":"required")"), "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"name":"f"}],"tool_choice":{"type":"function"})"),
            "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("use_beam_search":true)"), "use_beam_search unsupported_value");
  EXPECT_EQ(
      bad(R"("use_beam_search":false,"typical_p":1.0,"mirostat":0,"skip_special_tokens":true)"),
      "accepted");
  EXPECT_EQ(bad(R"("typical_p":0.5)"), "typical_p unsupported_value");
  EXPECT_EQ(bad(R"("modalities":["text","audio"])"), "modalities unsupported_value");
  EXPECT_EQ(bad(R"("chat_template":"{{ 1 }}")"), "chat_template unsupported_value");
  EXPECT_EQ(bad(R"("priority":1)"), "priority unsupported_value");
  EXPECT_EQ(bad(R"("echo":true)"), "echo unsupported_value");
  EXPECT_EQ(bad(R"("audio":{"voice":"a"})"), "audio unsupported_value");
  EXPECT_EQ(bad(R"("stream":true,"prompt_logprobs":1)"), "prompt_logprobs invalid_value");
  EXPECT_EQ(bad(R"("continue_final_message":true,"add_generation_prompt":true)"),
            "add_generation_prompt invalid_value");
}

TEST(openai_chat, answers_may_be_given_a_format_in_many_words) {
  using Kind = AnswerFormat::Kind;
  const auto kind = [](const std::string& fields) { return good(fields).prompts[0].format.kind; };
  const auto field = [](const std::string& fields) { return good(fields).prompts[0].format.field; };
  EXPECT_EQ(kind(R"("response_format":{"type":"text"})"), Kind::kFree);
  EXPECT_EQ(kind(R"("response_format":null)"), Kind::kFree);
  EXPECT_EQ(kind(R"("response_format":{"type":"json_object"})"), Kind::kJsonObject);
  const char* wrapped =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"},"strict":false}})";
  EXPECT_EQ(kind(wrapped), Kind::kJsonSchema);
  EXPECT_FALSE(good(wrapped).prompts[0].format.strict);
  EXPECT_EQ(kind(R"("response_format":{"type":"json_schema","schema":{"type":"object"}})"),
            Kind::kJsonSchema);
  EXPECT_EQ(kind(R"("structured_outputs":{"regex":"a+"})"), Kind::kRegex);
  EXPECT_EQ(field(R"("structured_outputs":{"regex":"a+"})"), "structured_outputs.regex");
  EXPECT_EQ(kind(R"("structured_outputs":{"json":"{\"type\":\"object\"}"})"), Kind::kJsonSchema);
  EXPECT_EQ(kind(R"("guided_choice":["a","b"])"), Kind::kChoice);
  EXPECT_EQ(kind(R"("guided_json":{"type":"object"})"), Kind::kJsonSchema);
  EXPECT_EQ(kind(R"("grammar":"root ::= \"a\"")"), Kind::kGbnf);
  EXPECT_EQ(kind(R"("guided_grammar":"start: \"a\"")"), Kind::kLark);
  EXPECT_EQ(kind(R"("json_schema":{})"), Kind::kJsonSchema);
  EXPECT_EQ(bad(R"("guided_regex":"a","guided_choice":["a"])"), "guided_choice invalid_value");
  EXPECT_EQ(bad(R"("response_format":{"type":"json_object"},"grammar":"start: \"a\"")"),
            "grammar invalid_value");
  EXPECT_EQ(bad(R"("response_format":{"type":"xml"})"), "response_format.type unsupported_value");
  EXPECT_EQ(bad(R"("response_format":{"type":"json_schema"})"),
            "response_format.schema missing_field");
  EXPECT_EQ(bad(R"("structured_outputs":{"shape":1})"),
            "structured_outputs.shape unsupported_value");
  EXPECT_EQ(bad(R"("guided_choice":[])"), "accepted");
  EXPECT_EQ(bad(R"("guided_choice":[1])"), "guided_choice invalid_type");
}

TEST(openai_chat, calls_can_be_forced) {
  using Kind = ToolChoice::Kind;
  const auto choice = [](const std::string& value) {
    return good(R"("tools":[{"name":"f"}],"tool_choice":)" + value).prompts[0].tool_choice;
  };
  EXPECT_EQ(choice(R"("required")").kind, Kind::kRequired);
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"f"}})").kind, Kind::kNamed);
  EXPECT_EQ(choice(R"({"type":"tool","name":"f"})").names, std::vector<std::string>{"f"});
  const ToolChoice allowed = choice(
      R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})");
  EXPECT_EQ(allowed.kind, Kind::kRequired);
  EXPECT_EQ(allowed.names, std::vector<std::string>{"f"});
}

TEST(openai_chat, functions_become_tools) {
  const ApiCall call = good(R"("functions":[{"name":"f"}],"function_call":{"name":"f"})");
  EXPECT_EQ(call.prompts[0].tools.dump(), R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(call.prompts[0].tool_choice.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(bad(R"("functions":[{"name":"f"}],"tools":[{"name":"f"}])"), "functions invalid_value");
  EXPECT_EQ(bad(R"("function_call":{"name":"f"})"), "function_call invalid_value");
}

TEST(openai_chat, unknown_fields_are_listed_and_ignored) {
  EXPECT_EQ(good(R"("shiny_new":1,"user":"u","store":true)").unknown_fields,
            std::vector<std::string>{"shiny_new"});
}

TEST(openai_chat, tools_may_be_empty_and_choices_none) {
  EXPECT_TRUE(good(R"("tools":[])").prompts[0].tools.is_null());
  EXPECT_FALSE(good(R"("tools":[{"name":"f"}])").prompts[0].tools.is_null());
  EXPECT_EQ(good(R"("tools":[{"name":"f"}],"tool_choice":"none")").prompts[0].tool_choice.kind,
            ToolChoice::Kind::kNone);
  EXPECT_EQ(good(R"("tools":[{"name":"f"}],"tool_choice":"auto")").prompts[0].tool_choice.kind,
            ToolChoice::Kind::kAuto);
  EXPECT_FALSE(good(R"("parallel_tool_calls":false)").prompts[0].parallel_tool_calls);
}

TEST(openai_chat, thinking_has_many_spellings) {
  EXPECT_EQ(good(R"("thinking":{"type":"disabled"})").prompts[0].enable_thinking, false);
  EXPECT_EQ(good(R"("thinking":{"type":"enabled"},"reasoning":{"enabled":false})")
                .prompts[0]
                .enable_thinking,
            true);
  EXPECT_EQ(good(R"("reasoning":{"enabled":false})").prompts[0].enable_thinking, false);
  EXPECT_EQ(good(R"("reasoning":{"effort":"low","exclude":true})").prompts[0].reasoning_effort,
            "low");
  EXPECT_EQ(good(R"("reasoning":{"max_tokens":5})").prompts[0].thinking_budget, 5);
  EXPECT_EQ(good(R"("thinking_budget_tokens":6)").prompts[0].thinking_budget, 6);
  EXPECT_EQ(good(R"("reasoning_effort":"high")").prompts[0].reasoning_effort, "high");
  EXPECT_EQ(good(R"("thinking":{"clear_thinking":false})").prompts[0].template_kwargs.dump(),
            R"({"clear_thinking":false})");
  EXPECT_EQ(bad(R"("thinking":{"type":"maybe"})"), "thinking.type invalid_value");
}

TEST(openai_chat, bodies_that_are_no_request) {
  const auto code = [](std::string_view body) {
    const auto call = parse_chat_call(body, settings());
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
