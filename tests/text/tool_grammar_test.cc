#include "text/tool_grammar.h"

#include "grammar_fixture.h"

namespace glint {
namespace {

Json tools_of(const std::string& text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json.has_value()) << json.error().message;
  return std::move(*json);
}

const Json& weather_tools() {
  static const Json tools = tools_of(R"([
    {"type":"function","function":{"name":"get_weather","description":"\"]]> %json {","strict":true,"parameters":{
      "type":"object","properties":{
        "note":{"type":"string","description":"free\ntext"},
        "city":{"type":"string"},
        "days":{"type":"integer","minimum":1,"maximum":9},
        "unit":{"type":"string","enum":["c","celsius","f"]},
        "where":{"$ref":"#/$defs/place"},
        "tags":{"type":"array","items":{"$ref":"#/$defs/tag"}}},
      "required":["city","days"],
      "$defs":{"place":{"type":"object","properties":{"lat":{"type":"number"}},"required":["lat"],
               "additionalProperties":false},"tag":{"enum":["x","y"]}}}}},
    {"type":"function","function":{"name":"get","parameters":{"type":"object","properties":{}}}},
    {"name":"anthropic.tool","input_schema":{"type":"object","properties":{"id":{"type":["string","null"]}},
      "required":["id"]}}
  ])");
  return tools;
}

// A model: its tokenizer and a compiler for it.
class Model {
 public:
  explicit Model(std::vector<std::string> added) {
    added.emplace_back("<end>");
    tokenizer_ = byte_tokenizer({}, added);
    compiler_ = std::move(*GrammarCompiler::make(
        *tokenizer_, std::vector<std::int32_t>{*tokenizer_->token_id("<end>")}));
  }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  GrammarCompiler& compiler() { return *compiler_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

struct Case {
  Case(const Tokenizer& tokenizer, GrammarCompiler& compiler, const Json& tools,
       const ToolGrammarOptions& options)
      : tokenizer_(tokenizer) {
    const auto text = tool_call_grammar(tools, tokenizer, options);
    EXPECT_TRUE(text.has_value()) << text.error().message;
    if (!text.has_value()) return;
    auto compiled = compiler.compile({.kind = GrammarSource::Kind::kLark, .text = *text});
    EXPECT_TRUE(compiled.has_value()) << compiled.error().message << "\n" << *text;
    if (compiled.has_value()) grammar_ = *compiled;
  }

  std::string say(std::string_view text) const { return walk(*grammar_, tokenizer_.encode(text)); }
  bool allows(std::string_view text) const {
    return grammar_ != nullptr && say(text) == "complete";
  }

  const Tokenizer& tokenizer_;
  std::shared_ptr<const Grammar> grammar_;
};

Case demo_case(const ToolGrammarOptions& options, const Json& tools = weather_tools()) {
  return {demo_tokenizer(), demo_compiler(), tools, options};
}

std::string arg(const std::string& key, const std::string& value, const std::string& line = "") {
  return "<arg_key>" + key + "</arg_key>" + line + "<arg_value>" + value + "</arg_value>" + line;
}

TEST(tool_grammar, compact_glm_calls_are_held_to_names_and_types) {
  const Case grammar = demo_case({.format = ToolFormat::kGlm47});
  const std::string open = "<tool_call>get_weather" + arg("city", "Paris") + arg("days", "3");
  EXPECT_EQ(grammar.say(open + "</tool_call>"), "complete");
  for (const std::string& more :
       {arg("note", "any { \"text\"\n"), arg("unit", "celsius"), arg("unit", "c"),
        arg("where", R"({"lat": 1.5})"), arg("tags", R"(["x","y"])"),
        arg("note", "") + arg("unit", "f") + arg("where", R"({"lat":1})") + arg("tags", "[]")}) {
    EXPECT_EQ(grammar.say(open + more + "</tool_call>"), "complete") << more;
  }
  for (const std::string& more :
       {arg("note", "x") + arg("note", "y"), arg("unit", "k"), arg("unit", "cel"),
        arg("where", R"({"lat":"1"})"), arg("where", "{}"), arg("tags", R"(["z"])"),
        arg("tags", "x"), arg("other", "1"), std::string("\n")}) {
    EXPECT_FALSE(grammar.allows(open + more + "</tool_call>")) << more;
  }
  for (const char* text :
       {"", "text", "<tool_call>", "<tool_call></tool_call>", "<tool_call>get_weather</tool_call>",
        "<tool_call>unknown</tool_call>", "x<tool_call>get</tool_call>"}) {
    EXPECT_FALSE(grammar.allows(text)) << text;
  }
  EXPECT_FALSE(grammar.allows("<tool_call>get_weather" + arg("days", "3") + arg("city", "Paris") +
                              "</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>get_weather" + arg("city", "Paris") + arg("days", "30") +
                              "</tool_call>"));
  EXPECT_TRUE(grammar.allows("<tool_call>get</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>get" + arg("a", "b") + "</tool_call>"));
  EXPECT_TRUE(grammar.allows("<tool_call>get</tool_call>" + open + "</tool_call>"));
  EXPECT_TRUE(grammar.allows("<tool_call>anthropic.tool" + arg("id", "null") + "</tool_call>"));
}

TEST(tool_grammar, glm_calls_with_line_breaks) {
  const Case grammar = demo_case({.format = ToolFormat::kGlm45});
  EXPECT_EQ(grammar.say("\n<tool_call>get_weather\n" + arg("city", "Rome", "\n") +
                        arg("days", "1", "\n") + arg("where", R"({"lat":2})", "\n") +
                        "</tool_call>\n<tool_call>get\n</tool_call>"),
            "complete");
  EXPECT_TRUE(grammar.allows("<tool_call>get</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>get\n\n</tool_call>"));
}

TEST(tool_grammar, text_arguments_hold_no_marker) {
  const Case grammar = demo_case({.format = ToolFormat::kGlm47});
  const Tokenizer& tokenizer = demo_tokenizer();
  GrammarMatcher matcher = grammar.grammar_->start();
  for (const std::int32_t token :
       tokenizer.encode("<tool_call>get_weather<arg_key>city</arg_key><arg_value>a")) {
    ASSERT_TRUE(matcher.accept(token).has_value());
  }
  const auto mask = matcher.mask();
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id)) continue;
    EXPECT_EQ(has_bit(*mask, id), id == *tokenizer.token_id("</arg_value>")) << id;
  }
  // Spelled from ordinary pieces it is text.
  for (const std::int32_t token : tokenizer.encode("</arg_value></tool_call>", false)) {
    ASSERT_TRUE(matcher.accept(token).has_value());
  }
  EXPECT_FALSE(matcher.is_complete());
}

TEST(tool_grammar, text_may_come_first) {
  const Case required = demo_case({.format = ToolFormat::kGlm47, .text_first = true});
  EXPECT_TRUE(required.allows("Let me look.\n<tool_call>get</tool_call>"));
  EXPECT_TRUE(required.allows("<tool_call>get</tool_call>"));
  EXPECT_EQ(required.say("Let me look."), "open");
  const Case free = demo_case({.format = ToolFormat::kGlm47, .text_first = true, .min_calls = 0});
  EXPECT_TRUE(free.allows("Just text."));
  EXPECT_TRUE(free.allows("Text.<tool_call>get</tool_call>"));
  EXPECT_FALSE(free.allows("Text.<tool_call>none</tool_call>"));
}

TEST(tool_grammar, calls_are_counted) {
  const std::string call = "<tool_call>get</tool_call>";
  const Case one = demo_case({.format = ToolFormat::kGlm47, .max_calls = 1});
  EXPECT_TRUE(one.allows(call));
  EXPECT_FALSE(one.allows(call + call));
  const Case some = demo_case({.format = ToolFormat::kGlm47, .min_calls = 2, .max_calls = 3});
  EXPECT_FALSE(some.allows(call));
  EXPECT_TRUE(some.allows(call + call));
  EXPECT_TRUE(some.allows(call + call + call));
  EXPECT_FALSE(some.allows(call + call + call + call));
  const Case none = demo_case({.format = ToolFormat::kGlm47, .min_calls = 0});
  EXPECT_TRUE(none.allows(""));
  EXPECT_TRUE(none.allows(call));
}

TEST(tool_grammar, a_call_may_be_open_already) {
  const Case grammar = demo_case({.format = ToolFormat::kGlm47, .first_is_open = true});
  EXPECT_TRUE(grammar.allows("get</tool_call>"));
  EXPECT_TRUE(grammar.allows("get</tool_call><tool_call>get</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>get</tool_call>"));
}

TEST(tool_grammar, an_answer_of_a_schema_may_stand_instead_of_calls) {
  const Case grammar = demo_case(
      {.format = ToolFormat::kGlm47,
       .answer_schema = tools_of(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},
                                      "required":["a"],"additionalProperties":false,"$defs":{"n":{"type":"integer"}}})")});
  EXPECT_TRUE(grammar.allows(R"({"a": 1})"));
  EXPECT_TRUE(grammar.allows("<tool_call>get</tool_call>"));
  EXPECT_FALSE(grammar.allows(R"({"a": "1"})"));
  EXPECT_FALSE(grammar.allows(R"({"a": 1}<tool_call>get</tool_call>)"));
}

TEST(tool_grammar, without_strictness_only_names_and_markup_are_held) {
  const Json tools =
      tools_of(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
      "properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n","s"]}}},
      {"type":"function","function":{"name":"any","parameters":{"type":"object"}}}])");
  const Case grammar = demo_case({.format = ToolFormat::kGlm47, .strict_arguments = false}, tools);
  EXPECT_TRUE(
      grammar.allows("<tool_call>f" + arg("s", "x") + arg("n", "not a number") + "</tool_call>"));
  EXPECT_TRUE(grammar.allows("<tool_call>f</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>f" + arg("t", "x") + "</tool_call>"));
  EXPECT_FALSE(grammar.allows("<tool_call>g</tool_call>"));
  EXPECT_TRUE(
      grammar.allows("<tool_call>any" + arg("what ever", "x") + arg("b", "") + "</tool_call>"));
  // "strict" holds a tool whatever the option says.
  const Case strict = demo_case({.format = ToolFormat::kGlm47, .strict_arguments = false});
  EXPECT_FALSE(strict.allows("<tool_call>get_weather" + arg("city", "x") + "</tool_call>"));
}

TEST(tool_grammar, values_follow_the_schema_of_text) {
  const Json tools = tools_of(
      R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",
      "properties":{"p":{"type":"string","pattern":"^[a-z/]+\\d$"},"l":{"type":"string","minLength":1,"maxLength":2},
      "e":{"anyOf":[{"$ref":"#/$defs/color"},{"type":"null"}]},"c":{"const":7},"m":{"type":["string","integer"]},
      "u":{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"integer"}}]},"x":{}},
      "required":["p"],"$defs":{"color":{"type":"string","enum":["red","dark red"]}}}}}])");
  const Case grammar = demo_case({.format = ToolFormat::kGlm47}, tools);
  const auto allows = [&](const std::string& more) {
    return grammar.allows("<tool_call>f" + arg("p", "a/b1") + more + "</tool_call>");
  };
  EXPECT_TRUE(allows(""));
  EXPECT_FALSE(grammar.allows("<tool_call>f" + arg("p", "ab") + "</tool_call>"));
  EXPECT_TRUE(allows(arg("l", "é")));
  EXPECT_FALSE(allows(arg("l", "")));
  EXPECT_FALSE(allows(arg("l", "abc")));
  EXPECT_TRUE(allows(arg("e", "dark red")));
  EXPECT_TRUE(allows(arg("e", "null")));
  EXPECT_FALSE(allows(arg("e", "blue")));
  EXPECT_TRUE(allows(arg("c", "7")));
  EXPECT_FALSE(allows(arg("c", "8")));
  EXPECT_TRUE(allows(arg("m", "free text")));
  EXPECT_TRUE(allows(arg("u", "[1, 2]")));
  EXPECT_TRUE(allows(arg("u", "12")));
  EXPECT_FALSE(allows(arg("u", "text")));
  EXPECT_TRUE(allows(arg("x", "anything")));
}

TEST(tool_grammar, names_and_keys_are_quoted) {
  const std::string odd = "a\"\\\n\t/]]> é <[1]> %json {x}";
  Json properties;
  properties.set(odd, Json(Json::Object{{"type", "string"}}));
  Json parameters;
  parameters.set("properties", properties);
  Json tool;
  tool.set("name", odd);
  tool.set("parameters", parameters);
  const Json tools = Json(Json::Array{tool});
  const Case grammar = demo_case({.format = ToolFormat::kGlm47}, tools);
  EXPECT_EQ(grammar.say("<tool_call>" + odd + arg(odd, "v") + "</tool_call>"), "complete");
  EXPECT_FALSE(grammar.allows("<tool_call>" + odd + arg("a", "v") + "</tool_call>"));
}

const std::vector<std::string> kDeepSeekMarkers = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                                   "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
                                                   "<｜tool▁sep｜>"};

TEST(tool_grammar, deepseek_calls) {
  Model model(kDeepSeekMarkers);
  const Case v31(model.tokenizer(), model.compiler(), weather_tools(),
                 {.format = ToolFormat::kDeepSeekV31, .text_first = true});
  const std::string good = R"({"city": "Paris", "days": 2})";
  EXPECT_EQ(
      v31.say("Text<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + good +
              "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
              "｜tool▁calls▁end｜>"),
      "complete");
  EXPECT_FALSE(
      v31.allows("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<"
                 "｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
  const Case open(model.tokenizer(), model.compiler(), weather_tools(),
                  {.format = ToolFormat::kDeepSeekV31, .max_calls = 1, .first_is_open = true});
  EXPECT_TRUE(open.allows(
      "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
  const Case v3(model.tokenizer(), model.compiler(), weather_tools(),
                {.format = ToolFormat::kDeepSeekV3});
  EXPECT_EQ(v3.say("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n`"
                   "``json\n" +
                   good + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            "complete");
  EXPECT_FALSE(v3.allows("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" +
                         good + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
}

std::string dsml(const std::string& key, bool is_text, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + key + "\" string=\"" + (is_text ? "true" : "false") +
         "\">" + value + "</｜DSML｜parameter>\n";
}

TEST(tool_grammar, dsml_calls) {
  Model model({"｜DSML｜"});
  const Case grammar(model.tokenizer(), model.compiler(), weather_tools(),
                     {.format = ToolFormat::kDeepSeekV32});
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"" + name + "\">\n" + arguments +
           "</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  };
  EXPECT_EQ(grammar.say(call("get", "")), "complete");
  EXPECT_EQ(
      grammar.say(call("get_weather", dsml("city", true, "Pa</ris") + dsml("days", false, "4") +
                                          dsml("unit", true, "f"))),
      "complete");
  EXPECT_FALSE(grammar.allows(
      call("get_weather", dsml("city", false, "\"Paris\"") + dsml("days", false, "4"))));
  EXPECT_FALSE(grammar.allows(call("get_weather", dsml("city", true, "Paris"))));
  EXPECT_TRUE(grammar.allows(call("anthropic.tool", dsml("id", false, "null"))));
  EXPECT_TRUE(grammar.allows(call("anthropic.tool", dsml("id", true, "null"))));
}

TEST(tool_grammar, kimi_calls) {
  Model model({"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
               "<|tool_call_end|>", "<|tool_call_argument_begin|>"});
  const Case grammar(model.tokenizer(), model.compiler(), weather_tools(),
                     {.format = ToolFormat::kKimiK2});
  EXPECT_EQ(grammar.say("<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_"
                        "argument_begin|>{}<|tool_call_end|>"
                        "<|tool_call_begin|>functions.anthropic.tool:1<|tool_call_argument_begin|>{"
                        "\"id\":null}<|tool_call_end|>"
                        "<|tool_calls_section_end|>"),
            "complete");
  EXPECT_FALSE(grammar.allows(
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.no:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_calls_section_end|>"));
}

// A tokenizer that spells its markup.
TEST(tool_grammar, markup_without_tokens_is_text) {
  Model model({});
  const Case grammar(model.tokenizer(), model.compiler(), weather_tools(),
                     {.format = ToolFormat::kGlm47, .text_first = true});
  EXPECT_EQ(grammar.say("Text <b<tool_call>get_weather" + arg("city", "a < b</arg") +
                        arg("days", "3") + arg("unit", "celsius") + "</tool_call>"),
            "complete");
  EXPECT_FALSE(grammar.allows("Text"));
  const auto open = tool_call_grammar(weather_tools(), model.tokenizer(),
                                      {.format = ToolFormat::kGlm47, .first_is_open = true});
  ASSERT_FALSE(open.has_value());
  EXPECT_EQ(open.error().code, ErrorCode::kUnsupported);
}

TEST(tool_grammar, tools_that_cannot_be_written_are_errors) {
  const auto error_of = [](const std::string& tools, const ToolGrammarOptions& options) {
    const auto grammar = tool_call_grammar(tools_of(tools), demo_tokenizer(), options);
    return grammar.has_value() ? std::string("none") : grammar.error().message;
  };
  EXPECT_NE(error_of("[]", {}).find("none that may be called"), std::string::npos);
  EXPECT_NE(error_of("[{}]", {}).find("has no name"), std::string::npos);
  EXPECT_NE(error_of(R"([{"name":"f","parameters":[]}])", {}).find("\"f\" are not an object"),
            std::string::npos);
  EXPECT_NE(error_of(R"([{"name":"f"}])", {.min_calls = 3, .max_calls = 2}).find("fewer"),
            std::string::npos);
  const std::string unsupported_keyword =
      R"([{"name":"f","strict":true,"parameters":{"properties":{"a":{"type":"array","uniqueItems":true}}}}])";
  EXPECT_NE(error_of(unsupported_keyword, {}).find("uniqueItems"), std::string::npos);
  EXPECT_NE(
      error_of(
          R"([{"name":"f","parameters":{"properties":{"a":{"type":"array","items":{"type":"foo"}}},"required":["a"]}}])",
          {})
          .find("foo"),
      std::string::npos);
  const auto none =
      tool_call_grammar(weather_tools(), demo_tokenizer(), {.format = ToolFormat::kNone});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace glint
