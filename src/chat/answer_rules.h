// Which grammars hold an answer, as a request's format, tools and choice of tools say.
#pragma once

#include <functional>
#include <memory>

#include "chat/answer_constraint.h"
#include "chat/chat.h"

namespace glint {

// What does not depend on the request.
struct AnswerSetting {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const AnswerTokens> tokens;
  ToolFormat tool_format = ToolFormat::kNone;
  ReasoningFormat reasoning_format = ReasoningFormat::kNone;
  TextOptions::ToolGrammar tool_grammar = TextOptions::ToolGrammar::kStrict;
  std::function<Result<GrammarCompiler*>()> grammars;  // called when one is needed
};

// Compiles what the request needs. Errors: kInvalidArgument, kUnsupported; FIELD: what is wrong.
Result<AnswerRules> answer_rules(const ChatRequest& request, const PreparedPrompt& prompt,
                                 const AnswerSetting& setting);

}  // namespace glint
