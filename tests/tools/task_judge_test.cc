// Whether an answer is the expected one.
#include "tools/task_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glint {
namespace {

using testing::HasSubstr;

Json json(std::string_view text) {
  return *parse_json(text);
}

TaskItem weather_item(bool thinking) {
  TaskItem item;
  item.enable_thinking = thinking;
  item.tools =
      json(R"([{"type": "function", "function": {"name": "weather", "parameters": {"properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}}}}}])");
  return item;
}

TEST(ParseAnswer, thinking_is_cut_off_where_it_was_asked_for) {
  EXPECT_EQ(parse_answer("a</think>b</think>c", weather_item(true)), Json("b</think>c"));
  EXPECT_EQ(parse_answer("a</think>b", weather_item(false)), Json("a</think>b"));
  EXPECT_EQ(parse_answer("never ends", weather_item(true)), Json("never ends"));
}

TEST(ParseAnswer, a_call_has_typed_arguments) {
  const Json call = parse_answer(
      "x</think><tool_call>weather<arg_key>city</arg_key><arg_value>12</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
      weather_item(true));
  EXPECT_EQ(call, json(R"({"name": "weather", "arguments": {"city": "12", "days": 3}})"));
}

TEST(ParseAnswer, undeclared_arguments_are_json_where_they_are_json) {
  const Json call = parse_answer(
      "<tool_call>other<arg_key>a</arg_key><arg_value>[1]</arg_value>"
      "<arg_key>b</arg_key><arg_value>plain</arg_value></tool_call>",
      weather_item(false));
  EXPECT_EQ(call, json(R"({"name": "other", "arguments": {"a": [1], "b": "plain"}})"));
}

TEST(ParseAnswer, a_call_without_arguments_is_a_call) {
  EXPECT_EQ(parse_answer("<tool_call>now</tool_call>", weather_item(false)),
            json(R"({"name": "now", "arguments": {}})"));
}

TEST(ParseAnswer, anything_around_or_wrong_inside_a_call_makes_it_text) {
  for (const std::string text : {
           "Sure.<tool_call>now</tool_call>",
           "<tool_call>now</tool_call>.",
           "<tool_call>now",
           "<tool_call>now\n</tool_call>",
           "<tool_call>f<arg_key>a</arg_key></tool_call>",
           "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>",
           "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>tail</tool_call>",
       }) {
    EXPECT_EQ(parse_answer(text, weather_item(false)), Json(text));
  }
}

TEST(SameJson, compares_as_python_does) {
  EXPECT_TRUE(same_json(json("1"), json("1.0")));
  EXPECT_TRUE(same_json(json(R"({"a": 1, "b": [2, "x"]})"), json(R"({"b": [2.0, "x"], "a": 1})")));
  EXPECT_FALSE(same_json(json("1"), json("\"1\"")));
  EXPECT_FALSE(same_json(json(R"({"a": 1})"), json(R"({"a": 1, "b": 2})")));
  EXPECT_FALSE(same_json(json("[1, 2]"), json("[2, 1]")));
  EXPECT_FALSE(same_json(json("[1]"), json("[1, 2]")));
}

TEST(ParseTaskItems, reads_one_object_per_line) {
  const auto items = parse_task_items(
      "{\"id\": \"a-1\", \"task\": \"a\", \"messages\": [], \"enable_thinking\": true, "
      "\"expected\": \"x\"}\n"
      "\n"
      "{\"id\": \"b-1\", \"task\": \"b\", \"messages\": [], \"expected\": {\"name\": \"f\", "
      "\"arguments\": {}}}",
      "evals.jsonl");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 2u);
  EXPECT_TRUE((*items)[0].enable_thinking);
  EXPECT_EQ((*items)[1].task, "b");
  EXPECT_FALSE((*items)[1].enable_thinking);
}

TEST(ParseTaskItems, names_the_line_that_is_wrong) {
  for (const char* bad : {"nonsense", "{}", "{\"id\": 3}", "[]",
                          "{\"id\": \"a\", \"task\": \"a\", \"messages\": [], \"enable_thinking\": "
                          "1, \"expected\": 2}",
                          "{\"id\": \"a\", \"task\": \"a\", \"messages\": {}, \"expected\": 2}"}) {
    const auto items = parse_task_items(std::string("\n") + bad, "evals.jsonl");
    ASSERT_FALSE(items) << bad;
    EXPECT_THAT(items.error().message, HasSubstr("evals.jsonl, line 2: ")) << bad;
  }
  EXPECT_THAT(parse_task_items("\n\n", "evals.jsonl").error().message, HasSubstr("no items"));
}

}  // namespace
}  // namespace glint
