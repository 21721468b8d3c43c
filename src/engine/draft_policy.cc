#include "engine/draft_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace glint {
namespace {

// Acceptance before anything was judged: of the first guess, and of each next one if all before it
// were right.
constexpr double kFirstRight = 0.8;
constexpr double kLaterRight = 0.9;  // of the one before
constexpr int kPriorWeight = 4;

constexpr int kRightWindow = 32;  // guesses
constexpr int kTimeWindow = 8;    // steps
// A longer step than this many usual ones had a reason of its own.
constexpr double kOutlier = 3;

// Another number must be better by this factor, and measured not long ago.
constexpr double kClearlyBetter = 1.02;
constexpr long kFresh = 128;
constexpr int kDecideEvery = 8;

constexpr int kTrialSteps = 4;
constexpr int kResumeSteps = 12;  // of a trial that may end a pause: acceptance is not known then
constexpr long kFirstInterval = 16;
constexpr long kLongestInterval = 256;
constexpr long kPauseInterval = 128;
constexpr long kLongestPause = 1024;
// The draft layer catches up so long before a pause may end.
constexpr long kWarmUp = 64;

// Rows more cost something even where reading weights costs more.
constexpr double kPerExtraToken = 0.05;

}  // namespace

std::string_view draft_mode_name(DraftMode mode) {
  switch (mode) {
    case DraftMode::kOff:
      return "off";
    case DraftMode::kFixed:
      return "fixed";
    case DraftMode::kAuto:
      return "auto";
  }
  return "";
}

double DraftCosts::step(int num_tokens) const {
  const double met = 1 - std::pow(1 - chosen, num_tokens);
  const double one = shared + experts * chosen;
  return shared + experts * met + kPerExtraToken * one * (num_tokens - 1);
}

DraftCosts draft_costs(const ModelInfo& info) {
  double experts = 0;
  for (const WeightGroup& group : info.weights) {
    if (group.part != WeightPart::kExperts) continue;
    const BlockSize block = block_size(group.type);
    experts += static_cast<double>(group.parameters()) * static_cast<double>(block.bytes) /
               static_cast<double>(block.elements);
  }
  const double one = static_cast<double>(info.active_weight_bytes);
  DraftCosts costs;
  if (one <= 0) return costs;
  if (info.num_experts > 0) {
    costs.experts = experts;
    costs.chosen = static_cast<double>(info.experts_per_token) / info.num_experts;
  }
  costs.shared = std::max(0.0, one - experts * costs.chosen);
  costs.draft = static_cast<double>(info.draft.active_weight_bytes);
  return costs;
}

void DraftPolicy::Mean::add(double x, int window) {
  ++count;
  value += (x - value) / std::min(count, window);
}

DraftPolicy::DraftPolicy(DraftMode mode, int num_drafts, const DraftCosts& costs)
    : mode_(mode), num_drafts_(num_drafts), costs_(costs) {
  GLINT_CHECK(mode != DraftMode::kFixed || (num_drafts >= 1 && num_drafts <= kMaxDrafts));
  double right = kFirstRight;
  for (Mean& mean : right_) {
    mean = {.value = right, .count = kPriorWeight};
    right *= kLaterRight;
  }
  if (mode_ == DraftMode::kFixed) current_ = best_ = num_drafts;
  if (mode_ == DraftMode::kAuto) decide(crowds_[0]), current_ = best_ = crowds_[0].best;
}

bool DraftPolicy::keeps_up() const {
  return mode_ == DraftMode::kFixed || (mode_ == DraftMode::kAuto && (best_ > 0 || near_trial_));
}

DraftPolicy::Crowd& DraftPolicy::crowd_of(int num_sequences) {
  const unsigned n = static_cast<unsigned>(std::max(1, num_sequences));
  const std::size_t index = static_cast<std::size_t>(std::bit_width(n - 1));
  return crowds_[std::min(index, kNumCrowds - 1)];
}

// A number of sequences that stands for the crowd.
int DraftPolicy::representative(const Crowd& crowd) const {
  return 1 << (&crowd - crowds_.data());
}

int DraftPolicy::choose(int num_sequences) {
  if (mode_ != DraftMode::kAuto) return mode_ == DraftMode::kFixed ? num_drafts_ : 0;
  Crowd& crowd = crowd_of(num_sequences);
  ++crowd.decisions;
  if (crowd.trial >= 0 && crowd.trial_left-- == 0) {
    const int before = crowd.best;
    crowd.trial = -1;
    decide(crowd);
    const bool is_paused = crowd.best == 0;
    if (crowd.best != before) {
      crowd.interval = is_paused ? kPauseInterval : kFirstInterval;
    } else {
      crowd.interval = std::min(2 * crowd.interval, is_paused ? kLongestPause : kLongestInterval);
    }
    crowd.next_trial = crowd.decisions + crowd.interval;
  } else if (crowd.trial < 0 && crowd.best >= 0 && crowd.decisions >= crowd.next_trial) {
    start_trial(crowd, next_to_try(crowd));
  } else if (crowd.best < 0 || (crowd.trial < 0 && crowd.decisions % kDecideEvery == 0)) {
    decide(crowd);
  }
  best_ = crowd.best;
  near_trial_ = crowd.trial >= 0 || crowd.next_trial - crowd.decisions <= kWarmUp;
  current_ = crowd.trial >= 0 ? crowd.trial : crowd.best;
  return current_;
}

void DraftPolicy::verified(int num_sequences, int num_drafts, double seconds) {
  if (mode_ != DraftMode::kAuto || num_drafts > kMaxAuto) return;
  Crowd& crowd = crowd_of(num_sequences);
  Mean& mean = crowd.verify[static_cast<std::size_t>(num_drafts)];
  // What is long past says little: contexts have grown, others have come and gone.
  if (mean.count > 0 && crowd.decisions - mean.at > kFresh) mean.count = 1;
  if (mean.count > 1) seconds = std::min(seconds, kOutlier * mean.value);
  mean.add(seconds, kTimeWindow);
  mean.at = crowd.decisions;
}

void DraftPolicy::drafted(int num_sequences, int num_drafts, double seconds) {
  if (mode_ != DraftMode::kAuto || num_drafts > kMaxAuto) return;
  Mean& mean = crowd_of(num_sequences).draft[static_cast<std::size_t>(num_drafts)];
  if (mean.count > 1) seconds = std::min(seconds, kOutlier * mean.value);
  mean.add(seconds, kTimeWindow);
}

void DraftPolicy::judged(int position, bool is_right) {
  if (position < kMaxDrafts) {
    right_[static_cast<std::size_t>(position)].add(is_right ? 1 : 0, kRightWindow);
  }
}

// Measured; or else what the measured one next to it says, by the prior's proportions.
double DraftPolicy::verify_seconds(const Crowd& crowd, int num_drafts) const {
  const int sequences = representative(crowd);
  const auto prior = [&](int drafts) { return costs_.step(sequences * (1 + drafts)); };
  for (int distance = 0; distance <= kMaxAuto; ++distance) {
    for (const int other : {num_drafts - distance, num_drafts + distance}) {
      if (other < 0 || other > kMaxAuto) continue;
      const Mean& mean = crowd.verify[static_cast<std::size_t>(other)];
      if (mean.count > 0) return mean.value * prior(num_drafts) / prior(other);
    }
  }
  return prior(num_drafts);
}

double DraftPolicy::draft_seconds(const Crowd& crowd, int num_drafts) const {
  if (num_drafts == 0) return 0;
  for (int distance = 0; distance <= kMaxAuto; ++distance) {
    for (const int other : {num_drafts - distance, num_drafts + distance}) {
      if (other < 1 || other > kMaxAuto) continue;
      const Mean& mean = crowd.draft[static_cast<std::size_t>(other)];
      if (mean.count > 0) return mean.value * num_drafts / other;
    }
  }
  const double one = costs_.step(representative(crowd));
  return verify_seconds(crowd, 0) * num_drafts * costs_.draft / one;
}

double DraftPolicy::tokens_a_second(const Crowd& crowd, int num_drafts) const {
  double tokens = 1, all_right = 1;
  for (int i = 0; i < num_drafts; ++i) {
    all_right *= right_[static_cast<std::size_t>(i)].value;
    tokens += all_right;
  }
  return tokens / (verify_seconds(crowd, num_drafts) + draft_seconds(crowd, num_drafts));
}

// Takes what looks best; a number that was not measured lately is tried first.
void DraftPolicy::decide(Crowd& crowd) {
  int best = std::max(0, crowd.best);
  for (int k = 0; k <= kMaxAuto; ++k) {
    const double factor = best == crowd.best ? kClearlyBetter : 1;
    if (tokens_a_second(crowd, k) > factor * tokens_a_second(crowd, best)) best = k;
  }
  if (crowd.best < 0) {
    crowd.interval = best == 0 ? kPauseInterval : kFirstInterval;
    crowd.next_trial = crowd.decisions + crowd.interval;
    crowd.best = best;
    return;
  }
  if (best == crowd.best) return;
  const Mean& mean = crowd.verify[static_cast<std::size_t>(best)];
  const bool is_fresh = mean.count > 1 && crowd.decisions - mean.at <= kFresh;
  if (is_fresh) {
    crowd.best = best;
  } else if (crowd.best > 0) {  // else it is tried when its time comes
    start_trial(crowd, best);
  }
}

void DraftPolicy::start_trial(Crowd& crowd, int num_drafts) {
  crowd.trial = crowd.last_trial = num_drafts;
  crowd.trial_left = crowd.best == 0 ? kResumeSteps : kTrialSteps;
  if (crowd.best > 0) return;
  // The text may be another one by now.
  for (Mean& mean : right_) mean.count = std::min(mean.count, kPriorWeight);
}

// While nothing is guessed, the number that would be best if it were worth it; else one after the
// other, none at all first.
int DraftPolicy::next_to_try(const Crowd& crowd) const {
  if (crowd.best == 0) {
    int best = 1;
    for (int k = 2; k <= kMaxAuto; ++k) {
      if (tokens_a_second(crowd, k) > tokens_a_second(crowd, best)) best = k;
    }
    return best;
  }
  int next = (crowd.last_trial + 1) % (kMaxAuto + 1);
  if (next == crowd.best) next = (next + 1) % (kMaxAuto + 1);
  return next;
}

}  // namespace glint
