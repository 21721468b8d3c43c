// Fields of a turn that several endpoints take in the same words: which tool to call, and how much
// to think. Readers report errors through the FieldReader.
#pragma once

#include <string_view>

#include "base/json.h"
#include "server/api_call.h"
#include "server/field_reader.h"

namespace glint {

// "none", "auto", "required", an object that names a tool, or allowed_tools; `field` is its path.
void read_tool_choice(FieldReader& fields, std::string_view field, const Json& choice,
                      ToolChoice& out);

// chat_template_kwargs, thinking_token_budget, reasoning_effort, thinking, reasoning,
// include_reasoning. Returns whether thoughts are to be shown.
bool read_thinking(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat);

}  // namespace glint
