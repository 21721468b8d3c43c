// Errors: which status, type and code each of our failures gets.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "server/http.h"

namespace glint {

struct ApiError {
  int status = 500;
  std::string type = "server_error";
  std::string code;   // empty: null
  std::string param;  // the JSON path; empty: null
  std::string message;
};

ApiError bad_request(std::string param, std::string message, std::string code = "invalid_value");
// The error of a status that HTTP itself produced, or that needs no more than its text.
ApiError error_of_status(int status, std::string message);
ApiError loading_error();
ApiError draining_error();
ApiError memory_error();

// What a failed turn tells its client. "FIELD: what" messages name their field in `param`.
ApiError error_of(const Error& error);

Json error_object(const ApiError& error);  // {"error": {...}}
// With Retry-After and WWW-Authenticate where they belong.
HttpResponse error_response(const ApiError& error);

// The words that errors are told in.
enum class ErrorShape { kOpenAi, kAnthropic };
// {"type": "error", "error": {"type", "message"}, "request_id"}, the last only when there is one
Json anthropic_error_object(const ApiError& error, const std::string& request_id);
HttpResponse error_response(const ApiError& error, ErrorShape shape, const std::string& request_id);

}  // namespace glint
