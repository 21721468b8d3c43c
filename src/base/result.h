// Errors as values. Input from outside (files, configs, requests, the environment) and exhausted
// resources travel through Result; a programmer's mistake goes through GLINT_CHECK (check.h).
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace glint {

// What kind of failure, so that a program can pick an exit code or a status line.
enum class ErrorCode {
  kInvalidArgument,  // the caller or client asked for something malformed
  kUnsupported,      // understood, named, and not implemented by this build
  kNotFound,         // a file, tensor, model or route that does not exist
  kCorrupt,          // a file that contradicts its own format or its siblings
  kIo,               // the operating system said no
  kExhausted,        // memory, pages, queue room
  kCancelled,        // the owner gave the work up
  kInternal,         // an invariant of ours failed at run time (for example NaN logits)
};

// A code and one or two sentences naming the file, tensor, field or value, and the remedy if there
// is one.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// std::expected with [[nodiscard]] on the class itself: g++ lets a bare alias be dropped in
// silence.
template <typename T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using Base = std::expected<T, Error>;
  using Base::Base;
  Result(Error error)
      : Base(std::unexpected(std::move(error))) {}  // NOLINT(google-explicit-constructor)
};

using Status = Result<void>;

inline Error invalid_argument(std::string m) {
  return {ErrorCode::kInvalidArgument, std::move(m)};
}
inline Error unsupported(std::string m) {
  return {ErrorCode::kUnsupported, std::move(m)};
}
inline Error not_found(std::string m) {
  return {ErrorCode::kNotFound, std::move(m)};
}
inline Error corrupt(std::string m) {
  return {ErrorCode::kCorrupt, std::move(m)};
}
inline Error io_error(std::string m) {
  return {ErrorCode::kIo, std::move(m)};
}
inline Error exhausted(std::string m) {
  return {ErrorCode::kExhausted, std::move(m)};
}
inline Error cancelled(std::string m) {
  return {ErrorCode::kCancelled, std::move(m)};
}
inline Error internal_error(std::string m) {
  return {ErrorCode::kInternal, std::move(m)};
}

}  // namespace glint

#define GLINT_CONCAT_INNER(a, b) a##b
#define GLINT_CONCAT(a, b) GLINT_CONCAT_INNER(a, b)

// GLINT_TRY(auto x, f()): binds the value, or returns the error to the caller.
#define GLINT_TRY(declaration, expression)                        \
  auto&& GLINT_CONCAT(glint_try_, __LINE__) = (expression);       \
  if (!GLINT_CONCAT(glint_try_, __LINE__).has_value()) {          \
    return std::move(GLINT_CONCAT(glint_try_, __LINE__)).error(); \
  }                                                               \
  declaration = std::move(*GLINT_CONCAT(glint_try_, __LINE__))

// GLINT_TRY_VOID(f()): the same for a Status.
#define GLINT_TRY_VOID(expression)                                                 \
  do {                                                                             \
    auto&& glint_try_status = (expression);                                        \
    if (!glint_try_status.has_value()) return std::move(glint_try_status).error(); \
  } while (false)
