// Keeps the draft layer beside its sequences: after a step it computes the slots of the tokens that
// stand, makes guesses of what follows, and says on each page that filled what the next reader of
// that page must know. Knows nothing of sampling or of how many guesses pay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_batch.h"
#include "models/model.h"

namespace glint {

class Drafter {
 public:
  // Borrows all three. The model can draft.
  Drafter(const Model& model, Exec& exec, Cache& cache);

  // Of a sequence whose cache has just been started: takes up what its cached pages say.
  void start(Sequence& sequence) const;
  // Forgets guesses, and the rows beyond the computed tokens.
  static void drop_guesses(Sequence& sequence);

  // Between the run of a batch that kept its states and its commit: keeps up with every member, and
  // makes `num_guesses` for each that goes on, or as many as its limits and the cache leave room
  // for.
  void run(const StepBatch& batch, int num_guesses);
  // Instead of run(): the members fall behind.
  static void skip(const StepBatch& batch);
  // After the commit: an equal page may have taken the place of one of ours.
  void committed(const StepBatch& batch) const;

 private:
  // A sequence in the passes of one step.
  struct Job {
    const StepBatch::Member* member;
    int num_guesses = 0;
    int computed = 0;  // its tokens, once they are committed
    int end = 0;       // the first pass writes its slots up to here
  };

  void add_job(const StepBatch::Member& member, int num_guesses);
  void catch_up(const StepBatch& batch);
  void guess_on(int depth);
  void add_span(const Job& job, int start, int guesses);
  void run_pass(int iteration);
  void write_page_states(const StepBatch& batch, const Job& job) const;

  const Model& model_;
  Exec& exec_;
  Cache& cache_;
  std::size_t hidden_size_, vocab_size_;

  std::vector<Job> jobs_;
  // Of the pass at work; `guessing_` are the members of the rows of logits.
  std::vector<std::int32_t> tokens_;
  std::vector<float> hidden_;
  std::vector<SequenceSpan> spans_;
  std::vector<InputRows> inputs_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::size_t> guessing_;
  std::vector<float> logits_, recycled_;
};

}  // namespace glint
