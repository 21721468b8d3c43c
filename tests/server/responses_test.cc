#include "server/responses.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "../chat/script_model.h"
#include "base/base64.h"
#include "server/custom_input.h"
#include "server/responses_input.h"

namespace glint {
namespace {

using Event = OutputEvent::Kind;

std::expected<ApiCall, ApiError> parse_body_text(const std::string& body) {
  return parse_responses_call(body, ApiSettings());
}
std::expected<ApiCall, ApiError> parse(const std::string& fields) {
  return parse_body_text(R"({"input":"Hi")" + (fields.empty() ? "" : "," + fields) + "}");
}

ApiCall good_body(const std::string& body) {
  auto call = parse_body_text(body);
  EXPECT_TRUE(call.has_value()) << body << ": " << call.error().message;
  return call ? std::move(*call) : ApiCall();
}
ApiCall good(const std::string& fields) {
  return good_body(R"({"input":"Hi")" + (fields.empty() ? "" : "," + fields) + "}");
}

// "param code"
std::string refusal(const std::expected<ApiCall, ApiError>& call) {
  if (call.has_value()) return "accepted";
  EXPECT_EQ(call.error().status, 400);
  return call.error().param + " " + call.error().code;
}
std::string bad(const std::string& fields) {
  return refusal(parse(fields));
}
std::string bad_items(const std::string& items) {
  return refusal(parse_body_text(R"({"input":[)" + items + "]}"));
}
std::string messages(const std::string& items, const std::string& fields = "") {
  return good_body(R"({"input":[)" + items + "]" + fields + "}").prompts.at(0).messages.dump();
}

// --- input ---

TEST(responses_input, text_is_a_user_message_after_the_instructions) {
  EXPECT_EQ(good(R"("instructions":"Be kind.")").prompts[0].messages.dump(),
            R"([{"role":"system","content":"Be kind."},{"role":"user","content":"Hi"}])");
}

TEST(responses_input, messages_keep_their_roles_and_places) {
  EXPECT_EQ(messages(R"({"role":"user","content":"a"},
                  {"type":"message","role":"developer","content":[{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]},
                  {"role":"assistant","content":[{"type":"output_text","text":"d","annotations":[]},{"type":"refusal","refusal":"e"}]},
                  {"role":"system","content":null})"),
            R"([{"role":"user","content":"a"},{"role":"developer","content":"bc"},)"
            R"({"role":"assistant","content":"de"},{"role":"system","content":""}])");
}

TEST(responses_input, adjacent_items_of_the_assistant_are_one_turn) {
  EXPECT_EQ(
      messages(
          R"({"role":"user","content":"a"},
             {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"t1"}]},
             {"type":"message","role":"assistant","content":"m"},
             {"type":"web_search_call","id":"ws_1"},
             {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
             {"type":"custom_tool_call","call_id":"c2","name":"g","input":"raw \"text\""},
             {"type":"function_call_output","call_id":"c1","output":"r1"},
             {"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"r2"},{"type":"input_text","text":"r3"}]},
             {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t2"}]},
             {"type":"function_call","call_id":"c3","name":"f","arguments":""})"),
      R"([{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"m","reasoning_content":"t1","tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},)"
      R"({"id":"c2","type":"function","function":{"name":"g","arguments":{"input":"raw \"text\""}}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"r1"},)"
      R"({"role":"tool","tool_call_id":"c2","content":"r2\nr3"},)"
      R"({"role":"assistant","content":"","reasoning_content":"t2","tool_calls":[)"
      R"({"id":"c3","type":"function","function":{"name":"f","arguments":""}}]}])");
}

TEST(responses_input, a_thought_after_a_text_begins_a_turn) {
  const char* thought =
      R"({"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]})";
  EXPECT_EQ(messages(std::string(R"({"role":"assistant","content":"a"},)") + thought +
                     R"(,{"role":"assistant","content":"b"})"),
            R"([{"role":"assistant","content":"a"},)"
            R"({"role":"assistant","content":"b","reasoning_content":"t"}])");
}

TEST(responses_input, sealed_thoughts_come_back) {
  const std::string sealed = seal_thought("h\xC3\xA9 <think>");
  EXPECT_EQ(open_thought(sealed), "h\xC3\xA9 <think>");
  EXPECT_EQ(open_thought(seal_thought("")), "");
  EXPECT_EQ(
      messages(R"({"type":"reasoning","summary":[],"encrypted_content":")" + sealed +
               R"("},{"role":"assistant","content":"b"})"),
      "[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"h\xC3\xA9 <think>\"}]");
  // Another maker's seal, a broken one, and text that is no text are ignored.
  for (const std::string& other :
       {std::string("gAAAAABo"), std::string("AAAA"), std::string("="), std::string("%%%%"),
        sealed.substr(1), sealed.substr(0, sealed.size() - 1),
        base64_encode("glint thought 1:\xff"), base64_encode("glint thought 2:x")}) {
    EXPECT_FALSE(open_thought(other).has_value()) << other;
    EXPECT_EQ(
        messages(
            R"({"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":")" +
            other + R"("},{"role":"assistant","content":"b"})"),
        R"([{"role":"assistant","content":"b"}])");
  }
}

TEST(responses_input, base64_is_what_others_write) {
  EXPECT_EQ(base64_encode(""), "");
  EXPECT_EQ(base64_encode("f"), "Zg==");
  EXPECT_EQ(base64_encode("fo"), "Zm8=");
  EXPECT_EQ(base64_encode("foo"), "Zm9v");
  EXPECT_EQ(base64_encode("foob"), "Zm9vYg==");
  EXPECT_EQ(base64_encode("\xff\xfe\xfd"), "//79");
  for (int size = 0; size < 40; ++size) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(i * 37 + size);
    EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
  }
  for (const char* text : {"Zg", "Zg=", "Z===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Zm 9", "-_-_"})
    EXPECT_FALSE(base64_decode(text).has_value()) << text;
}

TEST(responses_input, what_is_not_understood_is_left_out_and_noted) {
  const ApiCall call = good_body(
      R"({"input":[{"role":"user","content":"a"},{"type":"web_search_call"},{"type":"web_search_call"},
          {"type":"local_shell_call"},{"type":"a\nb"}],"shiny":1,"client_metadata":{"x":"y"}})");
  EXPECT_EQ(call.prompts[0].messages.dump(), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(call.notes,
            (std::vector<std::string>{"left out 1 input items of type ?",
                                      "left out 1 input items of type local_shell_call",
                                      "left out 2 input items of type web_search_call"}));
  EXPECT_EQ(call.unknown_fields, std::vector<std::string>{"shiny"});
}

TEST(responses_input, errors_name_the_item) {
  EXPECT_EQ(refusal(parse_body_text("{}")), "input missing_field");
  EXPECT_EQ(refusal(parse_body_text(R"({"input":null,"messages":[]})")), "input missing_field");
  EXPECT_EQ(refusal(parse_body_text(R"({"input":7})")), "input invalid_type");
  EXPECT_EQ(refusal(parse_body_text(R"({"input":[]})")), "input invalid_value");
  EXPECT_EQ(bad_items(R"({"type":"web_search_call"})"), "input invalid_value");
  EXPECT_EQ(bad_items("7"), "input[0] invalid_type");
  EXPECT_EQ(bad_items("{}"), "input[0].type missing_field");
  EXPECT_EQ(bad_items(R"({"type":7})"), "input[0].type invalid_type");
  const std::string user = R"({"role":"user","content":"a"},)";
  EXPECT_EQ(bad_items(user + R"({"role":"tool","content":"a"})"), "input[1].role invalid_value");
  EXPECT_EQ(bad_items(user + R"({"type":"message","content":"a"})"), "input[1].role missing_field");
  EXPECT_EQ(bad_items(user + R"({"role":"user","content":7})"), "input[1].content invalid_type");
  EXPECT_EQ(bad_items(user + R"({"role":"user","content":[{"type":"input_text"}]})"),
            "input[1].content[0].text missing_field");
  EXPECT_EQ(bad_items(user + R"({"role":"user","content":["a"]})"),
            "input[1].content[0] invalid_type");
  EXPECT_EQ(bad_items(user + R"({"role":"user","content":[{"type":"sound"}]})"),
            "input[1].content[0].type invalid_value");
  EXPECT_EQ(
      bad_items(user + R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
      "input[1].content[0] unsupported_value");
  EXPECT_EQ(bad_items(user + R"({"type":"function_call","call_id":"c"})"),
            "input[1].name missing_field");
  EXPECT_EQ(bad_items(user + R"({"type":"function_call","name":"","call_id":"c"})"),
            "input[1].name invalid_value");
  EXPECT_EQ(bad_items(user + R"({"type":"function_call","name":"f","arguments":"{}"})"),
            "input[1].call_id missing_field");
  EXPECT_EQ(bad_items(user + R"({"type":"function_call","name":"f","call_id":"c","arguments":7})"),
            "input[1].arguments invalid_type");
  EXPECT_EQ(bad_items(user + R"({"type":"custom_tool_call","name":"f","call_id":"c"})"),
            "input[1].input missing_field");
  EXPECT_EQ(bad_items(user + R"({"type":"function_call_output","call_id":"c"})"),
            "input[1].output missing_field");
  EXPECT_EQ(
      bad_items(user + R"({"type":"reasoning","content":[{"type":"reasoning_text","text":7}]})"),
      "input[1].content[0].text invalid_type");
  EXPECT_EQ(bad_items(user + R"({"type":"item_reference","id":"msg_1"})"),
            "input[1] unsupported_value");
}

TEST(responses_input, errors_found_later_bear_its_name) {
  const ApiCall call = good("");
  const ApiError error =
      told_of(call, bad_request("messages[2].content", "messages[2].content: x"));
  EXPECT_EQ(error.param, "input[2].content");
  EXPECT_EQ(error.message, "input[2].content: x");
  EXPECT_EQ(told_of(call, bad_request("top_p", "top_p: x")).param, "top_p");
}

// --- tools ---

TEST(responses_tools, both_shapes_are_one_tool) {
  const std::string flat =
      R"("tools":[{"type":"function","name":"f","description":"d","strict":null,"parameters":{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}}])";
  const std::string wrapped =
      R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}}}])";
  EXPECT_EQ(good(flat).prompts[0].tools.dump(), good(wrapped).prompts[0].tools.dump());
  EXPECT_EQ(good(wrapped).prompts[0].tools.dump(), wrapped.substr(8));
}

TEST(responses_tools, custom_tools_take_one_text) {
  const ApiCall call = good(
      R"("tools":[{"type":"custom","name":"patch","description":"Edits.","format":{"type":"grammar","syntax":"lark","definition":"start: \"a\""}},{"type":"custom","name":"run"}])");
  EXPECT_EQ(
      call.prompts[0].tools.dump(),
      R"([{"type":"function","function":{"name":"patch","description":"Edits.\n\nThe input has to match this grammar (lark):\nstart: \"a\"",)"
      R"("parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}}},)"
      R"({"type":"function","function":{"name":"run","description":"",)"
      R"("parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}}}])");
}

TEST(responses_tools, those_of_a_provider_are_left_out_and_noted) {
  const ApiCall call = good(
      R"("tools":[{"type":"web_search"},{"type":"function","name":"f"},{"type":"local_shell"},{"type":"mcp","server_label":"x"}])");
  EXPECT_EQ(call.prompts[0].tools.dump(), R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(call.notes, (std::vector<std::string>{"left out 1 tools of type local_shell",
                                                  "left out 1 tools of type mcp",
                                                  "left out 1 tools of type web_search"}));
  EXPECT_TRUE(good(R"("tools":[{"type":"web_search"}])").prompts[0].tools.is_null());
  EXPECT_TRUE(good(R"("tools":[])").prompts[0].tools.is_null());
}

TEST(responses_tools, those_in_a_namespace_bear_its_name) {
  const std::string tools =
      R"("tools":[{"type":"namespace","name":"mcp__files","description":"d","tools":[)"
      R"({"type":"function","name":"read","defer_loading":true,"parameters":{"type":"object"}},{"type":"web_search"}]},)"
      R"({"type":"namespace","name":"web__","tools":[{"type":"function","name":"read"}]}])";
  const ApiCall call = good(tools);
  EXPECT_EQ(
      call.prompts[0].tools.dump(),
      R"([{"type":"function","function":{"name":"mcp__files__read","parameters":{"type":"object"}}},)"
      R"({"type":"function","function":{"name":"web__read"}}])");
  EXPECT_EQ(call.notes, std::vector<std::string>{"left out 1 tools of type web_search"});
  // Its calls go out, and come back, as the client has them.
  const std::string called =
      R"({"type":"function_call","call_id":"c","name":"read","namespace":"mcp__files","arguments":"{}"})";
  EXPECT_EQ(
      messages(called),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"mcp__files__read","arguments":"{}"}}]}])");
  EXPECT_EQ(bad(R"("tools":[{"type":"namespace","tools":[]}])"), "tools[0].name invalid_type");
  EXPECT_EQ(bad(R"("tools":[{"type":"namespace","name":"n"}])"), "tools[0].tools invalid_type");
  EXPECT_EQ(bad(R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}])"),
            "tools[0].tools[0].name invalid_value");
}

TEST(responses_tools, errors_have_the_clients_paths) {
  EXPECT_EQ(bad(R"("tools":[7])"), "tools[0] invalid_type");
  EXPECT_EQ(bad(R"("tools":[{"type":7}])"), "tools[0].type invalid_type");
  EXPECT_EQ(bad(R"("tools":[{"type":"web_search"},{"type":"function"}])"),
            "tools[1].name invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"custom"}])"), "tools[0].name invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"function","name":"a b"}])"), "tools[0].name invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"f"}])"),
            "tools[1].name invalid_value");
  for (const char* type : {"\"foo\"", "7", "null"}) {
    EXPECT_EQ(
        bad(std::string(
                R"("tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"x":{"type":)") +
            type + "}}}}]"),
        "tools[0].parameters.properties.x.type invalid_schema");
  }
  EXPECT_EQ(bad(R"("tools":[{"type":"function","name":"f","parameters":[]}])"),
            "tools[0].parameters invalid_schema");
}

TEST(responses_tools, calls_can_be_forced) {
  using Kind = ToolChoice::Kind;
  const auto choice = [](const std::string& value) {
    return good(
               R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}],"tool_choice":)" +
               value)
        .prompts[0]
        .tool_choice;
  };
  EXPECT_EQ(choice(R"("auto")").kind, Kind::kAuto);
  EXPECT_EQ(choice(R"("none")").kind, Kind::kNone);
  EXPECT_EQ(choice(R"("required")").kind, Kind::kRequired);
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})").names, std::vector<std::string>{"f"});
  EXPECT_EQ(choice(R"({"type":"custom","name":"g"})").kind, Kind::kNamed);
  const ToolChoice allowed = choice(
      R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]})");
  EXPECT_EQ(allowed.kind, Kind::kRequired);
  EXPECT_EQ(allowed.names, std::vector<std::string>{"f"});
  EXPECT_EQ(bad(R"("tool_choice":"required")"), "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"web_search"}],"tool_choice":"required")"),
            "tool_choice invalid_value");
  EXPECT_EQ(
      bad(R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"h"})"),
      "tool_choice invalid_value");
  EXPECT_EQ(bad(R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"web_search"})"),
            "tool_choice invalid_value");
  EXPECT_FALSE(good(R"("parallel_tool_calls":false)").prompts[0].parallel_tool_calls);
}

TEST(responses_tools, texts_of_custom_calls_come_out_of_any_cut) {
  const auto text_of = [](const std::string& arguments, std::size_t cut) {
    CustomInput input;
    std::string text = input.push(arguments.substr(0, cut));
    text += input.push(arguments.substr(cut));
    return text + input.finish();
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"input": "plain"})", "plain"},
      {R"( { "input" : "a\nb\t\"c\" \\ \/ d" } )", "a\nb\t\"c\" \\ / d"},
      {R"({"input":"\u00e9\u20AC \ud83d\ude00"})", "\xC3\xA9\xE2\x82\xAC \xF0\x9F\x98\x80"},
      // Halves of a pair, and what is no escape.
      {R"({"input":"\uD83D!\ude00\ud83d\u0041\uD83D\n"})",
       "\xEF\xBF\xBD!\xEF\xBF\xBD\xEF\xBF\xBD"
       "A\xEF\xBF\xBD\n"},
      {R"({"input":"\q\u12G4\uD83"})", "\\q\\u12G4\\uD83"},
      {"{\"input\":\"raw\nlines\"}", "raw\nlines"},
      {R"({"input": "cut \u00)", "cut \\u00"},
      {R"({"input": ""})", ""},
      {R"({"input": "cut off)", "cut off"},
      {R"({"input": 7})", R"({"input": 7})"},
      {R"({"x": 1, "input": "late"})", "late"},
      {R"({"x": 1})", R"({"x": 1})"},
      {"", ""},
      {"{}", "{}"},
      {"no JSON", "no JSON"},
  };
  for (const auto& [arguments, text] : cases) {
    for (std::size_t cut = 0; cut <= std::string(arguments).size(); ++cut) {
      EXPECT_EQ(text_of(arguments, cut), text) << arguments << " cut at " << cut;
    }
  }
}

// --- other fields ---

TEST(responses_fields, lengths_and_sampling) {
  const ApiCall call = good(
      R"("max_output_tokens":9,"max_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":5,"seed":7,"stop":["x"],"min_tokens":2,
         "chat_template_kwargs":{"enable_thinking":false},"thinking_token_budget":64,"cache_salt":"s","stream_interval":4,"stream":true)");
  const ChatRequest& chat = call.prompts[0];
  EXPECT_EQ(chat.max_tokens, 9);
  EXPECT_EQ(chat.temperature, 0.5f);
  EXPECT_EQ(chat.top_p, 0.9f);
  EXPECT_EQ(chat.top_k, 5);
  EXPECT_EQ(chat.seed, 7u);
  EXPECT_EQ(chat.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(chat.min_tokens, 2);
  EXPECT_EQ(chat.template_kwargs.dump(), R"({"enable_thinking":false})");
  EXPECT_EQ(chat.thinking_budget, 64);
  EXPECT_NE(chat.cache_salt, 0u);
  EXPECT_EQ(call.stream_interval, 4);
  EXPECT_TRUE(call.stream);
  EXPECT_EQ(call.n, 1);
  EXPECT_EQ(good(R"("max_tokens":5)").prompts[0].max_tokens, 5);
  EXPECT_EQ(bad(R"("max_output_tokens":0)"), "max_output_tokens invalid_value");
  EXPECT_EQ(bad(R"("stream":"yes")"), "stream invalid_type");
}

TEST(responses_fields, what_needs_a_store_is_refused) {
  EXPECT_EQ(bad(R"("previous_response_id":"resp_1")"), "previous_response_id unsupported_value");
  EXPECT_EQ(bad(R"("conversation":"conv_1")"), "conversation unsupported_value");
  EXPECT_EQ(bad(R"("background":true)"), "background unsupported_value");
  EXPECT_EQ(bad(R"("prompt":{"id":"pmpt_1"})"), "prompt unsupported_value");
  EXPECT_EQ(bad(R"("n":2)"), "n unsupported_value");
  EXPECT_EQ(bad(R"("truncation":"maybe")"), "truncation invalid_value");
  EXPECT_EQ(bad(R"("metadata":[])"), "metadata invalid_type");
  EXPECT_EQ(bad(R"("include":["all"])"), "include unsupported_value");
  EXPECT_EQ(bad(R"("include":[7])"), "include invalid_type");
  EXPECT_EQ(
      bad(R"("previous_response_id":null,"background":false,"n":1,"store":true,"truncation":"auto",
                   "metadata":{"a":"b"},"include":["web_search_call.action.sources"],"prompt_cache_key":"k","user":"u",
                   "service_tier":"auto","safety_identifier":"s","stream_options":{"include_obfuscation":false})"),
      "accepted");
}

TEST(responses_fields, efforts_are_checked_here) {
  EXPECT_EQ(good(R"("reasoning":{"effort":"high","summary":"auto"})").prompts[0].reasoning_effort,
            "high");
  EXPECT_EQ(good(R"("reasoning":{"effort":"none"})").prompts[0].reasoning_effort, "none");
  EXPECT_FALSE(good(R"("reasoning":{"effort":null})").prompts[0].reasoning_effort.has_value());
  EXPECT_EQ(bad(R"("reasoning":{"effort":"much"})"), "reasoning.effort invalid_value");
  ApiSettings settings;
  settings.effort_budgets = {{"low", 100}};
  const auto call =
      parse_responses_call(R"({"input":"Hi","reasoning":{"effort":"low"}})", settings);
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->prompts[0].thinking_budget, 100);
}

TEST(responses_fields, a_format_is_the_same_as_for_chats) {
  const ApiCall call = good(
      R"("text":{"format":{"type":"json_schema","name":"x","schema":{"type":"object"},"strict":true},"verbosity":"low"})");
  EXPECT_EQ(call.prompts[0].format.kind, AnswerFormat::Kind::kJsonSchema);
  EXPECT_EQ(call.prompts[0].format.schema.dump(), R"({"type":"object"})");
  EXPECT_EQ(call.prompts[0].format.field, "text.format");
  EXPECT_TRUE(call.prompts[0].format.strict);
  using Kind = AnswerFormat::Kind;
  EXPECT_EQ(good(R"("text":{"format":{"type":"json_object"}})").prompts[0].format.kind,
            Kind::kJsonObject);
  EXPECT_EQ(good(R"("text":{"format":{"type":"text"}})").prompts[0].format.kind, Kind::kFree);
  EXPECT_EQ(good(R"("structured_outputs":{"regex":"a+"})").prompts[0].format.kind, Kind::kRegex);
  EXPECT_EQ(bad(R"("text":{"format":{"type":"json_schema","name":"x"}})"),
            "text.format.schema missing_field");
  EXPECT_EQ(bad(R"("text":{"format":{"type":"xml"}})"), "text.format.type unsupported_value");
  EXPECT_EQ(bad(R"("text":{"format":{"type":"json_object"}},"guided_regex":"a")"),
            "guided_regex invalid_value");
}

TEST(responses_fields, log_probs_are_asked_for_in_two_ways) {
  EXPECT_EQ(good("").prompts[0].top_logprobs, -1);
  EXPECT_EQ(good(R"("top_logprobs":0)").prompts[0].top_logprobs, -1);
  EXPECT_EQ(good(R"("top_logprobs":3)").prompts[0].top_logprobs, 3);
  EXPECT_EQ(good(R"("include":["message.output_text.logprobs"])").prompts[0].top_logprobs, 0);
  EXPECT_EQ(bad(R"("top_logprobs":21)"), "top_logprobs invalid_value");
}

// --- answers ---

ChatDelta started() {
  ChatDelta delta;
  delta.kind = ChatDelta::Kind::kStarted;
  delta.usage.prompt_tokens = 12;
  delta.usage.cached_tokens = 8;
  return delta;
}
ChatDelta output(std::vector<OutputEvent> events) {
  ChatDelta delta;
  delta.events = std::move(events);
  delta.tokens = {1};
  return delta;
}
ChatDelta finished(const char* reason, std::vector<OutputEvent> events = {}) {
  ChatDelta delta = output(std::move(events));
  delta.kind = ChatDelta::Kind::kFinished;
  delta.finish_reason = reason;
  delta.usage.prompt_tokens = 12;
  delta.usage.cached_tokens = 8;
  delta.usage.completion_tokens = 30;
  delta.reasoning_tokens = 5;
  return delta;
}

std::shared_ptr<const TextAssets> text() {
  static const auto kText = demo_text();
  return kText;
}

// Runs `deltas` through the writer of a body with these fields.
class Played {
 public:
  Played(const std::string& fields, const std::vector<ChatDelta>& deltas, bool stream = true)
      : call_(good(fields + (fields.empty() ? "" : ",") +
                   (stream ? "\"stream\":true" : "\"stream\":false"))) {
    AnswerStart start;
    start.model = "demo";
    start.created = 1700000000;
    start.text = text();
    take(call_.writer->begin(start));
    for (const ChatDelta& delta : deltas) take(call_.writer->take(0, delta));
  }
  Played& end() {
    take(call_.writer->end());
    return *this;
  }
  Played& fail(const ApiError& error) {
    take(call_.writer->fail(error));
    return *this;
  }
  Played& ping() {
    take(call_.writer->ping());
    return *this;
  }
  const std::vector<Json>& events() const { return events_; }
  std::string types() const {
    std::string out;
    for (const Json& event : events_) {
      std::string type = event.find("type")->as_string();
      out += type.substr(type.find('.') + 1) + "\n";
    }
    return out;
  }
  const Json& response() const { return *events_.back().find("response"); }
  Json whole() { return call_.writer->whole(); }

 private:
  void take(const std::string& text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find("\n\n", begin);
      ASSERT_NE(end, std::string::npos);
      const std::string event = text.substr(begin, end - begin);
      begin = end + 2;
      const std::size_t line = event.find('\n');
      ASSERT_TRUE(event.starts_with("event: ") && event.substr(line + 1).starts_with("data: "))
          << event;
      auto data = parse_json(event.substr(line + 7));
      ASSERT_TRUE(data.has_value()) << event;
      EXPECT_EQ(data->find("type")->as_string(), event.substr(7, line - 7));
      EXPECT_EQ(data->find("sequence_number")->as_int(), static_cast<int>(events_.size()));
      events_.push_back(std::move(*data));
    }
  }

  ApiCall call_;
  std::vector<Json> events_;
};

const std::vector<ChatDelta>& everything() {
  static const std::vector<ChatDelta> kDeltas = {
      started(),
      output({{Event::kReasoning, "Let me ", -1}}),
      output({{Event::kReasoning, "see.", -1}, {Event::kContent, "I ", -1}}),
      output({{Event::kContent, "call.", -1}}),
      output({{Event::kToolBegin, "f", 0}, {Event::kToolArgs, "{\"x\": ", 0}}),
      output({{Event::kToolArgs, "1}", 0}, {Event::kToolEnd, "", 0}}),
      output({{Event::kToolBegin, "patch", 1}, {Event::kToolArgs, "{\"input\": \"a\\", 1}}),
      output({{Event::kToolArgs, "nb\"", 1}}),
      output({{Event::kToolArgs, "}", 1}, {Event::kToolEnd, "", 1}}),
      finished("tool_calls")};
  return kDeltas;
}
constexpr const char* kBothTools =
    R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"patch"}],"include":["reasoning.encrypted_content"])";

TEST(responses_writer, events_come_in_their_order) {
  Played played(kBothTools, everything());
  EXPECT_EQ(played.end().types(),
            "created\nin_progress\n"
            "output_item.added\ncontent_part.added\nreasoning_text.delta\nreasoning_text.delta\n"
            "reasoning_text.done\ncontent_part.done\noutput_item.done\n"
            "output_item.added\ncontent_part.added\noutput_text.delta\noutput_text.delta\n"
            "output_text.done\ncontent_part.done\noutput_item.done\n"
            "output_item.added\nfunction_call_arguments.delta\nfunction_call_arguments.delta\n"
            "function_call_arguments.done\noutput_item.done\n"
            "output_item.added\ncustom_tool_call_input.delta\ncustom_tool_call_input.delta\n"
            "custom_tool_call_input.done\noutput_item.done\n"
            "completed\n");
}

TEST(responses_writer, items_that_are_done_are_complete) {
  Played played(kBothTools, everything());
  played.end();
  Json::Array done;
  for (const Json& event : played.events()) {
    if (*event.find("type") != Json("response.output_item.done")) continue;
    EXPECT_EQ(event.find("output_index")->as_int(), static_cast<int>(done.size()));
    done.push_back(*event.find("item"));
  }
  ASSERT_EQ(done.size(), 4u);
  EXPECT_EQ(played.response().find("output")->dump(), Json(done).dump());
  const auto masked = [](Json item) {
    EXPECT_EQ(*item.find("status"), Json("completed"));
    item.set("id", Json(item.find("id")->as_string().substr(0, 3)));
    if (item.find("call_id") != nullptr) {
      EXPECT_TRUE(item.find("call_id")->as_string().starts_with("call_"));
      item.set("call_id", Json());
    }
    return item.dump();
  };
  EXPECT_EQ(
      masked(done[0]),
      R"({"id":"rs_","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"Let me see."}],"encrypted_content":")" +
          seal_thought("Let me see.") + "\"}");
  EXPECT_EQ(
      masked(done[1]),
      R"({"id":"msg","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I call.","annotations":[],"logprobs":[]}]})");
  EXPECT_EQ(
      masked(done[2]),
      R"({"id":"fc_","type":"function_call","status":"completed","call_id":null,"name":"f","arguments":"{\"x\": 1}"})");
  EXPECT_EQ(
      masked(done[3]),
      R"({"id":"ctc","type":"custom_tool_call","status":"completed","call_id":null,"name":"patch","input":"a\nb"})");
}

TEST(responses_writer, an_answer_can_be_sent_back) {
  Played played(kBothTools, everything());
  const Json output = *played.end().response().find("output");
  Json items(Json::Array{});
  for (Json item : output.as_array()) {
    item.set(
        "content", *item.find("type") == Json("reasoning") ? Json() : [&] {
          const Json* content = item.find("content");
          return content == nullptr ? Json() : *content;
        }());
    items.push_back(std::move(item));
  }
  const ApiCall next = good_body(R"({"input":)" + items.dump() + "}");
  const Json& turn = next.prompts[0].messages.as_array().at(0);
  EXPECT_EQ(next.prompts[0].messages.as_array().size(), 1u);
  EXPECT_EQ(*turn.find("reasoning_content"), Json("Let me see."));
  EXPECT_EQ(*turn.find("content"), Json("I call."));
  EXPECT_EQ(turn.find("tool_calls")->as_array().size(), 2u);
}

// The same but for random names.
std::string without_ids(Json value) {
  if (value.is_object()) {
    for (auto& [key, member] : value.as_object()) {
      const bool is_name = key == "id" || key == "call_id" || key == "item_id";
      member = is_name ? Json("*") : *parse_json(without_ids(member));
      if (key == "completed_at" && !member.is_null()) member = Json(1);
    }
  } else if (value.is_array()) {
    for (Json& item : value.as_array()) item = *parse_json(without_ids(item));
  }
  return value.dump();
}

TEST(responses_writer, the_whole_answer_is_the_last_event) {
  const std::vector<std::vector<ChatDelta>> answers = {
      everything(),
      {started(), finished("stop")},
      {started(), output({{Event::kContent, "a", -1}}),
       finished("length", {{Event::kContent, "b", -1}})},
      {started(), output({{Event::kToolBegin, "f", 0}}), finished("length")},
      {started(), output({{Event::kReasoning, "a", -1}}), finished("stop")}};
  for (const auto& deltas : answers) {
    Played stream(kBothTools, deltas);
    stream.end();
    EXPECT_EQ(stream.response().dump(), stream.whole().dump());
    Played whole(kBothTools, deltas, false);
    EXPECT_TRUE(whole.end().events().empty());
    EXPECT_EQ(without_ids(stream.response()), without_ids(whole.whole()));
  }
}

TEST(responses_writer, responses_are_whole_objects) {
  Played played(
      R"("instructions":"Be kind.","metadata":{"k":"v"},"max_output_tokens":50,"top_p":0.5,
                   "reasoning":{"effort":"low"},"tools":[{"type":"web_search"}],"prompt_cache_key":"p","user":"u","store":true,"truncation":"auto")",
      {started(), output({{Event::kContent, "Hi", -1}}), finished("stop")});
  Json response = played.end().response();
  EXPECT_TRUE(response.find("id")->as_string().starts_with("resp_"));
  EXPECT_GE(response.find("completed_at")->as_int(), 1700000000);
  EXPECT_TRUE(response.find("temperature")->is_number());
  response.set("id", Json("resp_"));
  response.set("completed_at", Json(2));
  response.set("temperature", Json(0.25));
  response.set("output", Json(Json::Array{}));
  EXPECT_EQ(
      response.dump(),
      R"({"id":"resp_","object":"response","created_at":1700000000,"status":"completed","completed_at":2,"error":null,)"
      R"("incomplete_details":null,"model":"demo","output":[],"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":8},)"
      R"("output_tokens":30,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":42},"background":false,)"
      R"("instructions":"Be kind.","max_output_tokens":50,"max_tool_calls":null,"metadata":{"k":"v"},"parallel_tool_calls":true,)"
      R"("previous_response_id":null,"prompt_cache_key":"p","reasoning":{"effort":"low","summary":null},"safety_identifier":null,)"
      R"("service_tier":"default","store":false,"temperature":0.25,"text":{"format":{"type":"text"}},"tool_choice":"auto",)"
      R"("tools":[{"type":"web_search"}],"top_logprobs":0,"top_p":0.5,"truncation":"disabled","user":"u"})");
  const Json* first = played.events()[0].find("response");
  EXPECT_EQ(*first->find("status"), Json("in_progress"));
  EXPECT_TRUE(first->find("usage")->is_null());
}

TEST(responses_writer, values_nobody_chose_are_the_models) {
  Played played("", {started(), finished("stop")});
  const Json& defaults = text()->sampling_defaults();
  for (const char* name : {"temperature", "top_p"}) {
    const Json* value = defaults.find(name);
    EXPECT_EQ(played.events()[0].find("response")->find(name)->as_double(),
              value == nullptr ? 1.0 : value->as_double());
  }
}

TEST(responses_writer, signs_of_life_are_events_that_count) {
  Played played("", {started()});
  played.ping().ping();
  EXPECT_EQ(played.types(), "created\nin_progress\nin_progress\nin_progress\n");
  EXPECT_EQ(played.events()[3].find("sequence_number")->as_int(), 3);
  EXPECT_EQ(*played.response().find("status"), Json("in_progress"));
}

TEST(responses_writer, an_answer_cut_short_is_incomplete) {
  Played played("", {started(), output({{Event::kContent, "a", -1}}), finished("length")});
  EXPECT_EQ(played.end().types(),
            "created\nin_progress\noutput_item.added\ncontent_part.added\noutput_text.delta\n"
            "output_text.done\ncontent_part.done\noutput_item.done\nincomplete\n");
  const Json& response = played.response();
  EXPECT_EQ(*response.find("status"), Json("incomplete"));
  EXPECT_EQ(response.find("incomplete_details")->dump(), R"({"reason":"max_output_tokens"})");
  EXPECT_EQ(*response.find("output")->as_array().at(0).find("status"), Json("incomplete"));
  EXPECT_TRUE(response.find("completed_at")->is_null());
}

TEST(responses_writer, a_call_cut_short_is_never_done) {
  for (const char* name : {"f", "patch"}) {
    Played played(kBothTools, {started(), output({{Event::kToolBegin, name, 0}}),
                               output({{Event::kToolArgs, "{\"input\": \"rm -r /tmp", 0}}),
                               finished("length")});
    played.end();
    EXPECT_EQ(played.types().find("done"), std::string::npos) << played.types();
    const Json& item = played.response().find("output")->as_array().at(0);
    EXPECT_EQ(*item.find("status"), Json("incomplete"));
    EXPECT_EQ(*played.response().find("status"), Json("incomplete"));
  }
}

TEST(responses_writer, a_failure_ends_the_stream_in_its_own_words) {
  const std::vector<ChatDelta> deltas = {started(), output({{Event::kReasoning, "hm", -1}}),
                                         output({{Event::kContent, "a", -1}})};
  Played played("", deltas);
  played.fail({503, "unavailable_error", "draining", "", "Going down."});
  EXPECT_TRUE(played.types().ends_with("output_text.delta\nfailed\n")) << played.types();
  const Json& response = played.response();
  EXPECT_EQ(*response.find("status"), Json("failed"));
  EXPECT_EQ(response.find("error")->dump(), R"({"code":"draining","message":"Going down."})");
  EXPECT_EQ(response.find("usage")->find("input_tokens")->as_int(), 12);
  ASSERT_EQ(response.find("output")->as_array().size(), 2u);
  EXPECT_EQ(*response.find("output")->as_array()[0].find("status"), Json("completed"));
  EXPECT_EQ(*response.find("output")->as_array()[1].find("status"), Json("incomplete"));
  const auto code = [](const ApiError& error) {
    return Played("", {started()}).fail(error).response().find("error")->find("code")->as_string();
  };
  EXPECT_EQ(code({500, "server_error", "internal_error", "", "x"}), "server_error");
  EXPECT_EQ(code({429, "rate_limit_error", "queue_full", "", "x"}), "rate_limit_exceeded");
  EXPECT_EQ(code({400, "invalid_request_error", "context_length_exceeded", "", "x"}),
            "context_length_exceeded");
}

TEST(responses_writer, a_failure_may_come_first) {
  const ApiCall call = good("\"stream\":true");
  const std::string event = call.writer->fail({500, "server_error", "", "", "Broken."});
  ASSERT_TRUE(event.starts_with("event: response.failed\ndata: ")) << event;
  const auto data = parse_json(event.substr(event.find("data: ") + 6));
  ASSERT_TRUE(data.has_value());
  EXPECT_TRUE(data->find("response")->find("id")->as_string().starts_with("resp_"));
}

TEST(responses_writer, an_answer_of_nothing_holds_an_empty_message) {
  for (const auto& deltas :
       {std::vector<ChatDelta>{started(), finished("stop")},
        std::vector<ChatDelta>{started(), output({{Event::kReasoning, "hm", -1}}),
                               finished("stop")}}) {
    Played played("", deltas);
    const Json& last = played.end().response().find("output")->as_array().back();
    EXPECT_EQ(*last.find("type"), Json("message"));
    EXPECT_EQ(*last.find("content")->as_array().at(0).find("text"), Json(""));
  }
  Played cut("", {started(), finished("length")});
  EXPECT_TRUE(cut.end().response().find("output")->as_array().empty());
}

TEST(responses_writer, thoughts_can_be_kept_back) {
  Played played(R"("include_reasoning":false)",
                {started(), output({{Event::kReasoning, "hm", -1}, {Event::kContent, "a", -1}}),
                 finished("stop")});
  const Json& output = *played.end().response().find("output");
  ASSERT_EQ(output.as_array().size(), 1u);
  EXPECT_EQ(*output.as_array()[0].find("type"), Json("message"));
  // And are sealed only when asked for.
  Played open("", everything());
  EXPECT_EQ(open.end().response().find("output")->as_array()[0].find("encrypted_content"), nullptr);
}

TEST(responses_writer, a_models_own_call_ids_are_kept) {
  Played played(kBothTools, {started(),
                             output({{Event::kToolBegin, "f", 0, "functions.f:0"},
                                     {Event::kToolArgs, "{}", 0},
                                     {Event::kToolEnd, "", 0}}),
                             finished("tool_calls")});
  EXPECT_EQ(*played.end().response().find("output")->as_array()[0].find("call_id"),
            Json("functions.f:0"));
}

TEST(responses_writer, calls_name_their_namespace) {
  Played played(
      R"("tools":[{"type":"namespace","name":"mcp__files","tools":[{"type":"function","name":"read"}]}])",
      {started(),
       output({{Event::kToolBegin, "mcp__files__read", 0},
               {Event::kToolArgs, "{}", 0},
               {Event::kToolEnd, "", 0}}),
       finished("tool_calls")});
  const Json& call = played.end().response().find("output")->as_array().at(0);
  EXPECT_EQ(*call.find("name"), Json("read"));
  EXPECT_EQ(*call.find("namespace"), Json("mcp__files"));
}

TEST(responses_writer, stop_strings_are_shown_on_demand) {
  ChatDelta last = finished("stop");
  last.stop_string = "END";
  Played played(R"("stop":"END","include_stop_str_in_output":true)",
                {started(), output({{Event::kContent, "a", -1}}), last});
  EXPECT_EQ(
      *played.end().response().find("output")->as_array()[0].find("content")->as_array()[0].find(
          "text"),
      Json("aEND"));
}

TEST(responses_writer, log_probs_are_those_of_the_text) {
  const Tokenizer& tokenizer = text()->tokenizer();
  const std::int32_t think_end = *tokenizer.token_id("</think>");
  const auto tokens_of = [&](const std::string& words) { return tokenizer.encode(words, false); };
  const auto with_logprobs = [&](ChatDelta delta, std::vector<std::int32_t> ids) {
    for (const std::int32_t id : ids) {
      TokenEvent event;
      event.token = id;
      event.logprob = -0.5f;
      event.top_logprobs = {{id, -0.5f}, {1, -2.0f}};
      delta.logprobs.push_back(event);
    }
    return delta;
  };
  std::vector<std::int32_t> both = tokens_of("hm");
  const std::vector<std::int32_t> word = tokens_of("yes");
  both.push_back(think_end);
  both.insert(both.end(), word.begin(), word.end());
  // The thought and the text in one piece, as a long interval has them.
  const ChatDelta joined =
      with_logprobs(output({{Event::kReasoning, "hm", -1}, {Event::kContent, "yes", -1}}), both);
  Played played(R"("top_logprobs":2)", {started(), joined, finished("stop")});
  played.end();
  const Json& part =
      played.response().find("output")->as_array().at(1).find("content")->as_array().at(0);
  ASSERT_EQ(part.find("logprobs")->as_array().size(), word.size());
  std::string spelled;
  for (const Json& entry : part.find("logprobs")->as_array()) {
    spelled += entry.find("token")->as_string();
    EXPECT_EQ(entry.find("logprob")->as_double(), -0.5);
    EXPECT_EQ(entry.find("top_logprobs")->as_array().size(), 2u);
    EXPECT_FALSE(entry.find("bytes")->as_array().empty());
  }
  EXPECT_EQ(spelled, "yes");
}

}  // namespace
}  // namespace glint
