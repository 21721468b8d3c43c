#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "text_fixture.h"

namespace glint {
namespace {

std::unique_ptr<ChatTemplate> parse(std::string_view source) {
  auto parsed = ChatTemplate::parse(source, "test");
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
  return parsed.has_value() ? std::move(*parsed) : nullptr;
}

Json variables(std::string_view json) {
  auto parsed = parse_json(json);
  EXPECT_TRUE(parsed.has_value()) << json;
  return parsed.has_value() ? *parsed : Json();
}

std::string render(std::string_view source, std::string_view json = "{}") {
  const auto text = parse(source)->render(variables(json));
  return text.has_value() ? *text : "error: " + text.error().message;
}

struct Timed {
  std::string message;
  double seconds;
};

Timed refusal(std::string_view source, std::string_view json = "{}") {
  const auto start = std::chrono::steady_clock::now();
  const auto text = parse(source)->render(variables(json));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_FALSE(text.has_value()) << "rendered " << text->size() << " bytes: " << source;
  if (text.has_value()) return {"", took.count()};
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  return {text.error().message, took.count()};
}

TEST(ChatTemplate, renders_byte_for_byte_what_transformers_renders) {
  const Json file = read_test_json("template_cases.json");
  ASSERT_NE(file.find("templates"), nullptr);
  std::vector<std::pair<std::string, std::unique_ptr<ChatTemplate>>> templates;
  templates.emplace_back("demo", parse(read_source_file("models/demo/chat_template.jinja")));
  for (const auto& [name, source] : file.find("templates")->as_object()) {
    SCOPED_TRACE(name);
    templates.emplace_back(name, parse(source.as_string()));
    ASSERT_NE(templates.back().second, nullptr);
  }
  ASSERT_GT(file.find("cases")->as_array().size(), 250u);
  for (const Json& test : file.find("cases")->as_array()) {
    const std::string& name = test.find("template")->as_string();
    SCOPED_TRACE(name + " / " + test.find("name")->as_string());
    const auto found =
        std::ranges::find_if(templates, [&](const auto& entry) { return entry.first == name; });
    ASSERT_NE(found, templates.end());
    const auto text = found->second->render(*test.find("variables"));
    const Json* expected = test.find("expected");
    if (expected == nullptr) {
      EXPECT_FALSE(text.has_value()) << *text;
    } else if (text.has_value()) {
      EXPECT_EQ(*text, expected->as_string());
    } else {
      ADD_FAILURE() << text.error().message;
    }
  }
}

TEST(ChatTemplate, raise_exception_gives_its_own_words) {
  EXPECT_NE(refusal("\n{{ raise_exception('Only user and assistant roles! 你好') }}")
                .message.find("Only user and assistant roles! 你好"),
            std::string::npos);
}

TEST(ChatTemplate, absent_variables_are_undefined) {
  EXPECT_EQ(render("{{ x is defined }}{{ x }}{{ y is none }}", R"({"y": null})"), "FalseTrue");
}

TEST(ChatTemplate, keys_keep_their_order) {
  EXPECT_EQ(render("{{ o|tojson }}", R"({"o": {"z": 1, "a": 2, "m": {"y": 0, "b": 0}}})"),
            R"({"z": 1, "a": 2, "m": {"y": 0, "b": 0}})");
}

TEST(ChatTemplate, non_ascii_is_not_escaped) {
  EXPECT_EQ(render("{{ t|tojson(ensure_ascii=False) }}", R"({"t": "天气 & <b>"})"),
            "\"天气 & <b>\"");
}

TEST(ChatTemplate, a_guard_is_never_escaped) {
  const std::string guarded = demo_tokenizer().guard("<|user|>é");
  EXPECT_EQ(
      *parse("{{ t|tojson(ensure_ascii=true) }}")->render(Json(Json::Object{{"t", Json(guarded)}})),
      "\"" + guarded.substr(0, guarded.size() - 2) + "\\u00e9\"");
}

TEST(ChatTemplate, strftime_now_gives_the_local_day) {
  char today[64];
  for (int attempt = 0; attempt < 2; ++attempt) {  // midnight may pass once
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    std::strftime(today, sizeof today, "%d %b %Y", &parts);
    if (render("{{ strftime_now('%d %b %Y') }}") == today) break;
  }
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}"), today);
  EXPECT_EQ(render("[{{ strftime_now('') }}]"), "[]");
}

TEST(ChatTemplate, reaching_for_python_internals_gives_an_undefined_error) {
  for (const char* source :
       {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ x.__globals__['os'].popen('id') }}",
        "{{ messages.__init__.__globals__ }}", "{{ raise_exception.__globals__.x }}",
        "{{ self._TemplateReference__context.x }}", "{{ cycler.__init__.__globals__.os }}",
        "{{ (''|attr('__class__')).__base__ }}", "{{ namespace.__init__.__globals__ }}"}) {
    SCOPED_TRACE(source);
    const std::string message = refusal(source, R"({"x": {}, "messages": []})").message;
    EXPECT_NE(message.find("undefined"), std::string::npos) << message;
  }
}

TEST(ChatTemplate, files_and_other_templates_cannot_be_reached) {
  for (const char* source : {"{% include '/etc/passwd' %}", "{% import 'os' as os %}",
                             "{% extends 'x' %}", "{% from 'x' import y %}"}) {
    const auto parsed = ChatTemplate::parse(source, "t");
    if (parsed.has_value()) {
      EXPECT_FALSE((*parsed)->render(Json(Json::Object{})).has_value()) << source;
    } else {
      EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
    }
  }
}

TEST(ChatTemplate, endless_work_is_cut_off) {
  for (const char* source : {
           "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
           "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}"
           "{% endfor %}{{ ns.v }}",
           "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}"
           "{% endfor %}{{ ns.v|tojson }}",
           "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', "
           "'xxxxxxxx') %}{% endfor %}",
           "{{ 'x' * 10000000000 }}",
           "{{ '%1000000000d'|format(1) }}",
       }) {
    SCOPED_TRACE(source);
    EXPECT_LT(refusal(source).seconds, 60.0);
  }
}

TEST(ChatTemplate, output_is_bounded) {
  const Timed result =
      refusal("{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}");
  EXPECT_NE(result.message.find("64 MiB"), std::string::npos) << result.message;
}

TEST(ChatTemplate, recursion_is_bounded) {
  EXPECT_FALSE(refusal("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}").message.empty());
  EXPECT_EQ(render("{% macro f(n) %}{{ f(n - 1) if n else 'end' }}{% endmacro %}{{ f(60) }}"),
            "end");
}

TEST(ChatTemplate, values_nested_as_deep_as_fuel_allows_are_survived) {
  for (const std::string wrapped : {"[ns.v]", "{'a': ns.v}"}) {
    const std::string source =
        "{% set ns = namespace(v=[]) %}{% for j in range(12) %}{% for i in range(99999) %}"
        "{% set ns.v = " +
        wrapped + " %}{% endfor %}{% endfor %}{{ 'a' ~ ns.v }}";
    EXPECT_FALSE(refusal(source).message.empty());
  }
}

TEST(ChatTemplate, deeply_nested_values_are_survived) {
  const std::string build =
      "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% set ns.v = [ns.v] %}"
      "{% endfor %}{% for i in range(99999) %}{% set ns.v = [ns.v] %}{% endfor %}";
  EXPECT_EQ(render(build + "ok"), "ok");
  EXPECT_FALSE(refusal(build + "{{ ns.v|tojson }}").message.empty());
  EXPECT_FALSE(refusal(build + "{{ ns.v }}").message.empty());
}

TEST(ChatTemplate, deeply_nested_variables_are_refused) {
  Json deep;
  for (int i = 0; i < 2000; ++i) deep = Json(Json::Array{std::move(deep)});
  EXPECT_FALSE(parse("x")->render(Json(Json::Object{{"v", std::move(deep)}})).has_value());
}

TEST(ChatTemplate, deeply_nested_source_is_refused) {
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"(", ")"}, {"[", "]"}, {"{'a':", "}"}, {"-", ""}, {"not ", ""}}) {
    std::string source = "{{ ";
    for (int i = 0; i < 20000; ++i) source += open;
    source += "1";
    for (int i = 0; i < 20000; ++i) source += close;
    source += " }}";
    const auto parsed = ChatTemplate::parse(source, "deep");
    if (parsed.has_value()) {
      const auto text = (*parsed)->render(Json(Json::Object{}));  // must come back
      (void)text;
    } else {
      EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
    }
  }
  std::string blocks;
  for (int i = 0; i < 20000; ++i) blocks += "{% if true %}";
  for (int i = 0; i < 20000; ++i) blocks += "{% endif %}";
  EXPECT_FALSE(ChatTemplate::parse(blocks, "deep").has_value());
}

TEST(ChatTemplate, a_template_that_does_not_parse_gives_line_and_column) {
  const auto refused = [](std::string_view source) {
    const auto parsed = ChatTemplate::parse(source, "chat_template.jinja");
    EXPECT_FALSE(parsed.has_value()) << source;
    if (parsed.has_value()) return std::string();
    EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(parsed.error().message.starts_with("chat_template.jinja: "));
    return parsed.error().message;
  };
  EXPECT_NE(refused("ok\nä {% foo %}").find("line 2 column 6"), std::string::npos);
  EXPECT_NE(refused("{{ 1 + }}").find("line 1 column 8"), std::string::npos);
  EXPECT_NE(refused("a\nb\n{% if x %}").find("line 3"), std::string::npos);
  EXPECT_NE(refused("{{ 'abc }}").find("line 1"), std::string::npos);
}

TEST(ChatTemplate, a_run_time_error_names_the_line) {
  EXPECT_NE(refusal("\n\n{{ nothing.at.all }}").message.find("line 3"), std::string::npos);
}

TEST(ChatTemplate, source_is_kept_as_given) {
  const std::string source = "{% generation %}x{% endgeneration %}\n";
  EXPECT_EQ(parse(source)->source(), source);
}

}  // namespace
}  // namespace glint
