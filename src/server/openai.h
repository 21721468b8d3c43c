// The JSON of chat completions: deltas of a turn -> chunks, and chunks -> one whole answer. Pure;
// no sockets, no threads. A whole answer is the fold of the chunks a stream would have carried, so
// the two cannot disagree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/chat.h"

namespace glint {

// What every chunk of one answer repeats.
struct AnswerHead {
  std::string id;
  std::int64_t created = 0;  // Unix time
  std::string model;
  std::string fingerprint;
};

// Deltas of one choice -> entries for "choices", one per chunk.
class ChoiceWriter {
 public:
  struct Options {
    int index = 0;
    bool include_reasoning = true;
    bool include_stop_string = false;
    std::vector<std::int32_t> stop_token_ids;  // the request's own, reported as stop_reason
  };
  // Borrows the tokenizer, for the text of log-probs.
  ChoiceWriter(const Tokenizer& tokenizer, Options options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}
  std::vector<Json> write(const ChatDelta& delta);

 private:
  Json choice(Json delta);
  Json event_delta(const OutputEvent& event);
  Json logprob_entry(const TokenEvent& event) const;
  Json token_fields(std::int32_t token, float logprob) const;
  void add_finish(const ChatDelta& delta, std::vector<Json>& choices);

  const Tokenizer& tokenizer_;
  const Options options_;
  Json::Array logprobs_;  // of tokens whose chunk is still to come
  bool has_logprobs_ = false;
  bool has_role_ = false;
};

// Entries of ChoiceWriter -> the one entry of a whole answer.
class ChoiceFold {
 public:
  void add(const Json& choice);
  Json take();

 private:
  int index_ = 0;
  std::string content_, reasoning_;
  Json tool_calls_;
  Json logprobs_;
  Json finish_reason_, stop_reason_;
};

// The sum over the choices of one request: the prompt counts once.
struct AnswerUsage {
  Usage usage;
  int reasoning_tokens = 0;
};
AnswerUsage sum_usage(std::span<const AnswerUsage> choices);
Json usage_json(const AnswerUsage& usage);
Json timings_json(const Usage& usage);

Json chunk_json(const AnswerHead& head, Json choices);
Json completion_json(const AnswerHead& head, Json choices, const AnswerUsage& usage);

// One event of a stream.
std::string sse_event(std::string_view data);

}  // namespace glint
