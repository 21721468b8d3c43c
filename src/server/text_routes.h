// Endpoints that need the tokenizer and the templates, and never run the model.
#pragma once

#include <expected>
#include <string_view>

#include "base/json.h"
#include "server/api_call.h"
#include "server/served_model.h"

namespace glint {

std::expected<Json, ApiError> tokenize(const ServedModel& model, std::string_view body);
std::expected<Json, ApiError> detokenize(const ServedModel& model, std::string_view body);
std::expected<Json, ApiError> apply_template(const ServedModel& model, std::string_view body);

using ParseCall = std::expected<ApiCall, ApiError> (*)(std::string_view body,
                                                       const ApiSettings& settings);

// {"model", "token_ids", "features": null} of a generating endpoint's body.
std::expected<Json, ApiError> render_call(const ServedModel& model, std::string_view body,
                                          ParseCall parse);
// {"object": "response.input_tokens", "input_tokens": N}
std::expected<Json, ApiError> count_call(const ServedModel& model, std::string_view body,
                                         ParseCall parse);

template <ParseCall parse>
std::expected<Json, ApiError> render(const ServedModel& model, std::string_view body) {
  return render_call(model, body, parse);
}
template <ParseCall parse>
std::expected<Json, ApiError> count_input(const ServedModel& model, std::string_view body) {
  return count_call(model, body, parse);
}

}  // namespace glint
