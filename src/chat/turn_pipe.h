// Engine events of one answer -> neutral deltas. Runs on the engine thread; knows no engine, so
// tests feed it by hand.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat.h"

namespace glint {

class TurnPipe {
 public:
  struct Options {
    bool raw = false;  // the answer is content from end to end
    bool starts_in_thinking = false;
    Json tools;                       // null: markup of calls is content
    bool parallel_tool_calls = true;  // false: the answer ends after its first call
    std::vector<std::string> stops;
    bool logprobs = false;
    ToolFormat tool_format = ToolFormat::kGlm47;
    ReasoningFormat reasoning_format = ReasoningFormat::kThink;
    bool keep_special = false;  // special tokens are shown as text
  };
  // `end_early` is called at most once, when the answer is complete before the engine knows: a stop
  // string matched, or the only call allowed is complete.
  TurnPipe(const Tokenizer& tokenizer, Options options, DeltaSink sink,
           std::function<void()> end_early);

  void take(TokenEvent event);

 private:
  void take_token(TokenEvent event);
  void take_finish(TokenEvent event);
  std::vector<OutputEvent> text_of(std::int32_t token);
  std::vector<OutputEvent> text_at_end(bool by_stop);
  bool is_complete(const std::vector<OutputEvent>& events) const;
  void flush(std::vector<OutputEvent> events);

  DeltaSink sink_;
  std::function<void()> end_early_;
  const bool parallel_tool_calls_;
  const bool logprobs_;
  const bool keep_special_;
  const Tokenizer& tokenizer_;
  std::optional<OutputParser> parser_;  // unless raw
  Detokenizer detokenizer_;             // raw
  StopMatcher stops_;                   // raw
  // Tokens whose text is still held back.
  std::vector<std::int32_t> tokens_;
  std::vector<TokenEvent> token_logprobs_;
  int num_tokens_ = 0;
  std::int32_t stop_token_ = -1;
  bool complete_ = false;  // end_early was called: what the engine still sends is dropped
  bool finished_ = false;
};

}  // namespace glint
