// An ordered JSON value, and a parser hardened for input from outside: bounded depth, UTF-8
// checked, size checked by the caller. Objects keep the order of their keys, since order reaches
// the prompt. The parsing library stays in json.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace glint {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;                                      // null
  Json(std::nullptr_t) {}                                // NOLINT(google-explicit-constructor)
  Json(bool v) : value_(v) {}                            // NOLINT(google-explicit-constructor)
  Json(int v) : value_(static_cast<std::int64_t>(v)) {}  // NOLINT(google-explicit-constructor)
  Json(std::int64_t v) : value_(v) {}                    // NOLINT(google-explicit-constructor)
  Json(std::uint64_t v);                                 // NOLINT(google-explicit-constructor)
  Json(double v) : value_(v) {}                          // NOLINT(google-explicit-constructor)
  Json(const char* v) : value_(std::string(v)) {}        // NOLINT(google-explicit-constructor)
  Json(std::string v) : value_(std::move(v)) {}          // NOLINT(google-explicit-constructor)
  Json(std::string_view v) : value_(std::string(v)) {}   // NOLINT(google-explicit-constructor)
  Json(Array v) : value_(std::move(v)) {}                // NOLINT(google-explicit-constructor)
  Json(Object v) : value_(std::move(v)) {}               // NOLINT(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_uint64() const {
    return std::holds_alternative<std::uint64_t>(value_);
  }  // only above INT64_MAX
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_uint64() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name()
      const;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // The accessors below abort when the type is another: test it first.
  bool as_bool() const;
  std::int64_t as_int() const;
  std::uint64_t as_uint64() const;
  double as_double() const;  // any number
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Member of an object by key (the last one wins on duplicates), or nullptr (also when this is no
  // object).
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  // Appends or replaces; this must be an object, or null (which becomes one).
  Json& set(std::string key, Json value);
  void push_back(Json value);  // this must be an array, or null (which becomes one)

  // Compact text, or indented when indent > 0. Doubles print shortest round-trip; invalid UTF-8
  // becomes U+FFFD.
  std::string dump(int indent = 0) const;

 private:
  friend bool operator==(const Json& a, const Json& b);
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

// Same types, same values, same order of keys.
bool operator==(const Json& a, const Json& b);

struct JsonLimits {
  int max_depth = 128;                 // nested arrays and objects
  std::size_t max_bytes = 256u << 20;  // length of the text
  std::size_t max_values = 8u << 20;   // all of them together; each costs 40 bytes or more
  // True for file headers; requests let the last one win, in the first one's place.
  bool refuse_duplicate_keys = false;
};

// Parses one JSON document that fills `text`. Errors: kInvalidArgument with the byte offset.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

bool is_utf8(std::string_view text);  // well-formed, by RFC 3629

// Appends `text` as a quoted JSON string. Invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);

}  // namespace glint
