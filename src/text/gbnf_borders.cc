#include "text/gbnf_borders.h"

#include <algorithm>
#include <bitset>
#include <string>
#include <utility>

namespace glint {
namespace {

using Kind = GbnfNode::Kind;

// Bounds for grammars made to be slow: what they leave undone refuses sentences, and allows none.
constexpr int kMaxRounds = 12;
constexpr int kMaxPasses = 16;
constexpr std::size_t kMaxNodes = 20'000;

// First characters: ASCII, and one bit for all others.
using Chars = std::bitset<129>;

constexpr std::size_t bit_of(std::uint32_t code) {
  return code < 128 ? code : 128;
}

Chars class_chars(const GbnfNode& node) {
  Chars chars;
  for (const auto& [from, to] : node.ranges) {
    for (std::uint32_t code = from; code <= std::min<std::uint32_t>(to, 127); ++code) {
      chars.set(bit_of(code));
    }
    if (to > 127) chars.set(128);
  }
  if (!node.negated) return chars;
  Chars others = ~chars;
  others.set(128);
  return others;
}

// How sentences of a node begin, whether one is empty, and how one may go on.
struct Edge {
  Chars first;
  Chars more;  // after a whole sentence, what would make it a longer one
  bool empty = false;

  friend bool operator==(const Edge&, const Edge&) = default;
};

class BorderFinder {
 public:
  BorderFinder(std::vector<GbnfRule>& rules, const std::vector<bool>& regular)
      : rules_(rules), regular_(regular) {}

  void run() {
    for (const GbnfRule& rule : rules_) num_nodes_ += size_of(rule.body);
    for (int round = 0; round < kMaxRounds && num_nodes_ <= kMaxNodes; ++round) {
      find_edges();
      follow_.assign(rules_.size(), {});
      bool settled = false;
      for (int pass = 0; pass < kMaxPasses && !settled; ++pass) {
        const std::vector<Chars> before = follow_;
        visit_rules(false);
        settled = before == follow_;
      }
      if (!visit_rules(true)) return;
    }
  }

 private:
  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  static std::size_t size_of(const GbnfNode& node) {
    std::size_t size = 1;
    for (const GbnfNode& part : node.parts) size += size_of(part);
    return size;
  }

  void find_edges() {
    edges_.assign(rules_.size(), {});
    for (int pass = 0; pass < kMaxPasses; ++pass) {
      bool changed = false;
      for (std::size_t i = 0; i < rules_.size(); ++i) {
        const Edge edge = edge_of(rules_[i].body);
        changed = changed || edge != edges_[i];
        edges_[i] = edge;
      }
      if (!changed) return;
    }
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  Edge edge_of(const GbnfNode& node) const {
    Edge edge;
    switch (node.kind) {
      case Kind::kText:
        edge.first.set(bit_of(static_cast<unsigned char>(node.text.front())));
        return edge;
      case Kind::kClass:
        edge.first = class_chars(node);
        return edge;
      case Kind::kRule:
        return edges_[static_cast<std::size_t>(node.rule)];
      case Kind::kSeries:
        return series_edge(node, 0, node.parts.size());
      case Kind::kChoice:
        for (const GbnfNode& part : node.parts) {
          const Edge inner = edge_of(part);
          edge.first |= inner.first;
          edge.more |= inner.more;
          edge.empty = edge.empty || inner.empty;
        }
        if (edge.empty) edge.more |= edge.first;
        add_longer_texts(node, edge.more);
        return edge;
      case Kind::kRepeat:
        edge = edge_of(node.parts.front());
        if (node.most != node.least) edge.more |= edge.first;
        edge.empty = edge.empty || node.least == 0;
        return edge;
    }
    return edge;
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  Edge series_edge(const GbnfNode& series, std::size_t from, std::size_t to) const {
    Edge edge{.first = {}, .more = {}, .empty = true};
    for (std::size_t i = to; i-- > from;) {
      const Edge part = edge_of(series.parts[i]);
      if (edge.empty) {
        edge.more |= part.more;
        if (part.empty) edge.more |= part.first;
      }
      edge.first = part.empty ? edge.first | part.first : part.first;
      edge.empty = edge.empty && part.empty;
    }
    return edge;
  }

  // "in" and "int": after the shorter, the longer goes on.
  static void add_longer_texts(const GbnfNode& choice, Chars& more) {
    std::vector<std::string_view> texts;
    for (const GbnfNode& part : choice.parts) {
      const bool only = part.kind == Kind::kSeries && part.parts.size() == 1;
      const GbnfNode& inner = only ? part.parts.front() : part;
      if (inner.kind == Kind::kText) texts.push_back(inner.text);
    }
    std::ranges::sort(texts);
    for (std::size_t i = 1; i < texts.size(); ++i) {
      const std::string_view shorter = texts[i - 1];
      if (texts[i].size() > shorter.size() && texts[i].starts_with(shorter)) {
        more.set(bit_of(static_cast<unsigned char>(texts[i][shorter.size()])));
      }
    }
  }

  // Tells rules what follows them, or opens terminals; true when one was opened.
  bool visit_rules(bool open) {
    bool opened = false;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!regular_[i]) opened = visit(rules_[i].body, follow_[i], open) || opened;
    }
    return opened;
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  bool visit(GbnfNode& node, const Chars& follow, bool open) {
    if (is_gbnf_terminal(node, regular_)) {
      if (!open || (edge_of(node).more & follow).none()) return false;
      return open_node(node);
    }
    bool opened = false;
    switch (node.kind) {
      case Kind::kRule:
        follow_[static_cast<std::size_t>(node.rule)] |= follow;
        return false;
      case Kind::kChoice:
        for (GbnfNode& part : node.parts) opened = visit(part, follow, open) || opened;
        return opened;
      case Kind::kRepeat: {
        Chars after = follow;
        if (node.most != 1) after |= edge_of(node.parts.front()).first;
        return visit(node.parts.front(), after, open);
      }
      case Kind::kSeries:
        return visit_series(node, follow, open);
      default:
        return false;
    }
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
  bool visit_series(GbnfNode& series, const Chars& follow, bool open) {
    std::vector<std::pair<std::size_t, std::size_t>> groups;
    for (std::size_t at = 0; at < series.parts.size();) {
      const std::size_t end = terminal_end(series, at, regular_);
      groups.emplace_back(at, end);
      at = end;
    }
    bool opened = false;
    Chars after = follow;
    for (std::size_t i = groups.size(); i-- > 0;) {
      const auto [from, to] = groups[i];
      const Edge edge = series_edge(series, from, to);
      if (to - from == 1) {
        opened = visit(series.parts[from], after, open) || opened;
      } else if (open && (edge.more & after).any()) {
        series.opened = true;
        opened = true;
      }
      after = edge.empty ? after | edge.first : edge.first;
    }
    return opened;
  }

  bool open_node(GbnfNode& node) {
    if (node.kind == Kind::kText || node.kind == Kind::kClass) return false;
    if (node.kind == Kind::kRule) {
      GbnfNode body = rules_[static_cast<std::size_t>(node.rule)].body;
      num_nodes_ += size_of(body);
      if (num_nodes_ > kMaxNodes) return false;
      GbnfNode series{.kind = Kind::kSeries};
      series.parts.push_back(std::move(body));
      node = std::move(series);
    }
    node.opened = true;
    return true;
  }

  std::vector<GbnfRule>& rules_;
  const std::vector<bool>& regular_;
  std::size_t num_nodes_ = 0;
  std::vector<Edge> edges_;    // by rule
  std::vector<Chars> follow_;  // by rule
};

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser let it be
bool is_regular(const GbnfNode& node, const std::vector<bool>& regular) {
  if (node.kind == Kind::kRule) return regular[static_cast<std::size_t>(node.rule)];
  return std::ranges::all_of(node.parts,
                             [&](const GbnfNode& part) { return is_regular(part, regular); });
}

}  // namespace

bool is_gbnf_terminal(const GbnfNode& node, const std::vector<bool>& regular) {
  return !node.opened && is_regular(node, regular);
}

std::size_t terminal_end(const GbnfNode& series, std::size_t from,
                         const std::vector<bool>& regular) {
  std::size_t end = from + 1;
  if (series.opened || !is_gbnf_terminal(series.parts[from], regular)) return end;
  while (end < series.parts.size() && is_gbnf_terminal(series.parts[end], regular)) ++end;
  return end;
}

void open_unclear_terminals(std::vector<GbnfRule>& rules, const std::vector<bool>& regular) {
  BorderFinder(rules, regular).run();
}

}  // namespace glint
