// Plain questions about one row of logits. They scan the whole vocabulary, for each token that is
// sampled, and are written for compilers to make vector instructions of.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace glint {

// The logit of a token that must not come.
inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The greatest of the row; kMasked when every token is masked.
float max_of(std::span<const float> logits);

// Errors: kInternal when a logit is NaN or infinite, naming the token.
Status check_finite(std::span<const float> logits);

// The first token that has the greatest logit.
std::int32_t position_of_max(std::span<const float> logits);

// The likeliest token, the lowest id among equals. Errors: as check_finite().
Result<std::int32_t> argmax(std::span<const float> logits);

// log(sum e^logits), accumulated in double in order of ids. Logits must be finite.
double log_sum_exp(std::span<const float> logits);

// The n likeliest, likeliest first, lower ids first among equals.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, int n, double log_sum);

// How likely `token` was as the one after this row, and the `num_top` likeliest. Errors: as
// check_finite().
Result<PromptLogprob> judge_token(std::span<const float> logits, std::int32_t token, int num_top);

// Masks every token whose bit (i % 32 of word i / 32) is not set; those beyond the words too.
void apply_mask(std::span<float> logits, std::span<const std::uint32_t> allowed);

// Whether a bit of the first `vocab_size` is set.
bool allows_any(std::span<const std::uint32_t> allowed, std::size_t vocab_size);

}  // namespace glint
