// After which lengths the recurrent state of a sequence is kept for those who come later. What is
// kept costs memory, and what is not kept has to be computed again: so where the next one probably
// parts from this one. No tensors, cache or clock.
//
// - Before the end of the prompt: the next turn repeats it, but not always its last few tokens,
//   which open an answer.
// - Where an earlier sequence parted from this one, though nobody had kept a state there: the third
//   will want it.
// - Where one that waits will part from this one (want()).
// - Every so often in a long prompt, for whoever shares some of it, or when it is preempted.
// - The newest page boundary of the answer, which the next turn repeats too.
#pragma once

#include <vector>

namespace glint {

class SnapshotPlan {
 public:
  // Tokens between two that are kept of a long prompt, at the least: copying a state takes a small
  // part of the time that this many tokens take.
  static constexpr int kLeastSpacing = 2048;
  // That open an answer, at most, and that a next turn need not repeat.
  static constexpr int kOpening = 8;

  struct Start {
    int cached = 0;    // tokens that it starts with
    int known = 0;     // tokens that it knows
    int branch = 0;    // how far the prefix tree knows them
    int num_kept = 0;  // room for snapshots, of all sequences
  };
  // When the sequence starts, or starts again; keeps what was wanted before.
  void start(const Start& start);
  // One more, a multiple of kPageSize.
  void want(int length);

  struct Due {
    int length = 0;
    bool replaces = false;  // as in SequenceCache::reserve_snapshot()
  };
  // What a step has to keep that computes [start, standing) for good: ascending, in (start -
  // kMaxGuesses, standing]. Each is asked for once.
  void due(int start, int standing, std::vector<Due>& out);

 private:
  std::vector<int> wanted_;  // ascending
  int last_of_prompt_ = 0;   // those beyond are of the answer
  int asked_ = 0;            // the last that was due
};

}  // namespace glint
