// The Rust text crate behind our own types. The only file that includes its C header is
// rust_bridge.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

// A place in a grammar. Not safe from two threads at once.
class RustMatcher {
 public:
  // One bit per token into `words`, which are enough for the vocabulary. Errors: kInvalidArgument
  // when it is too much work.
  Status mask(std::span<std::uint32_t> words);
  Result<bool> accept(std::int32_t token);  // false: not allowed here, and nothing changed
  Status rollback(int count);
  Result<int> num_allowed(std::span<const std::int32_t> tokens);
  struct Place {
    bool complete = false;
    bool stopped = false;
  };
  Result<Place> place() const;

 private:
  friend class RustGrammar;
  struct Free {
    void operator()(void* handle) const;
  };
  explicit RustMatcher(void* handle) : handle_(handle) {}
  std::unique_ptr<void, Free> handle_;
};

class RustGrammar {
 public:
  enum class Kind { kJsonSchema, kRegex, kLark };
  Result<RustMatcher> start() const;

 private:
  friend class RustVocabulary;
  struct Free {
    void operator()(void* handle) const;
  };
  explicit RustGrammar(void* handle) : handle_(handle) {}
  std::unique_ptr<void, Free> handle_;
};

// A tokenizer's tokens as grammars see them.
class RustVocabulary {
 public:
  struct Token {
    std::string_view bytes;  // empty: never allowed
    bool marker = false;     // allowed only where a grammar names it
  };
  // Errors: kInvalidArgument, kUnsupported.
  static Result<RustVocabulary> make(std::span<const Token> tokens,
                                     std::span<const std::int32_t> end_tokens);
  // Errors: kInvalidArgument.
  Result<RustGrammar> compile(RustGrammar::Kind kind, std::string_view text) const;

 private:
  struct Free {
    void operator()(void* handle) const;
  };
  explicit RustVocabulary(void* handle) : handle_(handle) {}
  std::unique_ptr<void, Free> handle_;
};

}  // namespace glint
