// What the two OpenAI completion endpoints share in their answers: heads, chunks, the last events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api_call.h"
#include "server/field_reader.h"

namespace glint {

inline constexpr const char* kCommentPing = ": ping\n\n";

// What every object of one answer repeats.
struct OpenAiHead {
  std::string id;
  std::string object;
  std::int64_t created = 0;
  std::string model;
  std::string fingerprint;
};

struct StreamShape {
  bool stream = false;
  bool include_usage = false;     // one chunk with the usage before [DONE]
  bool continuous_usage = false;  // usage in every chunk
  bool timings_per_token = false;
};
// stream, stream_options, timings_per_token
StreamShape read_stream_shape(FieldReader& fields);

Json headed(const OpenAiHead& head, Json choices);
// One choice's piece as an event.
std::string chunk_event(const OpenAiHead& head, const StreamShape& shape, Json choice,
                        const AnswerUsage& usage);
// prompt_progress of a kProgress delta.
std::string progress_event(const OpenAiHead& head, const AnswerUsage& usage,
                           const ChatDelta& delta);
// The usage chunk, if it was asked for, and [DONE].
std::string last_events(const OpenAiHead& head, const StreamShape& shape, const AnswerUsage& usage);
std::string openai_failure(const ApiError& error);

// vLLM's prompt_logprobs: one object per token, {"ID": {"logprob", "rank", "decoded_token"}}, null
// for the first.
void append_prompt_logprobs(const Tokenizer& tokenizer, const std::vector<PromptLogprob>& tokens,
                            Json& out);
Json token_ids_json(const std::vector<std::int32_t>& ids);

}  // namespace glint
