// One answer's tokens to reasoning, content and tool calls, incrementally, independent of how the
// stream is cut. Markers are recognised by token id where the tokenizer has them as tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace glint {

struct OutputEvent {
  enum class Kind { kReasoning, kContent, kToolBegin, kToolArgs, kToolEnd } kind = Kind::kContent;
  std::string text;     // kReasoning, kContent, kToolArgs; the name for kToolBegin
  int tool_index = -1;  // kTool*
  std::string id = {};  // kToolBegin: the model's own name for the call, where its family has them
};

class OutputParser {
 public:
  struct Options {
    ToolFormat tool_format = ToolFormat::kGlm47;
    ReasoningFormat reasoning_format = ReasoningFormat::kThink;
    bool starts_in_thinking = false;  // the rendered prompt ends inside <think>
    Json tools;                       // OpenAI tool objects; null or []: markup is content
    std::vector<std::string> stops;   // stop strings, honoured in content only
    bool keep_special = false;        // special tokens without a meaning here are shown as text
  };
  OutputParser(const Tokenizer& tokenizer, Options options);
  ~OutputParser();

  // One sampled token. stopped() tells when a stop string ended the answer.
  std::vector<OutputEvent> push(std::int32_t id);
  // The end: `by_stop` true for an end token or stop string, false when cut by length.
  std::vector<OutputEvent> finish(bool by_stop);
  bool stopped() const;
  const std::string& stop_string() const;
  bool in_reasoning() const;
  int reasoning_tokens() const;
  int complete_tool_calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
