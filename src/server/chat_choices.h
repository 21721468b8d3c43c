// The JSON of one choice of a chat completion: deltas of a turn -> chunks, and chunks -> one whole
// choice. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat.h"
#include "server/api_call.h"

namespace glint {

// One token as log-probs have it: {"token", "logprob", "bytes"}.
struct LogprobStyle {
  const Tokenizer* tokenizer = nullptr;
  bool ids_as_text = false;  // "token_id:17" instead of the token's text
};
Json token_fields(const LogprobStyle& style, std::int32_t token, float logprob);
// What stands for a token in log-probs.
std::string token_label(const LogprobStyle& style, std::int32_t token);
// JSON has no infinity.
double finite_logprob(float logprob);

// Deltas of one choice -> entries for "choices", one per chunk.
class ChoiceWriter {
 public:
  struct Options {
    int index = 0;
    bool reasoning_content = true, reasoning = true;  // names that thoughts are shown under
    bool include_stop_string = false;
    bool legacy_function_call = false;         // `function_call` instead of `tool_calls`
    bool token_ids = false;                    // with the ids that a chunk is made of
    std::vector<std::int32_t> stop_token_ids;  // the request's own, reported as stop_reason
    LogprobStyle logprobs;
  };
  explicit ChoiceWriter(Options options) : options_(std::move(options)) {}
  std::vector<Json> write(const ChatDelta& delta);

 private:
  Json choice(Json delta);
  Json event_delta(const OutputEvent& event);
  Json call_delta(const OutputEvent& event);
  Json logprob_entry(const TokenEvent& event) const;
  void add_finish(const ChatDelta& delta, std::vector<Json>& choices);

  const Options options_;
  Json::Array logprobs_;  // of tokens whose chunk is still to come
  Json::Array token_ids_;
  bool has_logprobs_ = false;
  bool has_role_ = false;
};

// Entries of ChoiceWriter -> the one entry of a whole answer.
class ChoiceFold {
 public:
  void add(const Json& choice);
  Json take();

 private:
  void add_call(const Json& call);
  int index_ = 0;
  std::string content_, reasoning_;
  bool shows_reasoning_content_ = false, shows_reasoning_ = false;
  Json tool_calls_, function_call_;
  Json logprobs_;
  Json token_ids_;
  Json finish_reason_, stop_reason_;
};

Json usage_json(const AnswerUsage& usage);
Json timings_json(const Usage& usage);
// stop_reason of a choice: the stop string, one of the request's own stop tokens, or null.
Json stop_reason_json(const ChatDelta& finished, const std::vector<std::int32_t>& stop_token_ids);

}  // namespace glint
