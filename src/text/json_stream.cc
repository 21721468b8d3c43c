#include "text/json_stream.h"

#include <utility>

#include "base/json.h"
#include "text/json_text.h"

namespace glint {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20;
}
bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool starts_scalar(char c) {
  return c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool ends_scalar(char c) {
  return is_space(c) || std::string_view(",:]}[{\"'").find(c) != std::string_view::npos;
}

void append_escaped(std::string& out, char c) {
  std::string quoted;
  append_json_string(quoted, std::string_view(&c, 1));
  out.append(quoted, 1, quoted.size() - 2);
}

}  // namespace

std::string JsonStream::push(std::string_view text) {
  if (at_ == At::kDone) return {};
  for (std::size_t i = 0; i < text.size();) {
    if (at_ == At::kBroken) {
      held_ += text.substr(i);
      break;
    }
    if (at_ == At::kString) {
      const std::size_t plain = plain_length(text.substr(i));
      target() += text.substr(i, plain);
      i += plain;
      if (i == text.size()) break;
    }
    step(text[i++]);
  }
  return std::exchange(out_, {});
}

// Characters of a string that stand for themselves.
std::size_t JsonStream::plain_length(std::string_view text) const {
  std::size_t size = 0;
  while (size < text.size() && text[size] != '"' && text[size] != quote_ && text[size] != '\\' &&
         !is_control(text[size])) {
    ++size;
  }
  return size;
}

void JsonStream::step(char c) {
  switch (at_) {
    case At::kValue:
    case At::kFirstValue:
      return expect_value(c);
    case At::kKey:
    case At::kFirstKey:
      return expect_key(c);
    case At::kColon:
      if (c != ':' && !is_space(c)) return fail(c);
      held_ += c;
      if (c == ':') at_ = At::kValue;
      return;
    case At::kAfter:
      return after_value(c);
    case At::kString:
      return string_char(c);
    case At::kEscape:
      return escaped_char(c);
    case At::kUnicode:
      return unicode_digit(c);
    case At::kScalar:
      if (!ends_scalar(c)) {
        scalar_ += c;
      } else if (end_scalar()) {
        step(c);
      } else {
        held_ += std::exchange(scalar_, {});
        fail(c);
      }
      return;
    case At::kDone:
    case At::kBroken:
      return;
  }
}

void JsonStream::expect_value(char c) {
  if (is_space(c)) {
    if (!open_.empty()) held_ += c;
  } else if (c == '{' || c == '[') {
    release();
    out_ += c;
    open_.push_back(c == '{' ? '}' : ']');
    at_ = c == '{' ? At::kFirstKey : At::kFirstValue;
  } else if (c == '"' || c == '\'') {
    release();
    out_ += '"';
    quote_ = c;
    in_key_ = false;
    at_ = At::kString;
  } else if (starts_scalar(c)) {
    scalar_ = c;
    at_ = At::kScalar;
  } else if (c == ']' && !open_.empty() && open_.back() == ']') {
    if (at_ == At::kValue) held_.clear();  // a comma without a value behind it
    release();
    close(c);
  } else {
    fail(c);
  }
}

void JsonStream::expect_key(char c) {
  if (is_space(c)) {
    held_ += c;
  } else if (c == '"' || c == '\'') {
    held_ += '"';
    quote_ = c;
    in_key_ = true;
    at_ = At::kString;
  } else if (c == '}') {
    if (at_ == At::kKey) held_.clear();
    release();
    close(c);
  } else {
    fail(c);
  }
}

void JsonStream::after_value(char c) {
  if (c == open_.back()) {
    release();
    close(c);
    return;
  }
  if (c != ',' && !is_space(c)) return fail(c);
  held_ += c;
  if (c == ',') at_ = open_.back() == '}' ? At::kKey : At::kValue;
}

void JsonStream::string_char(char c) {
  if (c == quote_) {
    target() += '"';
    if (in_key_) {
      at_ = At::kColon;
    } else {
      end_value();
    }
  } else if (c == '\\') {
    at_ = At::kEscape;
  } else if (c == '"' || is_control(c)) {
    append_escaped(target(), c);
  } else {
    target() += c;
  }
}

void JsonStream::escaped_char(char c) {
  at_ = At::kString;
  if (c == 'u') {
    hex_.clear();
    at_ = At::kUnicode;
  } else if (c == '\'') {
    target() += c;
  } else if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
    target() += {'\\', c};
  } else {
    target() += "\\\\";
    string_char(c);
  }
}

void JsonStream::unicode_digit(char c) {
  if (is_hex(c)) {
    hex_ += c;
    if (hex_.size() < 4) return;
    target() += "\\u" + hex_;
    at_ = At::kString;
  } else {
    target() += "\\\\u" + hex_;
    at_ = At::kString;
    string_char(c);
  }
}

// False when the number or word is none.
bool JsonStream::end_scalar() {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, json] : kWords) {
    if (scalar_ == python) scalar_ = json;
  }
  if (!read_json_text(scalar_, JsonDialect::kStrict)) return false;
  if (open_.empty() && scalar_ == "null") scalar_ = "{}";  // no arguments at all
  release();
  out_ += std::exchange(scalar_, {});
  end_value();
  return true;
}

void JsonStream::end_value() {
  at_ = open_.empty() ? At::kDone : At::kAfter;
}

void JsonStream::close(char bracket) {
  out_ += bracket;
  open_.pop_back();
  end_value();
}

void JsonStream::release() {
  out_ += std::exchange(held_, {});
}

void JsonStream::fail(char c) {
  held_ += c;
  at_ = At::kBroken;
}

bool JsonStream::in_string() const {
  return at_ == At::kString || at_ == At::kEscape || at_ == At::kUnicode;
}

std::string JsonStream::finish() {
  const bool nothing = at_ == At::kValue && open_.empty();
  if (nothing) out_ += "{}";
  if (at_ == At::kScalar && !end_scalar() && open_.empty()) {
    held_ = std::exchange(scalar_, {});
    at_ = At::kBroken;
  }
  if (at_ == At::kBroken) {
    release();
  } else {
    if (in_string() && !in_key_) out_ += '"';
    for (; !open_.empty(); open_.pop_back()) out_ += open_.back();
    at_ = At::kDone;
  }
  return std::exchange(out_, {});
}

}  // namespace glint
