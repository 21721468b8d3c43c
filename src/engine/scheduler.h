// What to run in the next step. A pure function of a few numbers per sequence: no tensors, clock,
// threads or tokens.
//
// There are no phases: a sequence knows `known` tokens, has computed some of them, and is given as
// many of the rest as fit. Whoever needs a single token goes first. Of what is left the oldest
// takes half, and the other half goes to whoever has the least to compute: a short prompt starts
// answering soon behind a long one, prompts of one length end one after the other, and everybody
// becomes the oldest in the end. Seniority is the order in the lists. When pages run out the
// youngest gives its own back, so the oldest always moves.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace glint {

struct SequenceView {
  int known = 0;     // tokens that exist: prompt and sampled ones; more than `computed`
  int computed = 0;  // rows in the cache; for a waiting sequence, what a prefix hit would give
  int pages = 0;     // that it holds, or would hold after the prefix hit
  int taken = 0;  // waiting only: pages of the prefix hit that are cached and leased by nobody yet
  int most = std::numeric_limits<int>::max();  // tokens that it may be given in one step; 1 or more
  // Tokens that may be computed beside the known ones, when the last of those is: guesses of what
  // follows. They get what budget and pages the others leave.
  int guesses = 0;
};

struct StepLimits {
  int max_sequences = 1;
  int max_batch_tokens =
      1;  // at least max_sequences, so that everybody who decodes moves in every step
};

struct Share {
  int sequence = 0;  // index into running; waiting[i] is running.size() + i
  int count = 0;     // tokens to compute, at least 1; guesses are the last ones
};

struct StepPlan {
  int preempt =
      -1;  // index into running: send it back to waiting and plan again; shares are empty then
  int num_admitted = 0;            // the first of waiting, which join running
  std::vector<Share> shares = {};  // in order of running, then waiting
};

// Both lists in order of seniority. `room`: pages that could be leased now. Every running sequence
// that decodes, and the oldest of the others, gets at least one token, or the plan names a victim.
// With nothing running and room for the first of waiting, it is admitted.
StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting,
                   std::size_t room, const StepLimits& limits);

}  // namespace glint
