// The Rust text crate behind our own types. The only file that includes its C header is
// rust_bridge.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace glint {

class RustTokenizer {
 public:
  enum class Mode { kMarkers, kPlain, kGuarded };
  struct Token {
    std::string_view bytes;  // valid as long as the RustTokenizer
    bool known = false;
    bool added = false;
    bool special = false;
  };

  // Errors: kCorrupt, kUnsupported.
  static Result<RustTokenizer> from_json(std::string_view json);

  Result<std::vector<std::int32_t>> encode(std::string_view text, Mode mode) const;
  Result<std::string> guard(std::string_view text) const;
  Token token(std::int32_t id) const;
  std::optional<std::int32_t> find(std::string_view content) const;
  int size() const;  // one past the largest id

 private:
  struct Free {
    void operator()(void* handle) const;
  };
  explicit RustTokenizer(void* handle) : handle_(handle) {}
  std::unique_ptr<void, Free> handle_;
};

class RustTemplate {
 public:
  // Errors: kCorrupt with line and column.
  static Result<RustTemplate> parse(std::string_view source);
  // `variables` is the text of a JSON object. Errors: kInvalidArgument.
  Result<std::string> render(std::string_view variables) const;

 private:
  struct Free {
    void operator()(void* handle) const;
  };
  explicit RustTemplate(void* handle) : handle_(handle) {}
  std::unique_ptr<void, Free> handle_;
};

}  // namespace glint
