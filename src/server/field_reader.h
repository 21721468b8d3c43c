// Typed reading of one JSON object from a client: null counts as absent, the first error is kept
// with its path, and names that nobody asked for can be listed afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace glint {

class FieldReader {
 public:
  // Borrows `object`. `prefix` stands before names in errors: "stream_options." for example.
  explicit FieldReader(const Json& object, std::string prefix = "");

  // The value, or nullptr when absent or null.
  const Json* get(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  bool boolean_or(std::string_view name, bool otherwise) {
    return boolean(name).value_or(otherwise);
  }
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<float> number(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);

  // Remembers the error unless there is one already.
  void fail(std::string_view name, std::string_view what, std::string code = "invalid_value");
  void fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }
  void adopt(const FieldReader& inner);  // takes over its error

  void ignore(std::string_view name) { asked_.insert(std::string(name)); }
  std::vector<std::string> unknown_names() const;

 private:
  void fail_type(std::string_view name, std::string_view wanted, const Json& value);
  const Json& object_;
  const std::string prefix_;
  std::set<std::string, std::less<>> asked_;
  std::optional<ApiError> error_;
};

// An integer, or a float without fraction.
std::optional<std::int64_t> integer_value(const Json& value);

}  // namespace glint
