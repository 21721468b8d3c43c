// The script device: what the model is made to say, by the text of the prompt, behind the real
// forward pass. For tests of everything behind the engine.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace glint {

class Script {
 public:
  // Lines of JSON: {"when": text in the rendered prompt, "say": text with special tokens written
  // literally, "end": "eos" | "none", "stall_s"?, "nan_at"?}; blank lines are skipped. `end_token`
  // is what "eos" emits. Errors: kInvalidArgument "script: line N: FIELD: ...".
  static Result<Script> parse(std::string_view lines, const Tokenizer& tokenizer,
                              std::int32_t end_token);
  // The first line whose `when` is in the prompt, or null.
  std::shared_ptr<const TokenScript> find(std::string_view prompt) const;

 private:
  struct Line {
    std::string when;
    std::shared_ptr<const TokenScript> script;
  };
  std::vector<Line> lines_;
};

}  // namespace glint
