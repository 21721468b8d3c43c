// Bodies of /v1/messages as calls.
#include "server/anthropic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "chat/messages.h"

namespace glint {
namespace {

using Kind = ToolChoice::Kind;

constexpr const char* kTool = R"({"name":"f","input_schema":{"type":"object"}})";

std::expected<ApiCall, ApiError> parse(const std::string& body, ApiSettings settings = {}) {
  return parse_messages_call(body, settings);
}

std::string body_of(const std::string& messages, const std::string& fields = "") {
  return R"({"model":"claude-x","max_tokens":64,"messages":)" + messages +
         (fields.empty() ? "" : "," + fields) + "}";
}

ApiCall call_of(const std::string& body, const ApiSettings& settings = {}) {
  auto call = parse(body, settings);
  EXPECT_TRUE(call.has_value()) << body << ": " << call.error().message;
  if (!call) {
    ApiCall none;
    none.prompts.emplace_back();
    return none;
  }
  return std::move(*call);
}

ChatRequest chat_of(const std::string& fields, const ApiSettings& settings = {}) {
  return call_of(body_of(R"([{"role":"user","content":"Hi"}])", fields), settings).prompts.front();
}

// The conversation as chat has it in the end.
std::string conversation(const std::string& messages, const std::string& fields = "") {
  const ApiCall call = call_of(body_of(messages, fields));
  auto normal = normalise_messages(call.prompts.front().messages, ArgumentStyle::kObject);
  EXPECT_TRUE(normal.has_value()) << messages << ": " << normal.error().message;
  return normal ? normal->dump() : "";
}

// "param code"
std::string refusal(const std::string& body) {
  const auto call = parse(body);
  if (call.has_value()) return "accepted";
  EXPECT_EQ(call.error().status, 400);
  EXPECT_TRUE(call.error().message.starts_with(call.error().param)) << call.error().message;
  return call.error().param + " " + call.error().code;
}
std::string bad(const std::string& fields) {
  return refusal(body_of(R"([{"role":"user","content":"Hi"}])", fields));
}
std::string bad_block(const std::string& block, const char* role = "user") {
  return refusal(body_of(fmt::format(R"([{{"role":"{}","content":[{}]}}])", role, block)));
}

TEST(anthropic, a_plain_body_is_a_call_for_any_model) {
  const ApiCall call = call_of(body_of(R"([{"role":"user","content":"Hi"}])",
                                       R"("stream":true,"temperature":0.5,"top_p":0.9,"top_k":5,
                                          "stop_sequences":["a","b"],"thinking":null)"));
  EXPECT_EQ(call.model, "claude-x");
  EXPECT_TRUE(call.accepts_any_model);
  EXPECT_TRUE(call.stream);
  EXPECT_EQ(call.n, 1);
  const ChatRequest& chat = call.prompts.front();
  EXPECT_EQ(chat.max_tokens, 64);
  EXPECT_EQ(chat.temperature, 0.5f);
  EXPECT_EQ(chat.top_p, 0.9f);
  EXPECT_EQ(chat.top_k, 5);
  EXPECT_EQ(chat.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(chat.enable_thinking.has_value());
  EXPECT_FALSE(chat.continue_final_message);
  EXPECT_EQ(chat.messages.dump(), R"([{"role":"user","content":"Hi"}])");
}

TEST(anthropic, what_is_missing_or_of_a_wrong_type_is_named) {
  EXPECT_EQ(refusal(R"({"messages":[{"role":"user","content":"Hi"}]})"),
            "max_tokens missing_field");
  EXPECT_EQ(refusal(R"({"max_tokens":1})"), "messages missing_field");
  EXPECT_EQ(refusal(body_of("[]")), "messages invalid_value");
  EXPECT_EQ(refusal(body_of("{}")), "messages invalid_type");
  EXPECT_EQ(refusal(body_of("[7]")), "messages[0] invalid_type");
  EXPECT_EQ(refusal(body_of(R"([{"content":"Hi"}])")), "messages[0].role missing_field");
  EXPECT_EQ(refusal(body_of(R"([{"role":"user"}])")), "messages[0].content missing_field");
  EXPECT_EQ(refusal(body_of(R"([{"role":"user","content":7}])")),
            "messages[0].content invalid_type");
  EXPECT_EQ(bad_block("7"), "messages[0].content[0] invalid_type");
  EXPECT_EQ(bad_block("{}"), "messages[0].content[0].type missing_field");
  EXPECT_EQ(bad_block(R"({"type":"text"})"), "messages[0].content[0].text missing_field");
  EXPECT_EQ(bad_block(R"({"type":"tool_result"})"),
            "messages[0].content[0].tool_use_id missing_field");
  EXPECT_EQ(bad_block(R"({"type":"tool_result","tool_use_id":"t","content":7})"),
            "messages[0].content[0].content invalid_type");
  EXPECT_EQ(bad_block(R"({"type":"tool_use","id":"t"})", "assistant"),
            "messages[0].content[0].name missing_field");
  EXPECT_EQ(bad_block(R"({"type":"tool_use","name":"f","input":7})", "assistant"),
            "messages[0].content[0].input invalid_type");
  EXPECT_EQ(bad_block(R"({"type":"thinking"})", "assistant"),
            "messages[0].content[0].thinking missing_field");
  EXPECT_EQ(bad(R"("temperature":1.5)"), "temperature invalid_value");
  EXPECT_EQ(bad(R"("temperature":-0.5)"), "temperature invalid_value");
  EXPECT_EQ(bad(R"("stream":"yes")"), "stream invalid_type");
  EXPECT_EQ(bad(R"("stop_sequences":"a")"), "stop_sequences invalid_type");
  EXPECT_EQ(bad(R"("stop_sequences":[1])"), "stop_sequences invalid_type");
  EXPECT_EQ(bad(R"("stop_sequences":[""])"), "stop_sequences invalid_value");
  EXPECT_EQ(bad(R"("system":7)"), "system invalid_type");
  EXPECT_EQ(bad(R"("system":[{"type":"text"}])"), "system[0].text missing_field");
  EXPECT_EQ(refusal(R"({"max_tokens":0,"messages":[{"role":"user","content":"Hi"}]})"),
            "max_tokens invalid_value");
}

TEST(anthropic, bodies_that_are_no_json_object_are_refused) {
  EXPECT_FALSE(parse("").has_value());
  EXPECT_FALSE(parse("[]").has_value());
  EXPECT_FALSE(parse("{\"a\":\"\xFF\"}").has_value());
  const std::string deep = std::string(10000, '[') + std::string(10000, ']');
  const auto nested = parse(R"({"max_tokens":1,"messages":[],"unknown":)" + deep + "}");
  ASSERT_FALSE(nested.has_value());
  EXPECT_EQ(nested.error().code, "invalid_json");
}

TEST(anthropic, system_blocks_are_lines_of_one_first_message) {
  const std::string hi = R"([{"role":"user","content":"Hi"}])";
  EXPECT_EQ(conversation(hi, R"("system":"Be brief.")"),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(
      conversation(hi, R"("system":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}},
                           {"type":"text","text":"B"}])"),
      R"([{"role":"system","content":"A\nB"},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(conversation(hi, R"("system":"")"), R"([{"role":"user","content":"Hi"}])");
  EXPECT_EQ(conversation(hi, R"("system":[])"), R"([{"role":"user","content":"Hi"}])");
}

// The header has a hash of the request in it: prompts of two turns must not differ by it.
TEST(anthropic, billing_headers_never_reach_the_prompt) {
  const std::string hi = R"([{"role":"user","content":"Hi"}])";
  const auto with_hash = [&](const std::string& hash) {
    return conversation(hi, R"("system":[{"type":"text","text":"x-anthropic-billing-header: cch=)" +
                                hash + R"(;"},{"type":"text","text":"You are an agent."}])");
  };
  EXPECT_EQ(with_hash("1a"), with_hash("2b"));
  EXPECT_EQ(with_hash("1a"),
            R"([{"role":"system","content":"You are an agent."},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(conversation(hi, R"("system":"x-anthropic-billing-header: a\nYou are an agent.")"),
            with_hash("1a"));
  EXPECT_EQ(conversation(hi, R"("system":"x-anthropic-billing-header: a")"),
            R"([{"role":"user","content":"Hi"}])");
}

TEST(anthropic, system_messages_stay_where_they_are) {
  EXPECT_EQ(conversation(R"([{"role":"user","content":"Hi"},
                             {"role":"system","content":[{"type":"text","text":"Note."}]},
                             {"role":"assistant","content":"Yes"},
                             {"role":"ctx","content":"More"},{"role":"msg","content":"?"}])",
                         R"("system":"First.")"),
            R"([{"role":"system","content":"First."},{"role":"user","content":"Hi"},)"
            R"({"role":"system","content":"Note."},{"role":"assistant","content":"Yes"},)"
            R"({"role":"user","content":"More"},{"role":"user","content":"?"}])");
}

TEST(anthropic, results_of_tools_come_before_the_text_beside_them) {
  EXPECT_EQ(conversation(
                R"([{"role":"user","content":[
               {"type":"text","text":"and now?"},
               {"type":"tool_result","tool_use_id":"t1","content":"sunny"},
               {"type":"tool_result","tool_use_id":"t2","is_error":true,
                "content":[{"type":"text","text":"no"},{"type":"text","text":"such file"}]},
               {"type":"tool_result","tool_use_id":"t3"},
               {"type":"text","text":" Go on."}]}])"),
            R"([{"role":"tool","content":"sunny","tool_call_id":"t1"},)"
            R"({"role":"tool","content":"no\nsuch file","tool_call_id":"t2"},)"
            R"({"role":"tool","content":"","tool_call_id":"t3"},)"
            R"({"role":"user","content":"and now? Go on."}])");
  EXPECT_EQ(
      conversation(
          R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]}])"),
      R"([{"role":"tool","content":"x","tool_call_id":"t1"}])");
  EXPECT_EQ(conversation(R"([{"role":"user","content":[]}])"), R"([{"role":"user","content":""}])");
}

TEST(anthropic, assistant_blocks_are_one_message) {
  EXPECT_EQ(
      conversation(
          R"([{"role":"assistant","content":[
               {"type":"thinking","thinking":" Hm.\n","signature":"of another server"},
               {"type":"redacted_thinking","data":"xyz"},
               {"type":"text","text":"Let me see."},
               {"type":"tool_use","id":"t1","name":"f","input":{"z":1,"a":[true]},
                "cache_control":{"type":"ephemeral"}},
               {"type":"tool_use","id":"t2","name":"g"}]},
              {"role":"user","content":"ok"}])"),
      R"([{"role":"assistant","content":"Let me see.","reasoning_content":" Hm.\n","tool_calls":[)"
      R"({"id":"t1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[true]}}},)"
      R"({"id":"t2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"user","content":"ok"}])");
  // Thoughts that a client was not shown are no thoughts.
  EXPECT_EQ(conversation(R"([{"role":"assistant","content":[{"type":"thinking","thinking":""}]},
                             {"role":"user","content":"ok"}])"),
            R"([{"role":"assistant","content":""},{"role":"user","content":"ok"}])");
}

TEST(anthropic, what_has_no_meaning_here_is_left_out_and_noted) {
  const ApiCall call = call_of(body_of(
      R"([{"role":"assistant","content":[
            {"type":"server_tool_use","id":"s","name":"web_search","input":{}},
            {"type":"web_search_tool_result","tool_use_id":"s",
             "content":[{"type":"web_search_result","title":"T","url":"http://u"}]},
            {"type":"brand\nnew"}]},
          {"role":"user","content":[
            {"type":"search_result","title":"A","source":"S","content":[{"type":"text","text":"B"}]},
            {"type":"tool_reference","tool_name":"f"}]}])"));
  const auto normal = normalise_messages(call.prompts[0].messages, ArgumentStyle::kObject);
  ASSERT_TRUE(normal.has_value());
  EXPECT_EQ(
      normal->dump(),
      R"([{"role":"assistant","content":"T\nhttp://u\n"},{"role":"user","content":"A\nS\nB"}])");
  EXPECT_EQ(call.notes, std::vector<std::string>{
                            "left out blocks: \"brand\\nnew\" (1), \"server_tool_use\" (1), "
                            "\"tool_reference\" (1)"});
}

TEST(anthropic, documents_are_text_or_refused) {
  EXPECT_EQ(conversation(R"([{"role":"user","content":[
          {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"D"}},
          {"type":"document","source":{"type":"content","content":[{"type":"text","text":"E"}]}}]}])"),
            R"([{"role":"user","content":"T\nDE"}])");
  const auto document = [](const std::string& source) {
    return bad_block(R"({"type":"document","source":)" + source + "}");
  };
  EXPECT_EQ(document(R"({"type":"base64","media_type":"application/pdf","data":"JVBERi0="})"),
            "messages[0].content[0].source unsupported_value");
  EXPECT_EQ(document(R"({"type":"url","url":"http://127.0.0.1/x.pdf"})"),
            "messages[0].content[0].source unsupported_value");
  EXPECT_EQ(document(R"({"type":"text"})"), "messages[0].content[0].source.data missing_field");
  EXPECT_EQ(document("7"), "messages[0].content[0].source invalid_type");
}

TEST(anthropic, images_are_refused_by_text_models_and_never_fetched) {
  const auto image = [](const std::string& source, bool takes_images) {
    ApiSettings settings;
    settings.takes_images = takes_images;
    const auto call =
        parse(body_of(R"([{"role":"user","content":[{"type":"image","source":)" + source + "}]}]"),
              settings);
    return call ? call->prompts[0].messages.dump() : call.error().param + " " + call.error().code;
  };
  const std::string png = R"({"type":"base64","media_type":"image/png","data":"iVBO"})";
  EXPECT_EQ(image(png, false), "messages[0].content[0] unsupported_value");
  EXPECT_EQ(image(png, true), R"([{"role":"user","content":[{"type":"image_url","image_url":)"
                              R"({"url":"data:image/png;base64,iVBO"}}]}])");
  for (const char* url : {"http://169.254.169.254/", "https://example.org/a.png",
                          "file:///etc/passwd", "http://[::1]/", "http://2130706433/", ""}) {
    EXPECT_EQ(image(fmt::format(R"({{"type":"url","url":"{}"}})", url), true),
              "messages[0].content[0].source unsupported_value");
  }
  EXPECT_EQ(image(R"({"type":"file","file_id":"f"})", true),
            "messages[0].content[0].source unsupported_value");
  EXPECT_EQ(image("{}", true), "messages[0].content[0].source.type missing_field");
}

TEST(anthropic, images_of_results_join_the_users_message) {
  ApiSettings settings;
  settings.takes_images = true;
  const ApiCall call = call_of(
      body_of(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
                   {"type":"image","source":{"type":"base64","media_type":"image/png","data":"x"}},
                   {"type":"text","text":"a screen"}]},{"type":"text","text":"look"}]}])"),
      settings);
  EXPECT_EQ(
      call.prompts[0].messages.dump(),
      R"([{"role":"tool","tool_call_id":"t","content":[{"type":"text","text":"a screen"}]},)"
      R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,x"}},)"
      R"({"type":"text","text":"look"}]}])");
}

TEST(anthropic, an_answer_may_be_begun_by_the_client) {
  const auto continues = [](const std::string& messages) {
    return call_of(body_of(messages)).prompts[0].continue_final_message;
  };
  EXPECT_TRUE(continues(R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"{"}])"));
  EXPECT_FALSE(continues(
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"{"},{"role":"user","content":"?"}])"));
}

TEST(anthropic, tools_keep_their_schema_and_lose_what_is_not_for_the_model) {
  const ApiCall call = call_of(body_of(
      R"([{"role":"user","content":"Hi"}])",
      R"("tools":[{"input_schema":{"type":"object","properties":{"z":{"type":"string"},"a":{}}},
                   "description":"天气 & <b>","name":"f","type":"custom","strict":true,
                   "cache_control":{"type":"ephemeral"},"defer_loading":true},
                  {"type":"web_search_20250305","name":"web_search","max_uses":8},
                  {"type":"bash_20250124","name":"bash"}])"));
  EXPECT_EQ(call.prompts[0].tools.dump(),
            R"([{"type":"function","function":{"name":"f","description":"天气 & <b>",)"
            R"("parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{}}},)"
            R"("strict":true}}])");
  EXPECT_EQ(call.notes, std::vector<std::string>{"left out tools without input_schema: \"bash\" "
                                                 "(1), \"web_search\" (1)"});
  EXPECT_TRUE(chat_of(R"("tools":[])").tools.is_null());
  EXPECT_TRUE(chat_of(R"("tools":[{"type":"bash_20250124","name":"bash"}])").tools.is_null());
}

TEST(anthropic, malformed_tools_are_refused_by_their_own_place) {
  const auto tools = [](const std::string& last) {
    return bad(R"("tools":[{"type":"bash_20250124","name":"bash"},)" + last + "]");
  };
  EXPECT_EQ(tools("7"), "tools[1] invalid_type");
  EXPECT_EQ(tools(R"({"input_schema":{}})"), "tools[1].name invalid_value");
  EXPECT_EQ(tools(R"({"name":"a b","input_schema":{}})"), "tools[1].name invalid_value");
  EXPECT_EQ(tools(R"({"name":7,"input_schema":{}})"), "tools[1].name invalid_value");
  EXPECT_EQ(tools(R"({"name":"f","input_schema":7})"), "tools[1].input_schema invalid_schema");
  for (const char* type : {R"("foo")", "7", "null"}) {
    EXPECT_EQ(tools(fmt::format(
                  R"({{"name":"f","input_schema":{{"properties":{{"x":{{"type":{}}}}}}}}})", type)),
              "tools[1].input_schema.properties.x.type invalid_schema");
  }
  EXPECT_EQ(tools(R"({"name":"f","input_schema":{"properties":{"x":{"pattern":"["}}}})"),
            "tools[1].input_schema.properties.x.pattern invalid_schema");
  EXPECT_EQ(tools(fmt::format("{},{}", kTool, kTool)), "tools[2].name invalid_value");
  EXPECT_EQ(bad(R"("tools":{})"), "tools invalid_type");
}

TEST(anthropic, calls_can_be_forced_forbidden_and_single) {
  const auto choice = [](const std::string& value) {
    return chat_of(fmt::format(R"("tools":[{}],"tool_choice":{})", kTool, value));
  };
  EXPECT_EQ(choice(R"({"type":"auto"})").tool_choice.kind, Kind::kAuto);
  EXPECT_TRUE(choice(R"({"type":"auto"})").parallel_tool_calls);
  EXPECT_FALSE(choice(R"({"type":"auto","disable_parallel_tool_use":true})").parallel_tool_calls);
  EXPECT_EQ(choice(R"({"type":"any"})").tool_choice.kind, Kind::kRequired);
  EXPECT_EQ(choice(R"({"type":"none"})").tool_choice.kind, Kind::kNone);
  EXPECT_FALSE(choice(R"({"type":"none"})").tools.is_null());
  const ToolChoice named = choice(R"({"type":"tool","name":"f"})").tool_choice;
  EXPECT_EQ(named.kind, Kind::kNamed);
  EXPECT_EQ(named.names, std::vector<std::string>{"f"});
  EXPECT_EQ(bad(R"("tool_choice":{"type":"any"})"), "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("tool_choice":{"type":"auto"})"), "accepted");
  EXPECT_EQ(bad(R"("tool_choice":"auto")"), "tool_choice invalid_type");
  EXPECT_EQ(bad(R"("tool_choice":{})"), "tool_choice.type missing_field");
  EXPECT_EQ(bad(R"("tool_choice":{"type":"tool"})"), "tool_choice.name missing_field");
  EXPECT_EQ(bad(R"("tool_choice":{"type":"sometimes"})"), "tool_choice.type invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"web_search_20250305","name":"web_search"}],
                   "tool_choice":{"type":"tool","name":"web_search"})"),
            "tool_choice.name invalid_value");
}

TEST(anthropic, thinking_is_as_asked_or_as_the_server_has_it) {
  const ChatRequest enabled = chat_of(R"("thinking":{"type":"enabled","budget_tokens":2048})");
  EXPECT_EQ(enabled.enable_thinking, true);
  EXPECT_EQ(enabled.thinking_budget, 2048);
  EXPECT_EQ(chat_of(R"("thinking":{"type":"disabled"})").enable_thinking, false);
  EXPECT_FALSE(chat_of(R"("thinking":{"type":"adaptive"})").enable_thinking.has_value());
  EXPECT_FALSE(chat_of("").enable_thinking.has_value());
  ApiSettings off;
  off.anthropic_thinking = false;
  EXPECT_EQ(chat_of("", off).enable_thinking, false);
  EXPECT_EQ(chat_of(R"("thinking":{"type":"adaptive"})", off).enable_thinking, false);
  EXPECT_EQ(chat_of(R"("thinking":{"type":"enabled"})", off).enable_thinking, true);
  EXPECT_EQ(bad(R"("thinking":{"type":"enabled","budget_tokens":1023})"),
            "thinking.budget_tokens invalid_value");
  EXPECT_EQ(bad(R"("thinking":{"type":"maybe"})"), "thinking.type invalid_value");
  EXPECT_EQ(bad(R"("thinking":{})"), "thinking.type invalid_value");
  EXPECT_EQ(bad(R"("thinking":true)"), "thinking invalid_type");
}

TEST(anthropic, effort_and_format_of_the_output) {
  ApiSettings settings;
  settings.effort_budgets = {{"low", 100}};
  const ChatRequest low = chat_of(R"("output_config":{"effort":"low"})", settings);
  EXPECT_EQ(low.reasoning_effort, "low");
  EXPECT_EQ(low.thinking_budget, 100);
  EXPECT_EQ(chat_of(R"("thinking":{"type":"enabled","budget_tokens":2000},
                       "output_config":{"effort":"low"})",
                    settings)
                .thinking_budget,
            2000);
  EXPECT_EQ(bad(R"("output_config":{"effort":"huge"})"), "output_config.effort invalid_value");
  constexpr const char* kFormat = R"({"type":"json_schema","schema":{"type":"object"}})";
  const AnswerFormat format =
      chat_of(fmt::format(R"("output_config":{{"format":{}}})", kFormat)).format;
  EXPECT_EQ(format.kind, AnswerFormat::Kind::kJsonSchema);
  EXPECT_EQ(format.schema.dump(), R"({"type":"object"})");
  EXPECT_EQ(format.field, "output_config.format");
  EXPECT_EQ(chat_of(fmt::format(R"("output_format":{})", kFormat)).format.kind,
            AnswerFormat::Kind::kJsonSchema);
  EXPECT_EQ(bad(R"("output_config":{"format":{"type":"json_schema"}})"),
            "output_config.format.schema missing_field");
  EXPECT_EQ(bad(R"("output_config":{"format":{"type":"xml"}})"),
            "output_config.format.type unsupported_value");
}

TEST(anthropic, unknown_fields_are_listed_and_known_ones_ignored) {
  const ApiCall call = call_of(body_of(
      R"([{"role":"user","content":"Hi"}])",
      R"("metadata":{"user_id":"u"},"service_tier":"auto","cache_control":{"type":"ephemeral"},
         "context_management":{"edits":[]},"container":"c","betas":["x"],"shiny":1)"));
  EXPECT_EQ(call.unknown_fields, std::vector<std::string>{"shiny"});
}

TEST(anthropic, a_prompt_too_long_is_told_in_words_that_agents_know) {
  const auto told = [](const std::string& message) {
    const ApiError error = error_of(invalid_argument(message));
    EXPECT_EQ(error.code, "context_length_exceeded");
    return anthropic_error_object(error, "r1").dump();
  };
  EXPECT_EQ(told("messages: this model's maximum context length is 8192 tokens, but the prompt has "
                 "9001 and at least 1 is needed for the answer; shorten the messages"),
            R"({"type":"error","error":{"type":"invalid_request_error","message":)"
            R"("prompt is too long: 9001 tokens > 8192 maximum"},"request_id":"r1"})");
  // As long as the context leaves no room for an answer.
  EXPECT_EQ(told("the maximum context length is 64 tokens, and the prompt has 64, which leaves no "
                 "room"),
            R"({"type":"error","error":{"type":"invalid_request_error","message":)"
            R"("prompt is too long: 64 tokens > 63 maximum"},"request_id":"r1"})");
}

TEST(anthropic, errors_have_their_own_types_and_statuses) {
  const auto told = [](int status) {
    const HttpResponse response =
        error_response(error_of_status(status, "m"), ErrorShape::kAnthropic, "");
    const auto body = parse_json(response.body);
    return fmt::format("{} {}", response.status, body->find("error")->find("type")->as_string());
  };
  EXPECT_EQ(told(400), "400 invalid_request_error");
  EXPECT_EQ(told(401), "401 authentication_error");
  EXPECT_EQ(told(403), "403 permission_error");
  EXPECT_EQ(told(404), "404 not_found_error");
  EXPECT_EQ(told(408), "408 timeout_error");
  EXPECT_EQ(told(413), "413 request_too_large");
  EXPECT_EQ(told(429), "429 rate_limit_error");
  EXPECT_EQ(told(500), "500 api_error");
  EXPECT_EQ(told(503), "529 overloaded_error");
}

TEST(anthropic, models_are_listed_in_its_own_words) {
  Json models(Json::Array{});
  EXPECT_EQ(anthropic_models(models).dump(),
            R"({"data":[],"has_more":false,"first_id":null,"last_id":null})");
  for (const char* id : {"a", "b"}) {
    models.push_back(Json(Json::Object{{"id", Json(id)}, {"created", Json(1700000000)}}));
  }
  EXPECT_EQ(
      anthropic_models(models).dump(),
      R"({"data":[{"type":"model","id":"a","display_name":"a","created_at":"2023-11-14T22:13:20Z"},)"
      R"({"type":"model","id":"b","display_name":"b","created_at":"2023-11-14T22:13:20Z"}],)"
      R"("has_more":false,"first_id":"a","last_id":"b"})");
}

}  // namespace
}  // namespace glint
