// What the engine runs: the tokens, cache and sampling state of one request. Owned by the engine
// thread once submitted.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "cache/store_jobs.h"
#include "engine/images.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/snapshot_plan.h"

namespace glint {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What the draft layer knows of a sequence. Its slots [first, end) hold rows made of true states,
// and `hidden` is the state of the last computed token, after the final norm. A layer that fell
// behind starts over where states are known: it sees less then, and guesses worse for a while.
struct DraftState {
  int first = 1, end = 1;
  std::vector<float> hidden = {};          // empty: not known
  std::vector<std::int32_t> guesses = {};  // of what follows the tokens
};

struct Sequence {
  std::vector<std::int32_t> tokens;  // prompt, then sampled ones: all that is known
  SequenceImages images;
  // As many, as the cache knows them (SequenceImages::rename); empty without images.
  std::vector<std::int32_t> cache_names;
  int prompt_len = 0;
  int max_tokens = 0;  // clamped to the context
  std::vector<std::int32_t> stop_ids;
  std::uint64_t cache_salt = 0;
  double timeout_s = 0;
  Sampler sampler;
  EventSink sink;
  std::shared_ptr<const std::atomic<bool>> cancelled;
  std::shared_ptr<TokenConstraint> constraint;  // null: none
  std::shared_ptr<const TokenScript> script;    // null: none
  int prompt_logprobs = -1;
  bool progress = false;
  int priority = 0;

  std::uint64_t arrival = 0;  // counts up
  SequenceCache cache;        // its length is how many tokens are computed
  // While it waits: the part of its prompt that comes from disk; until it starts from that.
  std::unique_ptr<Recall> recall = {};
  bool looked_on_disk = false;
  SnapshotPlan snapshots = {};
  DraftState draft = {};
  int num_drafted = 0, num_accepted = 0;  // guesses that were judged, and those that were right
  bool started = false;                   // kStarted was sent
  int cached_tokens = 0;                  // of the prompt, when it started
  int num_judged = 0;                     // of the prompt: their log-probs were sent
  int told_progress = 0;                  // the last that was sent
  Clock::time_point stalled_until = {};   // by its script
  Clock::time_point submitted;
  Clock::time_point started_at;
  Clock::time_point first_token_at;

  int known() const { return static_cast<int>(tokens.size()); }
  std::span<const std::int32_t> cache_tokens() const {
    return images.empty() ? tokens : cache_names;
  }
  int computed() const { return cache.length(); }
  int num_generated() const { return known() - prompt_len; }
  bool is_cancelled() const { return cancelled->load(std::memory_order_relaxed); }
  // Log-probs of its prompt are still to be sent: all of it has to be computed.
  bool judges_prompt() const { return prompt_logprobs >= 0 && num_judged < prompt_len; }
  // What the script says of the token that comes `ahead` after those that are there; -1: nothing.
  std::int32_t scripted_token(int ahead) const {
    const std::size_t index = static_cast<std::size_t>(num_generated() + ahead);
    return script != nullptr && index < script->tokens.size() ? script->tokens[index] : -1;
  }
  bool scripts_nan(int ahead) const {
    return script != nullptr && script->nan_at == num_generated() + ahead;
  }
  bool scripts_stall() const { return script != nullptr && script->stall_s > 0; }
  bool is_stop(std::int32_t token) const {
    return std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
  }
  bool timed_out(Clock::time_point now) const {
    return timeout_s > 0 && seconds_between(submitted, now) > timeout_s;
  }
  Usage usage(Clock::time_point now) const;
};

// Checks a request against the vocabulary and the context, and makes a sequence that waits. Errors:
// kInvalidArgument, naming the field and the numbers.
Result<std::unique_ptr<Sequence>> make_sequence(GenerateRequest request, EventSink sink,
                                                std::shared_ptr<const std::atomic<bool>> cancelled,
                                                int vocab_size, int context);

}  // namespace glint
