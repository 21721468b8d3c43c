// Fields that mean the same on several endpoints. Readers report errors through the FieldReader.
#pragma once

#include <expected>
#include <string_view>

#include "base/json.h"
#include "server/api_call.h"
#include "server/field_reader.h"

namespace glint {

// A body as a JSON object, bounded in values.
std::expected<Json, ApiError> parse_body(std::string_view body);

// temperature, top_p, top_k, min_p, penalties, seed, logit_bias, allowed_token_ids, bad_words
void read_sampling(FieldReader& fields, ChatRequest& chat);
// stop, stop_token_ids, ignore_eos, min_tokens, skip_special_tokens, truncate_prompt_tokens
void read_limits(FieldReader& fields, ChatRequest& chat);
// response_format, structured_outputs, guided_*, grammar, json_schema: at most one of them
void read_answer_format(FieldReader& fields, ChatRequest& chat);
// {"type": "json_schema" | "json_object" | "text", ...} of response_format and text.format; `name`
// is its path.
void read_format_object(FieldReader& fields, std::string_view name, const Json& format,
                        ChatRequest& chat);
// cache_salt, priority, return_progress, stream_interval
void read_serving(FieldReader& fields, const ApiSettings& settings, ApiCall& call,
                  ChatRequest& chat);
// reasoning_effort's word and its budget, unless a budget is set
void apply_effort(const ApiSettings& settings, const std::string& effort, ChatRequest& chat);
// Those that are accepted for their clients' sake, and those that are refused by name.
void read_others(FieldReader& fields);

std::optional<int> as_int(std::optional<std::int64_t> value);

}  // namespace glint
