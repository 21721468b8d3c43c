// llama.cpp's GBNF as a tree: what gbnf_to_lark() translates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace glint {

struct GbnfNode {
  enum class Kind {
    kText,    // `text`, not empty
    kClass,   // one character in `ranges`, or outside them
    kRule,    // number `rule`
    kSeries,  // all parts in order; none: the empty text
    kChoice,  // one of the parts
    kRepeat,  // the one part, `least` to `most` times
  };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSeries;
  std::string text = {};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges = {};  // code points, inclusive
  bool negated = false;
  int rule = 0;
  int least = 0;
  int most = kUnbounded;
  std::vector<GbnfNode> parts = {};
  bool opened = false;  // the translator's: its parts are terminals of their own
};

struct GbnfRule {
  std::string name;
  int line = 0;  // of the definition
  GbnfNode body;
};

// Rule 0 is `root`; every rule that is referred to is defined. Errors: kInvalidArgument with the
// line and the construct.
Result<std::vector<GbnfRule>> parse_gbnf(std::string_view text);

}  // namespace glint
