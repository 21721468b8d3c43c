#include "text/gbnf_rules.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/json.h"

namespace glint {
namespace {

constexpr int kMaxDepth = 20;   // nested groups
constexpr int kMaxRepeats = 4;  // one after the other: (x*)? without the parentheses
constexpr std::size_t kMaxRules = 2000;
constexpr int kMaxCount = 100'000;  // {m,n}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

std::optional<std::uint32_t> hex_value(std::string_view digits) {
  std::uint32_t value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<std::uint32_t>(digit);
  }
  return value;
}

// Of one well-formed character.
std::uint32_t code_point_of(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  std::uint32_t code = bytes.size() == 1 ? first : first & (0x7Fu >> bytes.size());
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  return code;
}

void append_code_point(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const unsigned lead = more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0;
  out += static_cast<char>(lead | code >> (6 * more));
  for (int left = more - 1; left >= 0; --left) {
    out += static_cast<char>(0x80 | (code >> (6 * left) & 0x3F));
  }
}

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Result<std::vector<GbnfRule>> parse() {
    GLINT_TRY(const int root, number_of("root"));
    rules_[static_cast<std::size_t>(root)].line = 0;
    skip_space(true);
    while (at_ < text_.size()) {
      GLINT_TRY_VOID(parse_rule());
      skip_space(true);
    }
    if (rules_[0].line == 0) return invalid_argument("GBNF: there is no rule \"root\"");
    for (const GbnfRule& rule : rules_) {
      if (rule.line == 0) {
        return invalid_argument("GBNF: the rule \"" + rule.name + "\" is used and not defined");
      }
    }
    return std::move(rules_);
  }

 private:
  Error fail(const std::string& what) const {
    return invalid_argument("GBNF line " + std::to_string(line_) + ": " + what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Spaces and comments, and the ends of lines if `lines`.
  void skip_space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      } else if (c == ' ' || c == '\t' || (lines && (c == '\r' || c == '\n'))) {
        line_ += c == '\n' ? 1 : 0;
        ++at_;
      } else {
        return;
      }
    }
  }

  // After the end of a line, a line that begins with | goes on with the rule.
  void skip_to_bar() {
    const std::size_t at = at_;
    const int line = line_;
    skip_space(true);
    if (peek() == '|') return;
    at_ = at;
    line_ = line;
  }

  std::string take_name() {
    const std::size_t from = at_;
    while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  Result<int> number_of(const std::string& name) {
    const auto [found, fresh] = numbers_.try_emplace(name, static_cast<int>(rules_.size()));
    if (!fresh) return found->second;
    if (rules_.size() >= kMaxRules) {
      return fail("more than " + std::to_string(kMaxRules) + " rules");
    }
    rules_.push_back({.name = name, .line = 0, .body = {}});
    return found->second;
  }

  Status parse_rule() {
    const int line = line_;
    const std::string name = take_name();
    if (name.empty()) return fail(std::string("a rule's name is expected, not ") + shown());
    skip_space(false);
    if (!text_.substr(at_).starts_with("::=")) return fail("\"::=\" is expected after " + name);
    at_ += 3;
    skip_space(true);
    GLINT_TRY(const int number, number_of(name));
    if (rules_[static_cast<std::size_t>(number)].line != 0) {
      return fail("the rule \"" + name + "\" is defined twice");
    }
    rules_[static_cast<std::size_t>(number)].line = line;
    GLINT_TRY(GbnfNode body, parse_choice(0));
    rules_[static_cast<std::size_t>(number)].body = std::move(body);
    if (at_ < text_.size() && peek() != '\n' && peek() != '\r') {
      return fail(shown() + " is out of place");
    }
    return {};
  }

  // The character at hand, for an error.
  std::string shown() const {
    if (at_ >= text_.size()) return "the end";
    if (text_[at_] == '\n' || text_[at_] == '\r') return "the end of the line";
    std::size_t end = at_ + 1;
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
    return "'" + std::string(text_.substr(at_, end - at_)) + "'";
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<GbnfNode> parse_choice(int depth) {
    GbnfNode choice{.kind = GbnfNode::Kind::kChoice};
    while (true) {
      GLINT_TRY(GbnfNode series, parse_series(depth));
      choice.parts.push_back(std::move(series));
      if (depth == 0) skip_to_bar();
      if (peek() != '|') break;
      ++at_;
      skip_space(true);
    }
    if (choice.parts.size() == 1) {
      GbnfNode only = std::move(choice.parts.front());
      return only;
    }
    return choice;
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<GbnfNode> parse_series(int depth) {
    GbnfNode series{.kind = GbnfNode::Kind::kSeries};
    while (at_ < text_.size() && peek() != '|' && peek() != ')' && peek() != '\n' &&
           peek() != '\r') {
      GLINT_TRY(GbnfNode item, parse_item(depth));
      skip_space(depth > 0);
      for (int count = 0; peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{';) {
        if (++count > kMaxRepeats) return fail("too many repetitions of one thing");
        GLINT_TRY(item, parse_repeat(std::move(item)));
        skip_space(depth > 0);
      }
      series.parts.push_back(std::move(item));
    }
    return series;
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<GbnfNode> parse_item(int depth) {
    const char c = peek();
    if (c == '"') return parse_text();
    if (c == '[') return parse_class();
    if (c == '.') {
      ++at_;
      return GbnfNode{.kind = GbnfNode::Kind::kClass, .negated = true};
    }
    if (c == '(') {
      if (depth >= kMaxDepth) {
        return fail("groups are nested deeper than " + std::to_string(kMaxDepth));
      }
      ++at_;
      skip_space(true);
      GLINT_TRY(GbnfNode group, parse_choice(depth + 1));
      if (peek() != ')') return fail("')' is missing before " + shown());
      ++at_;
      return group;
    }
    if (c == '<' || c == '!') {
      return fail("token matchers (<...>) are not supported, only characters are");
    }
    if (is_name_char(c)) {
      GLINT_TRY(const int number, number_of(take_name()));
      return GbnfNode{.kind = GbnfNode::Kind::kRule, .rule = number};
    }
    return fail(shown() + " is out of place");
  }

  Result<GbnfNode> parse_repeat(GbnfNode item) {
    GbnfNode repeat{.kind = GbnfNode::Kind::kRepeat};
    const char c = text_[at_++];
    if (c == '+') repeat.least = 1;
    if (c == '?') repeat.most = 1;
    if (c == '{') {
      GLINT_TRY(repeat.least, parse_count());
      repeat.most = repeat.least;
      if (peek() == ',') {
        ++at_;
        skip_space(false);
        repeat.most = GbnfNode::kUnbounded;
        if (peek() != '}') {
          GLINT_TRY(repeat.most, parse_count());
        }
      }
      if (peek() != '}') return fail("'}' is missing before " + shown());
      ++at_;
      if (repeat.most != GbnfNode::kUnbounded && repeat.most < repeat.least) {
        return fail("a repetition ends before it begins");
      }
    }
    repeat.parts.push_back(std::move(item));
    return repeat;
  }

  Result<int> parse_count() {
    skip_space(false);
    if (peek() < '0' || peek() > '9') return fail("a count is expected, not " + shown());
    int count = 0;
    while (peek() >= '0' && peek() <= '9') {
      count = count * 10 + (text_[at_++] - '0');
      if (count > kMaxCount) {
        return fail("a count is above " + std::to_string(kMaxCount));
      }
    }
    skip_space(false);
    return count;
  }

  Result<GbnfNode> parse_text() {
    GbnfNode node{.kind = GbnfNode::Kind::kText};
    ++at_;
    while (peek() != '"') {
      GLINT_TRY(const std::uint32_t code, parse_character("a literal"));
      append_code_point(node.text, code);
    }
    ++at_;
    if (node.text.empty()) node.kind = GbnfNode::Kind::kSeries;
    return node;
  }

  Result<GbnfNode> parse_class() {
    GbnfNode node{.kind = GbnfNode::Kind::kClass};
    ++at_;
    if (peek() == '^') {
      node.negated = true;
      ++at_;
    }
    while (peek() != ']') {
      GLINT_TRY(const std::uint32_t from, parse_character("a character class"));
      std::uint32_t to = from;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        GLINT_TRY(to, parse_character("a character class"));
      }
      if (to < from) return fail("a range in a character class ends before it begins");
      node.ranges.emplace_back(from, to);
    }
    ++at_;
    if (node.ranges.empty() && !node.negated) return fail("a character class is empty");
    return node;
  }

  // One character of a literal or class, escaped or not.
  Result<std::uint32_t> parse_character(const std::string& where) {
    if (at_ >= text_.size() || peek() == '\n' || peek() == '\r') {
      return fail(where + " has no end");
    }
    if (peek() == '\\') return parse_escape();
    std::size_t end = at_ + 1;
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
    const std::uint32_t code = code_point_of(text_.substr(at_, end - at_));
    at_ = end;
    return code;
  }

  Result<std::uint32_t> parse_escape() {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    at_ += 2;
    if (digits == 0) {
      if (c == 'n') return U'\n';
      if (c == 'r') return U'\r';
      if (c == 't') return U'\t';
      if (c == '\\' || c == '"' || c == '[' || c == ']') return static_cast<std::uint32_t>(c);
      return fail(std::string("the escape \\") + (c > ' ' && c < '\x7f' ? c : '?') + " is unknown");
    }
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    const std::optional<std::uint32_t> value = hex_value(hex);
    if (hex.size() < digits || !value) return fail("an escape lacks hexadecimal digits");
    const bool is_character = *value <= 0x10FFFF && (*value < 0xD800 || *value > 0xDFFF);
    if (!is_character) return fail("an escape names no character");
    at_ += digits;
    return *value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<GbnfRule> rules_;
  std::map<std::string, int> numbers_;
};

}  // namespace

Result<std::vector<GbnfRule>> parse_gbnf(std::string_view text) {
  if (!is_utf8(text)) return invalid_argument("GBNF: the text is not UTF-8");
  return GbnfParser(text).parse();
}

}  // namespace glint
