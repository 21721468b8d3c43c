#include "text/json_text.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"

namespace glint {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxDigits = 400;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_utf8_of(std::string& out, std::uint32_t code) {
  if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

class Reader {
 public:
  Reader(std::string_view text, JsonDialect dialect)
      : text_(text), python_(dialect == JsonDialect::kPython) {}

  std::optional<JsonText> read() {
    JsonText value;
    skip_space();
    if (!read_value(value, 0)) return std::nullopt;
    skip_space();
    if (at_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_space() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool read_value(JsonText& out, int depth) {
    if (depth > kMaxDepth || at_end()) return false;
    const char c = peek();
    if (c == '[') return read_sequence(out, depth, ']');
    if (c == '(' && python_) return read_sequence(out, depth, ')');
    if (c == '{') return read_mapping(out, depth);
    if (c == '"' || (c == '\'' && python_)) {
      out.kind = JsonKind::kString;
      if (!read_string(out.unquoted)) return false;
      append_json_string(out.text, out.unquoted);
      return true;
    }
    if (c == '-' || is_digit(c)) return read_number(out);
    return read_word(out);
  }

  bool read_word(JsonText& out) {
    struct Word {
      std::string_view text;
      JsonKind kind;
      std::string_view json;
      bool python;
    };
    static constexpr Word kWords[] = {
        {"true", JsonKind::kBoolean, "true", false},  {"false", JsonKind::kBoolean, "false", false},
        {"null", JsonKind::kNull, "null", false},     {"True", JsonKind::kBoolean, "true", true},
        {"False", JsonKind::kBoolean, "false", true}, {"None", JsonKind::kNull, "null", true}};
    for (const Word& word : kWords) {
      if ((word.python && !python_) || !text_.substr(at_).starts_with(word.text)) continue;
      at_ += word.text.size();
      out.kind = word.kind;
      out.text = word.json;
      return true;
    }
    return false;
  }

  bool read_digits() {
    const std::size_t start = at_;
    while (!at_end() && is_digit(text_[at_])) ++at_;
    return at_ > start;
  }

  bool read_number(JsonText& out) {
    const std::size_t start = at_;
    out.kind = JsonKind::kInteger;
    take('-');
    if (take('0')) {
      if (!at_end() && is_digit(peek())) return false;
    } else if (!read_digits()) {
      return false;
    }
    if (take('.')) {
      out.kind = JsonKind::kNumber;
      if (!read_digits()) return false;
    }
    if (peek() == 'e' || peek() == 'E') {
      out.kind = JsonKind::kNumber;
      ++at_;
      if (!take('+')) take('-');
      if (!read_digits()) return false;
    }
    out.text = text_.substr(start, at_ - start);
    return true;
  }

  bool read_string(std::string& out) {
    const char quote = text_[at_++];
    while (!at_end()) {
      const char c = text_[at_++];
      if (c == quote) return true;
      if (c == '\\') {
        if (!read_escape(out)) return false;
      } else if (static_cast<unsigned char>(c) < 0x20 && !python_) {
        return false;
      } else {
        out += c;
      }
    }
    return false;
  }

  std::optional<std::uint32_t> read_hex(std::size_t digits) {
    std::uint32_t code = 0;
    const char* first = text_.data() + at_;
    if (text_.size() - at_ < digits) return std::nullopt;
    const auto [end, error] = std::from_chars(first, first + digits, code, 16);
    if (error != std::errc() || end != first + digits) return std::nullopt;
    at_ += digits;
    return code;
  }

  bool read_escape(std::string& out) {
    if (at_end()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    if (const std::size_t found = kFrom.find(c); found != std::string_view::npos) {
      if (c == '/' && python_) out += '\\';
      out += kTo[found];
      return true;
    }
    if (c == 'u') return read_unicode_escape(out);
    if (!python_) return false;
    if (c == '\'') {
      out += c;
    } else if (c == '\n') {
      return true;  // a continued line
    } else if (c == 'x') {
      const auto code = read_hex(2);
      if (!code) return false;
      append_utf8_of(out, *code);
    } else {
      out += '\\';  // Python keeps the backslash of an escape it does not know
      out += c;
    }
    return true;
  }

  bool read_unicode_escape(std::string& out) {
    auto code = read_hex(4);
    if (!code) return false;
    if (*code >= 0xD800 && *code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      const std::size_t before = at_;
      at_ += 2;
      const auto low = read_hex(4);
      if (!low) return false;
      if (*low >= 0xDC00 && *low < 0xE000) {
        *code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        at_ = before;  // a lone surrogate; what follows stands for itself
      }
    }
    append_utf8_of(out, *code);
    return true;
  }

  // True when the container ends here; otherwise the separator was taken, or *bad is set.
  bool ends(char close, bool first, bool* bad) {
    skip_space();
    if (first) return take(close);
    if (take(close)) return true;
    if (!take(',')) {
      *bad = true;
      return true;
    }
    skip_space();
    return python_ && take(close);
  }

  bool read_sequence(JsonText& out, int depth, char close) {
    ++at_;
    out.kind = JsonKind::kArray;
    out.text = "[";
    bool bad = false;
    for (bool first = true; !ends(close, first, &bad); first = false) {
      JsonText item;
      if (!read_value(item, depth + 1)) return false;
      if (!first) out.text += ", ";
      out.text += item.text;
    }
    out.text += ']';
    return !bad;
  }

  bool read_mapping(JsonText& out, int depth) {
    ++at_;
    out.kind = JsonKind::kObject;
    out.text = "{";
    bool bad = false;
    for (bool first = true; !ends('}', first, &bad); first = false) {
      JsonText key;
      JsonText item;
      if (!read_value(key, depth + 1)) return false;
      const bool scalar = key.kind != JsonKind::kArray && key.kind != JsonKind::kObject;
      if (key.kind != JsonKind::kString && !(python_ && scalar)) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!read_value(item, depth + 1)) return false;
      if (!first) out.text += ", ";
      out.text += key.kind == JsonKind::kString ? key.text : '"' + key.text + '"';
      out.text += ": ";
      out.text += item.text;
    }
    out.text += '}';
    return !bad;
  }

  std::string_view text_;
  bool python_;
  std::size_t at_ = 0;
};

}  // namespace

std::string_view trim_ascii(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<JsonText> read_json_text(std::string_view text, JsonDialect dialect) {
  return Reader(text, dialect).read();
}

std::optional<std::string> integer_digits(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::string digits;
  std::int64_t point = -1;  // digits before the decimal point
  std::size_t at = 0;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
    if (text[at] == '.') {
      point = static_cast<std::int64_t>(digits.size());
    } else {
      digits += text[at];
    }
  }
  if (point < 0) point = static_cast<std::int64_t>(digits.size());
  if (at < text.size()) {
    std::string_view exponent_text = text.substr(at + 1);
    if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);
    std::int64_t exponent = 0;
    const auto [end, error] = std::from_chars(
        exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
    if (error != std::errc() || end != exponent_text.data() + exponent_text.size() ||
        std::abs(exponent) > 100'000) {
      return std::nullopt;
    }
    point += exponent;
  }
  if (point > static_cast<std::int64_t>(kMaxDigits)) return std::nullopt;
  const std::size_t whole = point < 0 ? 0 : static_cast<std::size_t>(point);
  for (std::size_t i = whole; i < digits.size(); ++i) {
    if (digits[i] != '0') return std::nullopt;
  }
  if (point < 0 && digits.find_first_not_of('0') != std::string::npos) return std::nullopt;
  digits.resize(whole, '0');
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return "0";
  return negative ? '-' + digits : digits;
}

}  // namespace glint
