// Constraints in the step loop: right tokens in any company, asked once a token and beside the
// model, and an error that stays with its request.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "fake_constraint.h"
#include "step_runner.h"

namespace glint {
namespace {

using namespace std::chrono_literals;

GenerateRequest constrained(Tokens prompt, int max_tokens,
                            std::shared_ptr<FakeConstraint> constraint) {
  GenerateRequest request = greedy_request(std::move(prompt), max_tokens);
  request.constraint = std::move(constraint);
  return request;
}

TEST(Constraint, holds_for_every_sequence_of_a_batch) {
  FakeRig rig(64, true, 3);
  Runner runner(rig, small_options(5, 24));
  std::vector<Outcome*> outcomes;
  std::vector<std::shared_ptr<FakeConstraint>> constraints;
  for (int i = 0; i < 9; ++i) {
    const Tokens prompt = fake_text("c" + std::to_string(i), 10 + 13 * i);
    constraints.push_back(std::make_shared<FakeConstraint>(i));
    outcomes.push_back(&runner.add(i % 3 == 2 ? greedy_request(prompt, 30 + i)
                                              : constrained(prompt, 30 + i, constraints.back())));
  }
  runner.run();
  for (int i = 0; i < 9; ++i) {
    const std::size_t index = static_cast<std::size_t>(i);
    const Tokens prompt = fake_text("c" + std::to_string(i), 10 + 13 * i);
    const auto seed = static_cast<std::uint64_t>(i);
    EXPECT_EQ(outcomes[index]->tokens, i % 3 == 2 ? FakeModel::greedy(prompt, 30 + i)
                                                  : FakeConstraint::greedy(seed, prompt, 30 + i));
    EXPECT_EQ(constraints[index]->asks, i % 3 == 2 ? 0 : 30 + i);
    EXPECT_EQ(constraints[index]->accepts, i % 3 == 2 ? 0 : 30 + i);
  }
}

TEST(Constraint, survives_preemption) {
  // Each needs 5 pages in the end; 9 are there, for four at once.
  FakeRig rig(9);
  Runner runner(rig, small_options(4, 64));
  std::vector<Outcome*> outcomes;
  std::vector<std::shared_ptr<FakeConstraint>> constraints;
  for (int i = 0; i < 4; ++i) {
    constraints.push_back(std::make_shared<FakeConstraint>(i));
    outcomes.push_back(
        &runner.add(constrained(fake_text(std::to_string(i), 60), 240, constraints.back())));
  }
  runner.run();
  EXPECT_GT(runner.loop().stats().preemptions, 0u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcomes[i]->tokens,
              FakeConstraint::greedy(i, fake_text(std::to_string(i), 60), 240));
    EXPECT_EQ(constraints[i]->asks, 240) << "what is computed again is not asked again";
    EXPECT_EQ(constraints[i]->accepts, 240);
  }
}

TEST(Constraint, is_not_asked_while_a_prompt_is_read) {
  FakeRig rig(16);
  Runner runner(rig, small_options(2, 16));
  const auto constraint = std::make_shared<FakeConstraint>(3);
  runner.add(constrained(fake_text("a", 50), 5, constraint));
  for (int i = 0; i < 3; ++i) runner.loop().step();
  EXPECT_EQ(constraint->asks, 0);
  runner.loop().step();
  EXPECT_EQ(constraint->asks, 1);
  runner.run();
  EXPECT_EQ(constraint->asks, 5);
}

// Each side waits for the other to have begun.
TEST(Constraint, is_asked_while_the_model_computes) {
  FakeRig rig(16);
  std::mutex mutex;
  std::condition_variable changed;
  int asking = 0, computing = 0;
  const auto meet = [&](int& mine, const int& other) {
    std::unique_lock lock(mutex);
    const int round = ++mine;
    changed.notify_all();
    EXPECT_TRUE(changed.wait_for(lock, 60s, [&] { return other >= round; }));
  };
  rig.model.before_forward = [&](const Batch&) { meet(computing, asking); };
  const auto constraint = std::make_shared<FakeConstraint>(3);
  constraint->during_next = [&] { meet(asking, computing); };
  Runner runner(rig, small_options());
  const Outcome& outcome = runner.add(constrained(fake_text("a", 20), 6, constraint));
  runner.run();
  EXPECT_EQ(outcome.tokens, FakeConstraint::greedy(3, fake_text("a", 20), 6));
}

TEST(Constraint, an_error_ends_its_request_alone) {
  FakeRig rig(64);
  Runner runner(rig, small_options(4, 200));
  const auto first = std::make_shared<FakeConstraint>(1),
             second = std::make_shared<FakeConstraint>(2),
             third = std::make_shared<FakeConstraint>(3);
  first->fail_next_at = 4;
  second->fail_accept_at = 4;
  third->allow_nothing = true;
  const Outcome& a = runner.add(constrained(fake_text("a", 70), 20, first));
  const Outcome& b = runner.add(constrained(fake_text("b", 40), 20, second));
  const Outcome& c = runner.add(constrained(fake_text("c", 40), 20, third));
  const Outcome& d = runner.add(greedy_request(fake_text("d", 20), 20));
  runner.run();
  EXPECT_EQ(a.last.error.code, ErrorCode::kExhausted);
  EXPECT_EQ(a.last.error.message, "the grammar grew too large");
  EXPECT_EQ(a.tokens, FakeConstraint::greedy(1, fake_text("a", 70), 4));
  EXPECT_EQ(b.last.error.message, "the grammar lost its way");
  EXPECT_EQ(b.tokens, FakeConstraint::greedy(2, fake_text("b", 40), 4))
      << "a token that was not accepted is not sent";
  EXPECT_EQ(c.last.error.code, ErrorCode::kInternal);
  EXPECT_TRUE(c.tokens.empty());
  EXPECT_EQ(d.tokens, FakeModel::greedy(fake_text("d", 20), 20));
  EXPECT_EQ(rig.cache.match(fake_text("a", 70)).pages, 1) << "the model did nothing wrong";
}

TEST(Constraint, of_a_request_cancelled_in_its_step_is_let_go_after_it) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  auto constraint = std::make_shared<FakeConstraint>(3);
  const std::weak_ptr<FakeConstraint> watched = constraint;
  const Outcome& outcome = runner.add(constrained(fake_text("a", 20), 50, std::move(constraint)));
  int steps = 0;
  rig.model.before_forward = [&](const Batch&) {
    if (++steps == 4) runner.cancel(0);
  };
  for (int i = 0; i < 4; ++i) runner.loop().step();
  EXPECT_EQ(outcome.last.reason, FinishReason::kCancelled) << "in the step that it came in";
  EXPECT_EQ(outcome.tokens.size(), 3u);
  EXPECT_TRUE(watched.expired());
}

TEST(Constraint, leaves_logprobs_raw) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  auto request = constrained(fake_text("a", 20), 8, std::make_shared<FakeConstraint>(5));
  request.sampling.top_logprobs = 1;
  const Outcome& outcome = runner.add(std::move(request));
  runner.run();
  Tokens so_far = fake_text("a", 20);
  for (const TokenEvent& event : outcome.samples) {
    const std::int32_t best = FakeModel::greedy(so_far, 1)[0];
    EXPECT_EQ(event.top_logprobs.at(0).token, best);
    EXPECT_LE(event.logprob, event.top_logprobs[0].logprob);
    so_far.push_back(event.token);
  }
}

TEST(StepLoop, a_sink_may_cancel_a_neighbour_of_its_step) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  const Outcome& a = runner.add(greedy_request(fake_text("a", 5), 30));
  const Outcome& b = runner.add(greedy_request(fake_text("b", 5), 30));
  runner.on_event([&](const TokenEvent&) {
    if (a.tokens.size() == 7) runner.cancel(1);
  });
  runner.run();
  EXPECT_EQ(a.tokens.size(), 30u);
  EXPECT_EQ(b.tokens.size(), 6u) << "no token follows";
  EXPECT_EQ(b.last.reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace glint
