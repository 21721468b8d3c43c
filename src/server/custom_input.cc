#include "server/custom_input.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/json.h"
#include "chat/messages.h"

namespace glint {
namespace {

// `{"input":"` with blanks between. 0: `text` is no beginning of it; npos: it is, and not all of
// it; else where the string's text begins.
std::size_t end_of_opening(std::string_view text) {
  constexpr std::array<std::string_view, 4> kWords = {"{", "\"input\"", ":", "\""};
  std::size_t at = 0;
  for (const std::string_view word : kWords) {
    while (at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos)
      ++at;
    const std::string_view rest = text.substr(at, word.size());
    if (rest != word.substr(0, rest.size())) return 0;
    if (rest.size() < word.size()) return std::string_view::npos;
    at += word.size();
  }
  return at;
}

constexpr std::uint32_t kReplacement = 0xFFFD;

void append_utf8(std::uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

// XXXX of an escape \uXXXX at the start of `text`; nothing when there is none.
std::optional<std::uint32_t> code_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return std::nullopt;
  std::uint32_t code = 0;
  const char* const end = text.data() + 6;
  const auto [stop, error] = std::from_chars(text.data() + 2, end, code, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return code;
}

// One escape at the start of `text`: its character to `out`. How long it is; 0 when more of it is
// to come. A half of a pair by itself is no character; what is no escape stays as it is.
std::size_t unescape_one(std::string_view text, std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  if (text.size() < 2) return 0;
  if (text[1] != 'u') {
    const std::size_t letter = kLetters.find(text[1]);
    if (letter == std::string_view::npos) out += text[0];
    out += letter == std::string_view::npos ? text[1] : kMeant[letter];
    return 2;
  }
  if (text.size() < 6) return 0;
  const auto first = code_unit(text);
  if (!first) {
    out += text[0];
    return 1;
  }
  if (*first < 0xD800 || *first > 0xDFFF) {
    append_utf8(*first, out);
    return 6;
  }
  const std::string_view rest = text.substr(6);
  const bool may_pair = *first < 0xDC00;
  if (may_pair && rest.size() < 6 &&
      rest.substr(0, 2) == std::string_view("\\u").substr(0, rest.size()))
    return 0;
  const auto second = code_unit(rest);
  if (may_pair && second && *second >= 0xDC00 && *second <= 0xDFFF) {
    append_utf8(0x10000 + ((*first - 0xD800) << 10) + (*second - 0xDC00), out);
    return 12;
  }
  append_utf8(kReplacement, out);
  return 6;
}

}  // namespace

std::string CustomInput::unescape() {
  std::string text;
  std::size_t at = 0;
  while (at < pending_.size()) {
    if (pending_[at] == '"') {
      state_ = State::kAfter;
      pending_.clear();
      return text;
    }
    if (pending_[at] != '\\') {
      text += pending_[at++];
      continue;
    }
    const std::size_t length = unescape_one(std::string_view(pending_).substr(at), text);
    if (length == 0) break;
    at += length;
  }
  pending_.erase(0, at);
  return text;
}

std::string CustomInput::push(std::string_view piece) {
  switch (state_) {
    case State::kBefore: {
      all_ += piece;
      const std::size_t begin = end_of_opening(all_);
      if (begin == std::string::npos) return {};
      if (begin == 0) {
        state_ = State::kOther;
        return {};
      }
      state_ = State::kInside;
      pending_ = all_.substr(begin);
      all_.clear();
      return unescape();
    }
    case State::kInside:
      pending_ += piece;
      return unescape();
    case State::kOther:
      all_ += piece;
      return {};
    case State::kAfter:
      break;
  }
  return {};
}

std::string CustomInput::finish() {
  if (state_ == State::kInside) return std::exchange(pending_, {});
  if (state_ == State::kAfter) return {};
  const Json arguments = arguments_object(all_);
  const Json* input = arguments.find("input");
  return input != nullptr && input->is_string() ? input->as_string() : std::move(all_);
}

}  // namespace glint
