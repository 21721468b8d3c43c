// The engine without its thread: the sequences that wait and run, and the one function that moves
// them all a step on. Used by one thread at a time; knows no queue bound and no tickets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/chunk_pacer.h"
#include "engine/constraint_thread.h"
#include "engine/draft_policy.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_batch.h"

namespace glint {

class StepLoop {
 public:
  // Borrows all three. `publish` is called when stats() changed in a way that others wait for:
  // after admissions, and before every kFinished event, when the sequence's pages are back already.
  StepLoop(const Model& model, Exec& exec, Cache& cache, const EngineOptions& options,
           std::function<void()> publish);

  void add(std::unique_ptr<Sequence> sequence);
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int size() const { return static_cast<int>(waiting_.size() + running_.size()); }
  // Ends what was cancelled or timed out, then runs the model once over a batch of the others. When
  // scripts stall all of them, it sleeps for a moment instead.
  void step();
  // Ends every sequence as cancelled.
  void cancel_all();
  // Ends every sequence that never ran, with this error.
  void refuse_waiting(const Error& error);
  EngineStats stats() const;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;

  void end_cancelled();
  void insert(std::vector<SequencePtr>& list, SequencePtr sequence) const;
  bool is_senior(const Sequence& a, const Sequence& b) const;
  void admit_stalled();
  StepPlan plan();
  std::vector<SequenceView> find_candidates(Clock::time_point now, int judged_chunk);
  StepLimits limits() const;
  int judged_chunk() const;
  SequenceView view_of(const Sequence& running, int judged_chunk) const;
  bool is_being_computed(std::size_t waiting_index, int cached_pages);
  bool is_being_recalled(Sequence& sequence, std::size_t slots);
  bool wait_for_recalls();
  void preempt_youngest();
  bool drop_guesses();
  void admit(Sequence& sequence);
  void run_batch(const std::vector<Share>& shares);
  void draft(bool keeps_up, double verify_seconds);
  void report(const StepBatch::Member& member);
  void report_prompt(const StepBatch::Member& member);
  void fail(Sequence& sequence, const StepBatch::Row& row);
  void fail_all(const Error& error);
  void report_samples(const StepBatch::Member& member);
  void emit_token(Sequence& sequence, Sample sample);
  void start(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, Error error = {});
  void remove_finished();

  const Model& model_;
  Exec& exec_;
  Cache& cache_;
  const EngineOptions& options_;
  std::function<void()> publish_;
  EngineStats counters_;
  std::uint64_t num_added_ = 0;
  // Both in order of seniority: of arrival, or of priority first.
  std::vector<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;
  // Of the step at work: the running ones that no script stalls, and those that could join.
  std::vector<Sequence*> ready_, candidates_;
  ChunkPacer alone_chunk_;
  StepBatch batch_;
  DraftPolicy policy_;
  std::optional<Drafter> drafter_;  // with a model that can draft, unless it is off
  ConstraintThread constraints_;
};

}  // namespace glint
