// The engine without its thread: the sequences that wait and run, and the one function that moves
// them all a step on. Used by one thread at a time; knows no queue bound and no tickets.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace glint {

class StepLoop {
 public:
  // Borrows all three. `publish` is called when stats() changed in a way that others wait for:
  // after admissions, and before every kFinished event, when the sequence's pages are back already.
  StepLoop(const Model& model, Exec& exec, Cache& cache, const EngineOptions& options,
           std::function<void()> publish);

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int size() const { return static_cast<int>(waiting_.size() + running_.size()); }
  // Ends what was cancelled or timed out, then runs the model once over a batch of the others.
  void step();
  // Ends every sequence as cancelled.
  void cancel_all();
  // Ends every sequence that never ran, with this error.
  void refuse_waiting(const Error& error);
  EngineStats stats() const;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  // A row of logits and who it belongs to.
  struct SampleJob {
    Sequence* sequence;
    Result<Sample> outcome;
  };

  void end_cancelled();
  StepPlan plan();
  bool is_being_computed(std::size_t waiting_index, int cached_pages) const;
  void preempt(int index);
  void admit(int count);
  void build_batch(const std::vector<Share>& shares);
  void run_batch();
  void sample_all();
  void emit_token(Sequence& sequence, const Sample& sample);
  void start(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, Error error = {});
  void remove_finished();

  const Model& model_;
  Exec& exec_;
  Cache& cache_;
  const EngineOptions& options_;
  std::function<void()> publish_;
  EngineStats counters_;
  std::deque<SequencePtr> waiting_;   // in order of arrival; preempted ones are older than the rest
  std::vector<SequencePtr> running_;  // in order of arrival, all older than waiting

  // Of the step at work; kept so that a steady state allocates nothing.
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSpan> spans_;
  std::vector<Sequence*> members_;  // of the spans
  std::vector<std::int32_t> logit_rows_;
  std::vector<SampleJob> jobs_;
  std::vector<float> logits_;
};

}  // namespace glint
