#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "output_fixture.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

TEST(OutputParser, text_arguments_stream_as_they_grow) {
  OutputParser::Options options;
  options.tools = *parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}}}])");
  OutputParser parser(demo_tokenizer(), options);
  const auto push = [&](std::string_view text) {
    std::string arguments;
    for (const std::int32_t id : demo_tokenizer().encode(text)) {
      for (const OutputEvent& event : parser.push(id)) {
        if (event.kind == Kind::kToolArgs) arguments += event.text;
      }
    }
    return arguments;
  };
  EXPECT_EQ(push("<tool_call>f<arg_key>s</arg_key><arg_value>"), R"({"s": ")");
  EXPECT_EQ(push("one\n"), "one\\n");
  EXPECT_EQ(push("two"), "two");
  EXPECT_EQ(push("</arg_value><arg_key>n</arg_key><arg_value>"), "\"");
  EXPECT_EQ(push("12"), "");
  EXPECT_EQ(push("</arg_value>"), R"(, "n": 12)");
  EXPECT_EQ(push("</tool_call>"), "}");
}

TEST(OutputParser, reasoning_and_content_stream_as_they_come) {
  OutputParser::Options options;
  options.starts_in_thinking = true;
  OutputParser parser(demo_tokenizer(), options);
  std::size_t events = 0;
  for (const std::int32_t id : demo_tokenizer().encode("one two three</think>four five six")) {
    events += parser.push(id).size();
  }
  EXPECT_GE(events, 8u);
}

TEST(OutputParser, reasoning_tokens_are_counted) {
  OutputParser::Options options;
  options.starts_in_thinking = true;
  OutputParser parser(demo_tokenizer(), options);
  EXPECT_TRUE(parser.in_reasoning());
  const Ids thought = demo_tokenizer().encode("some thought here");
  for (const std::int32_t id : thought) parser.push(id);
  parser.push(*demo_tokenizer().token_id("</think>"));
  EXPECT_FALSE(parser.in_reasoning());
  for (const std::int32_t id : demo_tokenizer().encode("an answer")) parser.push(id);
  EXPECT_EQ(parser.reasoning_tokens(), static_cast<int>(thought.size()));
}

TEST(OutputParser, nothing_comes_after_a_stop_string) {
  OutputParser::Options options;
  options.stops = {"stop"};
  OutputParser parser(demo_tokenizer(), options);
  for (const std::int32_t id : demo_tokenizer().encode("a stop")) parser.push(id);
  EXPECT_TRUE(parser.stopped());
  EXPECT_EQ(parser.stop_string(), "stop");
  for (const std::int32_t id : demo_tokenizer().encode(" b c"))
    EXPECT_TRUE(parser.push(id).empty());
  EXPECT_TRUE(parser.finish(true).empty());
}

TEST(OutputParser, a_dangling_character_is_flushed_at_the_end) {
  OutputParser parser(demo_tokenizer(), {});
  FoldedTurn turn;
  std::int32_t lead = -1;
  for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
    if (demo_tokenizer().token_bytes(id) == "\xE4") lead = id;
  }
  ASSERT_GE(lead, 0);
  EXPECT_TRUE(parser.push(lead).empty());
  fold(parser.finish(true), turn);
  EXPECT_EQ(turn.content, "\uFFFD");
}

// Tokens of `text`, `times` over.
void push_often(OutputParser& parser, std::string_view text, int times, std::size_t& shown) {
  const Ids ids = demo_tokenizer().encode(text);
  for (int i = 0; i < times; ++i) {
    for (const std::int32_t id : ids) {
      for (const OutputEvent& event : parser.push(id)) shown += event.text.size();
    }
  }
}

// Long enough that anything quadratic would take hours.
TEST(OutputParser, long_answers_take_time_in_proportion) {
  constexpr int kTimes = 160'000;  // of 27 bytes: over 4 MB
  constexpr std::string_view kLine = "[a \"quoted\" line of text]\n\n";
  struct Long {
    std::string before;
    std::string_view line;
    ToolFormat format = ToolFormat::kGlm47;
  };
  const std::string v31 = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>";
  for (const Long& test : {Long{"<tool_call>f<arg_key>s</arg_key><arg_value>", kLine},
                           Long{"<tool_call>f<arg_key>o</arg_key><arg_value>", kLine},
                           Long{"<tool_call>f<arg_key>", kLine}, Long{"<tool_call>", " \t "},
                           Long{"", " \n "}, Long{"<think>", "</thin"},
                           Long{v31 + "{\"s\": \"", "<｜tool line\\n", ToolFormat::kDeepSeekV31},
                           Long{v31 + "{\"s\": [", "[ 12, \"a\", ", ToolFormat::kDeepSeekV31}}) {
    OutputParser::Options options;
    options.tool_format = test.format;
    options.tools = *parse_json(
        R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"o":{"type":"object"}}}}])");
    options.stops = {std::string(10'000, ' ') + "x", std::string(1000, '\n')};
    OutputParser parser(demo_tokenizer(), options);
    std::size_t shown = 0;
    const auto start = std::chrono::steady_clock::now();
    push_often(parser, test.before, 1, shown);
    push_often(parser, test.line, kTimes, shown);
    for (const OutputEvent& event : parser.finish(true)) shown += event.text.size();
    EXPECT_GT(shown, 0u) << test.before;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(5)) << test.before;
  }
}

TEST(OutputParser, any_tokens_are_survived) {
  std::mt19937 random(23);
  for (int round = 0; round < 400; ++round) {
    OutputCase test;
    test.options.starts_in_thinking = random() % 2 == 0;
    test.options.tools = *parse_json(
        R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}}])");
    if (random() % 2 == 0) test.options.stops = {"f s", "n"};
    Ids ids;
    for (int i = 0; i < 60; ++i) {
      const bool marker = random() % 2 == 0;
      ids.push_back(static_cast<std::int32_t>(marker ? 1526 + random() % 10 : random() % 1526));
      if (random() % 4 == 0) {
        for (const std::int32_t id : demo_tokenizer().encode("f\ns n")) ids.push_back(id);
      }
    }
    test.by_stop = random() % 2 == 0;
    run_case(demo_tokenizer(), test, ids);
  }
}

}  // namespace
}  // namespace glint
