// Speed with the draft layer guessing ahead: unlike the other tests of `glint bench`, this one
// needs real text, since how often guesses are right decides.
#pragma once

#include <vector>

#include "base/result.h"
#include "tools/session.h"

namespace glint {

struct DraftBench {
  int num_drafts = 0;                     // 0: none are made
  std::vector<double> tokens_per_s = {};  // one per repetition
  std::uint64_t drafted = 0, accepted = 0, rounds = 0;

  double median() const;
  double acceptance() const;       // of the guesses, those that were right
  double tokens_per_step() const;  // the acceptance length
};

// Prompt and answer take no more than this beside the answers' own tokens.
inline constexpr int kDraftBenchPromptTokens = 128;

// Greedy answers of up to `tokens` tokens to a few questions, one after the other. The session has
// text and a draft layer, but no engine. Errors: as of a turn.
Result<DraftBench> run_draft_bench(Session& session, int num_drafts, int tokens, int repetitions);

}  // namespace glint
