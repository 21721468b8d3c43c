// An assistant's turn that was begun and that the model goes on with.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace glint {

bool ends_with_open_think(std::string_view rendered);
bool ends_with_closed_think(std::string_view rendered);

struct Continuation {
  std::string reasoning, content;
  bool in_thought = false;  // `reasoning` is where it goes on

  // Behind a rendered generation prompt: the thought, closed unless it goes on, then the content. A
  // prompt that closed the thought (thinking is off) keeps it so. Guards what it appends unless
  // `tokenizer` is null. Returns whether the prompt ends inside the thought.
  bool append_to(std::string& rendered, ToolFormat tool_format, ReasoningFormat reasoning_format,
                 const Tokenizer* tokenizer) const;
};

// Takes the last of the normalised messages off. Errors: kInvalidArgument when it is not the
// assistant's, or made calls.
Result<Continuation> take_continuation(Json& messages);

}  // namespace glint
