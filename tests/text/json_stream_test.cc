#include "text/json_stream.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace glint {
namespace {

std::string pass(std::string_view text, std::size_t piece) {
  JsonStream stream;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    out += stream.push(text.substr(at, piece));
  }
  return out + stream.finish();
}

// However it is cut.
std::string pass(std::string_view text) {
  const std::string whole = pass(text, std::max<std::size_t>(text.size(), 1));
  for (std::size_t piece = 1; piece < 5; ++piece) EXPECT_EQ(pass(text, piece), whole) << text;
  return whole;
}

TEST(JsonStream, json_goes_through_unchanged) {
  for (const char* text :
       {"{}", "[]", "{\"a\":1}", "{ \"a\" : [ 1 , -2.50e+3, true, false, null, {} , [ ] ] }",
        "{\n  \"a\": \"x\\n\\\"\\\\ \\u00e9 é 天 👍🏽\",\n  \"b\": {\"c\": [[[]]]}\n}", "5",
        "\"a\"", "true", "{\"a\": 9007199254740993}"}) {
    EXPECT_EQ(pass(text), text);
    EXPECT_TRUE(parse_json(text).has_value());
  }
}

TEST(JsonStream, space_around_it_and_text_behind_it_are_dropped) {
  EXPECT_EQ(pass(" \n{\"a\": 1} \n"), "{\"a\": 1}");
  EXPECT_EQ(pass("{\"a\": 1}}]"), "{\"a\": 1}");
  EXPECT_EQ(pass("{}\n```\n"), "{}");
}

TEST(JsonStream, nothing_is_an_empty_object) {
  for (const char* text : {"", " ", "\n\n", "null", " None "}) EXPECT_EQ(pass(text), "{}");
}

TEST(JsonStream, what_is_meant_is_mended) {
  EXPECT_EQ(pass("{\"a\": \"x\ty\x01\"}"), "{\"a\": \"x\\ty\\u0001\"}");
  EXPECT_EQ(pass("{\"a\": \"\\d \\' \\u1 \\uXY\"}"), "{\"a\": \"\\\\d ' \\\\u1 \\\\uXY\"}");
  EXPECT_EQ(pass("{'a': 'it\\'s \"q\"'}"), "{\"a\": \"it's \\\"q\\\"\"}");
  EXPECT_EQ(pass("[True, False, None]"), "[true, false, null]");
  EXPECT_EQ(pass("[1, 2, ]"), "[1, 2]");
  EXPECT_EQ(pass("{\"a\": 1 , }"), "{\"a\": 1}");
}

TEST(JsonStream, every_beginning_of_json_is_closed) {
  const std::string text =
      "{\"a\": [1, -2.5e3, true, \"x\\n\\u00e9\", {\"b\": {}}], \"c\": null, \"d\": \"é\"}";
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const auto closed = parse_json(pass(text.substr(0, size)));
    // A character that is cut in two never comes here.
    if (is_utf8(text.substr(0, size))) {
      EXPECT_TRUE(closed.has_value()) << pass(text.substr(0, size));
    }
  }
  EXPECT_EQ(pass("{\"a\": 1, \"b\": "), "{\"a\": 1}");
  EXPECT_EQ(pass("{\"a\": 12"), "{\"a\": 12}");
  EXPECT_EQ(pass("{\"a\": [1, tr"), "{\"a\": [1]}");
}

TEST(JsonStream, what_is_no_json_goes_on_as_it_stands) {
  for (const char* text : {"hello", "{\"a\" = 1}", "{a: 1}", "[1 2]", "{\"a\": 1]", "{\"a\": NaN}",
                           "[01]", "[1.]", "<x>", "{,}", "[,]", "}", "{\"a\": tru }"}) {
    EXPECT_EQ(pass(text), text);
  }
}

TEST(JsonStream, text_is_shown_as_it_comes_and_keys_wait_for_their_values) {
  JsonStream stream;
  EXPECT_EQ(stream.push("{\"a\": "), "{");
  EXPECT_FALSE(stream.in_string());
  EXPECT_EQ(stream.push("\"x"), "\"a\": \"x");
  EXPECT_TRUE(stream.in_string());
  EXPECT_EQ(stream.push("y\\"), "y");
  EXPECT_EQ(stream.push("n\", \"b\""), "\\n\"");
  EXPECT_EQ(stream.push(": 1"), "");
  EXPECT_EQ(stream.push("2}"), ", \"b\": 12}");
  EXPECT_EQ(stream.finish(), "");
}

TEST(JsonStream, depth_is_no_danger) {
  JsonStream stream;
  const std::string open(1'000'000, '[');
  EXPECT_EQ(stream.push(open), open);
  EXPECT_EQ(stream.finish(), std::string(1'000'000, ']'));
}

}  // namespace
}  // namespace glint
