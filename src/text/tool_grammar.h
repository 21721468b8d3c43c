// Grammars of tool calls, in the model's own markup.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace glint {

struct ToolGrammarOptions {
  ToolFormat format = ToolFormat::kGlm47;
  // What may be said: with text_first, text and then calls (or, with min_calls 0, text alone).
  bool text_first = false;
  int min_calls = 1;
  int max_calls = 0;  // 0: any number
  // The grammar begins behind the token that opened the first call (or the section of calls).
  bool first_is_open = false;
  // Arguments follow the tools' schemas; otherwise names and markup are held, arguments are free.
  // A tool with "strict": true is held to its schema in any case.
  bool strict_arguments = true;
  // When not null: instead of calls, an answer that fits this schema may be given.
  Json answer_schema = {};
};

// The text of a Lark grammar for GrammarSource::Kind::kLark. `tools` are OpenAI tool objects; only
// those that may be called. Errors: kUnsupported when the format or the tokenizer has no markup for
// it, kInvalidArgument for a tool that cannot be written.
Result<std::string> tool_call_grammar(const Json& tools, const Tokenizer& tokenizer,
                                      const ToolGrammarOptions& options);

}  // namespace glint
