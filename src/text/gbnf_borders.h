// Where a terminal of a translated GBNF ends: what a lexer that takes the longest match must not
// be left to decide.
#pragma once

#include <cstddef>
#include <vector>

#include "text/gbnf_rules.h"

namespace glint {

// Whether a node within a rule becomes one terminal; `regular` tells which rules can be one.
bool is_gbnf_terminal(const GbnfNode& node, const std::vector<bool>& regular);

// One past the parts of a series that make one terminal with the part at `from`.
std::size_t terminal_end(const GbnfNode& series, std::size_t from,
                         const std::vector<bool>& regular);

// Opens every terminal that could go on with a character that may also follow it.
void open_unclear_terminals(std::vector<GbnfRule>& rules, const std::vector<bool>& regular);

}  // namespace glint
