// What the tests of OutputParser share: outputs of models as cases, in many tokenisations, and what
// their events amount to.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/output_parser.h"
#include "text_fixture.h"

namespace glint {

using Ids = std::vector<std::int32_t>;

struct FoldedCall {
  std::string name;
  std::string arguments;
  bool open = true;
  std::string id = {};
  bool operator==(const FoldedCall&) const = default;
};

// Everything an answer amounts to.
struct FoldedTurn {
  std::string reasoning;
  std::string content;
  std::vector<FoldedCall> calls;
  std::string stop;
  bool operator==(const FoldedTurn&) const = default;
};
void PrintTo(const FoldedTurn& turn, std::ostream* out);

// Adds events to the turn, checking that calls come one after the other, in order.
void fold(const std::vector<OutputEvent>& events, FoldedTurn& turn);

struct OutputCase {
  std::string name;
  OutputParser::Options options;
  std::vector<std::pair<std::string, bool>> parts;  // text, are markers tokens
  bool by_stop = true;
  bool tokens_only = false;    // spelled out, the markers would not be the same
  bool json_arguments = true;  // those of complete calls are JSON
  FoldedTurn expected;
};
// From tests/data/outputs. The tools are those of glm.json.
std::vector<OutputCase> load_output_cases(const std::string& file);
const std::vector<OutputCase>& all_output_cases();
const Json& output_tools();

// The demo tokenizer with the markers of every family as added tokens; those of Kimi are special.
const Tokenizer& family_tokenizer();
// The demo tokenizer without added tokens.
const Tokenizer& bare_tokenizer();

// The tokens of the parts. An ordinary token is cut into pieces of `piece()` bytes.
Ids case_tokens(const Tokenizer& tokenizer, const OutputCase& test,
                const std::function<std::size_t()>& piece);
// Tokens of some bytes that are no added token: one, or one for each byte.
Ids byte_tokens(const Tokenizer& tokenizer, std::string_view bytes);

// Feeds the first `limit` tokens; fewer than all: cut by length.
FoldedTurn run_case(const Tokenizer& tokenizer, const OutputCase& test, const Ids& ids,
                    std::size_t limit = SIZE_MAX);

}  // namespace glint
