#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cache/cache.h"

namespace glint {
namespace {

constexpr std::size_t kPlenty = 1000;

SequenceView decoding(int known) {
  return {.known = known, .computed = known - 1, .pages = (known - 1 + 63) / 64};
}
SequenceView prefilling(int known, int computed) {
  return {.known = known, .computed = computed, .pages = (computed + 63) / 64};
}

SequenceView guessing(int known, int guesses) {
  SequenceView view = decoding(known);
  view.guesses = guesses;
  return view;
}

// "0:1 1:10" for the shares.
std::string text(const StepPlan& plan) {
  std::string out;
  for (const Share& share : plan.shares) {
    out += (out.empty() ? "" : " ") + std::to_string(share.sequence) + ":" +
           std::to_string(share.count);
  }
  if (plan.num_admitted > 0) out += " +" + std::to_string(plan.num_admitted);
  if (plan.preempt >= 0) out += "preempt " + std::to_string(plan.preempt);
  return out;
}

std::string plan(std::vector<SequenceView> running, std::vector<SequenceView> waiting,
                 std::size_t room, StepLimits limits) {
  return text(plan_step(running, waiting, room, limits));
}

TEST(Scheduler, decoders_go_before_older_prefills) {
  EXPECT_EQ(plan({prefilling(500, 0), decoding(20), decoding(70)}, {}, kPlenty, {4, 16}),
            "0:14 1:1 2:1");
}

TEST(Scheduler, the_oldest_prefill_takes_half_and_the_shortest_the_rest) {
  EXPECT_EQ(
      plan({prefilling(10, 0), prefilling(500, 100), prefilling(50, 0)}, {}, kPlenty, {4, 32}),
      "0:10 2:22");
  EXPECT_EQ(
      plan({prefilling(500, 0), prefilling(500, 100), prefilling(50, 0)}, {}, kPlenty, {4, 32}),
      "0:16 2:16");
  EXPECT_EQ(plan({prefilling(500, 0), prefilling(9, 0), prefilling(5, 0)}, {}, kPlenty, {4, 32}),
            "0:18 1:9 2:5")
      << "what is left over goes back to the oldest";
}

TEST(Scheduler, prompts_of_one_length_end_one_after_the_other) {
  EXPECT_EQ(plan({prefilling(40, 0), prefilling(40, 0), prefilling(40, 0)}, {}, kPlenty, {4, 32}),
            "0:32");
  EXPECT_EQ(plan({prefilling(40, 32), prefilling(40, 0), prefilling(40, 0)}, {}, kPlenty, {4, 32}),
            "0:8 1:24");
}

TEST(Scheduler, a_short_prompt_joins_beside_a_long_one_and_is_done_at_once) {
  EXPECT_EQ(plan({prefilling(60000, 100)}, {prefilling(200, 0)}, kPlenty, {8, 512}),
            "0:312 1:200 +1");
}

TEST(Scheduler, a_sequence_gets_no_more_than_it_may) {
  SequenceView limited = prefilling(500, 0);
  limited.most = 8;
  EXPECT_EQ(plan({limited, prefilling(500, 0)}, {}, kPlenty, {4, 32}), "0:8 1:24");
  EXPECT_EQ(plan({}, {limited}, kPlenty, {4, 32}), "0:8 +1");
  limited.most = 1;
  EXPECT_EQ(plan({decoding(9), limited}, {}, kPlenty, {4, 32}), "0:1 1:1");
}

TEST(Scheduler, the_first_prefill_moves_even_when_everybody_else_decodes) {
  std::vector<SequenceView> running(7, decoding(20));
  running.push_back(prefilling(100, 0));
  EXPECT_EQ(plan(running, {}, kPlenty, {8, 8}), "0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1");
}

TEST(Scheduler, admits_while_slots_and_budget_last) {
  const auto fresh = prefilling(10, 0);
  EXPECT_EQ(plan({}, {fresh, fresh, fresh}, kPlenty, {2, 64}), "0:10 1:10 +2");
  EXPECT_EQ(plan({}, {fresh, fresh, fresh}, kPlenty, {3, 12}), "0:10 1:1 2:1 +3");
  EXPECT_EQ(plan({decoding(5)}, {fresh, fresh}, kPlenty, {8, 11}), "0:1 1:9 2:1 +2");
  EXPECT_EQ(plan({prefilling(100, 0)}, {fresh}, kPlenty, {8, 64}), "0:54 1:10 +1");
}

TEST(Scheduler, a_prefix_hit_leaves_fewer_tokens) {
  EXPECT_EQ(plan({}, {{.known = 130, .computed = 128, .pages = 2, .taken = 2}}, kPlenty, {2, 64}),
            "0:2 +1");
}

TEST(Scheduler, admission_waits_for_room_for_the_whole_prompt) {
  // One page is free; the running one needs none soon, the waiting one needs two.
  EXPECT_EQ(plan({decoding(10)}, {prefilling(100, 0)}, 1, {4, 64}), "0:1");
  EXPECT_EQ(plan({decoding(10)}, {prefilling(100, 0)}, 2, {4, 64}), "0:1 1:63 +1");
  EXPECT_EQ(plan({decoding(10)}, {prefilling(50, 0)}, 1, {4, 64}), "0:1 1:50 +1");
}

TEST(Scheduler, admission_leaves_running_prefills_their_pages) {
  // 300 known: 5 pages, one of them in this step. Room for 5 is promised.
  EXPECT_EQ(plan({prefilling(300, 0)}, {prefilling(50, 0)}, 5, {4, 32}), "0:32");
  EXPECT_EQ(plan({prefilling(300, 270)}, {prefilling(50, 0)}, 1, {4, 64}), "0:30 1:34 +1");
}

TEST(Scheduler, a_big_request_is_not_overtaken) {
  EXPECT_EQ(plan({decoding(10)}, {prefilling(500, 0), prefilling(5, 0)}, 3, {4, 64}), "0:1");
}

TEST(Scheduler, pages_of_a_prefix_hit_count_once) {
  // 128 tokens are cached in two pages that nobody leases: taking them uses two of the three pages
  // of room.
  const SequenceView hit{.known = 150, .computed = 128, .pages = 2, .taken = 2};
  EXPECT_EQ(plan({decoding(10)}, {hit}, 3, {4, 64}), "0:1 1:22 +1");
  EXPECT_EQ(plan({decoding(10)}, {hit}, 2, {4, 64}), "0:1");
  // The same pages leased by somebody else cost nothing.
  const SequenceView shared{.known = 150, .computed = 128, .pages = 2, .taken = 0};
  EXPECT_EQ(plan({decoding(10)}, {shared}, 1, {4, 64}), "0:1 1:22 +1");
}

TEST(Scheduler, whoever_is_alone_is_admitted) {
  EXPECT_EQ(plan({}, {prefilling(640, 0)}, 10, {4, 64}), "0:64 +1");
}

TEST(Scheduler, the_youngest_is_preempted_when_pages_run_out) {
  EXPECT_EQ(plan({decoding(65), decoding(30), decoding(30)}, {}, 0, {4, 64}), "preempt 2");
  EXPECT_EQ(plan({decoding(30), decoding(30), decoding(65)}, {}, 0, {4, 64}), "preempt 2");
  EXPECT_EQ(plan({decoding(64), decoding(30)}, {}, 0, {4, 64}), "0:1 1:1") << "inside its page";
}

TEST(Scheduler, a_prefill_shrinks_to_the_pages_there_are) {
  EXPECT_EQ(plan({prefilling(500, 10)}, {}, 1, {4, 512}), "0:118");
  EXPECT_EQ(plan({prefilling(500, 64), decoding(5)}, {}, 0, {4, 512}), "preempt 1");
}

TEST(Scheduler, guesses_are_computed_beside_the_token) {
  EXPECT_EQ(plan({guessing(20, 3), decoding(30), guessing(40, 1)}, {}, kPlenty, {4, 64}),
            "0:4 1:1 2:2");
}

TEST(Scheduler, guesses_leave_every_other_a_token) {
  EXPECT_EQ(plan({guessing(20, 3), guessing(30, 3)}, {}, kPlenty, {2, 6}), "0:4 1:2");
  EXPECT_EQ(plan({guessing(20, 3), prefilling(500, 0)}, {}, kPlenty, {2, 8}), "0:4 1:4");
  EXPECT_EQ(plan({guessing(20, 3), prefilling(500, 0)}, {}, kPlenty, {2, 3}), "0:2 1:1");
  EXPECT_EQ(plan({guessing(20, 3)}, {prefilling(500, 0)}, kPlenty, {2, 8}), "0:4 1:4 +1");
  EXPECT_EQ(plan({guessing(20, 3)}, {prefilling(500, 0), prefilling(5, 0)}, kPlenty, {4, 4}),
            "0:2 1:1 2:1 +2");
}

TEST(Scheduler, guesses_take_only_pages_that_nobody_else_needs) {
  EXPECT_EQ(plan({guessing(64, 3)}, {}, 1, {4, 64}), "0:4");
  EXPECT_EQ(plan({guessing(64, 3)}, {}, 0, {4, 64}), "0:1");
  EXPECT_EQ(plan({guessing(63, 3)}, {}, 0, {4, 64}), "0:2") << "inside its page";
  EXPECT_EQ(plan({guessing(64, 3), decoding(65)}, {}, 1, {4, 64}), "0:1 1:1");
  EXPECT_EQ(plan({guessing(64, 3), prefilling(60, 0)}, {}, 1, {4, 128}), "0:1 1:60");
}

TEST(Scheduler, nobody_is_preempted_for_lack_of_budget) {
  EXPECT_EQ(plan({prefilling(500, 0), prefilling(500, 0)}, {}, kPlenty, {2, 16}), "0:16");
}

// Runs random loads to the end, with page counts kept by hand: everybody finishes, limits hold, the
// oldest always moves.
TEST(Scheduler, random_loads_finish_within_limits) {
  std::mt19937 random(7);
  const auto pick = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint32_t>(high - low + 1));
  };
  for (int round = 0; round < 200; ++round) {
    struct Job {
      SequenceView view;
      int left;  // tokens to generate
    };
    const StepLimits limits{pick(1, 5), pick(5, 70)};
    const int total = pick(4, 12);
    std::vector<Job> waiting, running;
    for (int i = pick(1, 12); i > 0; --i) {
      const int prompt = pick(1, total * 64 / 2);
      waiting.push_back({{.known = prompt}, pick(1, total * 64 - prompt)});
    }
    int steps = 0, finished = 0;
    const int jobs = static_cast<int>(waiting.size());
    while (finished < jobs) {
      ASSERT_LT(++steps, 20000) << "round " << round;
      int used = 0;
      std::vector<SequenceView> r, w;
      for (const Job& job : running) used += job.view.pages, r.push_back(job.view);
      for (const Job& job : waiting) w.push_back(job.view);
      ASSERT_LE(used, total);
      const StepPlan next = plan_step(r, w, static_cast<std::size_t>(total - used), limits);
      if (next.preempt >= 0) {
        ASSERT_EQ(next.preempt, static_cast<int>(running.size()) - 1);
        ASSERT_GT(running.size(), 1u) << "the oldest never goes";
        Job job = running.back();
        running.pop_back();
        job.view.computed = job.view.pages = 0;
        waiting.insert(waiting.begin(), job);
        continue;
      }
      for (int i = 0; i < next.num_admitted; ++i) {
        running.push_back(waiting.front());
        waiting.erase(waiting.begin());
      }
      ASSERT_LE(static_cast<int>(running.size()), limits.max_sequences);
      ASSERT_FALSE(next.shares.empty());
      ASSERT_EQ(next.shares[0].sequence, 0);
      int tokens = 0;
      for (const Share& share : next.shares) {
        Job& job = running[static_cast<std::size_t>(share.sequence)];
        tokens += share.count;
        job.view.computed += share.count;
        job.view.pages = std::max(job.view.pages, (job.view.computed + 63) / 64);
        ASSERT_LE(job.view.computed, job.view.known);
        if (job.view.computed == job.view.known) ++job.view.known, --job.left;
      }
      ASSERT_LE(tokens, limits.max_batch_tokens);
      finished +=
          static_cast<int>(std::erase_if(running, [](const Job& job) { return job.left == 0; }));
    }
  }
}

}  // namespace
}  // namespace glint
