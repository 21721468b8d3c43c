#include "text/grammar_limits.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace glint {
namespace {

constexpr int kMaxRepetitions = 2000;
constexpr std::size_t kMaxDefinitions = 4000;
constexpr int kMaxTerminalDepth = 64;

bool is_repetition(char c) {
  return c == '*' || c == '+' || c == '?' || c == '{';
}

bool is_upper(char c) {
  return (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_name_char(char c) {
  return is_upper(c) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
}

Error too_many(const std::string& what, std::size_t most) {
  return invalid_argument("the grammar has more than " + std::to_string(most) + " " + what);
}

// The names in a piece of Lark that could be terminals', in strings too: a definition of that name
// is needed for them to count.
std::vector<std::string_view> names_in(std::string_view text) {
  std::vector<std::string_view> names;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_name_char(text[at])) {
      ++at;
      continue;
    }
    const std::size_t from = at;
    while (at < text.size() && is_name_char(text[at])) ++at;
    if (is_upper(text[from])) names.push_back(text.substr(from, at - from));
  }
  return names;
}

struct Terminal {
  std::vector<std::string_view> names;
  int depth = 0;  // 0: not known yet
};

class TerminalDepths {
 public:
  // A definition begins a line, and goes on over lines that begin none.
  Status read(std::string_view lark) {
    Terminal* current = nullptr;
    std::size_t definitions = 0;
    for (std::size_t from = 0; from < lark.size();) {
      const std::size_t end = std::min(lark.find('\n', from), lark.size());
      std::string_view line = lark.substr(from, end - from);
      from = end + 1;
      line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
      std::size_t name = 0;
      while (name < line.size() && is_name_char(line[name])) ++name;
      if (name > 0) {
        if (++definitions > kMaxDefinitions) return too_many("definitions", kMaxDefinitions);
        current = is_upper(line[0]) ? &terminals_[line.substr(0, name)] : nullptr;
      }
      if (current == nullptr) continue;
      const std::vector<std::string_view> names = names_in(line.substr(name));
      current->names.insert(current->names.end(), names.begin(), names.end());
    }
    return {};
  }

  Status check() {
    for (auto& [name, terminal] : terminals_) {
      if (depth_of(terminal, 1) > kMaxTerminalDepth) {
        return invalid_argument("the terminal " + std::string(name.substr(0, 64)) +
                                " stands for others deeper than " +
                                std::to_string(kMaxTerminalDepth));
      }
    }
    return {};
  }

 private:
  // A circle is as deep as can be; the crate refuses it by name.
  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxTerminalDepth
  int depth_of(Terminal& terminal, int from) {
    if (terminal.depth > 0) return terminal.depth;
    if (from > kMaxTerminalDepth) return kMaxTerminalDepth + 1;
    int depth = 1;
    for (const std::string_view name : terminal.names) {
      const auto found = terminals_.find(name);
      if (found == terminals_.end() || &found->second == &terminal) continue;
      depth = std::max(depth, 1 + depth_of(found->second, from + 1));
      if (depth > kMaxTerminalDepth) break;
    }
    // What was cut off by the bound is not this terminal's own depth.
    if (depth <= kMaxTerminalDepth) terminal.depth = depth;
    return depth;
  }

  std::unordered_map<std::string_view, Terminal> terminals_;
};

}  // namespace

Status check_regex_limits(std::string_view regex) {
  if (std::ranges::count_if(regex, is_repetition) > kMaxRepetitions) {
    return too_many("repetitions", kMaxRepetitions);
  }
  return {};
}

Status check_lark_limits(std::string_view lark) {
  TerminalDepths depths;
  GLINT_TRY_VOID(depths.read(lark));
  return depths.check();
}

}  // namespace glint
