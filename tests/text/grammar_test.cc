#include "text/grammar.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/json.h"
#include "grammar_fixture.h"

namespace glint {
namespace {

using Kind = GrammarSource::Kind;

struct SchemaCase {
  const char* schema;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases = {
      {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
           "required":["name","age"],"additionalProperties":false})",
       {R"({"name": "Ada", "age": 36})", R"({"name":"","age":-1})",
        "{\n  \"name\": \"é\",\n  \"age\": 0}"},
       {R"({"name": "Ada"})", R"({"name": 1, "age": 2})", R"({"name": "Ada", "age": 1.5})",
        R"({"name": "Ada", "age": 1, "more": 2})", "[]", "Ada"}},
      {R"({"type":"array","items":{"type":"number"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2.5, -3e4]"},
       {"[]", "[1,2,3,4]", "[\"1\"]", "[01]", "[1.]"}},
      {R"({"enum":["red","green",3,null,true,["a"]]})",
       {"\"red\"", "\"green\"", "3", "null", "true", "[\"a\"]"},
       {"\"blue\"", "4", "false", "[]"}},
      {R"({"const":{"a":[1,"x"]}})",
       {R"({"a":[1,"x"]})", R"({"a": [1, "x"]})"},
       {R"({"a":[1]})", "{}"}},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", {"\"x\"", "null"}, {"1", "true"}},
      {R"({"type":["integer","boolean"]})", {"12", "false"}, {"1.5", "\"1\""}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"äöü\""},
       {"\"a\"", "\"abcd\""}},
      {R"({"type":"string","pattern":"^[a-z]{2}\\d+$"})",
       {"\"ab1\"", "\"zz99\""},
       {"\"a1\"", "\"ab\"", "\"AB1\""}},
      {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"ac\""}},
      {R"({"type":"string","format":"date"})", {"\"2024-02-29\""}, {"\"2024-2-29\"", "\"today\""}},
      {R"({"type":"integer","minimum":3,"maximum":12})", {"3", "12", "7"}, {"2", "13", "30", "-3"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.5", "3"}, {"0", "-1"}},
      {R"({"type":"integer","multipleOf":5})", {"0", "15"}, {"3", "51"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                    {"properties":{"b":{"type":"string"}},"required":["b"]}]})",
       {R"({"a":1,"b":"x"})"},
       {R"({"a":1})", R"({"b":"x"})"}},
      {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
           "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],
           "additionalProperties":false}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {R"({"type":"object","properties":{"a":{"$ref":"#/definitions/x~1y%20z"}},"required":["a"],
           "definitions":{"x/y z":{"enum":["q"]}}})",
       {R"({"a":"q"})"},
       {R"({"a":"x"})"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2})",
       {"[1,\"a\"]"},
       {"[1]", "[1,\"a\",2]", "[\"a\",1]"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"type":"object","patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":false})",
       {R"({"n_a":1})", "{}"},
       {R"({"a":1})", R"({"n_a":"1"})"}},
      {R"({"oneOf":[{"type":"string"},{"type":"integer"}]})", {"\"a\"", "1"}, {"null"}},
      // Words about a schema say nothing about documents, whatever stands in them.
      {R"({"title":"]]> \" %json","description":"{ } /* \n","type":"boolean","default":[],"examples":[1],
           "x-vendor":{"not":1},"nullable":true})",
       {"true"},
       {"null", "1"}},
  };
  return cases;
}

TEST(grammar, json_schemas_allow_what_fits_and_nothing_else) {
  for (const SchemaCase& entry : schema_cases()) {
    const auto grammar = compile_demo(Kind::kJsonSchema, entry.schema);
    ASSERT_NE(grammar, nullptr) << entry.schema;
    for (const char* text : entry.valid) {
      EXPECT_EQ(walk(*grammar, std::string_view(text)), "complete") << entry.schema << " " << text;
    }
    for (const char* text : entry.invalid) {
      EXPECT_FALSE(fits(*grammar, text)) << entry.schema << " " << text;
    }
  }
}

TEST(grammar, empty_schema_is_any_json_and_ends) {
  for (const char* schema :
       {"{}", "true", R"({"title":"anything"})", R"({"$schema":"http://x/y"})"}) {
    const auto grammar = compile_demo(Kind::kJsonSchema, schema);
    ASSERT_NE(grammar, nullptr);
    for (const char* text :
         {"{}", "[]", "null", "-12.5e3", "\"a\\n\"", R"({"a":[1,{"b":null}]})"}) {
      EXPECT_EQ(walk(*grammar, std::string_view(text)), "complete") << text;
    }
    for (const char* text : {"", "{", "nul", "[1,]", "{a:1}", "1 2"}) {
      EXPECT_FALSE(fits(*grammar, text)) << text;
    }
    // Digits may go on, and may end wherever they are.
    GrammarMatcher matcher = grammar->start();
    for (const std::int32_t token : demo_tokenizer().encode("1234567890123")) {
      ASSERT_TRUE(matcher.accept(token).has_value());
      EXPECT_TRUE(has_bit(*matcher.mask(), demo_ends()[0]));
    }
  }
}

TEST(grammar, only_end_tokens_follow_a_finished_sentence) {
  const auto grammar =
      compile_demo(Kind::kJsonSchema, R"({"type":"object","additionalProperties":false})");
  GrammarMatcher matcher = grammar->start();
  for (const std::int32_t token : demo_tokenizer().encode("{}")) {
    EXPECT_FALSE(matcher.is_complete());
    ASSERT_TRUE(matcher.accept(token).has_value());
  }
  EXPECT_TRUE(matcher.is_complete());
  std::vector<std::int32_t> ends = demo_ends();
  std::ranges::sort(ends);
  EXPECT_EQ(tokens_in(*matcher.mask()), ends);
  EXPECT_EQ(*matcher.num_allowed(ends), 3);
  EXPECT_FALSE(matcher.accept(demo_tokenizer().encode("x")[0]).has_value());
  ASSERT_TRUE(matcher.accept(ends[1]).has_value());
  EXPECT_TRUE(matcher.is_stopped());
  ASSERT_TRUE(matcher.rollback(2).has_value());
  EXPECT_FALSE(matcher.is_complete());
  ASSERT_TRUE(matcher.accept(demo_tokenizer().encode("}")[0]).has_value());
  EXPECT_TRUE(matcher.is_complete());
}

TEST(grammar, mask_is_exactly_what_can_be_accepted) {
  const auto grammar = compile_demo(
      Kind::kJsonSchema, R"({"type":"object","properties":{"k":{"type":"string","maxLength":4},
                             "n":{"type":"array","items":{"enum":["ab","abc","b"]}}},"required":["k","n"]})");
  GrammarMatcher matcher = grammar->start();
  for (const std::int32_t token : demo_tokenizer().encode(R"({"k": "a\"é", "n": ["ab","b"]})")) {
    const auto mask = matcher.mask();
    ASSERT_TRUE(mask.has_value());
    for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
      EXPECT_EQ(has_bit(*mask, id), *matcher.num_allowed(std::vector{id}) == 1) << id;
    }
    ASSERT_TRUE(matcher.accept(token).has_value());
  }
  EXPECT_TRUE(matcher.is_complete());
}

// A walk that picks any allowed token, as a model without sense would.
std::vector<std::int32_t> random_walk(const Grammar& grammar, std::mt19937& random, int length) {
  GrammarMatcher matcher = grammar.start();
  std::vector<std::int32_t> tokens;
  while (static_cast<int>(tokens.size()) < length) {
    const std::vector<std::int32_t> allowed = tokens_in(*matcher.mask());
    EXPECT_FALSE(allowed.empty());
    tokens.push_back(allowed[random() % allowed.size()]);
    EXPECT_TRUE(matcher.accept(tokens.back()).has_value());
  }
  return tokens;
}

TEST(grammar, rollback_equals_never_having_been_there) {
  std::mt19937 random(7);
  for (const char* schema :
       {"{}", R"({"type":"array","items":{"enum":["a","ab"]},"maxItems":2})"}) {
    const auto grammar = compile_demo(Kind::kJsonSchema, schema);
    for (int round = 0; round < 20; ++round) {
      const std::vector<std::int32_t> tokens = random_walk(*grammar, random, 12);
      const std::size_t kept = random() % 12;
      GrammarMatcher went = grammar->start();
      for (const std::int32_t token : tokens) ASSERT_TRUE(went.accept(token).has_value());
      ASSERT_TRUE(went.rollback(static_cast<int>(12 - kept)).has_value());
      GrammarMatcher fresh = grammar->start();
      for (std::size_t i = 0; i < kept; ++i) ASSERT_TRUE(fresh.accept(tokens[i]).has_value());
      EXPECT_EQ(tokens_in(*went.mask()), tokens_in(*fresh.mask()));
      EXPECT_EQ(went.is_complete(), fresh.is_complete());
      EXPECT_EQ(went.is_stopped(), fresh.is_stopped());
      for (std::size_t i = kept; i < 12; ++i) ASSERT_TRUE(went.accept(tokens[i]).has_value());
    }
    EXPECT_FALSE(grammar->start().rollback(1).has_value());
    EXPECT_FALSE(grammar->start().rollback(-1).has_value());
  }
}

TEST(grammar, num_allowed_equals_one_token_after_the_other) {
  std::mt19937 random(11);
  const auto grammar =
      compile_demo(Kind::kJsonSchema, R"({"type":"array","items":{"type":"integer"}})");
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int32_t> draft = random_walk(*grammar, random, 8);
    if (round % 2 == 0) draft[random() % 8] = static_cast<std::int32_t>(random() % 1536);
    if (round % 7 == 0) draft[random() % 8] = round % 14 == 0 ? -5 : 1 << 20;
    GrammarMatcher matcher = grammar->start();
    const int together = *matcher.num_allowed(draft);
    int single = 0;
    for (const std::int32_t token : draft) {
      const auto mask = matcher.mask();
      if (token < 0 || token >= 1536 || !has_bit(*mask, token)) break;
      ASSERT_TRUE(matcher.accept(token).has_value());
      ++single;
    }
    EXPECT_EQ(together, single);
  }
}

TEST(grammar, added_tokens_are_allowed_only_where_they_are_named) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const auto text = compile_demo(Kind::kRegex, "(?s:.*)");
  const auto mask_of = [](const Grammar& grammar) { return tokens_in(*grammar.start().mask()); };
  for (const std::int32_t id : mask_of(*text)) {
    const std::vector<std::int32_t> ends = demo_ends();
    EXPECT_TRUE(!tokenizer.is_added(id) || std::ranges::find(ends, id) != ends.end()) << id;
  }
  const auto named = compile_demo(Kind::kLark, "start: <tool_call> /[a-z]+/ </tool_call>");
  EXPECT_EQ(mask_of(*named), std::vector{*tokenizer.token_id("<tool_call>")});
  EXPECT_TRUE(fits(*named, "<tool_call>abc</tool_call>"));
  std::vector<std::int32_t> spelled = tokenizer.encode("<tool_call>abc");
  for (const std::int32_t id : tokenizer.encode("</tool_call>", false)) spelled.push_back(id);
  EXPECT_NE(walk(*named, spelled), "complete");
}

TEST(grammar, regular_expressions_match_the_whole_answer) {
  const auto grammar = compile_demo(Kind::kRegex, "(yes|no)/[0-9]{2,3}\n?");
  EXPECT_TRUE(fits(*grammar, "yes/12"));
  EXPECT_TRUE(fits(*grammar, "no/123\n"));
  for (const char* text : {"yes", "yes/1", "no/1234", " yes/12", "maybe/12"}) {
    EXPECT_FALSE(fits(*grammar, text)) << text;
  }
  EXPECT_TRUE(fits(*compile_demo(Kind::kRegex, "^a$"), "a"));
  EXPECT_TRUE(fits(*compile_demo(Kind::kRegex, ""), ""));
}

TEST(grammar, stop_strings_of_lark_can_be_taken_back) {
  const auto grammar = compile_demo(Kind::kLark, "start: a \"!\"\na[stop=\"end\"]: /[a-z ]+/");
  GrammarMatcher matcher = grammar->start();
  const std::vector<std::int32_t> tokens = demo_tokenizer().encode("some text");
  for (const std::int32_t token : tokens) ASSERT_TRUE(matcher.accept(token).has_value());
  ASSERT_TRUE(matcher.rollback(static_cast<int>(tokens.size()) - 1).has_value());
  GrammarMatcher fresh = grammar->start();
  ASSERT_TRUE(fresh.accept(tokens[0]).has_value());
  EXPECT_EQ(tokens_in(*matcher.mask()), tokens_in(*fresh.mask()));
}

TEST(grammar, what_is_not_supported_is_named) {
  const struct {
    const char* schema;
    const char* word;
  } cases[] = {
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"properties":{"a":{"not":{"type":"string"}}}})", "/properties/a/not"},
      {R"({"if":{"type":"string"},"then":{"minLength":1}})", "\"if\""},
      {R"({"type":"object","propertyNames":{"pattern":"^a"}})", "propertyNames"},
      {R"({"type":"string","format":"no-such-format"})", "no-such-format"},
      {R"({"type":"foo"})", "\"foo\" is not a type"},
      {R"({"type":7})", "7 is not a type"},
      {R"({"type":null})", "null is not a type"},
      {R"({"properties":{"a":{"type":["string","text"]}}})", "/properties/a/type"},
      {R"({"type":"string","pattern":"["})", "regex"},
      {R"({"type":"string","pattern":"(?=a)b"})", "look"},
      {R"({"type":"string","pattern":7})", "pattern"},
      {R"({"$ref":"#/$defs/none"})", "leads nowhere"},
      {R"({"$ref":"https://example.com/schema"})", "https://example.com/schema"},
      {R"({"properties":[]})", "/properties"},
      {R"({"properties":null})", "/properties"},
      {R"({"items":"string"})", "/items"},
      {R"({"minLength":-1,"type":"string"})", "minLength"},
      {R"({"allOf":{}})", "/allOf"},
      {"7", "integer"},
      {"false", "allows nothing"},
      {"{", "byte"},
      {R"({"type":"string","minLength":5,"maxLength":4})", "minLength"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "nsatisfiable"},
  };
  for (const auto& entry : cases) {
    const auto grammar = demo_compiler().compile({.kind = Kind::kJsonSchema, .text = entry.schema});
    ASSERT_FALSE(grammar.has_value()) << entry.schema;
    EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument) << entry.schema;
    EXPECT_NE(grammar.error().message.find(entry.word), std::string::npos)
        << grammar.error().message;
  }
  for (const char* trivial :
       {R"({"type":"array","uniqueItems":false})", R"({"unevaluatedProperties":true})"}) {
    EXPECT_NE(compile_demo(Kind::kJsonSchema, trivial), nullptr);
  }
}

TEST(grammar, lenient_schemas_leave_out_what_is_not_supported) {
  const auto grammar = demo_compiler().compile(
      {.kind = Kind::kJsonSchema,
       .text =
           R"({"type":"array","uniqueItems":true,"items":{"type":"string","format":"nonsense"}})",
       .lenient = true});
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  EXPECT_TRUE(fits(**grammar, R"(["a","a"])"));
  EXPECT_FALSE(fits(**grammar, "[1]"));
}

TEST(grammar, whitespace_can_be_bound) {
  const auto grammar =
      demo_compiler().compile({.kind = Kind::kJsonSchema, .text = "{}", .any_whitespace = false});
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  EXPECT_TRUE(fits(**grammar, R"({"a":[1,2]})"));
  EXPECT_TRUE(fits(**grammar, R"({"a": [1, 2]})"));
  EXPECT_FALSE(fits(**grammar, "{\n\"a\":1}"));
  EXPECT_FALSE(fits(**grammar, R"({"a":  1})"));
}

TEST(grammar, a_client_cannot_set_the_options_of_the_crate) {
  const auto grammar =
      compile_demo(Kind::kJsonSchema,
                   R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],
      "x-guidance":{"lenient":true,"item_separator":".*","key_separator":".*","whitespace_pattern":".*"}})");
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(fits(*grammar, R"({"a":1})"));
  EXPECT_FALSE(fits(*grammar, R"({"a"=1})"));
  EXPECT_FALSE(
      demo_compiler()
          .compile({.kind = Kind::kJsonSchema,
                    .text = R"({"type":"array","uniqueItems":true,"x-guidance":{"lenient":true}})"})
          .has_value());
}

TEST(grammar, compiled_grammars_are_kept) {
  const GrammarSource source{.kind = Kind::kJsonSchema, .text = R"({"type":"boolean"})"};
  const auto first = demo_compiler().compile(source);
  const auto second = demo_compiler().compile(source);
  EXPECT_EQ(first->get(), second->get());
  GrammarSource other = source;
  other.any_whitespace = false;
  EXPECT_NE(demo_compiler().compile(other)->get(), first->get());
}

TEST(grammar, one_grammar_serves_threads) {
  const auto grammar = compile_demo(Kind::kJsonSchema, "{}");
  std::vector<std::thread> threads;
  std::vector<std::string> ends(4);
  for (std::string& end : ends) {
    threads.emplace_back(
        [&] { end = walk(*grammar, std::string_view(R"({"a":[1,2,{"b":"c"}]})")); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& end : ends) EXPECT_EQ(end, "complete");
}

TEST(grammar, end_tokens_must_exist) {
  EXPECT_FALSE(GrammarCompiler::make(demo_tokenizer(), {}).has_value());
  EXPECT_FALSE(GrammarCompiler::make(demo_tokenizer(), std::vector<std::int32_t>{-1}).has_value());
  EXPECT_FALSE(
      GrammarCompiler::make(demo_tokenizer(), std::vector<std::int32_t>{1 << 20}).has_value());
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// A list "a, b, c" of numbered items.
template <typename Item>
std::string listed(int count, const Item& item) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + item(std::to_string(i));
  return out;
}

std::vector<GrammarSource> hostile_sources() {
  const auto schema = [](std::string text) {
    return GrammarSource{.kind = Kind::kJsonSchema, .text = std::move(text)};
  };
  const auto regex = [](std::string text) {
    return GrammarSource{.kind = Kind::kRegex, .text = std::move(text)};
  };
  const auto lark = [](std::string text) {
    return GrammarSource{.kind = Kind::kLark, .text = std::move(text)};
  };
  const auto gbnf = [](std::string text) {
    return GrammarSource{.kind = Kind::kGbnf, .text = std::move(text)};
  };
  std::vector<GrammarSource> sources;
  for (const char* text :
       {"(a{1000}){1000}", "((a{1,1000}){1,1000}){1,1000}", "(.*a){200}", "(a|aa)+b{1000,}",
        "(?:a?){500}a{500}", "[^x]*x[^y]*y.{5000}", "\\p{L}{1000}", "(\\p{L}|\\p{N}|a){1000}{10}",
        ".*a.{50}", "(a|b|ab)*c.{1000,2000}"}) {
    sources.push_back(regex(text));
    sources.push_back(schema(R"({"type":"string","pattern":)" + Json(text).dump() + "}"));
  }
  sources.push_back(regex(repeated("(", 60000) + "a" + repeated(")", 60000)));
  sources.push_back(regex(repeated("[a-z]?", 20000)));
  sources.push_back(regex(repeated("(.*b)", 2000)));
  sources.push_back(schema(repeated(R"({"items":)", 5000) + "{}" + repeated("}", 5000)));
  sources.push_back(schema(repeated(R"({"anyOf":[)", 60) + "{}" + repeated("]}", 60)));
  sources.push_back(schema(R"({"enum":[)" +
                           listed(4000, [](const std::string& i) { return "\"word" + i + "\""; }) +
                           "]}"));
  sources.push_back(schema(
      R"({"properties":{)" +
      listed(2500, [](const std::string& i) { return "\"p" + i + R"(":{"type":"string"})"; }) +
      "}}"));
  sources.push_back(schema(R"({"properties":{)" +
                           listed(800,
                                  [](const std::string& i) {
                                    return "\"p" + i + R"(":{"pattern":"^(a|b)*c{)" + i + R"(}$"})";
                                  }) +
                           "}}"));
  sources.push_back(
      schema(R"({"patternProperties":{)" +
             listed(14, [](const std::string& i) { return "\"^(a|b)*c{" + i + "9}(d|e)*$\":{}"; }) +
             "}}"));
  sources.push_back(schema(R"({"allOf":[)" +
                           listed(12,
                                  [](const std::string& i) {
                                    return R"({"anyOf":[{"properties":{"a)" + i +
                                           R"(":{}},"required":["a)" + i +
                                           R"("]},{"properties":{"b)" + i +
                                           R"(":{}},"required":["b)" + i + R"("]}]})";
                                  }) +
                           "]}"));
  sources.push_back(schema(
      R"({"oneOf":[)" +
      listed(900,
             [](const std::string& i) { return R"({"properties":{"k":{"const":)" + i + "}}}"; }) +
      "]}"));
  sources.push_back(schema(R"({"type":"string","minLength":1000000000})"));
  sources.push_back(schema(R"({"type":"string","maxLength":4000000000})"));
  sources.push_back(schema(R"({"type":"array","minItems":1000000000})"));
  sources.push_back(schema(
      R"({"type":"array","maxItems":1000000000,"items":{"type":"array","maxItems":1000000000}})"));
  sources.push_back(
      schema(R"({"type":"object","maxProperties":1000000000,"minProperties":1000000})"));
  sources.push_back(
      schema(R"({"type":"number","multipleOf":0.000000001,"minimum":1e-300,"maximum":1e300})"));
  sources.push_back(
      schema(R"({"type":"integer","multipleOf":4294967295,"minimum":-9223372036854775808})"));
  sources.push_back(schema(R"({"$ref":"#"})"));
  sources.push_back(schema(
      R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"));
  sources.push_back(schema(
      R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}]}}})"));
  sources.push_back(
      schema(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"));
  sources.push_back(schema(R"({"$ref":"#/$defs/d0","$defs":{)" +
                           listed(1200,
                                  [](const std::string& i) {
                                    return "\"d" + i + R"(":{"$ref":"#/$defs/d)" +
                                           std::to_string(std::stoi(i) + 1) + "\"}";
                                  }) +
                           R"(,"d1200":{"type":"null"}}})"));
  sources.push_back(lark("start: " + repeated("(", 60000) + "\"a\"" + repeated(")", 60000)));
  sources.push_back(lark("start: r0\n" + listed(5000, [](const std::string& i) {
                           return "\nr" + i + ": r" + std::to_string(std::stoi(i) + 1);
                         })));
  std::string chain = "start: r0\n";
  std::string tokens = "start: T0\n";
  std::string doubling = "start: T0\n";
  for (int i = 0; i < 5000; ++i) {
    const std::string next = std::to_string(i + 1);
    chain += "r" + std::to_string(i) + ": r" + next + " \"a\"\n";
    tokens += "T" + std::to_string(i) + ": (T" + next + " \"a\")*\n";
    if (i < 60) doubling += "T" + std::to_string(i) + ": T" + next + " T" + next + " /.*/\n";
  }
  sources.push_back(lark(chain + "r5000: \"b\"\n"));
  sources.push_back(lark(tokens + "T5000: \"b\"\n"));
  sources.push_back(lark(doubling + "T60: /a|b/\n"));
  sources.push_back(lark("start: start"));
  sources.push_back(lark("start: \"a\"{1000000000}"));
  sources.push_back(lark("start: (\"a\" | \"a\" start | start \"a\")*"));
  sources.push_back(lark("start: a a a a a a a a\na: (\"x\" | a a | a a a)?"));
  sources.push_back(lark("start: ~(/.*a.{30}/)"));
  sources.push_back(lark("start: /.*a.{30}/ /.*b.{30}/"));
  sources.push_back(
      lark("start: %json {\"x-guidance\":{\"whitespace_pattern\":\"(a{1000}){1000}\"}}"));
  sources.push_back(
      lark("start: %regex {\"substring_chars\":\"" + repeated("abcdefgh", 20000) + "\"}"));
  sources.push_back(lark("start: <[0-1535]>{1000000}"));
  sources.push_back(lark("start: <no_such_token>"));
  sources.push_back(gbnf("root ::= " + repeated("(", 60000) + "\"a\"" + repeated(")", 60000)));
  sources.push_back(gbnf("root ::= \"a\"" + repeated("*", 60000)));
  std::string rules = "root ::= r0\n";
  std::string twice = "root ::= r0\n";
  for (int i = 0; i < 5000; ++i) {
    const std::string next = std::to_string(i + 1);
    rules += "r" + std::to_string(i) + " ::= r" + next + "\n";
    if (i < 60) twice += "r" + std::to_string(i) + " ::= r" + next + " r" + next + " [a-z]*\n";
  }
  sources.push_back(gbnf(rules + "r5000 ::= \"a\"\n"));
  sources.push_back(gbnf(twice + "r60 ::= \"a\"\n"));
  sources.push_back(gbnf("root ::= root"));
  sources.push_back(gbnf("root ::= root root | \"a\" | "));
  return sources;
}

// Each either compiles or is refused; and when it compiles, its first steps are bounded too.
TEST(grammar, hostile_sources_are_bounded) {
  for (const GrammarSource& source : hostile_sources()) {
    const std::string shown = source.text.substr(0, 120);
    SCOPED_TRACE(shown);
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = demo_compiler().compile(source);
    if (grammar.has_value()) {
      GrammarMatcher matcher = (*grammar)->start();
      for (int step = 0; step < 20; ++step) {
        const auto mask = matcher.mask();
        if (!mask.has_value()) {
          EXPECT_EQ(mask.error().code, ErrorCode::kInvalidArgument) << mask.error().message;
          break;
        }
        const std::vector<std::int32_t> allowed = tokens_in(*mask);
        ASSERT_FALSE(allowed.empty());
        if (!matcher.accept(allowed[allowed.size() / 2]).has_value()) break;
      }
    } else {
      EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument) << grammar.error().message;
      EXPECT_LT(grammar.error().message.size(), 20000u);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 30.0);
  }
}

TEST(grammar, too_long_sources_are_refused) {
  const auto refused = [](Kind kind, std::size_t size) {
    const auto grammar = demo_compiler().compile({.kind = kind, .text = std::string(size, ' ')});
    return !grammar.has_value() && grammar.error().message.find("bytes") != std::string::npos;
  };
  EXPECT_TRUE(refused(Kind::kJsonSchema, (64u << 10) + 1));
  for (const Kind kind : {Kind::kRegex, Kind::kLark, Kind::kGbnf})
    EXPECT_TRUE(refused(kind, (256u << 10) + 1));
}

}  // namespace
}  // namespace glint
