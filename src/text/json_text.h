// JSON text to JSON text in Python's layout (", " and ": "), keeping every number as it was
// written: a value never goes through a double. For tool arguments, whose digits must survive.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace glint {

enum class JsonKind { kString, kInteger, kNumber, kBoolean, kNull, kArray, kObject };

struct JsonText {
  JsonKind kind = JsonKind::kNull;
  std::string text;      // kString: with its quotes
  std::string unquoted;  // kString: the characters themselves
};

enum class JsonDialect {
  kStrict,  // RFC 8259
  kPython   // also '...' strings, True, False, None, tuples, trailing commas; numbers as in JSON
};

// Reads one value that fills `text` up to surrounding whitespace. Nested at most 64 deep.
std::optional<JsonText> read_json_text(std::string_view text, JsonDialect dialect);

// An integer in plain digits when the JSON number `text` has an integral value of at most 400
// digits ("3.0", "1e3").
std::optional<std::string> integer_digits(std::string_view text);

// `text` with the ASCII whitespace around it removed.
std::string_view trim_ascii(std::string_view text);

}  // namespace glint
