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
  int first = 0;  // rows before it are attended to by nobody: a draft layer need not have them
};

struct Batch {
  std::span<const std::int32_t> tokens;      // [num_tokens]
  std::span<const SequenceSpan> sequences;   // in row order, covering all tokens
  std::span<const std::int32_t> logit_rows;  // rows that need logits, ascending
  // [num_tokens, hidden_size] or empty: gets the states after the final norm, which the draft layer
  // reads.
  std::span<float> hidden = {};
};

// One pass of the draft (multi-token prediction) layer. Slot p of its cache rows belongs to token
// p: it is made of that token and of the state at p - 1, and predicts token p + 1. So a page
// depends on no token beyond it. Slot 0 has no state before it: it is never computed nor attended
// to, and the pass that starts at slot 1 fills its rows with zeros.
struct DraftBatch {
  std::span<const std::int32_t> tokens;      // [num_tokens]
  std::span<const SequenceSpan> sequences;   // as in Batch; rows are slots [start, start + count)
  std::span<const float> hidden;             // [num_tokens, hidden_size]: of the position before
  std::span<const std::int32_t> logit_rows;  // ascending
  // [logit_rows, hidden_size] or empty: gets what a pass over the drafted tokens takes as hidden.
  std::span<float> recycled = {};
};

}  // namespace glint
