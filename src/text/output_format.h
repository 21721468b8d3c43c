// The ways in which model families write thoughts and tool calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace glint {

enum class ToolFormat {
  kNone,         // markup is content
  kGlm45,        // GLM-4.5, 4.6: newlines around keys and values
  kGlm47,        // GLM-4.7 and later: compact
  kDeepSeekV3,   // function<sep>NAME, arguments in a ```json block
  kDeepSeekV31,  // NAME<sep>ARGUMENTS
  kDeepSeekV32,  // DSML invoke and parameter elements
  kKimiK2,       // functions.NAME:INDEX
};

enum class ReasoningFormat { kNone, kThink };  // kThink: <think> ... </think>

// "glm45", "glm47", "deepseek_v3", "deepseek_v31", "deepseek_v32", "kimi_k2", "none".
std::optional<ToolFormat> tool_format_named(std::string_view name);
// Besides "none" and "think": the tool formats' names and vLLM's, which all mean kThink.
std::optional<ReasoningFormat> reasoning_format_named(std::string_view name);
std::string_view name_of(ToolFormat format);
std::string_view name_of(ReasoningFormat format);
// For errors and --help: "glm45, glm47, ...".
std::string tool_format_names();

// What a checkpoint's model_type and template text say. kNone where neither is known.
ToolFormat guess_tool_format(std::string_view model_type, std::string_view template_source);
// kThink when the tokenizer has both tokens of it.
ReasoningFormat guess_reasoning_format(const Tokenizer& tokenizer);

// The token that opens a call (or the section of calls); nothing when the tokenizer lacks it. Of
// DeepSeek V3.2, whose tags are spelled, its DSML token.
std::optional<std::int32_t> call_token(ToolFormat format, const Tokenizer& tokenizer);
// An added token, by its text.
std::optional<std::int32_t> added_token(const Tokenizer& tokenizer, std::string_view text);
// </think>
std::optional<std::int32_t> think_end_token(const Tokenizer& tokenizer);
std::optional<std::int32_t> think_token(const Tokenizer& tokenizer);

}  // namespace glint
