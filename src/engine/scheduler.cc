#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "cache/cache.h"

namespace glint {
namespace {

int pages_for(int tokens) {
  return (tokens + kPageSize - 1) / kPageSize;
}

// Hands out one step's tokens and pages.
class Planner {
 public:
  Planner(std::size_t room, int budget) : room_(static_cast<long>(room)), budget_(budget) {}

  // Up to `wanted` tokens for the sequence; 0 when budget or pages allow none.
  int give(const SequenceView& view, int wanted) {
    const long fitting = (view.pages + room_) * kPageSize - view.computed;
    const int count = static_cast<int>(std::min<long>({wanted, budget_, fitting}));
    if (count <= 0) return 0;
    room_ -= std::max(0, pages_for(view.computed + count) - view.pages);
    budget_ -= count;
    return count;
  }
  void take_pages(int pages) { room_ -= pages; }
  long room() const { return room_; }
  int budget() const { return budget_; }

 private:
  long room_;
  int budget_;
};

}  // namespace

StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting,
                   std::size_t room, const StepLimits& limits) {
  GLINT_CHECK(limits.max_batch_tokens >= limits.max_sequences && limits.max_sequences >= 1);
  Planner planner(room, limits.max_batch_tokens);
  std::vector<int> counts(running.size(), 0);
  // Who needs a single token goes first: it is a user watching words appear. The budget covers all
  // of them and more, so the first in line of the others gets something too.
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < running.size(); ++i) {
      const int wanted = running[i].known - running[i].computed;
      GLINT_CHECK(wanted > 0);
      if ((wanted == 1) != decoding) continue;
      const bool had_budget = planner.budget() > 0;
      counts[i] = planner.give(running[i], wanted);
      if (counts[i] == 0 && had_budget) return {.preempt = static_cast<int>(running.size()) - 1};
    }
  }

  StepPlan plan;
  long promised = 0;  // pages that running sequences still need for tokens that exist
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (counts[i] > 0) plan.shares.push_back({static_cast<int>(i), counts[i]});
    const int held = std::max(running[i].pages, pages_for(running[i].computed + counts[i]));
    promised += std::max(0, pages_for(running[i].known + 1) - held);
  }
  // A sequence joins when all its tokens and the next one fit beside what the others still need:
  // otherwise it would only be preempted again. In order of arrival, so a big one is never
  // overtaken for ever.
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const SequenceView& view = waiting[i];
    const int num_running = static_cast<int>(running.size()) + plan.num_admitted;
    if (num_running >= limits.max_sequences || planner.budget() == 0) break;
    const long needed = view.taken + std::max(0, pages_for(view.known + 1) - view.pages);
    if (num_running > 0 && needed + promised > planner.room()) break;
    planner.take_pages(view.taken);
    const int count = planner.give(view, view.known - view.computed);
    if (count == 0) break;
    const int held = std::max(view.pages, pages_for(view.computed + count));
    promised += std::max(0, pages_for(view.known + 1) - held);
    plan.shares.push_back({static_cast<int>(running.size() + i), count});
    ++plan.num_admitted;
  }
  return plan;
}

}  // namespace glint
