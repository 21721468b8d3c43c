#include "text/output_format.h"

#include <algorithm>

namespace glint {
namespace {

struct ToolFormatRow {
  ToolFormat format;
  std::string_view name;
  // Tokens that open a call or the section of calls; the first that the tokenizer has counts.
  std::string_view opening = {};
  std::string_view other_opening = {};
};

constexpr ToolFormatRow kToolFormats[] = {
    {ToolFormat::kGlm45, "glm45", "<tool_call>"},
    {ToolFormat::kGlm47, "glm47", "<tool_call>"},
    {ToolFormat::kDeepSeekV3, "deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
    {ToolFormat::kDeepSeekV31, "deepseek_v31", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
    {ToolFormat::kDeepSeekV32, "deepseek_v32", "<｜DSML｜function_calls>", "｜DSML｜"},
    {ToolFormat::kKimiK2, "kimi_k2", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
    {ToolFormat::kNone, "none"}};

// vLLM's parsers that read <think>, besides those named like a tool format.
constexpr std::string_view kThinkNames[] = {"think", "deepseek_r1", "deepseek_v4", "qwen3"};

const ToolFormatRow& row_of(ToolFormat format) {
  return *std::ranges::find(kToolFormats, format, &ToolFormatRow::format);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// What a template writes between a key and its value: an actual line break, or one in a string.
std::size_t line_breaks_at(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const std::string_view rest = text.substr(size);
    if (rest.starts_with("\\n") || rest.starts_with("\\r")) {
      size += 2;
    } else if (rest.front() == '\n' || rest.front() == '\r') {
      ++size;
    } else {
      break;
    }
  }
  return size;
}

// How the template joins keys and values, where it does so in one place.
std::optional<ToolFormat> glm_form(std::string_view source) {
  constexpr std::string_view kKeyEnd = "</arg_key>";
  for (std::size_t at = 0; (at = source.find(kKeyEnd, at)) != std::string_view::npos;) {
    at += kKeyEnd.size();
    const std::size_t breaks = line_breaks_at(source.substr(at));
    if (source.substr(at + breaks).starts_with("<arg_value>")) {
      return breaks == 0 ? ToolFormat::kGlm47 : ToolFormat::kGlm45;
    }
  }
  return std::nullopt;
}

// The family of the markup that the template writes. Checkpoints get new templates after their
// release, so this wins over the model's type.
std::optional<ToolFormat> format_by_template(std::string_view model_type, std::string_view source) {
  if (contains(source, "<arg_key>")) {
    if (const auto form = glm_form(source)) return form;
    return model_type == "glm4_moe" ? ToolFormat::kGlm45 : ToolFormat::kGlm47;
  }
  if (contains(source, "<|tool_call_argument_begin|>")) return ToolFormat::kKimiK2;
  if (contains(source, "｜DSML｜")) return ToolFormat::kDeepSeekV32;
  if (contains(source, "<｜tool▁sep｜>")) {
    return contains(source, "```json") ? ToolFormat::kDeepSeekV3 : ToolFormat::kDeepSeekV31;
  }
  return std::nullopt;
}

ToolFormat format_by_type(std::string_view model_type) {
  if (model_type == "glm4_moe") return ToolFormat::kGlm45;
  for (const std::string_view type : {"glm4_moe_lite", "glm_moe_dsa", "glm5_next"}) {
    if (model_type == type) return ToolFormat::kGlm47;
  }
  if (model_type == "deepseek_v3") return ToolFormat::kDeepSeekV31;
  if (model_type == "deepseek_v32") return ToolFormat::kDeepSeekV32;
  if (model_type.starts_with("kimi_k2")) return ToolFormat::kKimiK2;
  return ToolFormat::kNone;
}

}  // namespace

std::optional<ToolFormat> tool_format_named(std::string_view name) {
  const auto* row = std::ranges::find(kToolFormats, name, &ToolFormatRow::name);
  if (row == std::end(kToolFormats)) return std::nullopt;
  return row->format;
}

std::optional<ReasoningFormat> reasoning_format_named(std::string_view name) {
  if (name == "none") return ReasoningFormat::kNone;
  const bool known =
      tool_format_named(name) || std::ranges::find(kThinkNames, name) != std::end(kThinkNames);
  return known ? std::optional(ReasoningFormat::kThink) : std::nullopt;
}

std::string_view name_of(ToolFormat format) {
  return row_of(format).name;
}

std::string_view name_of(ReasoningFormat format) {
  return format == ReasoningFormat::kThink ? "think" : "none";
}

std::string tool_format_names() {
  std::string names;
  for (const ToolFormatRow& row : kToolFormats) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

ToolFormat guess_tool_format(std::string_view model_type, std::string_view template_source) {
  return format_by_template(model_type, template_source).value_or(format_by_type(model_type));
}

ReasoningFormat guess_reasoning_format(const Tokenizer& tokenizer) {
  return think_token(tokenizer) && think_end_token(tokenizer) ? ReasoningFormat::kThink
                                                              : ReasoningFormat::kNone;
}

std::optional<std::int32_t> call_token(ToolFormat format, const Tokenizer& tokenizer) {
  const ToolFormatRow& row = row_of(format);
  if (const auto id = added_token(tokenizer, row.opening)) return id;
  return added_token(tokenizer, row.other_opening);
}

std::optional<std::int32_t> added_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<std::int32_t> id = tokenizer.token_id(text);
  return id && tokenizer.is_added(*id) ? id : std::nullopt;
}

std::optional<std::int32_t> think_end_token(const Tokenizer& tokenizer) {
  return added_token(tokenizer, "</think>");
}

std::optional<std::int32_t> think_token(const Tokenizer& tokenizer) {
  return added_token(tokenizer, "<think>");
}

}  // namespace glint
