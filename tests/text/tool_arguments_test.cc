#include "text/tool_arguments.h"

#include <gtest/gtest.h>

#include "text/json_text.h"
#include "text_fixture.h"

namespace glint {
namespace {

const Json& tools() {
  static const Json all = *read_test_json("outputs/glm.json").find("tools");
  return all;
}

std::string convert(std::string_view key, std::string_view raw) {
  return argument_to_json(raw, argument_types(tools(), "get_weather", key));
}

TEST(ToolArguments, declared_strings_are_never_touched) {
  EXPECT_EQ(convert("city", "12345"), R"("12345")");
  EXPECT_EQ(convert("city", "01234"), R"("01234")");
  EXPECT_EQ(convert("city", "true"), R"("true")");
  EXPECT_EQ(convert("city", "null"), R"("null")");
  EXPECT_EQ(convert("city", R"({"a":1})"), R"("{\"a\":1}")");
  EXPECT_EQ(convert("city", "1e5"), R"("1e5")");
  EXPECT_EQ(convert("city", R"("quoted")"), R"("\"quoted\"")");
  EXPECT_EQ(convert("city", " spaces "), R"(" spaces ")");
  EXPECT_EQ(convert("ref", "5"), R"("5")");
  EXPECT_EQ(convert("unit", "5"), R"("5")");
  EXPECT_EQ(convert("fixed", "true"), R"("true")");
}

TEST(ToolArguments, unions_with_string_take_json_of_the_other_types_only) {
  EXPECT_EQ(convert("maybe", "null"), "null");
  EXPECT_EQ(convert("maybe", "None"), R"("None")");
  EXPECT_EQ(convert("maybe", "42"), R"("42")");
  EXPECT_EQ(convert("maybe", R"("x")"), R"("\"x\"")");
  EXPECT_EQ(convert("either", "1.50"), "1.50");
  EXPECT_EQ(convert("either", "7"), "7");
  EXPECT_EQ(convert("either", "seven"), R"("seven")");
}

TEST(ToolArguments, integers) {
  EXPECT_EQ(convert("days", " 42\n"), "42");
  EXPECT_EQ(convert("days", "9007199254740993"), "9007199254740993");
  EXPECT_EQ(convert("days", "123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(convert("days", "3.0"), "3");
  EXPECT_EQ(convert("days", "1e3"), "1000");
  EXPECT_EQ(convert("days", R"("3")"), "3");
  EXPECT_EQ(convert("days", R"("3.0")"), "3");
  EXPECT_EQ(convert("days", "2.5"), R"("2.5")");
  EXPECT_EQ(convert("days", "007"), R"("007")");
  EXPECT_EQ(convert("days", "0x10"), R"("0x10")");
  EXPECT_EQ(convert("days", "123_456"), R"("123_456")");
  EXPECT_EQ(convert("days", "three"), R"("three")");
  EXPECT_EQ(convert("days", "true"), R"("true")");
  EXPECT_EQ(convert("count", "42"), "42");
  EXPECT_EQ(convert("count", "null"), "null");
  EXPECT_EQ(convert("count", "None"), "null");
  EXPECT_EQ(convert("both", "42"), "42");
  EXPECT_EQ(convert("level", "2"), "2");
  EXPECT_EQ(convert("level", "null"), "null");
  EXPECT_EQ(convert("nullable", "null"), "null");
}

TEST(ToolArguments, numbers_are_kept_as_written) {
  EXPECT_EQ(convert("ratio", "1e3"), "1e3");
  EXPECT_EQ(convert("ratio", "9007199254740993"), "9007199254740993");
  EXPECT_EQ(convert("ratio", "0.10"), "0.10");
  EXPECT_EQ(convert("ratio", "-1.5E-7"), "-1.5E-7");
  EXPECT_EQ(convert("ratio", R"("1.5")"), "1.5");
  for (const char* text : {"NaN", "0x10", "007", "Infinity", "1.", ".5", "+1", "1e", "--1"}) {
    EXPECT_EQ(convert("ratio", text), '"' + std::string(text) + '"');
  }
}

TEST(ToolArguments, booleans_and_null) {
  EXPECT_EQ(convert("precise", "True"), "true");
  EXPECT_EQ(convert("precise", "FALSE"), "false");
  EXPECT_EQ(convert("precise", R"("true")"), "true");
  EXPECT_EQ(convert("precise", "1"), R"("1")");
  EXPECT_EQ(convert("nothing", "None"), "null");
  EXPECT_EQ(convert("nothing", "null"), "null");
}

TEST(ToolArguments, arrays_and_objects) {
  EXPECT_EQ(convert("tags", R"(["a","b"])"), R"(["a", "b"])");
  EXPECT_EQ(convert("tags", R"(  [ "天气" , 1.50,{"k":[ ]} ] )"), R"(["天气", 1.50, {"k": []}])");
  EXPECT_EQ(convert("tags", R"("[\"a\", 1]")"), R"(["a", 1])");
  EXPECT_EQ(convert("tags", "['a', \"b\", True, None, (1, 2), ]"),
            R"(["a", "b", true, null, [1, 2]])");
  EXPECT_EQ(convert("tags", "('a',)"), R"(["a"])");
  EXPECT_EQ(convert("tags", "[1_000]"), R"("[1_000]")");
  EXPECT_EQ(convert("tags", "a, b"), R"("a, b")");
  EXPECT_EQ(convert("options", "{'k': 'it\\'s', 1: False}"), R"({"k": "it's", "1": false})");
  EXPECT_EQ(convert("options", "[1]"), R"("[1]")");
  EXPECT_EQ(convert("options", R"({"a": "\u00e9\ud83d\ude00\ud83d"})"), R"({"a": "é😀�"})");
}

TEST(ToolArguments, without_a_schema_strict_json_counts) {
  for (const char* key : {"no_such", "loop", "odd", "seven", "bad_ref"}) {
    EXPECT_EQ(convert(key, "5"), "5");
    EXPECT_EQ(convert(key, "[1,2.5]"), "[1, 2.5]");
    EXPECT_EQ(convert(key, "hello"), R"("hello")");
    EXPECT_EQ(convert(key, R"("quoted")"), R"("quoted")");
    EXPECT_EQ(convert(key, "True"), R"("True")");
    EXPECT_EQ(convert(key, "123_456"), R"("123_456")");
    EXPECT_EQ(convert(key, ""), R"("")");
  }
  EXPECT_TRUE(argument_types(Json(), "f", "k").is_unknown());
  EXPECT_TRUE(argument_types(tools(), "nobody", "k").is_unknown());
}

TEST(ToolArguments, parameters_may_be_put_together_of_schemas) {
  const Json all = *parse_json(R"([{"name": "f", "parameters": {
    "$defs": {"Base": {"properties": {"base": {"type": "string"}}}},
    "$ref": "#/$defs/Base",
    "anyOf": [{"properties": {"x": {"type": "string"}}},
              {"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}],
    "allOf": [{"properties": {"z": {"type": ["string", "null"]}}},
              {"properties": {"z": {"type": ["string", "integer"]}}}],
    "additionalProperties": {"type": "string"}}}])");
  const auto value = [&](std::string_view key, std::string_view raw) {
    return argument_to_json(raw, argument_types(all, "f", key));
  };
  EXPECT_EQ(value("base", "5"), R"("5")");
  EXPECT_EQ(value("x", "5"), "5");
  EXPECT_EQ(value("x", "five"), R"("five")");
  EXPECT_EQ(value("x", "true"), R"("true")");
  EXPECT_EQ(value("y", "5"), R"("5")");
  EXPECT_EQ(value("z", "null"), R"("null")");
  EXPECT_EQ(value("other", "5"), R"("5")");
  EXPECT_TRUE(argument_types(*parse_json(R"([{"name": "f", "parameters":
    {"additionalProperties": false}}])"),
                             "f", "x")
                  .is_unknown());
}

TEST(ToolArguments, schemas_that_refer_without_end_are_left) {
  Json choices;
  for (int i = 0; i < 50; ++i) choices.push_back(*parse_json(R"({"$ref": "#/properties/x"})"));
  Json x(Json::Object{{"anyOf", choices}});
  Json tool(Json::Object{
      {"name", Json("f")},
      {"parameters", Json(Json::Object{{"properties", Json(Json::Object{{"x", x}})}})}});
  EXPECT_TRUE(argument_types(Json(Json::Array{tool}), "f", "x").is_unknown());
  EXPECT_TRUE(argument_types(Json(Json::Array{tool}), "f", "y").is_unknown());
}

TEST(JsonText, only_strict_json_is_strict) {
  for (const char* text :
       {"",      " ",     "[",   "[1",  "[1,",       "[1,]",          "{\"a\"}", "{\"a\":}",
        "{a:1}", "{1:2}", "'a'", "\"a", "\"\\x41\"", "\"\n\"",        "tru",     "nul",
        "1 2",   "[1]x",  "01",  "-",   "\"\\u12\"", "\"\\ud83d\\u\""}) {
    EXPECT_FALSE(read_json_text(text, JsonDialect::kStrict).has_value()) << text;
  }
}

TEST(JsonText, nesting_is_bounded) {
  for (const JsonDialect dialect : {JsonDialect::kStrict, JsonDialect::kPython}) {
    EXPECT_TRUE(read_json_text(std::string(60, '[') + std::string(60, ']'), dialect).has_value());
    EXPECT_FALSE(read_json_text(std::string(100'000, '['), dialect).has_value());
  }
}

TEST(JsonText, integer_digits_are_exact) {
  EXPECT_EQ(integer_digits("1.50e1"), "15");
  EXPECT_EQ(integer_digits("-120e-1"), "-12");
  EXPECT_EQ(integer_digits("0.0"), "0");
  EXPECT_EQ(integer_digits("-0.0"), "0");
  EXPECT_EQ(integer_digits("0e5"), "0");
  EXPECT_EQ(integer_digits("12e-1"), std::nullopt);
  EXPECT_EQ(integer_digits("1e-3"), std::nullopt);
  EXPECT_EQ(integer_digits("1e999999999999"), std::nullopt);
  EXPECT_EQ(integer_digits("1e5000"), std::nullopt);
}

}  // namespace
}  // namespace glint
