// Argument values of tool calls in markup, whose text carries no type: what the tools' schemas
// allow decides whether a value is text or JSON.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace glint {

// A set of JSON types. Number includes integer.
class JsonTypes {
 public:
  enum Bit : unsigned {
    kString = 1,
    kInteger = 2,
    kNumber = 4,
    kBoolean = 8,
    kNull = 16,
    kArray = 32,
    kObject = 64
  };
  static JsonTypes unknown() { return JsonTypes(0); }
  explicit JsonTypes(unsigned bits) : bits_(bits) {}

  bool is_unknown() const { return bits_ == 0; }
  bool only_string() const { return bits_ == kString; }
  bool has(Bit bit) const { return (bits_ & bit) != 0; }
  unsigned bits() const { return bits_; }

 private:
  unsigned bits_;  // 0: the schema does not say
};

// The types that `tools` (OpenAI tool objects, bare functions or Anthropic tools) allow for an
// argument. Local $ref, anyOf, oneOf, allOf, type, enum and const are resolved; anything malformed
// says nothing.
JsonTypes argument_types(const Json& tools, std::string_view tool, std::string_view key);

// The argument's value as JSON text.
std::string argument_to_json(std::string_view raw, JsonTypes types);

}  // namespace glint
