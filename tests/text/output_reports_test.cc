// What users of other engines reported of reasoning and tool calls, one test for each report.
#include <gtest/gtest.h>

#include "output_fixture.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

OutputCase answer(std::string text, OutputParser::Options options = {}) {
  OutputCase test;
  test.options = std::move(options);
  if (test.options.tools.is_null()) test.options.tools = output_tools();
  test.parts.emplace_back(std::move(text), true);
  return test;
}

FoldedTurn read(const OutputCase& test) {
  const Ids ids = case_tokens(family_tokenizer(), test, [] { return std::size_t{1000}; });
  return run_case(family_tokenizer(), test, ids);
}

FoldedTurn read(std::string text, OutputParser::Options options = {}) {
  return read(answer(std::move(text), std::move(options)));
}

OutputParser::Options thinking() {
  OutputParser::Options options;
  options.starts_in_thinking = true;
  return options;
}

std::string value_of(std::string_view key, std::string_view raw) {
  const FoldedTurn turn =
      read("<tool_call>get_weather<arg_key>" + std::string(key) + "</arg_key><arg_value>" +
           std::string(raw) + "</arg_value></tool_call>");
  const std::string prefix = "{\"" + std::string(key) + "\": ";
  EXPECT_TRUE(turn.calls.size() == 1 && turn.calls[0].arguments.starts_with(prefix));
  if (turn.calls.empty()) return {};
  const std::string& arguments = turn.calls[0].arguments;
  return arguments.substr(prefix.size(), arguments.size() - prefix.size() - 1);
}

TEST(OutputReports, R01_an_answer_that_skipped_thinking_is_not_lost) {
  const FoldedTurn stopped = read("Paris.", thinking());
  EXPECT_EQ(stopped.content, "Paris.");
  EXPECT_EQ(stopped.reasoning, "Paris.");
  OutputCase cut = answer("Paris.", thinking());
  cut.by_stop = false;
  EXPECT_EQ(read(cut).content, "");
  EXPECT_EQ(read(cut).reasoning, "Paris.");
}

TEST(OutputReports, R06_a_forced_close_of_plain_pieces_closes_too) {
  OutputCase test = answer("I think", thinking());
  test.parts.emplace_back("</think>", false);
  test.parts.emplace_back("Yes.", true);
  EXPECT_EQ(read(test).reasoning, "I think");
  EXPECT_EQ(read(test).content, "Yes.");
}

TEST(OutputReports, R07_stop_strings_wait_for_the_end_of_thinking) {
  OutputParser::Options options = thinking();
  options.stops = {"Question"};
  const FoldedTurn turn = read("The Question is</think>Four. Question 2", options);
  EXPECT_EQ(turn.reasoning, "The Question is");
  EXPECT_EQ(turn.content, "Four. ");
  EXPECT_EQ(turn.stop, "Question");
}

TEST(OutputReports, R08_cut_while_thinking_keeps_the_reasoning) {
  OutputCase test = answer("Let me see, 1 + 1", thinking());
  test.by_stop = false;
  EXPECT_EQ(read(test), (FoldedTurn{"Let me see, 1 + 1", "", {}, ""}));
}

TEST(OutputReports, C01_a_call_without_arguments_has_an_empty_object) {
  for (const char* text :
       {"<tool_call>get_time\n</tool_call>", "<tool_call>get_time</tool_call>"}) {
    EXPECT_EQ(read(text).calls, (std::vector<FoldedCall>{{"get_time", "{}", false}})) << text;
  }
}

TEST(OutputReports, C05_every_shape_of_a_tool_gives_the_same_call) {
  for (
      const char* tool :
      {R"({"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"}}}}})",
       R"({"type":"function","name":"f","parameters":{"properties":{"s":{"type":"string"}}}})",
       R"({"name":"f","input_schema":{"properties":{"s":{"type":"string"}}}})"}) {
    OutputParser::Options options;
    options.tools = Json(Json::Array{*parse_json(tool)});
    const FoldedTurn turn =
        read("<tool_call>f<arg_key>s</arg_key><arg_value>5</arg_value></tool_call>", options);
    ASSERT_EQ(turn.calls.size(), 1u);
    EXPECT_EQ(turn.calls[0].arguments, R"({"s": "5"})") << tool;
  }
}

TEST(OutputReports, C07_declared_strings_stay_as_they_are) {
  EXPECT_EQ(value_of("city", "12345"), R"("12345")");
  EXPECT_EQ(value_of("city", "01234"), R"("01234")");
  EXPECT_EQ(value_of("city", "true"), R"("true")");
  EXPECT_EQ(value_of("city", "null"), R"("null")");
  EXPECT_EQ(value_of("city", R"({"a":1})"), R"("{\"a\":1}")");
  EXPECT_EQ(value_of("city", "1e5"), R"("1e5")");
}

TEST(OutputReports, C08_unions_take_the_other_type) {
  EXPECT_EQ(value_of("maybe", "null"), "null");
  EXPECT_EQ(value_of("count", "42"), "42");
  EXPECT_EQ(value_of("count", "null"), "null");
}

TEST(OutputReports, C09_keys_without_a_schema_are_read_as_strict_json) {
  EXPECT_EQ(value_of("other", "5"), "5");
  EXPECT_EQ(value_of("other", "[1, 2.5]"), "[1, 2.5]");
  EXPECT_EQ(value_of("other", "hello"), R"("hello")");
}

TEST(OutputReports, C10_digits_are_kept) {
  EXPECT_EQ(value_of("ratio", "9007199254740993"), "9007199254740993");
}

TEST(OutputReports, C11_what_is_no_number_stays_a_string) {
  EXPECT_EQ(value_of("ratio", "1e3"), "1e3");
  for (const char* text : {"NaN", "0x10", "007"}) {
    EXPECT_EQ(value_of("ratio", text), '"' + std::string(text) + '"');
  }
  for (const char* name : {"broken", "broken2"}) {
    const FoldedTurn turn = read("<tool_call>" + std::string(name) +
                                 "<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>");
    EXPECT_EQ(turn.calls, (std::vector<FoldedCall>{{name, R"({"x": 1})", false}}));
  }
}

TEST(OutputReports, C15_calls_are_counted_and_their_arguments_are_text) {
  OutputParser parser(family_tokenizer(), answer("").options);
  std::vector<int> begun;
  for (const std::int32_t id : family_tokenizer().encode(
           "<tool_call>get_time</tool_call><tool_call>get_time</tool_call>")) {
    for (const OutputEvent& event : parser.push(id)) {
      if (event.kind == Kind::kToolBegin) begun.push_back(event.tool_index);
      if (event.kind == Kind::kToolArgs) {
        EXPECT_EQ(event.text, "{}");
      }
    }
  }
  EXPECT_EQ(begun, (std::vector<int>{0, 1}));
  EXPECT_EQ(parser.complete_tool_calls(), 2);
}

TEST(OutputReports, C16_special_markers_reach_the_parser) {
  OutputParser::Options options;
  options.tool_format = ToolFormat::kKimiK2;
  const Tokenizer& tokenizer = family_tokenizer();
  ASSERT_TRUE(tokenizer.is_special(*call_token(ToolFormat::kKimiK2, tokenizer)));
  const std::string call =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
  const std::vector<FoldedCall> expected = {{"get_time", "{}", false, "functions.get_time:0"}};
  for (const bool thinks : {false, true}) {
    options.starts_in_thinking = thinks;
    EXPECT_EQ(read((thinks ? "so</think>" : "") + call, options).calls, expected);
  }
}

TEST(OutputReports, C17_kimi_names_keep_their_dots) {
  OutputParser::Options options;
  options.tool_format = ToolFormat::kKimiK2;
  const FoldedTurn turn = read(
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.fs.read:0"
      "<|tool_call_argument_begin|>{\"path\": \"x\"}<|tool_call_end|><|tool_calls_section_end|>",
      options);
  EXPECT_EQ(
      turn.calls,
      (std::vector<FoldedCall>{{"fs.read", R"({"path": "x"})", false, "functions.fs.read:0"}}));
}

TEST(OutputReports, C19_the_wording_of_descriptions_has_no_effect) {
  for (const std::string& words : {std::string("\"quotes\" {braces}\n]]> </arg_value><tool_call>"),
                                   std::string(10'000, '"')}) {
    Json property(Json::Object{{"type", Json("string")}, {"description", Json(words)}});
    Json properties(Json::Object{{"s", property}});
    Json tool(Json::Object{{"name", Json("f")},
                           {"description", Json(words)},
                           {"parameters", Json(Json::Object{{"properties", properties}})}});
    OutputParser::Options options;
    options.tools = Json(Json::Array{tool});
    const FoldedTurn turn =
        read("<tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value></tool_call>", options);
    EXPECT_EQ(turn.calls, (std::vector<FoldedCall>{{"f", R"({"s": "1"})", false}}));
  }
}

TEST(OutputReports, C21_a_call_after_one_without_arguments_keeps_its_own) {
  const FoldedTurn turn = read(
      "<tool_call>get_time</tool_call>"
      "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>");
  EXPECT_EQ(turn.calls, (std::vector<FoldedCall>{{"get_time", "{}", false},
                                                 {"get_weather", R"({"days": 1})", false}}));
}

TEST(OutputReports, X03_text_that_looks_like_a_control_token_stays_text) {
  const std::string text = "<|user|> <tool_call>f</tool_call> <|tool_calls_section_begin|>";
  for (const ToolFormat format : {ToolFormat::kGlm47, ToolFormat::kKimiK2}) {
    OutputCase test = answer("");
    test.options.tool_format = format;
    test.parts = {{text, false}};
    EXPECT_EQ(read(test).content, text);
    EXPECT_TRUE(read(test).calls.empty());
  }
}

TEST(OutputReports, X04_characters_over_several_tokens_arrive_whole) {
  const std::string text = "👩‍👩‍👧 and 你";
  for (const bool thinks : {false, true}) {
    OutputCase test = answer(text, thinks ? thinking() : OutputParser::Options());
    test.by_stop = false;
    const Ids ids = case_tokens(family_tokenizer(), test, [] { return std::size_t{1}; });
    const FoldedTurn turn = run_case(family_tokenizer(), test, ids);
    EXPECT_EQ(thinks ? turn.reasoning : turn.content, text);
  }
}

TEST(OutputReports, X06_no_part_of_a_stop_string_is_shown) {
  OutputCase test = answer("The quick brown fox");
  test.options.stops = {"own fox"};
  const Ids ids = case_tokens(family_tokenizer(), test, [] { return std::size_t{1}; });
  const FoldedTurn turn = run_case(family_tokenizer(), test, ids);
  EXPECT_EQ(turn.content, "The quick br");
  EXPECT_EQ(turn.stop, "own fox");
  EXPECT_EQ(read(test), turn);
}

}  // namespace
}  // namespace glint
