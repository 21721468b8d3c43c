// What a grammar's text must not have, whatever its size: the crate's own limits count the work of
// a lexer, and these let it grow with the square or the cube of what they count.
#pragma once

#include <string_view>

#include "base/result.h"

namespace glint {

// Errors: kInvalidArgument with what there is too much of.
Status check_regex_limits(std::string_view regex);
// Of definitions, and of terminals that stand for terminals.
Status check_lark_limits(std::string_view lark);

}  // namespace glint
