#include "text/output_format.h"

#include <gtest/gtest.h>

#include "text_fixture.h"

namespace glint {
namespace {

constexpr ToolFormat kAllFormats[] = {
    ToolFormat::kNone,        ToolFormat::kGlm45,       ToolFormat::kGlm47, ToolFormat::kDeepSeekV3,
    ToolFormat::kDeepSeekV31, ToolFormat::kDeepSeekV32, ToolFormat::kKimiK2};

// As the families' templates write a call.
constexpr std::string_view kLines =
    "{{ '<tool_call>' + f.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>";
constexpr std::string_view kCompact =
    "{{ '<tool_call>' + f.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>";
constexpr std::string_view kV3 =
    "'<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.name + '\\n```json\\n' + c.arguments";
constexpr std::string_view kV31 =
    "'<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments";
constexpr std::string_view kV32 = "<｜DSML｜invoke name=\"$TOOL_NAME\">";
constexpr std::string_view kKimi = "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>";

TEST(OutputFormat, names_lead_back_to_their_formats) {
  for (const ToolFormat format : kAllFormats) {
    EXPECT_EQ(tool_format_named(name_of(format)), format);
    EXPECT_NE(tool_format_names().find(name_of(format)), std::string::npos);
  }
  EXPECT_EQ(tool_format_names(),
            "glm45, glm47, deepseek_v3, deepseek_v31, deepseek_v32, kimi_k2, none");
  EXPECT_EQ(tool_format_named("glm"), std::nullopt);
  EXPECT_EQ(tool_format_named(""), std::nullopt);
  EXPECT_EQ(tool_format_named("think"), std::nullopt);
}

TEST(OutputFormat, every_reasoning_parser_of_these_families_is_think) {
  for (const char* name : {"think", "glm45", "glm47", "deepseek_r1", "deepseek_v3", "deepseek_v31",
                           "deepseek_v32", "kimi_k2", "qwen3"}) {
    EXPECT_EQ(reasoning_format_named(name), ReasoningFormat::kThink) << name;
  }
  EXPECT_EQ(reasoning_format_named("none"), ReasoningFormat::kNone);
  EXPECT_EQ(reasoning_format_named("granite"), std::nullopt);
  for (const ReasoningFormat format : {ReasoningFormat::kNone, ReasoningFormat::kThink}) {
    EXPECT_EQ(reasoning_format_named(name_of(format)), format);
  }
}

TEST(OutputFormat, the_form_of_glm_calls_is_read_from_the_template) {
  EXPECT_EQ(guess_tool_format("glm4_moe", kLines), ToolFormat::kGlm45);
  EXPECT_EQ(guess_tool_format("glm4_moe", kCompact), ToolFormat::kGlm47);
  EXPECT_EQ(guess_tool_format("glm4_moe", "'</arg_key>\\n<arg_value>' '<arg_key>'"),
            ToolFormat::kGlm45);
  EXPECT_EQ(guess_tool_format("glm4_moe", "<arg_key>x</arg_key>\r\n<arg_value>"),
            ToolFormat::kGlm45);
  EXPECT_EQ(guess_tool_format("glm4_moe_lite", read_source_file("models/demo/chat_template.jinja")),
            ToolFormat::kGlm47);
  // Written in pieces that say nothing of what lies between: the type decides.
  constexpr std::string_view kPieces = "'<arg_key>' + k + '</arg_key>' + nl + '<arg_value>'";
  EXPECT_EQ(guess_tool_format("glm4_moe", kPieces), ToolFormat::kGlm45);
  EXPECT_EQ(guess_tool_format("glm_moe_dsa", kPieces), ToolFormat::kGlm47);
}

TEST(OutputFormat, without_a_template_the_type_decides) {
  EXPECT_EQ(guess_tool_format("glm4_moe", ""), ToolFormat::kGlm45);
  for (const char* type : {"glm4_moe_lite", "glm_moe_dsa", "glm5_next"}) {
    EXPECT_EQ(guess_tool_format(type, "no tools here"), ToolFormat::kGlm47) << type;
  }
  EXPECT_EQ(guess_tool_format("deepseek_v32", ""), ToolFormat::kDeepSeekV32);
  EXPECT_EQ(guess_tool_format("kimi_k2", ""), ToolFormat::kKimiK2);
  EXPECT_EQ(guess_tool_format("kimi_k25", ""), ToolFormat::kKimiK2);
}

TEST(OutputFormat, other_families_are_told_by_their_templates) {
  EXPECT_EQ(guess_tool_format("deepseek_v3", kV3), ToolFormat::kDeepSeekV3);
  EXPECT_EQ(guess_tool_format("deepseek_v3", kV31), ToolFormat::kDeepSeekV31);
  EXPECT_EQ(guess_tool_format("deepseek_v32", kV32), ToolFormat::kDeepSeekV32);
  // One type, two templates: what is written is what is read.
  EXPECT_EQ(guess_tool_format("deepseek_v32", kV31), ToolFormat::kDeepSeekV31);
  EXPECT_EQ(guess_tool_format("deepseek_v3", kKimi), ToolFormat::kKimiK2);
  EXPECT_EQ(guess_tool_format("", kKimi), ToolFormat::kKimiK2);
  EXPECT_EQ(guess_tool_format("something", kLines), ToolFormat::kGlm45);
  EXPECT_EQ(guess_tool_format("something", kCompact), ToolFormat::kGlm47);
  EXPECT_EQ(guess_tool_format("something", kV3), ToolFormat::kDeepSeekV3);
  EXPECT_EQ(guess_tool_format("something", kV32), ToolFormat::kDeepSeekV32);
  EXPECT_EQ(guess_tool_format("llama", "{{ messages }}"), ToolFormat::kNone);
  EXPECT_EQ(guess_tool_format("", ""), ToolFormat::kNone);
}

TEST(OutputFormat, tokens_are_those_of_the_tokenizer) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(guess_reasoning_format(tokenizer), ReasoningFormat::kThink);
  EXPECT_EQ(think_token(tokenizer), tokenizer.token_id("<think>"));
  EXPECT_EQ(think_end_token(tokenizer), tokenizer.token_id("</think>"));
  EXPECT_EQ(call_token(ToolFormat::kGlm45, tokenizer), tokenizer.token_id("<tool_call>"));
  EXPECT_EQ(call_token(ToolFormat::kGlm47, tokenizer), tokenizer.token_id("<tool_call>"));
  for (const ToolFormat format : {ToolFormat::kNone, ToolFormat::kDeepSeekV3,
                                  ToolFormat::kDeepSeekV32, ToolFormat::kKimiK2}) {
    EXPECT_EQ(call_token(format, tokenizer), std::nullopt) << name_of(format);
  }
}

}  // namespace
}  // namespace glint
