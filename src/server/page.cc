#include "server/page.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

// GLINT_PAGE_DIR comes from the build and is read by the assembler only: no path ends up in the
// program.
#define GLINT_EMBED(symbol, file)          \
  asm(".pushsection .rodata\n"             \
      "glint_page_" symbol                 \
      ":\n"                                \
      ".incbin \"" GLINT_PAGE_DIR "/" file \
      "\"\n"                               \
      "glint_page_" symbol                 \
      "_end:\n"                            \
      ".byte 0\n"                          \
      ".global glint_page_" symbol         \
      "\n"                                 \
      ".hidden glint_page_" symbol         \
      "\n"                                 \
      ".global glint_page_" symbol         \
      "_end\n"                             \
      ".hidden glint_page_" symbol         \
      "_end\n"                             \
      ".popsection\n")

// X(symbol, file, path, content type) for every file of src/server/page.
#define GLINT_PAGE_FILES(X)                                                \
  X(index, "index.html", "/", "text/html; charset=utf-8")                  \
  X(style, "page.css", "/page/page.css", "text/css; charset=utf-8")        \
  X(icon, "icon.svg", "/page/icon.svg", "image/svg+xml")                   \
  X(api, "api.js", "/page/api.js", kJavaScript)                            \
  X(app, "app.js", "/page/app.js", kJavaScript)                            \
  X(code, "code.js", "/page/code.js", kJavaScript)                         \
  X(dom, "dom.js", "/page/dom.js", kJavaScript)                            \
  X(inline_text, "inline.js", "/page/inline.js", kJavaScript)              \
  X(markdown, "markdown.js", "/page/markdown.js", kJavaScript)             \
  X(message_view, "message_view.js", "/page/message_view.js", kJavaScript) \
  X(run, "run.js", "/page/run.js", kJavaScript)                            \
  X(settings, "settings.js", "/page/settings.js", kJavaScript)             \
  X(sidebar, "sidebar.js", "/page/sidebar.js", kJavaScript)                \
  X(store, "store.js", "/page/store.js", kJavaScript)                      \
  X(theme, "theme.js", "/page/theme.js", kJavaScript)

#define GLINT_EMBED_ONE(symbol, file, path, type) GLINT_EMBED(#symbol, file);
GLINT_PAGE_FILES(GLINT_EMBED_ONE)

#define GLINT_DECLARE(symbol, file, path, type) \
  extern const char glint_page_##symbol[];      \
  extern const char glint_page_##symbol##_end[];
extern "C" {
GLINT_PAGE_FILES(GLINT_DECLARE)
}

namespace glint {
namespace {

constexpr std::string_view kJavaScript = "text/javascript; charset=utf-8";

// FNV-1a: tells versions apart, guards nothing.
std::string etag_of(std::string_view body) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : body) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return fmt::format("\"{:016x}\"", hash);
}

PageFile page_file(std::string_view path, std::string_view type, const char* begin,
                   const char* end) {
  const std::string_view body(begin, end);
  return {path, type, body, etag_of(body)};
}

// Whether an If-None-Match header names this version. A proxy that compresses makes tags weak.
bool has_etag(std::string_view header, std::string_view etag) {
  return header == "*" || header.find(etag) != std::string_view::npos;
}

}  // namespace

const PageFile* find_page_file(std::string_view path) {
#define GLINT_FILE(symbol, file, path, type) \
  page_file(path, type, glint_page_##symbol, glint_page_##symbol##_end),
  static const std::array kFiles = {GLINT_PAGE_FILES(GLINT_FILE)};
  for (const PageFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

std::optional<HttpResponse> page_response(const HttpRequest& request) {
  const PageFile* file = find_page_file(request.path);
  if (file == nullptr) return std::nullopt;
  HttpResponse response;
  response.content_type = file->content_type;
  response.headers = {{"Content-Security-Policy", std::string(kPageContentSecurityPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"},
                      {"ETag", file->etag}};
  if (has_etag(request.header("if-none-match"), file->etag)) {
    response.status = 304;
  } else {
    response.body = file->body;
  }
  return response;
}

}  // namespace glint
