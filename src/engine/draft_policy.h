// How many tokens the draft layer guesses ahead. On a CPU a guess is not free: each token of a step
// meets experts that the others do not need, so what pays depends on the machine, the weights, the
// text and the company. Told how long steps took and which guesses were right, this picks what
// yields the most tokens a second. Never changes what is generated. No clock of its own.
#pragma once

#include <array>

#include "engine/engine.h"
#include "models/model.h"

namespace glint {

// What a step reads, as a first idea of what it costs.
struct DraftCosts {
  double shared = 1;    // read by every step, whatever its size
  double experts = 0;   // all routed experts together
  double chosen = 0;    // the share of them that one token meets
  double draft = 0.05;  // one guess: the draft layer and the head

  // Of a step of so many tokens, in the same unit.
  double step(int num_tokens) const;
};

DraftCosts draft_costs(const ModelInfo& info);

class DraftPolicy {
 public:
  static constexpr int kMaxDrafts = 8;  // that may be asked for
  static_assert(kMaxDrafts <= kMaxGuesses);
  static constexpr int kMaxAuto = 3;

  // `num_drafts`: with kFixed.
  DraftPolicy(DraftMode mode, int num_drafts, const DraftCosts& costs);

  // Whether the draft layer should keep up with the sequences.
  bool keeps_up() const;
  // How many guesses to make for each of `num_sequences` that decode in the next step.
  int choose(int num_sequences);
  // The model ran over `num_sequences` that decode and nothing else, with `num_drafts` guesses of
  // each, in that time.
  void verified(int num_sequences, int num_drafts, double seconds);
  // So many guesses were made for each of them.
  void drafted(int num_sequences, int num_drafts, double seconds);
  // Guess `position` (0: the first) followed right ones, and was right or not.
  void judged(int position, bool is_right);

  int current() const { return current_; }
  // Guessing does not pay at present: only now and then it is tried whether that changed.
  bool paused() const { return mode_ == DraftMode::kAuto && best_ == 0; }

 private:
  // A mean in which newer values count more.
  struct Mean {
    double value = 0;
    int count = 0;
    long at = 0;  // decisions when it was last measured

    void add(double x, int window);
  };
  // Costs depend on how many sequences decode: one entry for 1, 2, 3-4, 5-8, ...
  struct Crowd {
    std::array<Mean, kMaxAuto + 1> verify, draft;  // seconds, by number of guesses
    int best = -1;                                 // -1: nothing decided yet
    int trial = -1;  // under trial instead of the best one, for so many steps more
    int trial_left = 0;
    int last_trial = -1;
    long decisions = 0;
    long next_trial = 0;
    long interval = 0;  // between trials
  };
  static constexpr std::size_t kNumCrowds = 6;

  Crowd& crowd_of(int num_sequences);
  int representative(const Crowd& crowd) const;
  double verify_seconds(const Crowd& crowd, int num_drafts) const;
  double draft_seconds(const Crowd& crowd, int num_drafts) const;
  double tokens_a_second(const Crowd& crowd, int num_drafts) const;
  void start_trial(Crowd& crowd, int num_drafts);
  void decide(Crowd& crowd);
  int next_to_try(const Crowd& crowd) const;

  DraftMode mode_;
  int num_drafts_;
  DraftCosts costs_;
  std::array<Crowd, kNumCrowds> crowds_;
  std::array<Mean, kMaxDrafts> right_;  // by position: how many of the judged
  int current_ = 0;
  int best_ = 0;  // of the crowd that was asked for last
  bool near_trial_ = false;
};

}  // namespace glint
