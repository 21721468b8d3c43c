// The flat tokens of one step. Owns nothing; every span lives until forward returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/cache.h"

namespace glint {

// The most tokens of a sequence that may be taken back after a step.
inline constexpr int kMaxGuesses = 8;

// A copy of a sequence's recurrent state, as it is after `length` tokens, for whoever starts there.
struct StateSnapshot {
  int length = 0;            // a multiple of kPageSize
  std::byte* out = nullptr;  // [CacheSpec::snapshot_bytes]
};

// One sequence's share of a step: its tokens are rows [begin, begin + count) of the batch, at
// positions [start, start + count); pages cover at least start + count positions.
struct SequenceSpan {
  int begin = 0;
  int count = 0;
  int start = 0;
  std::span<const PageId> pages;
  int first = 0;  // rows before it are attended to by nobody: a draft layer need not have them
  // The last of its rows, at most kMaxGuesses, may not stand: the next step may start before them.
  int guesses = 0;
  // [CacheSpec::state_bytes] after `start` tokens (Model::start_state() made it, or an earlier step
  // left it); the step takes it along. Null where there is none.
  std::byte* state = nullptr;
  // Ascending, in (start - kMaxGuesses, start + count - guesses].
  std::span<const StateSnapshot> snapshots = {};
};

// Rows of a step whose input is not the embedding of their token: what an image looks like.
struct InputRows {
  int begin = 0;  // of the batch
  int count = 0;
  const float* values = nullptr;  // [count, hidden_size]
};

struct Batch {
  std::span<const std::int32_t> tokens;      // [num_tokens]
  std::span<const SequenceSpan> sequences;   // in row order, covering all tokens
  std::span<const std::int32_t> logit_rows;  // rows that need logits, ascending
  // [num_tokens, hidden_size] or empty: gets the states after the final norm, which the draft layer
  // reads.
  std::span<float> hidden = {};
  std::span<const InputRows> inputs = {};  // ascending, not overlapping
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
  std::span<const InputRows> inputs = {};  // as in Batch
  int iteration = 0;  // 0: the tokens stand; n: the n-th pass over tokens that were just drafted
};

}  // namespace glint
