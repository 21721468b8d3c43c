#include "text/lark_text.h"

#include <array>
#include <cstdio>

namespace glint {

std::string lark_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      out += escape.data();
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

std::string lark_regex_body(std::string_view regex) {
  std::string out;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    char c = regex[i];
    const bool escaped = c == '\\' && i + 1 < regex.size();
    if (escaped) c = regex[++i];
    if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (escaped && (c == 'd' || c == 'D')) {
      out += c == 'd' ? "[0-9]" : "[^0-9]";
    } else if (escaped && (c == 'w' || c == 'W')) {
      out += c == 'w' ? "[0-9a-zA-Z_]" : "[^0-9a-zA-Z_]";
    } else {
      if (escaped || c == '/') out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace glint
