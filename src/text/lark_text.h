// Pieces of Lark that gbnf_to_lark() and tool_call_grammar() both write.
#pragma once

#include <string>
#include <string_view>

namespace glint {

// A quoted literal, safe for any text.
std::string lark_literal(std::string_view text);

// A regular expression as it stands between the slashes of Lark, with \d and \w as JSON schemas
// mean them. Balanced or not, it cannot end what encloses it in (?: ).
std::string lark_regex_body(std::string_view regex);

}  // namespace glint
