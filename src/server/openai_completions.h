// POST /v1/completions: text in, text out, one choice or more of each prompt.
#pragma once

#include <expected>
#include <string_view>

#include "server/api_call.h"

namespace glint {

std::expected<ApiCall, ApiError> parse_completions_call(std::string_view body,
                                                        const ApiSettings& settings);

}  // namespace glint
