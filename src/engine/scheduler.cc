#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache/cache.h"

namespace glint {
namespace {

int pages_for(int tokens) {
  return (tokens + kPageSize - 1) / kPageSize;
}

// Pages that a sequence still needs for the tokens that exist and the next one.
long pages_to_come(const SequenceView& view) {
  return std::max(0, pages_for(view.known + 1) - view.pages);
}

int wanted(const SequenceView& view) {
  return std::min(view.known - view.computed, view.most);
}

// Hands out one step's pages.
class PageRoom {
 public:
  explicit PageRoom(std::size_t room) : room_(static_cast<long>(room)) {}

  // Up to `count` tokens for the sequence; 0 when pages allow none.
  int give(const SequenceView& view, int count) {
    const long fitting = (view.pages + room_) * kPageSize - view.computed;
    const int given = static_cast<int>(std::clamp<long>(fitting, 0, count));
    if (given > 0) room_ -= std::max(0, pages_for(view.computed + given) - view.pages);
    return given;
  }
  // The same for guesses, behind `count` tokens that it was given.
  int give_guesses(const SequenceView& view, int count, int guesses) {
    SequenceView after = view;
    after.computed += count;
    after.pages = std::max(view.pages, pages_for(after.computed));
    return give(after, guesses);
  }
  void take(int pages) { room_ -= pages; }

 private:
  long room_;
};

// Who computes a prompt (or most of it again), and how much of the budget it gets.
struct Prefill {
  int sequence = 0;  // as in Share
  int wanted = 0;
  int count = 0;
  int left() const { return wanted - count; }
};

// `num_new` of them, the last ones, join in this step and get one token at the least. There is
// budget for those, and for one more if there are others.
void divide(std::vector<Prefill>& prefills, std::size_t num_new, int budget) {
  if (prefills.empty()) return;
  const auto add = [&budget](Prefill& prefill, int most) {
    const int count = std::min({prefill.left(), most, budget});
    prefill.count += count;
    budget -= count;
  };
  const int half = (budget + 1) / 2;
  for (std::size_t i = prefills.size() - num_new; i < prefills.size(); ++i) add(prefills[i], 1);
  add(prefills[0], half - prefills[0].count);
  std::vector<Prefill*> order;
  for (Prefill& prefill : prefills) order.push_back(&prefill);
  std::ranges::stable_sort(order, {}, [](const Prefill* prefill) { return prefill->wanted; });
  for (Prefill* prefill : order) add(*prefill, budget);
}

// How many guesses of those that decode are verified: `counts` says who is given tokens already.
std::vector<int> divide_guesses(std::span<const SequenceView> running, std::span<const int> counts,
                                int budget) {
  std::vector<int> guesses(running.size(), 0);
  for (std::size_t i = 0; i < running.size() && budget > 0; ++i) {
    if (counts[i] == 0) continue;
    guesses[i] = std::min(running[i].guesses, budget);
    budget -= guesses[i];
  }
  return guesses;
}

// How many of waiting may join. A sequence joins when all its tokens and the next one fit beside
// what the others still need: otherwise it would only be preempted again. In order, so a big one is
// never overtaken for ever.
int count_admissible(std::span<const SequenceView> running, std::span<const SequenceView> waiting,
                     std::size_t room, int most) {
  long unpromised = static_cast<long>(room);
  for (const SequenceView& view : running) unpromised -= pages_to_come(view);
  int count = 0;
  for (const SequenceView& view : waiting) {
    const long needed = view.taken + pages_to_come(view);
    if (count >= most || (needed > unpromised && !(running.empty() && count == 0))) break;
    unpromised -= needed;
    ++count;
  }
  return count;
}

}  // namespace

StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting,
                   std::size_t room, const StepLimits& limits) {
  GLINT_CHECK(limits.max_batch_tokens >= limits.max_sequences && limits.max_sequences >= 1);
  const int num_running = static_cast<int>(running.size());
  // The budget covers all who decode and more, so the first in line of the others gets something
  // too.
  int budget = limits.max_batch_tokens;
  std::vector<int> counts(running.size() + waiting.size(), 0);
  std::vector<Prefill> prefills;
  for (int i = 0; i < num_running; ++i) {
    const std::size_t index = static_cast<std::size_t>(i);
    const int count = wanted(running[index]);
    GLINT_CHECK(count > 0);
    if (running[index].known - running[index].computed > 1) {
      prefills.push_back({.sequence = i, .wanted = count});
    } else {
      counts[index] = 1;
      --budget;
    }
  }
  const int slots = limits.max_sequences - num_running;
  const int num_new = count_admissible(running, waiting, room,
                                       std::min(slots, budget - (prefills.empty() ? 0 : 1)));
  for (int i = 0; i < num_new; ++i) {
    prefills.push_back(
        {.sequence = num_running + i, .wanted = wanted(waiting[static_cast<std::size_t>(i)])});
  }
  const int num_others = num_new + (static_cast<int>(prefills.size()) > num_new ? 1 : 0);
  const std::vector<int> guesses = divide_guesses(running, counts, budget - num_others);
  budget -= std::accumulate(guesses.begin(), guesses.end(), 0);
  divide(prefills, static_cast<std::size_t>(num_new), budget);
  for (const Prefill& prefill : prefills) {
    counts[static_cast<std::size_t>(prefill.sequence)] = prefill.count;
  }

  StepPlan plan;
  PageRoom pages(room);
  // Who decodes takes its page before the chunks do.
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < running.size(); ++i) {
      if ((running[i].known - running[i].computed == 1) != decoding || counts[i] == 0) continue;
      counts[i] = pages.give(running[i], counts[i]);
      if (counts[i] == 0) return {.preempt = num_running - 1};
    }
  }
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (counts[i] > 0) plan.shares.push_back({static_cast<int>(i), counts[i]});
  }
  const std::size_t num_shares = plan.shares.size();
  for (; plan.num_admitted < num_new; ++plan.num_admitted) {
    const SequenceView& view = waiting[static_cast<std::size_t>(plan.num_admitted)];
    const int sequence = num_running + plan.num_admitted;
    pages.take(view.taken);
    const int count = pages.give(view, counts[static_cast<std::size_t>(sequence)]);
    if (count == 0) break;
    plan.shares.push_back({sequence, count});
  }
  for (Share& share : std::span(plan.shares).first(num_shares)) {
    const std::size_t i = static_cast<std::size_t>(share.sequence);
    if (guesses[i] > 0) share.count += pages.give_guesses(running[i], share.count, guesses[i]);
  }
  return plan;
}

}  // namespace glint
