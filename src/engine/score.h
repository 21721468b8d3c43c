// What `glint score` and the golden tests ask of a model, without an engine: logits of given
// tokens, a greedy continuation, the likelihood of a text. Runs on the calling thread; the cache
// must be at rest.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "models/model.h"

namespace glint {

struct ScoreOptions {
  int chunk = 512;             // most tokens of one prompt in one step
  int max_batch_tokens = 512;  // most tokens of a step that holds several prompts
  bool all_at_once = false;    // all prompts side by side in the same steps, or one after the other
};

// Logits of the prompt's tokens [first, first + logits.size() / vocab_size), in order for each
// prompt. An error stops all.
using LogitSink =
    std::function<Status(std::size_t prompt, int first, std::span<const float> logits)>;

// Logits of every token of every prompt, never more than one step's rows at a time. Nothing is
// taken from the prefix cache. Errors: kInvalidArgument (empty prompt, token out of vocabulary),
// kExhausted (the cache is too small), the sink's.
Status prompt_logits(const Model& model, Exec& exec, Cache& cache,
                     std::span<const std::vector<std::int32_t>> prompts,
                     const ScoreOptions& options, const LogitSink& sink);

// The likeliest token, `count` times over; end tokens do not end it. Starts from the prefix cache.
// Errors: as above, and kInternal for logits that are not finite.
Result<std::vector<std::int32_t>> greedy_continuation(const Model& model, Exec& exec, Cache& cache,
                                                      std::span<const std::int32_t> prompt,
                                                      int count, int chunk = 512);

struct NllOptions {
  int window = 2048;  // tokens that see each other
  int stride = 0;  // tokens from one window to the next, 0: window; less gives every scored token
                   // more context
  int chunk = 512;
};

struct NllSum {
  double nll = 0;  // sum of -log p(token | tokens of the window before it), natural logarithm
  std::int64_t count = 0;  // tokens scored; perplexity is e^(nll / count)
};

// Each token is scored once, in the first window that holds it; the one that opens a window has
// nothing before it and is left out, unless an earlier window had it (stride < window). `progress`
// (may be null) is told how many tokens are done after each window. Errors: as above.
Result<NllSum> negative_log_likelihood(const Model& model, Exec& exec, Cache& cache,
                                       std::span<const std::int32_t> tokens,
                                       const NllOptions& options,
                                       const std::function<void(std::size_t done)>& progress = {});

}  // namespace glint
