// What goes into the engine and what comes out: token ids and numbers only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace glint {

// Applied in this order: logprobs are read from the raw logits, then min_tokens masks the stop ids,
// logit_bias, repetition penalty, frequency and presence penalties, temperature, min_p, top_k,
// top_p, draw.
struct SamplingParams {
  float temperature = 1.0f;  // below 1e-5: greedy
  float top_p = 1.0f;
  int top_k = 0;  // 0: off
  float min_p = 0.0f;
  float repetition_penalty =
      1.0f;  // over prompt + generated, the last repeat_last_n of them (-1: all)
  int repeat_last_n = -1;
  float presence_penalty = 0.0f;  // over generated tokens
  float frequency_penalty = 0.0f;
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::uint64_t seed = 0;  // the draw of token i depends on (seed, i) alone
  int top_logprobs = -1;   // -1: no log-probs; 0: of the token; N: and of the N likeliest
};

struct GenerateRequest {
  std::vector<std::int32_t> prompt = {};  // at least one token
  SamplingParams sampling = {};
  int max_tokens = 0;  // >= 1; clamped to the room left in the context
  int min_tokens = 0;
  // End the sequence. The stop token is counted and reported, then the sequence finishes.
  std::vector<std::int32_t> stop_ids = {};
  std::uint64_t cache_salt = 0;
  double timeout_s = 0;  // since submit(), then kError with code kCancelled; 0: none
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;      // of the prompt, found in the prefix cache
  int completion_tokens = 0;  // every sampled token, the stop token included
  double queue_s = 0, prefill_s = 0, decode_s = 0;
};

// One event of a request, in order: kStarted, kToken*, then exactly one kFinished (also for errors
// and cancellation).
struct TokenEvent {
  enum class Kind { kStarted, kToken, kFinished } kind = Kind::kToken;
  std::int32_t token = -1;  // kToken
  bool is_stop = false;     // kToken: it is one of stop_ids and ends the sequence
  float logprob = 0;        // kToken, when asked for
  std::vector<TokenLogprob> top_logprobs = {};  // likeliest first
  FinishReason reason = FinishReason::kStop;    // kFinished
  Error error = {};                             // kFinished with kError
  Usage usage = {};                             // kStarted (prompt, cached), kFinished (all)
};

// Called on the engine thread, in order; must be quick, must not throw and must not call the engine
// back. It may cancel tickets: no token of theirs follows then.
using EventSink = std::function<void(TokenEvent)>;

}  // namespace glint
