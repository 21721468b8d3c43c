// JSON text that a model writes, checked and passed on as it arrives. What cannot stand in JSON but
// says what is meant is mended: control characters and unknown escapes in strings, '...' strings,
// True, False and None, a comma before a closing bracket, brackets that are missing at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace glint {

class JsonStream {
 public:
  // What of the value can be shown now. Separators and keys wait for their value, numbers and words
  // for their end. Text behind a complete value is dropped.
  std::string push(std::string_view text);
  bool in_string() const;
  // The rest: closes what is open, without a last member that has no value yet. "{}" when there was
  // nothing. When the text was no JSON, it goes on as it stood from there.
  std::string finish();

 private:
  enum class At {
    kValue,
    kFirstValue,  // of an array, which may end here
    kKey,
    kFirstKey,
    kColon,
    kAfter,  // a value inside an array or object
    kString,
    kEscape,
    kUnicode,
    kScalar,  // a number or a word
    kDone,
    kBroken
  };
  void step(char c);
  void expect_value(char c);
  void expect_key(char c);
  void after_value(char c);
  void string_char(char c);
  void escaped_char(char c);
  void unicode_digit(char c);
  bool end_scalar();
  void end_value();
  void close(char bracket);
  void release();
  void fail(char c);
  std::size_t plain_length(std::string_view text) const;
  std::string& target() { return in_key_ ? held_ : out_; }

  At at_ = At::kValue;
  std::vector<char> open_;  // brackets that are still to come, the innermost last
  bool in_key_ = false;
  char quote_ = '"';
  std::string out_;   // to be shown
  std::string held_;  // in front of the next value; when broken, the rest
  std::string scalar_;
  std::string hex_;
};

}  // namespace glint
