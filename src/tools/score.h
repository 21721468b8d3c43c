// The parts of `glint score`: each reads its input file, runs the model and returns what to print.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "tools/session.h"

namespace glint {

struct ScoreRequest {
  SessionOptions session;
  std::string input;         // the file
  std::string output;        // -o; empty: none
  int greedy = 0;            // --ids: tokens of a greedy continuation
  bool all_at_once = false;  // --ids: prompts side by side in the same steps
  int window = 510;          // --text: tokens that see each other
  int max_tokens = 300;      // --tasks
  bool progress = false;     // a counter on stderr
};

// Logits (and greedy continuations) of given ids, written to `output`. {"prompts", "tokens"}
Result<Json> score_ids(ScoreRequest request);
// Exact-match accuracy. {"overall": {"n", "correct", "accuracy"}, "tasks": {NAME: ...}, ...}; each
// item's outcome goes to `output`, one JSON object per line.
Result<Json> score_tasks(ScoreRequest request);
// Perplexity of a text in windows after the model's text prefix. {"perplexity", "tokens", "nll",
// ...}
Result<Json> score_text(ScoreRequest request);
// How often the likeliest token is the reference's, given the reference's tokens before it.
// {"items", "tokens", "agree", "agreement"}
Result<Json> score_reference(ScoreRequest request);

// The text of an input file, at most 1 GiB. kInvalidArgument when it cannot be read.
Result<std::string> read_score_input(const std::string& path);

}  // namespace glint
