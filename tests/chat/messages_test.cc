#include "chat/messages.h"

#include <gtest/gtest.h>

#include "script_model.h"

namespace glint {
namespace {

Json json(std::string_view text) {
  auto parsed = parse_json(text);
  EXPECT_TRUE(parsed.has_value()) << text;
  return parsed ? *parsed : Json();
}

std::string normal(std::string_view messages, ArgumentStyle style = ArgumentStyle::kObject) {
  auto result = normalise_messages(json(messages), style);
  return result ? result->dump() : "error: " + result.error().message;
}

TEST(messages, absent_null_and_empty_content_are_the_same) {
  const std::string empty = R"([{"role":"assistant","content":""}])";
  EXPECT_EQ(normal(R"([{"role":"assistant","content":""}])"), empty);
  EXPECT_EQ(normal(R"([{"role":"assistant","content":null}])"), empty);
  EXPECT_EQ(normal(R"([{"role":"assistant"}])"), empty);
}

TEST(messages, text_parts_are_joined) {
  EXPECT_EQ(
      normal(
          R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}]}])"),
      R"([{"role":"user","content":"ab"}])");
  EXPECT_EQ(
      normal(R"([{"role":"tool","tool_call_id":"x","content":[{"type":"text","text":"a"},"b"]}])"),
      R"([{"role":"tool","content":"a\nb","tool_call_id":"x"}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])"),
            R"([{"role":"assistant","content":"no"}])");
}

TEST(messages, roles_have_one_spelling_each) {
  EXPECT_EQ(
      normal(
          R"([{"role":"developer","content":"a"},{"role":"function","name":"f","content":"b"}])"),
      R"([{"role":"system","content":"a"},{"role":"tool","content":"b","name":"f"}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":"a"},{"role":"robot","content":"a"}])"),
            "error: messages[1].role: unknown role 'robot'; use system, developer, user, assistant "
            "or tool");
}

TEST(messages, arguments_become_an_object_or_stay_a_string_as_the_template_wants) {
  const char* call =
      R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"city\":\"Paris\"}"}}]}])";
  const char* object =
      R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{"city":"Paris"}}}]}])";
  const std::string expected =
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"city":"Paris"}}}]}])";
  EXPECT_EQ(normal(call), expected);
  EXPECT_EQ(normal(object), expected);
  const std::string as_string =
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"city\":\"Paris\"}"}}]}])";
  EXPECT_EQ(normal(call, ArgumentStyle::kString), as_string);
  const std::string printed =
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"city\": \"Paris\"}"}}]}])";
  EXPECT_EQ(normal(object, ArgumentStyle::kString), printed);
}

TEST(messages, arguments_are_repaired) {
  const auto repaired = [](const char* text) { return arguments_object(text).dump(); };
  EXPECT_EQ(repaired(""), "{}");
  EXPECT_EQ(repaired("  \n"), "{}");
  EXPECT_EQ(repaired("null"), "{}");
  EXPECT_EQ(repaired(R"({"a": 1})"), R"({"a":1})");
  EXPECT_EQ(repaired(R"({"a": "b)"), R"({"a":"b"})");
  EXPECT_EQ(repaired(R"({"a": "b\)"), R"({"a":"b"})");
  EXPECT_EQ(repaired(R"({"a": [1, {"c": "d}")"), R"({"a":[1,{"c":"d}"}]})");
  EXPECT_EQ(repaired(R"({"a": 1,)"), R"({"a":1})");
  EXPECT_EQ(repaired(R"({"a":)"), R"({"a":null})");
  EXPECT_EQ(repaired("[1]"), R"({"_raw":"[1]"})");
  EXPECT_EQ(repaired("not json"), R"({"_raw":"not json"})");
}

TEST(messages, reasoning_has_one_name_and_leaves_the_content) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning":"r"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  EXPECT_EQ(
      normal(R"([{"role":"assistant","content":"a","reasoning_content":null,"reasoning":"r"}])"),
      R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"\n<think>r</think>a"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":"<think>r</think>a"}])"),
            R"([{"role":"user","content":"<think>r</think>a"}])");
}

TEST(messages, errors_name_the_place) {
  EXPECT_EQ(normal("[]"), "error: messages: must not be empty");
  EXPECT_EQ(normal("{}"), "error: messages: must be a list of messages, not object");
  EXPECT_EQ(normal("[7]"), "error: messages[0]: must be an object, not integer");
  EXPECT_EQ(normal(R"([{"role":"user","content":7}])"),
            "error: messages[0].content: must be a string or a list of parts, not integer");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"smell"}]}])"),
            "error: messages[0].content[0].type: unknown part type 'smell'");
  auto image = normalise_messages(
      json(R"([{"role":"user","content":[{"type":"image_url","image_url":"x"}]}])"),
      ArgumentStyle::kObject);
  ASSERT_FALSE(image.has_value());
  EXPECT_EQ(image.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(normal(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])"),
            "error: messages[0].tool_calls[0].function.name: must be a non-empty string");
}

std::string tools(std::string_view text) {
  auto result = normalise_tools(json(text));
  return result ? result->dump() : "error: " + result.error().message;
}

TEST(tools, bare_tools_are_wrapped_and_others_kept_in_order) {
  EXPECT_EQ(tools("null"), "null");
  EXPECT_EQ(tools("[]"), "null");
  EXPECT_EQ(tools(R"([{"name":"f","input_schema":{"type":"object"}}])"),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  const char* whole =
      R"([{"type":"function","function":{"z":1,"name":"f","strict":true,"parameters":{"b":{},"a":{}}}}])";
  EXPECT_EQ(tools(whole), whole);
}

TEST(tools, malformed_schemas_are_refused_by_place) {
  const auto schema = [](const std::string& text) {
    return tools(R"([{"type":"function","function":{"name":"f","parameters":)" + text + "}}]");
  };
  for (const char* bad :
       {R"({"type":"foo"})", R"({"type":7})", R"({"type":null})", R"({"type":[]})",
        R"({"properties":{"a":{"type":"foo"}}})", R"({"properties":[]})",
        R"({"properties":{"a":7}})", R"({"pattern":"["})", R"({"pattern":"(a"})",
        R"({"pattern":"a\\"})", R"({"pattern":7})", R"({"required":"a"})", R"({"anyOf":{}})",
        R"({"anyOf":[{"type":"x"}]})", R"({"items":{"type":1}})"}) {
    EXPECT_TRUE(schema(bad).starts_with("error: tools[0].function.parameters"))
        << bad << ": " << schema(bad);
  }
  for (const char* good :
       {R"({"type":["string","null"]})", R"({"pattern":"^[]a-z(]+\\)$"})",
        R"({"properties":{"type":{"type":"string"}}})", R"({"anyOf":[{"type":"string"},true]})"}) {
    EXPECT_FALSE(schema(good).starts_with("error")) << good << ": " << schema(good);
  }
  std::string deep = "{}";
  for (int level = 0; level < 70; ++level) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(schema(deep).find("nest at most"), std::string::npos);
}

TEST(tools, names_are_checked) {
  EXPECT_EQ(
      tools(
          R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"),
      "error: tools[1].function.name: two tools are called 'f'");
  EXPECT_TRUE(tools(R"([{"type":"function","function":{"name":"a b"}}])")
                  .starts_with("error: tools[0].function.name"));
  EXPECT_TRUE(tools(R"([{"type":"function","function":{"name":""}}])")
                  .starts_with("error: tools[0].function.name"));
  EXPECT_TRUE(tools(R"([{"type":"web_search"}])").starts_with("error: tools[0].type"));
  EXPECT_TRUE(tools("[7]").starts_with("error: tools[0]: must be an object"));
}

TEST(messages, guards_break_every_marker_in_keys_and_values) {
  const auto text = demo_text();
  const Json guarded = guard_strings(json(R"([{"<|user|>":"a </think>"}, 7])"), text->tokenizer());
  const auto& [key, value] = guarded.as_array()[0].as_object()[0];
  EXPECT_EQ(key.find("<|user|>"), std::string::npos);
  EXPECT_EQ(value.as_string().find("</think>"), std::string::npos);
  EXPECT_EQ(Tokenizer::remove_guards(value.as_string()), "a </think>");
  EXPECT_EQ(guarded.as_array()[1], Json(7));
}

}  // namespace
}  // namespace glint
