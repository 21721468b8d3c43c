// The chat page that is served at `/`: files compiled into the program, and the headers they go out
// with. It loads nothing from anywhere else, and its policy forbids it to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace glint {

inline constexpr std::string_view kPageContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

struct PageFile {
  std::string_view path;  // "/" or "/page/NAME"
  std::string_view content_type;
  std::string_view body;
  std::string etag;  // with its quotes; changes with the body
};

// The file at the path of a request, or null.
const PageFile* find_page_file(std::string_view path);

// The answer to GET or HEAD of a page's file, with its headers; 304 when the browser has it
// already. Nothing when the path is not the page's.
std::optional<HttpResponse> page_response(const HttpRequest& request);

}  // namespace glint
