#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/logits.h"

namespace glint {
namespace {

constexpr float kGreedyBelow = 1e-5f;

// One step of splitmix64.
std::uint64_t splitmix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Keeps an adjusted logit comparable whatever was added to it.
float bounded(double x) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(x, -kMax, kMax));
}

Status check_tokens(const char* field, std::span<const std::int32_t> tokens, int vocab_size) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    return invalid_argument(
        fmt::format("{} names token {}, and the vocabulary has {}", field, token, vocab_size));
  }
  return {};
}

std::vector<std::uint32_t> mask_of(std::span<const std::int32_t> tokens) {
  std::vector<std::uint32_t> bits;
  for (const std::int32_t token : tokens) {
    const std::size_t word = static_cast<std::size_t>(token) / 32;
    if (bits.size() <= word) bits.resize(word + 1, 0);
    bits[word] |= 1u << (token % 32);
  }
  return bits;
}

}  // namespace

double uniform_draw(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = splitmix(splitmix(seed) ^ splitmix(~index));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Status check_sampling(const SamplingParams& params, int vocab_size) {
  const auto wrong = [](const char* field, double value, const char* range) {
    return invalid_argument(fmt::format("{} is {}, and must be {}", field, value, range));
  };
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return wrong("temperature", params.temperature, "0 or more");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) return wrong("top_p", params.top_p, "in (0, 1]");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return wrong("min_p", params.min_p, "in [0, 1]");
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty)) {
    return wrong("repetition_penalty", params.repetition_penalty, "above 0");
  }
  if (!std::isfinite(params.presence_penalty)) {
    return wrong("presence_penalty", params.presence_penalty, "finite");
  }
  if (!std::isfinite(params.frequency_penalty)) {
    return wrong("frequency_penalty", params.frequency_penalty, "finite");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return invalid_argument(
          fmt::format("logit_bias names token {}, and the vocabulary has {}", token, vocab_size));
    }
    if (!std::isfinite(bias)) return wrong("logit_bias", bias, "finite");
  }
  GLINT_TRY_VOID(check_tokens("allowed_tokens", params.allowed_tokens, vocab_size));
  for (const std::vector<std::int32_t>& run : params.bad_sequences) {
    if (run.empty()) return invalid_argument("bad_sequences holds an empty run of tokens");
    GLINT_TRY_VOID(check_tokens("bad_sequences", run, vocab_size));
  }
  return {};
}

Sampler::Sampler(SamplingParams params, int min_tokens, std::vector<std::int32_t> stop_ids,
                 std::span<const std::int32_t> prompt)
    : params_(std::move(params)),
      min_tokens_(min_tokens),
      stop_ids_(std::move(stop_ids)),
      allowed_(mask_of(params_.allowed_tokens)) {
  for (const std::vector<std::int32_t>& run : params_.bad_sequences) {
    tail_size_ = std::max(tail_size_, run.size() - 1);
  }
  if (params_.repetition_penalty == 1.0f || params_.repeat_last_n == 0) return;
  if (params_.repeat_last_n > 0) {
    const auto kept = std::min(prompt.size(), static_cast<std::size_t>(params_.repeat_last_n));
    prompt = prompt.last(kept);
    window_.assign(prompt.begin(), prompt.end());
  }
  for (const std::int32_t token : prompt) ++repeated_[token];
}

void Sampler::accept(std::int32_t token) {
  ++num_generated_;
  if (tail_size_ > 0) {
    if (tail_.size() == tail_size_) tail_.erase(tail_.begin());
    tail_.push_back(token);
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) ++generated_[token];
  if (params_.repetition_penalty == 1.0f || params_.repeat_last_n == 0) return;
  ++repeated_[token];
  if (params_.repeat_last_n < 0) return;
  if (window_.size() < static_cast<std::size_t>(params_.repeat_last_n)) {
    window_.push_back(token);
    return;
  }
  const auto leaving = repeated_.find(window_[window_next_]);
  if (--leaving->second == 0) repeated_.erase(leaving);
  window_[window_next_] = token;
  window_next_ = (window_next_ + 1) % window_.size();
}

Result<Sample> Sampler::next(std::span<float> logits, const NextTokens& rule,
                             std::int32_t scripted) {
  GLINT_CHECK(!logits.empty());
  GLINT_TRY_VOID(check_finite(logits));
  Sample sample;
  double log_sum = 0;
  std::vector<float> raw;
  const bool want_logprobs = params_.top_logprobs >= 0;
  if (want_logprobs) {
    log_sum = log_sum_exp(logits);
    sample.top_logprobs = likeliest(logits, params_.top_logprobs, log_sum);
    raw.assign(logits.begin(), logits.end());
  }
  GLINT_TRY_VOID(mask(logits, rule));
  hold_off_stops(logits);
  adjust(logits);
  sample.token = pick(logits, scripted);
  if (want_logprobs) {
    sample.logprob = static_cast<float>(raw[static_cast<std::size_t>(sample.token)] - log_sum);
  }
  accept(sample.token);
  return sample;
}

// Leaves at least one token.
Status Sampler::mask(std::span<float> logits, const NextTokens& rule) const {
  if (!allowed_.empty()) apply_mask(logits, allowed_);
  for (const std::vector<std::int32_t>& run : params_.bad_sequences) {
    if (would_complete(run)) logits[static_cast<std::size_t>(run.back())] = kMasked;
  }
  const std::size_t forced = static_cast<std::size_t>(std::max(0, rule.forced));
  if (rule.forced >= 0) {
    if (forced >= logits.size()) {
      return internal_error(fmt::format("a constraint forces token {}, and the vocabulary has {}",
                                        rule.forced, logits.size()));
    }
    const float kept = logits[forced];
    std::ranges::fill(logits, kMasked);
    logits[forced] = kept;
  } else if (!rule.allowed.empty()) {
    apply_mask(logits, rule.allowed);
  }
  const bool constrained = rule.forced >= 0 || !rule.allowed.empty();
  if (!constrained && allowed_.empty() && params_.bad_sequences.empty()) return {};
  if (max_of(logits) != kMasked) return {};
  if (constrained && rule.forced < 0 && !allows_any(rule.allowed, logits.size())) {
    return internal_error("the constraint on this answer allows no token at all");
  }
  return invalid_argument(fmt::format("allowed tokens and bad words leave {} to choose",
                                      constrained ? "none of the tokens that the answer's format "
                                                    "allows"
                                                  : "no token"));
}

// Whether this run ends with the next token, if that is its last one.
bool Sampler::would_complete(std::span<const std::int32_t> run) const {
  const auto before = run.first(run.size() - 1);
  return before.size() <= tail_.size() &&
         std::ranges::equal(before, std::span(tail_).last(before.size()));
}

// min_tokens: masks the stop ids, unless that would leave nothing.
void Sampler::hold_off_stops(std::span<float> logits) {
  if (num_generated_ >= static_cast<std::uint64_t>(std::max(0, min_tokens_))) return;
  std::vector<std::pair<std::size_t, float>> held;
  for (const std::int32_t token : stop_ids_) {
    const std::size_t index = static_cast<std::size_t>(token);
    if (token < 0 || index >= logits.size()) continue;
    held.emplace_back(index, std::exchange(logits[index], kMasked));
  }
  if (held.empty() || max_of(logits) != kMasked) return;
  for (const auto& [index, logit] : held) logits[index] = std::max(logits[index], logit);
}

std::int32_t Sampler::pick(std::span<float> logits, std::int32_t scripted) {
  if (scripted >= 0 && logits[static_cast<std::size_t>(scripted)] != kMasked) return scripted;
  if (scripted >= 0 || params_.temperature < kGreedyBelow) return position_of_max(logits);
  return draw(logits);
}

// What moves logits of single tokens: masked ones stay masked.
void Sampler::adjust(std::span<float> logits) const {
  const auto in_range = [&logits](std::int32_t token) {
    return token >= 0 && static_cast<std::size_t>(token) < logits.size();
  };
  const auto change = [&](std::int32_t token, auto&& fn) {
    float& x = logits[static_cast<std::size_t>(token)];
    if (x != kMasked) x = bounded(fn(static_cast<double>(x)));
  };
  for (const auto& [token, bias] : params_.logit_bias) {
    if (in_range(token)) change(token, [b = bias](double x) { return x + b; });
  }
  const double factor = params_.repetition_penalty;
  for (const auto& [token, count] : repeated_) {
    change(token, [factor](double x) { return x > 0 ? x / factor : x * factor; });
  }
  const double presence = params_.presence_penalty, frequency = params_.frequency_penalty;
  for (const auto& [token, count] : generated_) {
    change(token, [=, n = count](double x) { return x - frequency * n - presence; });
  }
}

std::int32_t Sampler::draw(std::span<float> logits) {
  const float max = max_of(logits);
  const float inverse = 1.0f / params_.temperature;
  const float floor = params_.min_p > 0 ? std::log(params_.min_p) : kMasked;
  // From here on logits are relative to the likeliest, and what min_p drops is masked.
  for (float& x : logits) {
    const float scaled = (x - max) * inverse;
    x = scaled >= floor ? scaled : kMasked;
  }
  if (params_.top_k > 0 || params_.top_p < 1.0f) {
    const Candidate last = nucleus(logits);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const Candidate candidate{logits[i], static_cast<std::int32_t>(i)};
      if (Candidate::before(last, candidate)) logits[i] = kMasked;
    }
  }
  double mass = 0;
  for (const float x : logits) {
    if (x != kMasked) mass += std::exp(x);
  }
  double left = uniform_draw(params_.seed, num_generated_) * mass;
  std::int32_t token = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMasked) continue;
    token = static_cast<std::int32_t>(i);
    left -= std::exp(logits[i]);
    if (left < 0) break;
  }
  return token;
}

// The last candidate, in order of likelihood, that top_k and then top_p keep.
Sampler::Candidate Sampler::nucleus(std::span<const float> scaled) {
  bins_.assign(kNumBins, {});
  for (const float x : scaled) {
    if (x == kMasked) continue;
    Bin& bin = bins_[bin_of(x)];
    ++bin.count;
    bin.mass += std::exp(x);
  }
  const std::size_t most =
      params_.top_k > 0 ? static_cast<std::size_t>(params_.top_k) : scaled.size();
  const Cut by_count = cut(scaled, most, std::numeric_limits<double>::infinity());
  if (params_.top_p >= 1.0f) return by_count.last;
  return cut(scaled, most, params_.top_p * by_count.mass).last;
}

// Goes down the candidates until there are `most` of them or their mass reaches `enough`. Sorting
// the vocabulary would cost more than all else here; so whole bins are taken while they fit, and
// only the one with the end in it is sorted.
Sampler::Cut Sampler::cut(std::span<const float> scaled, std::size_t most, double enough) {
  std::size_t count = 0;
  double mass = 0;
  for (std::size_t b = 0; b < kNumBins; ++b) {
    if (count + bins_[b].count < most && mass + bins_[b].mass < enough) {
      count += bins_[b].count;
      mass += bins_[b].mass;
      continue;
    }
    candidates_.clear();
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      if (scaled[i] != kMasked && bin_of(scaled[i]) == b) {
        candidates_.push_back({scaled[i], static_cast<std::int32_t>(i)});
      }
    }
    std::ranges::sort(candidates_, &Candidate::before);
    for (const Candidate& candidate : candidates_) {
      mass += std::exp(candidate.logit);
      if (++count == most || mass >= enough) return {candidate, mass};
    }
  }
  return {{kMasked, std::numeric_limits<std::int32_t>::max()}, mass};
}

// Bins of equal width below the greatest logit, which is 0.
std::size_t Sampler::bin_of(float scaled) {
  return static_cast<std::size_t>(std::min(-scaled * 32.0f, static_cast<float>(kNumBins - 1)));
}

}  // namespace glint
