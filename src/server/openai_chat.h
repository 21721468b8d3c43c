// POST /v1/chat/completions: its body as a call, and its answers. Fields nobody knows are ignored
// and listed; fields that are known and cannot be honoured are refused.
#pragma once

#include <expected>
#include <string_view>

#include "server/api_call.h"

namespace glint {

std::expected<ApiCall, ApiError> parse_chat_call(std::string_view body,
                                                 const ApiSettings& settings);

}  // namespace glint
