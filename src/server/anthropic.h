// POST /v1/messages and /v1/messages/count_tokens, and the list of models in the same API's words.
// Fields nobody knows are ignored and listed; fields that are known and cannot be honoured are
// refused.
#pragma once

#include <expected>
#include <string_view>

#include "base/json.h"
#include "server/api_call.h"
#include "server/served_model.h"

namespace glint {

std::expected<ApiCall, ApiError> parse_messages_call(std::string_view body,
                                                     const ApiSettings& settings);

// {"input_tokens": N} of a body that needs no max_tokens.
std::expected<Json, ApiError> count_message_tokens(const ServedModel& model, std::string_view body);

// An entry of /v1/models as this API has it, and the whole list of them.
Json anthropic_model(const Json& openai_model);
Json anthropic_models(const Json& openai_models);

}  // namespace glint
