#include "server/api_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace glint {
namespace {

// Clients know a prompt that is too long by these words.
constexpr std::string_view kContextPhrase = "maximum context length is ";

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// "messages[2].content: must be ..." -> "messages[2].content"; empty when the message names no
// field.
std::string field_of(std::string_view message) {
  const std::size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view field = message.substr(0, colon);
  const bool is_path = std::ranges::all_of(field, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '[' || c == ']' || c == '$' || c == '-';
  });
  return is_path ? std::string(field) : std::string();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Whether it is about a schema or grammar of the request.
bool names_a_schema(std::string_view message) {
  constexpr std::array<std::string_view, 6> kFields = {
      "response_format", "structured_outputs", "guided_", "grammar:", "json_schema", "text.format"};
  return std::ranges::any_of(kFields, [&](auto field) { return message.starts_with(field); }) ||
         (message.starts_with("tools[") && contains(message, ".parameters"));
}

ApiError client_error(const Error& error) {
  std::string code = error.code == ErrorCode::kUnsupported ? "unsupported_value" : "invalid_value";
  if (contains(error.message, kContextPhrase)) code = "context_length_exceeded";
  if (contains(error.message, "the chat template refused") || error.code == ErrorCode::kNotFound) {
    code = "template_error";
  }
  if (names_a_schema(error.message)) code = "invalid_schema";
  return bad_request(field_of(error.message), error.message, std::move(code));
}

}  // namespace

ApiError bad_request(std::string param, std::string message, std::string code) {
  return {400, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
}

ApiError error_of_status(int status, std::string message) {
  const char* type = "invalid_request_error";
  if (status == 401) type = "authentication_error";
  if (status == 403) type = "permission_error";
  if (status == 404) type = "not_found_error";
  if (status == 429) type = "rate_limit_error";
  if (status == 500) type = "server_error";
  if (status == 501) type = "not_supported_error";
  if (status == 503) type = "unavailable_error";
  return {status, type, "", "", std::move(message)};
}

ApiError loading_error() {
  return {503, "unavailable_error", "loading", "", "Loading model"};
}

ApiError draining_error() {
  return {503, "unavailable_error", "draining", "",
          "The server is shutting down; no new requests are taken."};
}

ApiError memory_error() {
  return {
      503, "unavailable_error", "memory_limit", "",
      "The server is at its limit of memory (--memory); try again when other requests have ended, "
      "or with a shorter one."};
}

ApiError error_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kNotFound:
      return client_error(error);
    case ErrorCode::kExhausted:
      return {429, "rate_limit_error", "queue_full", "", error.message};
    case ErrorCode::kCancelled:
      return draining_error();
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  log_error("a request failed: " + error.message);
  return {500, "server_error", "internal_error", "",
          "The model failed on this request; the server's log says why."};
}

Json error_object(const ApiError& error) {
  Json inner;
  inner.set("message", Json(error.message));
  inner.set("type", Json(error.type));
  inner.set("param", text_or_null(error.param));
  inner.set("code", text_or_null(error.code));
  Json out;
  out.set("error", std::move(inner));
  return out;
}

namespace {

void add_headers(const ApiError& error, HttpResponse& response) {
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 503) response.headers.emplace_back("Retry-After", "5");
  // It would take as long again.
  if (error.status == 408) response.headers.emplace_back("x-should-retry", "false");
}

// The number that follows `phrase`, or -1.
std::int64_t number_after(std::string_view text, std::string_view phrase) {
  const std::size_t at = text.find(phrase);
  if (at == std::string_view::npos) return -1;
  const char* begin = text.data() + at + phrase.size();
  std::int64_t number = -1;
  std::from_chars(begin, text.data() + text.size(), number);
  return number;
}

// Agents shorten their history when they read "prompt is too long: X tokens > Y maximum".
std::string anthropic_message(const ApiError& error) {
  if (error.code != "context_length_exceeded") return error.message;
  const std::int64_t prompt = number_after(error.message, "the prompt has ");
  const std::int64_t context = number_after(error.message, kContextPhrase);
  if (prompt < 0 || context < 0) return error.message;
  // The answer needs a token too, so that a prompt as long as the context is too long already.
  return fmt::format("prompt is too long: {} tokens > {} maximum", prompt,
                     std::min(context, prompt - 1));
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_object(error).dump();
  add_headers(error, response);
  return response;
}

Json anthropic_error_object(const ApiError& error, const std::string& request_id) {
  Json inner;
  inner.set("type", Json(anthropic_type(error.status)));
  inner.set("message", Json(anthropic_message(error)));
  Json out;
  out.set("type", Json("error"));
  out.set("error", std::move(inner));
  if (!request_id.empty()) out.set("request_id", Json(request_id));
  return out;
}

HttpResponse error_response(const ApiError& error, ErrorShape shape,
                            const std::string& request_id) {
  if (shape == ErrorShape::kOpenAi) return error_response(error);
  HttpResponse response;
  constexpr int kOverloaded = 529;
  response.status = error.status == 503 ? kOverloaded : error.status;
  response.body = anthropic_error_object(error, request_id).dump();
  add_headers(error, response);
  return response;
}

}  // namespace glint
