// The flat tokens of one step. Owns nothing; every span lives until forward returns.
#pragma once

#include <cstdint>
#include <span>

#include "cache/cache.h"

namespace glint {

// One sequence's share of a step: its tokens are rows [begin, begin + count) of the batch, at
// positions [start, start + count); pages cover at least start + count positions.
struct SequenceSpan {
  int begin = 0;
  int count = 0;
  int start = 0;
  std::span<const PageId> pages;
};

struct Batch {
  std::span<const std::int32_t> tokens;      // [num_tokens]
  std::span<const SequenceSpan> sequences;   // in row order, covering all tokens
  std::span<const std::int32_t> logit_rows;  // rows that need logits, ascending
};

}  // namespace glint
