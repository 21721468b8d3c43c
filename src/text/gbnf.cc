// GBNF spells sentences character by character; Lark cuts them into terminals, as long as they go.
// So whatever a regular expression can say becomes one terminal, and rules remain where the grammar
// nests. Where a terminal could go on with a character that may also follow it, it is opened: its
// parts become terminals, down to single characters. What is left of such doubt, between terminals
// that begin at the same place, the longer one wins: a sentence may then be refused, but none is
// allowed that the grammar does not have.
#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "text/gbnf_borders.h"
#include "text/gbnf_rules.h"
#include "text/grammar.h"
#include "text/lark_text.h"

namespace glint {
namespace {

using Kind = GbnfNode::Kind;

std::string code_point_escape(std::uint32_t code) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "\\x{%X}", code);
  return text.data();
}

std::string class_text(const GbnfNode& node) {
  if (node.ranges.empty()) return "/(?s:.)/";
  std::string out = node.negated ? "/[^" : "/[";
  for (const auto& [from, to] : node.ranges) {
    out += code_point_escape(from);
    if (to != from) out += "-" + code_point_escape(to);
  }
  return out + "]/";
}

GbnfNode series_of(std::vector<GbnfNode> parts) {
  return {.kind = Kind::kSeries, .parts = std::move(parts)};
}

GbnfNode choice_of(std::vector<GbnfNode> parts) {
  return {.kind = Kind::kChoice, .parts = std::move(parts)};
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
void collect_rules(const GbnfNode& node, std::set<int>& rules) {
  if (node.kind == Kind::kRule) rules.insert(node.rule);
  for (const GbnfNode& part : node.parts) collect_rules(part, rules);
}

bool mentions(const GbnfNode& node, int rule) {
  std::set<int> rules;
  collect_rules(node, rules);
  return rules.contains(rule);
}

// A rule that comes back to itself at its end alone, x ::= again x | last, is again* last.
struct Loop {
  std::vector<GbnfNode> again;  // alternatives, each followed by the rule itself
  std::vector<GbnfNode> last;
};

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
std::optional<Loop> loop_of(const GbnfNode& node, int rule) {
  if (!mentions(node, rule)) return Loop{.again = {}, .last = {node}};
  if (node.kind == Kind::kRule) return Loop{.again = {series_of({})}, .last = {}};
  Loop loop;
  if (node.kind == Kind::kChoice) {
    for (const GbnfNode& part : node.parts) {
      std::optional<Loop> inner = loop_of(part, rule);
      if (!inner) return std::nullopt;
      std::ranges::move(inner->again, std::back_inserter(loop.again));
      std::ranges::move(inner->last, std::back_inserter(loop.last));
    }
    return loop;
  }
  if (node.kind == Kind::kRepeat) {
    if (node.least != 0 || node.most != 1) return std::nullopt;
    std::optional<Loop> inner = loop_of(node.parts.front(), rule);
    if (inner) inner->last.push_back(series_of({}));
    return inner;
  }
  std::vector<GbnfNode> head(node.parts.begin(), node.parts.end() - 1);
  if (mentions(series_of(head), rule)) return std::nullopt;
  std::optional<Loop> tail = loop_of(node.parts.back(), rule);
  if (!tail) return std::nullopt;
  // One series each, not one per end: a head may be long.
  const auto behind_head = [&](std::vector<GbnfNode> ends) {
    if (!ends.empty()) ends = {series_of({series_of(head), choice_of(std::move(ends))})};
    return ends;
  };
  return Loop{.again = behind_head(std::move(tail->again)),
              .last = behind_head(std::move(tail->last))};
}

class GbnfTranslator {
 public:
  explicit GbnfTranslator(std::vector<GbnfRule> rules) : rules_(std::move(rules)) {}

  std::string translate() {
    unroll_loops();
    find_regular_rules();
    open_unclear_terminals(rules_, regular_);
    std::string out;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const std::string name = name_of(static_cast<int>(i));
      if (regular_[i]) {
        out += name + ": " + expression(rules_[i].body, true) + "\n";
        if (i == 0) out += "start: " + name + "\n";
      } else {
        std::string body = expression(rules_[i].body, false);
        out += name + ": " + body + "\n";
      }
    }
    return out + terminals_;
  }

 private:
  void unroll_loops() {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const int rule = static_cast<int>(i);
      if (!mentions(rules_[i].body, rule)) continue;
      std::optional<Loop> loop = loop_of(rules_[i].body, rule);
      if (!loop || loop->last.empty()) continue;
      GbnfNode again{.kind = Kind::kRepeat};
      again.parts.push_back(choice_of(std::move(loop->again)));
      rules_[i].body = series_of({std::move(again), choice_of(std::move(loop->last))});
    }
  }

  // Those that lead to no recursion.
  void find_regular_rules() {
    regular_.assign(rules_.size(), false);
    std::vector<std::vector<int>> users(rules_.size());
    std::vector<std::size_t> open(rules_.size());
    std::vector<int> ready;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      std::set<int> used;
      collect_rules(rules_[i].body, used);
      open[i] = used.size();
      for (const int rule : used)
        users[static_cast<std::size_t>(rule)].push_back(static_cast<int>(i));
      if (used.empty()) ready.push_back(static_cast<int>(i));
    }
    while (!ready.empty()) {
      const auto rule = static_cast<std::size_t>(ready.back());
      ready.pop_back();
      regular_[rule] = true;
      for (const int user : users[rule]) {
        if (--open[static_cast<std::size_t>(user)] == 0) ready.push_back(user);
      }
    }
  }

  std::string name_of(int rule) const {
    const bool regular = regular_[static_cast<std::size_t>(rule)];
    if (rule == 0 && !regular) return "start";
    return (regular ? "T" : "r") + std::to_string(rule);
  }

  bool is_terminal(const GbnfNode& node) const { return is_gbnf_terminal(node, regular_); }

  // In a terminal every part is one; in a rule, what can be a terminal becomes one of its own.
  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  std::string expression(const GbnfNode& node, bool in_terminal) {
    if (!in_terminal && is_terminal(node)) return terminal(node);
    switch (node.kind) {
      case Kind::kText:
        return lark_literal(node.text);
      case Kind::kClass:
        return class_text(node);
      case Kind::kRule:
        return name_of(node.rule);
      case Kind::kSeries:
        return series_text(node, in_terminal);
      case Kind::kChoice: {
        std::string out;
        for (const GbnfNode& part : node.parts) {
          out += (out.empty() ? "(" : " | ") + expression(part, in_terminal);
        }
        return out + ")";
      }
      case Kind::kRepeat:
        return repeat_text(node, in_terminal);
    }
    return "";
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  std::string series_text(const GbnfNode& node, bool in_terminal) {
    std::string out;
    for (std::size_t part = 0; part < node.parts.size();) {
      const std::size_t end = in_terminal ? part + 1 : terminal_end(node, part, regular_);
      if (!out.empty()) out += " ";
      if (end - part == 1) {
        out += expression(node.parts[part], in_terminal);
      } else {
        const auto from = node.parts.begin();
        out += terminal(series_of(
            {from + static_cast<std::ptrdiff_t>(part), from + static_cast<std::ptrdiff_t>(end)}));
      }
      part = end;
    }
    return out.empty() ? "\"\"" : out;
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  std::string repeat_text(const GbnfNode& node, bool in_terminal) {
    if (node.most == 0) return "\"\"";
    std::string out = "(" + expression(node.parts.front(), in_terminal) + ")";
    if (node.most == GbnfNode::kUnbounded) {
      if (node.least < 2) return out + (node.least == 0 ? "*" : "+");
      return out + "{" + std::to_string(node.least) + ",}";
    }
    if (node.least == 0 && node.most == 1) return out + "?";
    return out + "{" + std::to_string(node.least) + "," + std::to_string(node.most) + "}";
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  std::string terminal(const GbnfNode& node) {
    if (node.kind == Kind::kRule) return name_of(node.rule);
    if (node.kind == Kind::kSeries && node.parts.empty()) return "\"\"";
    const std::string name = "X" + std::to_string(num_terminals_++);
    terminals_ += name + ": " + expression(node, true) + "\n";
    return name;
  }

  std::vector<GbnfRule> rules_;
  std::vector<bool> regular_;
  std::string terminals_;
  int num_terminals_ = 0;
};

}  // namespace

Result<std::string> gbnf_to_lark(std::string_view gbnf) {
  GLINT_TRY(std::vector<GbnfRule> rules, parse_gbnf(gbnf));
  return GbnfTranslator(std::move(rules)).translate();
}

}  // namespace glint
