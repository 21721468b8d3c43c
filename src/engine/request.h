// What goes into the engine and what comes out: token ids and numbers only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/constraint.h"

namespace glint {

// Applied in this order: logprobs are read from the raw logits, then allowed_tokens and
// bad_sequences, the constraint's mask, min_tokens (masks the stop ids, unless nothing else is
// left), logit_bias, repetition penalty, frequency and presence penalties, temperature, min_p,
// top_k, top_p, draw.
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
  std::vector<std::int32_t> allowed_tokens = {};  // empty: all
  // Runs of tokens that must not be completed; each holds at least one.
  std::vector<std::vector<std::int32_t>> bad_sequences = {};
};

// A test device: what sampling "picks", one by one, behind the real forward pass. A constraint
// still wins: then the best allowed token is taken, and the script goes on.
struct TokenScript {
  std::vector<std::int32_t> tokens = {};  // then sampling goes on, if the sequence does
  double stall_s = 0;                     // the first prefill chunk is held up this long
  int nan_at = -1;                        // the logits of this generated token are made NaN
};

struct ImagePatches;

// An image in a prompt: what it looks like stands for the tokens at its positions.
struct PromptImage {
  int first = 0, count = 0;   // positions
  std::uint64_t content = 0;  // a keyed hash of all that the vision tower gets to see
  // Called on the engine thread, when its rows are needed.
  std::function<ImagePatches()> patches = {};
};

struct GenerateRequest {
  std::vector<std::int32_t> prompt = {};  // at least one token
  std::vector<PromptImage> images = {};   // ascending, apart
  SamplingParams sampling = {};
  int max_tokens = 0;  // >= 1; clamped to the room left in the context
  int min_tokens = 0;
  // End the sequence. The stop token is counted and reported, then the sequence finishes.
  std::vector<std::int32_t> stop_ids = {};
  std::uint64_t cache_salt = 0;
  // Since submit(): then kLength, or kError with code kCancelled if no token came yet; 0: none.
  double timeout_s = 0;
  int priority = 0;                                  // lower first, with EngineOptions::by_priority
  std::shared_ptr<TokenConstraint> constraint = {};  // null: none. Of this sequence alone
  std::shared_ptr<const TokenScript> script = {};    // null: none
  // -1: none; 0: log-probs of the prompt's tokens; N: and of the N likeliest at each position. The
  // prompt is then computed whole, without what the prefix cache holds.
  int prompt_logprobs = -1;
  bool progress = false;  // kProgress after each chunk of the prompt
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
  int drafted_tokens = 0;     // guesses of the draft layer that were judged
  int accepted_tokens = 0;    // and those that were right
  double queue_s = 0, prefill_s = 0, decode_s = 0;
};

// What the model thought of one token of the prompt.
struct PromptLogprob {
  std::int32_t token = 0;
  bool has_logprob = false;  // false: the first token, which nothing predicts
  float logprob = 0;
  int rank = 0;                                 // 1: the likeliest
  std::vector<TokenLogprob> top_logprobs = {};  // likeliest first
};

// One event of a request, in order: kStarted, (kProgress | kPrompt)*, kToken*, then exactly one
// kFinished (also for errors and cancellation).
struct TokenEvent {
  enum class Kind { kStarted, kProgress, kPrompt, kToken, kFinished } kind = Kind::kToken;
  int prompt_computed = 0;  // kProgress: of the prompt, cached ones included
  std::vector<PromptLogprob> prompt_logprobs = {};  // kPrompt: the next ones, in order
  std::int32_t token = -1;                          // kToken
  bool is_stop = false;  // kToken: it is one of stop_ids and ends the sequence
  float logprob = 0;     // kToken, when asked for
  std::vector<TokenLogprob> top_logprobs = {};  // likeliest first
  FinishReason reason = FinishReason::kStop;    // kFinished
  Error error = {};                             // kFinished with kError
  Usage usage = {};                             // kStarted (prompt, cached), kFinished (all)
};

// Called on the engine thread, in order; must be quick, must not throw and must not call the engine
// back. It may cancel tickets: no token of theirs follows then.
using EventSink = std::function<void(TokenEvent)>;

}  // namespace glint
