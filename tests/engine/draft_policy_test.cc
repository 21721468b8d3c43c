// How many guesses pay, with step times that the tests make up.
#include "engine/draft_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace glint {
namespace {

// Steps of made-up length, and guesses that are right as often as `right` says.
struct World {
  std::function<double(int num_sequences, int num_drafts)> step_seconds;
  double draft_seconds = 0.05;
  double right = 0.8;
  double noise = 0.05;

  DraftPolicy policy{DraftMode::kAuto, 0, DraftCosts{.shared = 1, .draft = 0.05}};
  std::mt19937 random{1};
  int next = policy.current();
  double seconds = 0, tokens = 0;
  std::array<int, 4> steps = {};
  int kept_up = 0;

  double uniform() { return static_cast<double>(random() % 100000) / 100000; }
  void run(int num_steps, int num_sequences = 1) {
    for (int i = 0; i < num_steps; ++i) {
      const int k = next;
      ++steps[static_cast<std::size_t>(k)];
      const double took = step_seconds(num_sequences, k) * (1 + noise * (2 * uniform() - 1));
      for (int s = 0; s < num_sequences; ++s) {
        bool is_right = true;
        for (int d = 0; d < k && is_right; ++d) {
          is_right = uniform() < right;
          policy.judged(d, is_right);
          tokens += is_right;
        }
        ++tokens;
      }
      policy.verified(num_sequences, k, took);
      kept_up += policy.keeps_up();
      next = policy.choose(num_sequences);
      const double guessing = draft_seconds * next;
      policy.drafted(num_sequences, next, guessing);
      seconds += took + guessing;
    }
  }
  void forget() {
    steps = {};
    seconds = tokens = 0;
    kept_up = 0;
  }
};

double flat(int, int) {
  return 1;
}

TEST(DraftPolicy, fixed_and_off_do_what_they_say) {
  DraftPolicy fixed(DraftMode::kFixed, 5, {});
  EXPECT_TRUE(fixed.keeps_up());
  EXPECT_EQ(fixed.current(), 5);
  for (int i = 0; i < 1000; ++i) {
    fixed.verified(1, 5, 1e9);
    fixed.judged(0, false);
    ASSERT_EQ(fixed.choose(1 + i % 9), 5);
  }
  EXPECT_FALSE(fixed.paused());
  DraftPolicy off(DraftMode::kOff, 0, {});
  EXPECT_FALSE(off.keeps_up());
  EXPECT_EQ(off.choose(3), 0);
  EXPECT_FALSE(off.paused()) << "there is nothing to resume";
}

TEST(DraftPolicy, takes_all_it_can_get_when_guesses_are_free) {
  World world{.step_seconds = flat, .draft_seconds = 0.01, .right = 0.95};
  world.run(400);
  world.forget();
  world.run(1000);
  EXPECT_GT(world.steps[3], 900);
  EXPECT_FALSE(world.policy.paused());
}

TEST(DraftPolicy, finds_the_middle) {
  // Three in four are right; each guess makes the step longer by a fifth.
  World world{
      .step_seconds = [](int, int k) { return 1 + 0.2 * k; }, .draft_seconds = 0.02, .right = 0.7};
  // Tokens a second: 1, 1.39, 1.52, 1.53 with 0 to 3.
  world.run(600);
  world.forget();
  world.run(2000);
  EXPECT_GT(world.steps[2] + world.steps[3], 1700);
  EXPECT_GT(world.tokens / world.seconds, 1.45);
}

TEST(DraftPolicy, pauses_when_it_loses_and_costs_little_then) {
  // Every guess brings its own experts: a step costs as many tokens as it has.
  World world{.step_seconds = [](int, int k) { return 1.0 + k; }};
  world.run(300);
  EXPECT_TRUE(world.policy.paused());
  EXPECT_EQ(world.policy.current(), 0);
  world.forget();
  world.run(4000);
  EXPECT_GT(world.steps[0], 3900);
  EXPECT_GT(world.tokens / world.seconds, 0.97);
  EXPECT_LT(world.kept_up, 1000) << "the layer rests too, but before it is tried again";
}

TEST(DraftPolicy, resumes_when_the_text_becomes_predictable) {
  World world{.step_seconds = [](int, int k) { return 1 + 0.3 * k; }, .right = 0.1};
  world.run(500);
  EXPECT_TRUE(world.policy.paused());
  world.right = 0.95;
  world.run(2500);
  EXPECT_FALSE(world.policy.paused());
  world.forget();
  world.run(500);
  EXPECT_GT(world.tokens / world.seconds, 1.3);
}

TEST(DraftPolicy, resumes_when_steps_become_cheap) {
  World world{.step_seconds = [](int, int k) { return 1.0 + k; }};
  world.run(500);
  EXPECT_TRUE(world.policy.paused());
  world.step_seconds = flat;
  world.run(2500);
  EXPECT_FALSE(world.policy.paused());
}

TEST(DraftPolicy, drops_guesses_that_turn_wrong) {
  World world{.step_seconds = [](int, int k) { return 1 + 0.3 * k; }, .right = 0.95};
  world.run(500);
  EXPECT_GT(world.policy.current(), 0);
  world.right = 0.05;
  world.run(200);
  EXPECT_TRUE(world.policy.paused());
}

// One sequence has idle hardware for its guesses; eight use all of it.
TEST(DraftPolicy, knows_small_crowds_from_large_ones) {
  World world{.step_seconds = [](int n, int k) { return n * (1 + k) <= 4 ? 1 : n * (1 + k) / 4.0; },
              .draft_seconds = 0.02,
              .right = 0.9};
  for (int i = 0; i < 40; ++i) world.run(20, 1), world.run(20, 8);
  world.forget();
  for (int i = 0; i < 20; ++i) world.run(20, 8);
  EXPECT_GT(world.steps[0], 350);
  world.forget();
  for (int i = 0; i < 20; ++i) world.run(20, 1);
  EXPECT_GT(world.steps[3], 300);
}

// Contexts grow, and with them all steps: that is no reason to think that guesses cost it.
TEST(DraftPolicy, growing_steps_do_not_look_like_losses) {
  double length = 1;
  World world{.step_seconds = [&](int, int k) { return (length *= 1.001) * (1 + 0.1 * k); },
              .draft_seconds = 0.02,
              .right = 0.9};
  world.run(300);
  world.forget();
  world.run(2000);
  EXPECT_GT(world.steps[2] + world.steps[3], 1700);
}

TEST(DraftPolicy, a_hiccup_changes_nothing) {
  World world{.step_seconds = flat, .draft_seconds = 0.01, .right = 0.95};
  world.run(400);
  const int before = world.policy.current();
  world.policy.verified(1, before, 500);
  world.run(1);
  for (int i = 0; i < 16; ++i) {
    world.run(1);
    EXPECT_NE(world.policy.current(), 0) << i;
  }
}

TEST(DraftCosts, more_tokens_meet_more_experts) {
  const DraftCosts costs{.shared = 1, .experts = 10, .chosen = 0.1};
  EXPECT_NEAR(costs.step(1), 2, 1e-9);
  EXPECT_NEAR(costs.step(2), 1 + 10 * (1 - 0.81) + 0.05 * 2, 1e-9);
  EXPECT_LT(costs.step(1000) - costs.step(999), 0.2);
  const DraftCosts dense{.shared = 1};
  EXPECT_NEAR(dense.step(4) - dense.step(1), 0.15, 1e-9);
}

TEST(DraftCosts, come_from_what_the_model_reads) {
  ModelInfo info;
  info.num_experts = 64;
  info.experts_per_token = 4;
  info.active_weight_bytes = 1000;
  info.draft.active_weight_bytes = 70;
  info.weights = {
      {.part = WeightPart::kExperts, .type = DType::kBf16, .rows = 10, .cols = 40, .count = 2},
      {.part = WeightPart::kHead, .type = DType::kBf16, .rows = 10, .cols = 10, .count = 1}};
  const DraftCosts costs = draft_costs(info);
  EXPECT_EQ(costs.experts, 1600);
  EXPECT_EQ(costs.chosen, 4.0 / 64);
  EXPECT_EQ(costs.shared, 900);
  EXPECT_EQ(costs.draft, 70);
  EXPECT_EQ(draft_costs({}).experts, 0) << "nothing is known without weights";
}

}  // namespace
}  // namespace glint
