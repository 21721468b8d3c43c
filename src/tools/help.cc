// The text side of Flags: --help and suggestions.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tools/flags.h"

namespace glint {
namespace {

constexpr std::size_t kWidth = 96;
constexpr std::size_t kHelpColumn = 30;

std::string left_side(const Flags::Spec& spec) {
  std::string left = fmt::format("{}", fmt::join(spec.names, ", "));
  if (!spec.positional && !spec.value_name.empty()) left += " " + spec.value_name;
  return left;
}

// `text` in lines of at most kWidth, the first of which starts behind `left`.
void append_entry(std::string& out, const std::string& left, std::string_view text) {
  std::string line = "  " + left;
  if (line.size() + 2 > kHelpColumn) {
    out += line + "\n";
    line.clear();
  }
  line.resize(kHelpColumn, ' ');
  bool first = true;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (!first && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line.assign(kHelpColumn, ' ');
      first = true;
    }
    if (!first) line += ' ';
    line += word;
    first = false;
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  out += line + "\n";
}

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string help_text(const Command& command, const Flags& flags) {
  std::string out = fmt::format("glint {}: {}\n\nUsage: glint {} {}\n", command.name,
                                command.summary, command.name, command.usage);
  bool any = false;
  for (const Flags::Spec& spec : flags.specs()) {
    if (!spec.positional) continue;
    if (!any) out += "\n";
    any = true;
    append_entry(out, left_side(spec), spec.help);
  }
  std::string group;
  for (const Flags::Spec& spec : flags.specs()) {
    if (spec.positional) continue;
    if (spec.group != group) out += "\n" + spec.group + ":\n";
    group = spec.group;
    append_entry(out, left_side(spec), spec.help);
  }
  if (!command.notes.empty()) out += "\n" + command.notes + "\n";
  out += command.examples.size() == 1 ? "\nExample:\n" : "\nExamples:\n";
  for (const std::string& example : command.examples) out += "  " + example + "\n";
  out += "\nEvery option can be set in the environment too: --log-level is GLINT_LOG_LEVEL.\n";
  return out;
}

std::optional<std::string> did_you_mean(std::string_view typed,
                                        const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& word : known) {
    std::size_t distance = edit_distance(typed, word);
    if (typed.size() >= 5 && word.starts_with(typed)) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance) {
      best = &word;
      best_distance = distance;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace glint
