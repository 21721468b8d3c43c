// POST /v1/responses: its body as a call. Nothing is stored: what refers to stored responses or
// items is refused, and every answer can be sent back as the next request's input.
#pragma once

#include <expected>
#include <string_view>

#include "server/api_call.h"

namespace glint {

std::expected<ApiCall, ApiError> parse_responses_call(std::string_view body,
                                                      const ApiSettings& settings);

}  // namespace glint
