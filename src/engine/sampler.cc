#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
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

// Index of the first NaN or infinity, or the size.
std::size_t first_not_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t greatest = 0;
  for (const float x : logits)
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(x) & kExponent);
  if (greatest != kExponent) return logits.size();
  return static_cast<std::size_t>(
      std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); }) - logits.begin());
}

Status check_finite(std::span<const float> logits) {
  if (const std::size_t i = first_not_finite(logits); i < logits.size()) {
    return internal_error(fmt::format("the model's logit of token {} is {}", i, logits[i]));
  }
  return {};
}

std::int32_t position_of_max(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
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
  const float max = *std::ranges::max_element(logits);
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
  const float max = *std::ranges::max_element(logits);
  if (max == kMasked) return -1;
  const float inverse = 1.0f / params_.temperature;
  const float floor = params_.min_p > 0 ? std::log(params_.min_p) : kMasked;
  const double u = uniform_draw(params_.seed, num_generated_);
  const bool limited = params_.top_k > 0 || params_.top_p < 1.0f;

  // From here on logits are relative to the likeliest, and what min_p drops is masked.
  double total = 0;
  for (float& x : logits) {
    const float scaled = (x - max) * inverse;
    x = scaled >= floor ? scaled : kMasked;
    total += std::exp(x);
  }
  if (!limited) {
    // No order is needed: walk the ids.
    double left = u * total;
    std::int32_t last = -1;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] == kMasked) continue;
      last = static_cast<std::int32_t>(i);
      left -= std::exp(logits[i]);
      if (left < 0) break;
    }
    return last;
  }
  const std::span<Candidate> kept = nucleus(logits, total);
  double mass = 0;
  for (const Candidate& candidate : kept) mass += std::exp(candidate.logit);
  double left = u * mass;
  for (const Candidate& candidate : kept) {
    left -= std::exp(candidate.logit);
    if (left < 0) return candidate.token;
  }
  return kept.back().token;
}

// The candidates that top_k, then top_p leave, likeliest first. `total` is the mass of all unmasked
// ones. Sorting the whole vocabulary would cost more than all else here, so only tokens above a cut
// are sorted; the cut is lowered until what lies above it settles the answer.
std::span<Sampler::Candidate> Sampler::nucleus(std::span<const float> scaled, double total) {
  const std::size_t top_k =
      params_.top_k > 0 ? static_cast<std::size_t>(params_.top_k) : scaled.size();
  const double top_p = params_.top_p;
  for (float cut = -4.0f;; cut *= 2) {
    const bool everything = cut < -150.0f;  // e^-150 is nothing in float
    candidates_.clear();
    double mass = 0;
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      if (scaled[i] == kMasked || (!everything && scaled[i] < cut)) continue;
      candidates_.push_back({scaled[i], static_cast<std::int32_t>(i)});
      mass += std::exp(scaled[i]);
    }
    const bool enough = params_.top_k > 0 ? candidates_.size() >= top_k : mass >= top_p * total;
    if (everything || enough) break;
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (candidates_.size() > top_k) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(top_k);
    std::nth_element(candidates_.begin(), end, candidates_.end(), better);
    candidates_.resize(top_k);
  }
  std::ranges::sort(candidates_, better);
  if (top_p >= 1.0) return candidates_;

  // The mass that top_p is a share of: what top_k left.
  double whole = total;
  if (params_.top_k > 0) {
    whole = 0;
    for (const Candidate& candidate : candidates_) whole += std::exp(candidate.logit);
  }
  double sum = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || sum < top_p * whole)) {
    sum += std::exp(candidates_[kept++].logit);
  }
  return std::span(candidates_).first(kept);
}

}  // namespace glint
