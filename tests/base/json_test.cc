#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu_time.h"

namespace glint {
namespace {

std::string round_trip(std::string_view text) {
  const auto value = parse_json(text);
  return value ? value->dump() : "error: " + value.error().message;
}

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto value = parse_json(text, limits);
  if (value) return "accepted";
  EXPECT_EQ(value.error().code, ErrorCode::kInvalidArgument);
  return value.error().message;
}

TEST(Json, objects_keep_the_order_of_their_keys) {
  EXPECT_EQ(round_trip(R"( {"z" : 1, "a":[true,false , null], "m":{"b":"x","a":-2.5}} )"),
            R"({"z":1,"a":[true,false,null],"m":{"b":"x","a":-2.5}})");
}

TEST(Json, scalars_and_empty_containers_are_documents) {
  for (const char* text : {"0", "null", "true", "\"\"", "[]", "{}", "[[],{}]"})
    EXPECT_EQ(round_trip(text), text);
}

TEST(Json, integers_keep_every_bit_and_say_their_type) {
  EXPECT_TRUE(parse_json("9223372036854775807")->is_int());
  EXPECT_EQ(parse_json("-9223372036854775808")->as_int(), std::numeric_limits<std::int64_t>::min());
  const Json big = parse_json("18446744073709551615").value();
  EXPECT_TRUE(big.is_uint64());
  EXPECT_EQ(big.as_uint64(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(big.dump(), "18446744073709551615");
  EXPECT_TRUE(parse_json("18446744073709551616")->is_double());
  EXPECT_TRUE(Json(std::uint64_t{7}).is_int());
  EXPECT_TRUE(parse_json("1.0")->is_double());
  EXPECT_EQ(parse_json("3")->as_double(), 3.0);
}

TEST(Json, doubles_print_as_python_prints_them) {
  const struct {
    double value;
    const char* text;
  } cases[] = {{1.0, "1.0"},
               {0.1, "0.1"},
               {-0.0, "-0.0"},
               {100000.0, "100000.0"},
               {1e15, "1000000000000000.0"},
               {1e16, "1e+16"},
               {1.5e300, "1.5e+300"},
               {0.0001, "0.0001"},
               {1e-5, "1e-05"},
               {5e-324, "5e-324"},
               {1.0 / 3, "0.3333333333333333"}};
  for (const auto& c : cases) EXPECT_EQ(Json(c.value).dump(), c.text);
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, numbers_too_large_for_a_double_are_refused) {
  EXPECT_NE(error_of("1e999"), "accepted");
}

TEST(Json, strings_survive_escapes_and_astral_characters) {
  EXPECT_EQ(parse_json(R"("\u00e9\ud83d\ude00\n\"\\\/\u0000")")->as_string(),
            std::string("\u00e9\U0001F600\n\"\\/\0", 11));
  EXPECT_EQ(Json(std::string("\x01\x1f\t\"\\/\x7f\u00e9", 9)).dump(),
            "\"\\u0001\\u001f\\t\\\"\\\\/\x7f\u00e9\"");
}

TEST(Json, invalid_utf8_is_refused_on_the_way_in_and_replaced_on_the_way_out) {
  for (const char* bad : {"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
                          "\"\xe2\x82\"", R"("\ud800")", R"("\ude00")"}) {
    EXPECT_NE(error_of(bad), "accepted") << bad;
  }
  const auto out = [](std::string_view s) { return Json(s).dump(); };
  EXPECT_EQ(out("a\xff"
                "b"),
            "\"a\ufffd"
            "b\"");
  EXPECT_EQ(out("\xe2\x82"), "\"\ufffd\"");  // one truncated sequence, one replacement
  EXPECT_EQ(out("\xe2\x82x"), "\"\ufffdx\"");
  EXPECT_EQ(out("\xed\xa0\x80"),
            "\"\ufffd\ufffd\ufffd\"");  // a surrogate: no byte of it can start a sequence
  EXPECT_EQ(out("\xf0\x9f\x98\x80"), "\"\U0001F600\"");
  EXPECT_EQ(out("\xc0\x80"), "\"\ufffd\ufffd\"");
}

TEST(Json, malformed_texts_are_refused_with_a_byte_position) {
  for (const char* bad :
       {"",         " ",       "{",       "[1,",    "[1,]",      "{\"a\":1,}", "{a:1}",
        "01",       "1 2",     "{} x",    "nul",    "[1}",       "'a'",        "NaN",
        "Infinity", "// c\n1", "\"a",     "\"\n\"", "{\"a\" 1}", "-",          "+1",
        ".5",       "1.",      "\"\\x\"", "]",      "}",         ",",          ":"}) {
    EXPECT_NE(error_of(bad).find("byte "), std::string::npos) << bad << " -> " << error_of(bad);
  }
}

TEST(Json, bytes_after_a_nul_are_not_ignored) {
  EXPECT_NE(error_of(std::string_view("{}\0{", 4)).find("NUL"), std::string::npos);
}

TEST(Json, error_messages_stay_short_whatever_the_input) {
  EXPECT_LT(error_of("\"" + std::string(1 << 20, 'a')).size(), 400u);
  EXPECT_LT(error_of("{\"" + std::string(1 << 20, 'k') + "\" 1}").size(), 400u);
}

TEST(Json, nesting_is_bounded_in_objects_and_arrays) {
  const auto nested = [](const std::string& open, const std::string& close, int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  EXPECT_EQ(error_of(nested("[", "]", 128)), "accepted");
  EXPECT_NE(error_of(nested("[", "]", 129)).find("deeper than 128"), std::string::npos);
  EXPECT_EQ(error_of(nested("{\"a\":", "}", 128)), "accepted");
  EXPECT_NE(error_of(nested("{\"a\":", "}", 129)).find("deeper than 128"), std::string::npos);
  EXPECT_NE(error_of(nested("[", "]", 1000000)).find("deeper"), std::string::npos);
  EXPECT_NE(error_of("[1]", {.max_depth = 0}).find("deeper"), std::string::npos);
  EXPECT_EQ(error_of(nested("[", "]", 1024), {.max_depth = 1024}), "accepted");
}

TEST(Json, the_size_is_bounded) {
  EXPECT_NE(error_of("[1,2]", {.max_bytes = 4}).find("limit of 4"), std::string::npos);
}

TEST(Json, the_number_of_values_is_bounded) {
  EXPECT_EQ(error_of("[1,{\"a\":2}]", {.max_values = 4}), "accepted");
  EXPECT_NE(error_of("[1,{\"a\":2}]", {.max_values = 3}).find("more than 3 values"),
            std::string::npos);
}

TEST(Json, the_last_duplicate_wins_in_the_place_of_the_first) {
  EXPECT_EQ(round_trip(R"({"a":1,"b":2,"a":3,"c":4,"a":5})"), R"({"a":5,"b":2,"c":4})");
  std::string many = "{\"k\":0";
  for (int i = 0; i < 100; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_EQ(parse_json(many + ",\"k\":7}")->find("k")->as_int(), 7);
  EXPECT_EQ(parse_json(many + ",\"k\":7}")->as_object().size(), 101u);
}

TEST(Json, duplicates_are_refused_on_request_and_named) {
  const JsonLimits strict{.refuse_duplicate_keys = true};
  EXPECT_NE(error_of(R"({"a":1,"b":{"x":1,"x":1}})", strict).find("\"x\""), std::string::npos);
  std::string many = "{\"k\":0";
  for (int i = 0; i < 100; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_EQ(error_of(many + "}", strict), "accepted");
  EXPECT_NE(error_of(many + ",\"k57\":2}", strict).find("\"k57\""), std::string::npos);
}

TEST(Json, objects_of_100000_keys_parse_in_a_moment) {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  text += "}";
  const double start = thread_cpu_seconds();
  EXPECT_EQ(error_of(text), "accepted");
  EXPECT_LT(thread_cpu_seconds() - start, 2.0);
}

TEST(Json, set_returns_the_member_so_that_nested_objects_build_in_place) {
  Json object;
  object.set("b", Json()).set("inner", true);
  EXPECT_EQ(object.dump(), "{\"b\":{\"inner\":true}}");
}

TEST(Json, set_replaces_in_place_and_push_back_appends) {
  Json object;
  object.set("a", 1);
  object.set("b", "x");
  object.set("a", nullptr);
  Json list;
  list.push_back(1.5);
  list.push_back(Json::Object{});
  object.set("list", std::move(list));
  EXPECT_EQ(object.dump(), R"({"a":null,"b":"x","list":[1.5,{}]})");
  EXPECT_EQ(object.find("absent"), nullptr);
  EXPECT_EQ(object.find("b")->find("not an object"), nullptr);
  EXPECT_TRUE(object.find("a")->is_null());
}

TEST(Json, indented_text_is_readable) {
  EXPECT_EQ(parse_json(R"({"a":[1,2],"b":{},"c":[]})")->dump(2),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {},\n  \"c\": []\n}");
}

TEST(Json, equality_is_of_types_values_and_order) {
  EXPECT_EQ(parse_json("[1,{\"a\":\"b\"}]").value(), parse_json(" [ 1 , {\"a\":\"b\"} ]").value());
  EXPECT_FALSE(Json(1) == Json(1.0));
  EXPECT_FALSE(parse_json(R"({"a":1,"b":2})").value() == parse_json(R"({"b":2,"a":1})").value());
}

TEST(Json, type_names_are_those_of_json_schema) {
  EXPECT_STREQ(Json().type_name(), "null");
  EXPECT_STREQ(Json(true).type_name(), "boolean");
  EXPECT_STREQ(Json(1).type_name(), "integer");
  EXPECT_STREQ(Json(std::numeric_limits<std::uint64_t>::max()).type_name(), "integer");
  EXPECT_STREQ(Json(1.5).type_name(), "number");
  EXPECT_STREQ(Json("").type_name(), "string");
  EXPECT_STREQ(Json(Json::Array{}).type_name(), "array");
  EXPECT_STREQ(Json(Json::Object{}).type_name(), "object");
}

TEST(JsonDeathTest, a_wrong_accessor_aborts) {
  EXPECT_DEATH(static_cast<void>(Json("x").as_int()), "internal error");
}

TEST(Json, utf8_is_told_from_what_only_looks_like_it) {
  for (const char* good :
       {"", "a", "\xc3\xa9", "\xe4\xbd\xa0", "\xf0\x9f\x91\xa9", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  // A lone continuation, a cut sequence, overlong forms, a surrogate, above U+10FFFF.
  for (const char* bad :
       {"\x80", "a\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
  EXPECT_TRUE(is_utf8(std::string_view("\0", 1)));
}

}  // namespace
}  // namespace glint
