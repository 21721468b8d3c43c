// From a row of logits to one token, in the order that request.h states. Deterministic: a token
// depends on the logits, the parameters, the tokens before it, and the draw of (seed, index); on
// nothing that happens beside it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace glint {

// Uniform in [0, 1), a function of its arguments alone.
double uniform_draw(std::uint64_t seed, std::uint64_t index);

// Names the field and its range. `vocab_size` bounds every token id.
Status check_sampling(const SamplingParams& params, int vocab_size);

struct Sample {
  std::int32_t token = -1;
  float logprob = 0;                       // when asked for
  std::vector<TokenLogprob> top_logprobs;  // likeliest first
};

// The sampling state of one sequence: parameters and what penalties need to know of the tokens so
// far.
class Sampler {
 public:
  Sampler(SamplingParams params, int min_tokens, std::vector<std::int32_t> stop_ids,
          std::span<const std::int32_t> prompt);

  // Picks the next token, and scribbles over `logits`. `scripted`: the token to pick, unless a mask
  // forbids it: then it is the best that none forbids. Errors: kInternal when a logit is NaN or
  // infinite, or the rule allows nothing; kInvalidArgument when the parameters leave no token to
  // choose.
  Result<Sample> next(std::span<float> logits, const NextTokens& rule = {},
                      std::int32_t scripted = -1);

 private:
  struct Candidate {
    float logit;  // minus the greatest, divided by the temperature
    std::int32_t token;
    static bool before(const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
    }
  };
  struct Bin {
    std::size_t count = 0;
    double mass = 0;  // sum of e^logit
  };
  struct Cut {
    Candidate last;  // the last one kept
    double mass;     // of all that are kept
  };
  static constexpr std::size_t kNumBins = 2048;

  void accept(std::int32_t token);
  Status mask(std::span<float> logits, const NextTokens& rule) const;
  bool would_complete(std::span<const std::int32_t> run) const;
  void hold_off_stops(std::span<float> logits);
  std::int32_t pick(std::span<float> logits, std::int32_t scripted);
  void adjust(std::span<float> logits) const;
  std::int32_t draw(std::span<float> logits);
  Candidate nucleus(std::span<const float> scaled);
  Cut cut(std::span<const float> scaled, std::size_t most, double enough);
  static std::size_t bin_of(float scaled);

  SamplingParams params_;
  int min_tokens_;
  std::vector<std::int32_t> stop_ids_;
  std::vector<std::uint32_t> allowed_;  // allowed_tokens as bits; empty: all
  std::vector<std::int32_t> tail_;      // generated last, as many as a bad sequence needs to know
  std::size_t tail_size_ = 0;
  std::vector<std::int32_t> window_;  // ring of the last repeat_last_n tokens
  std::size_t window_next_ = 0;
  std::unordered_map<std::int32_t, int> repeated_;   // token -> times in the window
  std::unordered_map<std::int32_t, int> generated_;  // token -> times generated
  std::uint64_t num_generated_ = 0;
  std::vector<Candidate> candidates_;  // scratch, as are the bins
  std::vector<Bin> bins_;
};

}  // namespace glint
