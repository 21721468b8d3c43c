#include "engine/logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace glint {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kWordBits = 32;

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

bool is_allowed(std::span<const std::uint32_t> allowed, std::size_t token) {
  const std::size_t word = token / kWordBits;
  return word < allowed.size() && ((allowed[word] >> (token % kWordBits)) & 1u) != 0;
}

}  // namespace

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

Status check_finite(std::span<const float> logits) {
  if (all_finite(logits)) return {};
  const auto bad = std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); });
  return internal_error(
      fmt::format("the model's logit of token {} is {}", bad - logits.begin(), *bad));
}

std::int32_t position_of_max(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::find(logits, max_of(logits)) - logits.begin());
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

std::vector<TokenLogprob> likeliest(std::span<const float> logits, int n, double log_sum) {
  const auto better = [&logits](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap whose front is the worst of the best so far: most tokens are refused with one
  // comparison.
  const std::size_t wanted = std::min(static_cast<std::size_t>(std::max(0, n)), logits.size());
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

Result<PromptLogprob> judge_token(std::span<const float> logits, std::int32_t token, int num_top) {
  GLINT_TRY_VOID(check_finite(logits));
  const std::size_t index = static_cast<std::size_t>(token);
  GLINT_CHECK(token >= 0 && index < logits.size());
  const float own = logits[index];
  const double log_sum = log_sum_exp(logits);
  // Equals count in order of ids, as in the list of the likeliest.
  const auto greater = std::ranges::count_if(logits, [own](float x) { return x > own; });
  const auto equal_before = std::ranges::count(logits.first(index), own);
  return PromptLogprob{.token = token,
                       .has_logprob = true,
                       .logprob = static_cast<float>(own - log_sum),
                       .rank = static_cast<int>(greater + equal_before) + 1,
                       .top_logprobs = likeliest(logits, num_top, log_sum)};
}

void apply_mask(std::span<float> logits, std::span<const std::uint32_t> allowed) {
  const std::size_t num_words = std::min(logits.size() / kWordBits, allowed.size());
  for (std::size_t word = 0; word < num_words; ++word) {
    const std::uint32_t bits = allowed[word];
    if (bits == ~0u) continue;
    const auto row = logits.subspan(word * kWordBits, kWordBits);
    if (bits == 0) {
      std::ranges::fill(row, kMasked);
      continue;
    }
    for (std::size_t i = 0; i < kWordBits; ++i) {
      row[i] = ((bits >> i) & 1u) != 0 ? row[i] : kMasked;
    }
  }
  for (std::size_t i = num_words * kWordBits; i < logits.size(); ++i) {
    if (!is_allowed(allowed, i)) logits[i] = kMasked;
  }
}

bool allows_any(std::span<const std::uint32_t> allowed, std::size_t vocab_size) {
  const std::size_t num_words = std::min(vocab_size / kWordBits, allowed.size());
  if (std::ranges::any_of(allowed.first(num_words), [](std::uint32_t bits) { return bits != 0; })) {
    return true;
  }
  for (std::size_t i = num_words * kWordBits; i < vocab_size; ++i) {
    if (is_allowed(allowed, i)) return true;
  }
  return false;
}

}  // namespace glint
