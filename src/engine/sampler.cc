#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace glint {
namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// One step of splitmix64.
std::uint64_t splitmix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The scans below work on independent lanes, which compilers turn into vector instructions: a
// vocabulary may have 150,000 tokens, and they run for each token that is sampled.
constexpr std::size_t kLanes = 16;

float max_of(std::span<const float> logits) {
  std::array<float, kLanes> lanes;
  lanes.fill(kMasked);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      lanes[lane] = x > lanes[lane] ? x : lanes[lane];
    }
  }
  for (; i < logits.size(); ++i) lanes[0] = std::max(lanes[0], logits[i]);
  return std::ranges::max(lanes);
}

bool all_finite(std::span<const float> logits) {
  // An exponent of all ones carries into the sign bit.
  std::uint32_t carries = 0;
  std::array<std::uint32_t, kLanes> lanes{};
  std::size_t i = 0;
  const auto carry = [](float x) {
    return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) + 0x00800000u;
  };
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] |= carry(logits[i + lane]);
  }
  for (; i < logits.size(); ++i) carries |= carry(logits[i]);
  for (const std::uint32_t lane : lanes) carries |= lane;
  return (carries & 0x80000000u) == 0;
}

Status check_finite(std::span<const float> logits) {
  if (all_finite(logits)) return {};
  const auto bad = std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); });
  return internal_error(
      fmt::format("the model's logit of token {} is {}", bad - logits.begin(), *bad));
}

std::int32_t position_of_max(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::find(logits, max_of(logits)) - logits.begin());
}

// The N likeliest, likeliest first, lower ids first among equals.
std::vector<TokenLogprob> top_n(std::span<const float> logits, int n, double log_sum) {
  const auto better = [&logits](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap whose front is the worst of the best so far: most tokens are refused with one
  // comparison.
  const std::size_t wanted = std::min(static_cast<std::size_t>(n), logits.size());
  std::vector<std::int32_t> best;
  best.reserve(wanted + 1);
  for (std::size_t i = 0; i < logits.size() && wanted > 0; ++i) {
    const auto token = static_cast<std::int32_t>(i);
    if (best.size() == wanted && !better(token, best.front())) continue;
    best.push_back(token);
    std::push_heap(best.begin(), best.end(), better);
    if (best.size() > wanted) {
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  std::vector<TokenLogprob> out;
  out.reserve(best.size());
  for (const std::int32_t token : best) {
    out.push_back({token, static_cast<float>(logits[static_cast<std::size_t>(token)] - log_sum)});
  }
  return out;
}

// Keeps an adjusted logit comparable whatever was added to it.
float bounded(double x) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(x, -kMax, kMax));
}

}  // namespace

double uniform_draw(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = splitmix(splitmix(seed) ^ splitmix(~index));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Result<std::int32_t> argmax(std::span<const float> logits) {
  GLINT_CHECK(!logits.empty());
  GLINT_TRY_VOID(check_finite(logits));
  return position_of_max(logits);
}

double log_sum_exp(std::span<const float> logits) {
  const float max = max_of(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
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
  return {};
}

Sampler::Sampler(SamplingParams params, int min_tokens, std::vector<std::int32_t> stop_ids,
                 std::span<const std::int32_t> prompt)
    : params_(std::move(params)), min_tokens_(min_tokens), stop_ids_(std::move(stop_ids)) {
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

Result<Sample> Sampler::next(std::span<float> logits) {
  GLINT_CHECK(!logits.empty());
  GLINT_TRY_VOID(check_finite(logits));
  Sample sample;
  double log_sum = 0;
  std::vector<float> raw;
  const bool want_logprobs = params_.top_logprobs >= 0;
  if (want_logprobs) {
    log_sum = log_sum_exp(logits);
    sample.top_logprobs = top_n(logits, params_.top_logprobs, log_sum);
    raw.assign(logits.begin(), logits.end());
  }
  adjust(logits);
  if (params_.temperature < kGreedyBelow) {
    sample.token = position_of_max(logits);
  } else {
    sample.token = draw(logits);
  }
  if (sample.token < 0 || logits[static_cast<std::size_t>(sample.token)] == kMasked) {
    return invalid_argument("min_tokens masks every token of the vocabulary");
  }
  if (want_logprobs) {
    sample.logprob = static_cast<float>(raw[static_cast<std::size_t>(sample.token)] - log_sum);
  }
  accept(sample.token);
  return sample;
}

// Everything between the raw logits and the temperature.
void Sampler::adjust(std::span<float> logits) const {
  const auto in_range = [&logits](std::int32_t token) {
    return token >= 0 && static_cast<std::size_t>(token) < logits.size();
  };
  if (num_generated_ < static_cast<std::uint64_t>(std::max(0, min_tokens_))) {
    for (const std::int32_t token : stop_ids_) {
      if (in_range(token)) logits[static_cast<std::size_t>(token)] = kMasked;
    }
  }
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
  if (max == kMasked) return -1;
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
