// The text of HTTP that needs no socket: status lines, request targets, identifiers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace glint {

std::string_view status_text(int status);

// The status line and headers of a response. `framing` is its Content-Length or Transfer-Encoding
// line with its CRLF, or empty.
std::string response_head(const HttpResponse& response, std::string_view framing,
                          const HttpOptions& options, std::string_view request_id, bool keep_alive);

struct HttpTarget {
  std::string path;  // without one trailing slash; escapes of letters, digits and -._~ decoded
  std::string query;
  std::string authority;  // of the absolute form, that proxies get; else empty
};

// Nothing when the target is neither a path, an absolute http(s) URL nor "*", or has characters
// that are not visible ASCII.
std::optional<HttpTarget> parse_target(std::string_view target);

// %XX decoded; malformed escapes stay as they are.
std::string percent_decode(std::string_view text);

// 1 to 128 of A-Z a-z 0-9 . _ : -
bool is_request_id(std::string_view text);
// `length` characters of A-Z a-z 0-9, unpredictable. One generator per thread.
std::string random_name(int length);

std::string lower_case(std::string_view text);

}  // namespace glint
