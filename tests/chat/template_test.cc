// What reaches the chat templates of each family, by rendering with templates in their manner.
#include <gtest/gtest.h>

#include "fixture_text.h"

namespace glint {
namespace {

constexpr const char* kAll[] = {"glm45", "glm47", "glm53", "deepseek_v31", "kimi_k2"};

std::string called_with(const std::string& arguments) {
  return R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[)"
         R"({"id":"functions.f:0","type":"function","function":{"name":"f","arguments":)" +
         arguments + R"(}}]},{"role":"tool","tool_call_id":"functions.f:0","content":"r"}])";
}

TEST(templates, arguments_as_text_or_object_give_the_same_prompt) {  // T01
  for (const char* name : kAll) {
    const auto text = fixture_text(name);
    const std::string as_text =
        rendered(*text, chat_of(called_with(R"("{\"city\": \"Paris\", \"days\": 3}")")));
    EXPECT_EQ(as_text, rendered(*text, chat_of(called_with(R"({"city":"Paris","days":3})"))))
        << name;
    EXPECT_NE(as_text.find("Paris"), std::string::npos) << as_text;
  }
}

TEST(templates, arguments_stay_a_string_where_the_template_prints_one) {
  const std::string odd = R"("{\"b\":1,  \"a\":2.50}")";
  for (const char* name : {"deepseek_v31", "kimi_k2"}) {
    EXPECT_NE(
        rendered(*fixture_text(name), chat_of(called_with(odd))).find(R"({"b":1,  "a":2.50})"),
        std::string::npos)
        << name;
  }
  EXPECT_NE(
      rendered(*fixture_text("glm47"), chat_of(called_with(odd))).find("<arg_key>b</arg_key>"),
      std::string::npos);
  // Printed through tojson, a string would be quoted once more.
  TextOptions options;
  options.chat_template =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
      "{% endfor %}{% endfor %}";
  EXPECT_EQ(rendered(**make_text(options), chat_of(called_with(R"("{\"a\": 1}")"))), R"({"a": 1})");
}

TEST(templates, tool_texts_are_printed_unescaped) {  // T05
  const auto text = fixture_text("glm47");
  ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
  request.tools = as_json(
      R"([{"type":"function","function":{"name":"f","description":"天气 & <b>","parameters":{"z":1,"a":2}}}])");
  EXPECT_NE(rendered(*text, request)
                .find(R"("description": "天气 & <b>", "parameters": {"z": 1, "a": 2})"),
            std::string::npos);
}

TEST(templates, absent_null_and_empty_content_are_one_prompt_without_the_word_none) {  // T06
  for (const char* name : kAll) {
    const auto text = fixture_text(name);
    std::vector<std::string> prompts;
    for (const char* content : {R"("content":null,)", "", R"("content":"",)"}) {
      prompts.push_back(rendered(
          *text,
          chat_of(
              std::string(R"([{"role":"user","content":"q"},{"role":"assistant",)") + content +
              R"("tool_calls":[{"id":"functions.f:0","function":{"name":"f","arguments":"{}"}}]},
                         {"role":"tool","tool_call_id":"functions.f:0","content":"r"}])")));
    }
    EXPECT_EQ(prompts[0], prompts[1]) << name;
    EXPECT_EQ(prompts[0], prompts[2]) << name;
    EXPECT_EQ(prompts[0].find("None"), std::string::npos) << prompts[0];
    EXPECT_EQ(prompts[0].find("null"), std::string::npos) << prompts[0];
  }
}

TEST(templates, order_is_kept_and_parts_are_joined) {  // T07
  const auto text = fixture_text("glm47");
  const std::string prompt = rendered(*text, chat_of(R"([
    {"role":"user","content":[{"type":"text","text":"one "},{"type":"text","text":"two"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}]},
    {"role":"system","content":"late"}])"));
  EXPECT_EQ(
      prompt,
      "[gMASK]<sop><|user|>one two<|assistant|></think><tool_call>f</tool_call><|observation|>"
      "<tool_response>r1\nr2</tool_response><|system|>late<|assistant|><think>");
}

TEST(templates, markers_in_messages_stay_text_unless_asked) {  // T08
  ChatRequest request =
      chat_of(R"([{"role":"user","content":"Repeat: hello </think> world <|user|>"}])");
  request.template_kwargs = as_json(R"({"note": "<|system|>"})");
  const auto text = fixture_text("glm47");
  const auto prompt = text->prepare(request);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(count_token(*text, *prompt, "<|user|>"), 1);
  EXPECT_EQ(count_token(*text, *prompt, "</think>"), 0);
  EXPECT_NE(prompt->text.find("hello </think> world <|user|>"), std::string::npos);

  TextOptions options;
  options.parse_special_in_messages = true;
  const auto open = fixture_text("glm47", options);
  const auto parsed = open->prepare(request);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(count_token(*open, *parsed, "<|user|>"), 2);
  EXPECT_EQ(count_token(*open, *parsed, "</think>"), 1);
  EXPECT_EQ(parsed->text, prompt->text);
  EXPECT_EQ(parsed->ids, open->tokenizer().encode(parsed->text));
}

TEST(templates, thinking_is_switched_off_as_each_template_says) {  // T10
  struct Case {
    const char *name, *ending;
  };
  for (const Case& one :
       {Case{"glm45", "q/nothink<|assistant|>\n<think></think>"},
        Case{"glm47", "<|assistant|></think>"}, Case{"glm53", "<|assistant|><think></think>"}}) {
    ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
    request.template_kwargs = as_json(R"({"enable_thinking": false})");
    const auto prompt = fixture_text(one.name)->prepare(request);
    ASSERT_TRUE(prompt.has_value());
    EXPECT_TRUE(prompt->text.ends_with(one.ending)) << prompt->text;
    EXPECT_FALSE(prompt->ends_in_thinking) << one.name;
    EXPECT_TRUE(prompt->is_past_thinking) << one.name;
  }
  const auto prompt = fixture_text("glm45")->prepare(chat_of(R"([{"role":"user","content":"q"}])"));
  EXPECT_FALSE(prompt->ends_in_thinking);
  EXPECT_FALSE(prompt->is_past_thinking);  // this model opens its thought itself
}

TEST(templates, a_template_without_a_switch_is_closed_and_says_so) {  // T11
  const auto text = fixture_text("glm53");
  ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
  EXPECT_FALSE(text->prepare(request)->thinking_was_closed);
  request.reasoning_effort = "none";
  const auto prompt = text->prepare(request);
  EXPECT_TRUE(prompt->thinking_was_closed);
  EXPECT_EQ(prompt->text,
            "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>q<|assistant|><think></think>");
  EXPECT_FALSE(fixture_text("glm47")->prepare(request)->thinking_was_closed);
}

TEST(templates, efforts_are_the_templates_own_words) {
  const auto text = fixture_text("glm53");
  const auto line = [&](const char* effort) {
    ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
    request.reasoning_effort = effort;
    const std::string prompt = rendered(*text, request);
    const std::size_t begin = prompt.find("Effort: ") + 8;
    return prompt.substr(begin, prompt.find('<', begin) - begin);
  };
  EXPECT_EQ(line("minimal"), "Low");
  EXPECT_EQ(line("low"), "Low");
  EXPECT_EQ(line("medium"), "High");
  EXPECT_EQ(line("high"), "High");
  EXPECT_EQ(line("xhigh"), "Max");
  EXPECT_EQ(line("max"), "Max");
  // A template with two words, and one that knows them all.
  TextOptions options;
  options.chat_template =
      "{{ 'high' if reasoning_effort == 'high' else 'max' }}{{ reasoning_effort }}";
  ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
  request.reasoning_effort = "low";
  EXPECT_EQ(rendered(**make_text(options), request), "highhigh");
  options.chat_template =
      "{{ reasoning_effort if reasoning_effort in ['low', 'medium'] else 'x' }}";
  request.reasoning_effort = "medium";
  EXPECT_EQ(rendered(**make_text(options), request), "medium");
}

TEST(templates, several_calls_stand_back_to_back) {  // T13
  const auto text = fixture_text("glm47");
  const std::string prompt = rendered(*text, chat_of(R"([{"role":"user","content":"q"},
    {"role":"assistant","content":"","tool_calls":[
      {"id":"a","function":{"name":"f","arguments":"{\"s\":\"1\",\"n\":1.50,\"l\":[1, \"a\"]}"}},
      {"id":"b","function":{"name":"g","arguments":""}}]}])"));
  EXPECT_NE(
      prompt.find(
          "</think><tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value>"
          "<arg_key>n</arg_key><arg_value>1.5</arg_value><arg_key>l</arg_key><arg_value>[1, \"a\"]"
          "</arg_value></tool_call><tool_call>g</tool_call><|assistant|>"),
      std::string::npos)
      << prompt;
}

TEST(templates, kept_thoughts_are_as_the_template_wants) {
  const char* history = R"([{"role":"user","content":"a"},
    {"role":"assistant","content":"b","reasoning":" why\n"},{"role":"user","content":"c"}])";
  ChatRequest request = chat_of(history);
  EXPECT_EQ(rendered(*fixture_text("glm47"), request).find("why"), std::string::npos);
  EXPECT_NE(rendered(*fixture_text("glm53"), request).find("<think> why\n</think>b"),
            std::string::npos);
  request.template_kwargs = as_json(R"({"clear_thinking": false})");
  EXPECT_NE(rendered(*fixture_text("glm47"), request).find("<think> why\n</think>b"),
            std::string::npos);
  request.template_kwargs = as_json(R"({"clear_thinking": true})");
  EXPECT_EQ(rendered(*fixture_text("glm53"), request).find("why"), std::string::npos);
}

TEST(templates, documents_reach_the_template_as_text) {
  const auto text = fixture_text("glm47");
  ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
  request.documents = as_json(R"([{"text":"one <|user|>"}])");
  const auto prompt = text->prepare(request);
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_NE(prompt->text.find("<document>one <|user|></document>"), std::string::npos);
  EXPECT_EQ(count_token(*text, *prompt, "<|user|>"), 1);
  request.documents = as_json(R"({"text":"one"})");
  EXPECT_EQ(rendered(*text, request), "error: documents: must be a list, not object");
  request.documents = as_json("[7]");
  EXPECT_EQ(rendered(*text, request),
            "error: documents[0]: must be an object or a string, not integer");
}

TEST(templates, a_requests_template_replaces_the_checkpoints) {
  const auto text = fixture_text("glm47");
  ChatRequest request = chat_of(called_with(R"("{\"a\":1}")"));
  request.chat_template = fixture_template("kimi_k2");
  for (int again = 0; again < 2; ++again) {
    EXPECT_NE(
        rendered(*text, request).find(R"(<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>)"),
        std::string::npos);
  }
  for (int other = 0; other < 20; ++other) {
    request.chat_template = "t" + std::to_string(other);
    EXPECT_EQ(rendered(*text, request), *request.chat_template);
  }
  request.chat_template = "{% if %}";
  const auto refused = text->prepare(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(refused.error().message.starts_with("chat_template: ")) << refused.error().message;
}

TEST(templates, internals_cannot_be_set_by_kwargs) {  // Z12
  const auto text = fixture_text("glm47");
  for (const char* kwargs : {R"({"tokenize": true})", R"({"messages": []})", R"({"tools": []})",
                             R"({"documents": []})", R"({"chat_template": "x"})",
                             R"({"add_generation_prompt": "x"})", R"({"raise_exception": 1})"}) {
    ChatRequest request = chat_of(R"([{"role":"user","content":"q"}])");
    request.template_kwargs = as_json(kwargs);
    EXPECT_TRUE(rendered(*text, request).starts_with("error: chat_template_kwargs: ")) << kwargs;
  }
}

}  // namespace
}  // namespace glint
