// The test device: scripted picks, NaN rows and stalls behind the real steps.
#include <gtest/gtest.h>

#include "fake_constraint.h"
#include "step_runner.h"

namespace glint {
namespace {

GenerateRequest scripted(Tokens prompt, int max_tokens, TokenScript script) {
  GenerateRequest request = greedy_request(std::move(prompt), max_tokens);
  request.script = std::make_shared<const TokenScript>(std::move(script));
  return request;
}

TEST(Script, replaces_picks_and_sampling_goes_on_after_it) {
  const Tokens prompt = fake_text("a", 70), said = {5, 6, 7, 5, 99};
  Tokens so_far = prompt;
  so_far.insert(so_far.end(), said.begin(), said.end());
  Tokens expected = said;
  for (const std::int32_t token : FakeModel::greedy(so_far, 10)) expected.push_back(token);
  for (const int chunk : {1, 16, 512}) {
    EXPECT_EQ(run_alone(scripted(prompt, 15, {.tokens = said}), chunk), expected);
  }
}

TEST(Script, a_stop_token_in_it_ends_the_sequence) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  auto request = scripted(fake_text("a", 20), 50, {.tokens = {5, 6, 42, 7}});
  request.stop_ids = {42};
  request.sampling.top_logprobs = 0;
  const Outcome& outcome = runner.add(std::move(request));
  runner.run();
  EXPECT_EQ(outcome.tokens, (Tokens{5, 6, 42}));
  EXPECT_EQ(outcome.last.reason, FinishReason::kStop);
  for (const TokenEvent& event : outcome.samples) {
    EXPECT_LT(event.logprob, 0) << "the model's own";
    EXPECT_EQ(event.is_stop, event.token == 42);
  }
}

TEST(Script, a_constraint_wins_and_the_script_goes_on) {
  const Tokens prompt = fake_text("a", 20), said = fake_text("said", 40);
  const auto constraint = std::make_shared<FakeConstraint>(8);
  auto request = scripted(prompt, 40, {.tokens = said});
  request.constraint = constraint;
  Tokens so_far = prompt, expected;
  int followed = 0;
  std::uint64_t state = 8;
  for (const std::int32_t token : said) {
    const std::int32_t forced = FakeConstraint::forced(state);
    std::int32_t pick = FakeConstraint::greedy(state, so_far, 1)[0];
    if (forced < 0 && FakeConstraint::allows(state, token)) pick = token, ++followed;
    expected.push_back(pick);
    so_far.push_back(pick);
    state = FakeConstraint::add(state, pick);
  }
  EXPECT_EQ(run_alone(std::move(request), 64), expected);
  EXPECT_GT(followed, 0);
  EXPECT_LT(followed, 40);
}

TEST(Script, nan_at_breaks_that_token_of_that_request) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  const Outcome& broken =
      runner.add(scripted(fake_text("a", 20), 50, {.tokens = {5, 6, 7, 8}, .nan_at = 2}));
  const Outcome& first = runner.add(scripted(fake_text("b", 20), 50, {.nan_at = 0}));
  const Outcome& whole = runner.add(greedy_request(fake_text("c", 20), 30));
  runner.run();
  EXPECT_EQ(broken.tokens, (Tokens{5, 6}));
  EXPECT_EQ(broken.last.error.code, ErrorCode::kInternal);
  EXPECT_NE(broken.last.error.message.find("nan"), std::string::npos);
  EXPECT_TRUE(first.tokens.empty());
  EXPECT_EQ(first.last.reason, FinishReason::kError);
  EXPECT_EQ(whole.tokens, FakeModel::greedy(fake_text("c", 20), 30));
}

TEST(Script, a_stall_holds_up_its_own_prompt_only) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  const Outcome& slow = runner.add(scripted(fake_text("a", 20), 5, {.stall_s = 0.3}));
  const Outcome& quick = runner.add(greedy_request(fake_text("b", 20), 30));
  while (quick.finishes == 0) runner.loop().step();
  EXPECT_EQ(slow.starts, 1) << "it has started";
  EXPECT_EQ(quick.tokens, FakeModel::greedy(fake_text("b", 20), 30));
  runner.run();
  EXPECT_EQ(slow.tokens, FakeModel::greedy(fake_text("a", 20), 5));
  EXPECT_GE(slow.last.usage.prefill_s, 0.3);
}

TEST(Script, nobody_waits_for_what_a_stalled_request_would_cache) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  runner.add(scripted(fake_text("a", 150), 5, {.stall_s = 3600}));
  const Outcome& same = runner.add(greedy_request(fake_text("a", 150), 3));
  while (same.finishes == 0) runner.loop().step();
  EXPECT_EQ(same.tokens, FakeModel::greedy(fake_text("a", 150), 3));
}

TEST(Script, a_stalled_request_can_be_cancelled) {
  FakeRig rig(16);
  Runner runner(rig, small_options(1));
  const Outcome& slow = runner.add(scripted(fake_text("a", 20), 5, {.stall_s = 3600}));
  const Outcome& behind = runner.add(greedy_request(fake_text("b", 20), 3));
  for (int i = 0; i < 5; ++i) runner.loop().step();
  EXPECT_EQ(runner.loop().stats().steps, 0u);
  EXPECT_EQ(runner.loop().stats().running, 1);
  EXPECT_EQ(behind.starts, 0) << "it has the only slot";
  runner.cancel(0);
  runner.loop().step();
  EXPECT_EQ(slow.last.reason, FinishReason::kCancelled);
  runner.run();
  EXPECT_EQ(behind.tokens, FakeModel::greedy(fake_text("b", 20), 3));
}

// Stalled ones hold the pages of a prefix hit, which others may need.
TEST(Script, stalls_give_way_when_pages_run_out) {
  FakeRig rig(8);
  Runner runner(rig, small_options(4, 64));
  runner.add(greedy_request(fake_text("a", 250), 1));
  runner.run();
  const Outcome& big = runner.add(greedy_request(fake_text("b", 400), 100));
  runner.loop().step();
  const Outcome& one = runner.add(scripted(fake_text("a", 250), 3, {.stall_s = 3600}));
  const Outcome& two = runner.add(scripted(fake_text("a", 250), 3, {.stall_s = 0.1}));
  runner.loop().step();
  EXPECT_EQ(one.last.usage.cached_tokens, 192);
  while (big.finishes == 0) runner.loop().step();
  EXPECT_EQ(big.tokens, FakeModel::greedy(fake_text("b", 400), 100));
  EXPECT_GT(runner.loop().stats().preemptions, 0u);
  EXPECT_EQ(one.starts, 1);
  EXPECT_EQ(one.finishes, 0);
  while (two.finishes == 0) runner.loop().step();
  EXPECT_EQ(two.tokens, FakeModel::greedy(fake_text("a", 250), 3));
}

TEST(Script, is_checked_against_the_vocabulary) {
  const auto message = [](TokenScript script) {
    auto sequence = make_sequence(
        scripted({1}, 1, std::move(script)), [](TokenEvent) {},
        std::make_shared<std::atomic<bool>>(false), 50, 100);
    return sequence.has_value() ? std::string("fine") : sequence.error().message;
  };
  EXPECT_EQ(message({.tokens = {0, 49}, .stall_s = 1, .nan_at = 3}), "fine");
  EXPECT_EQ(message({.tokens = {50}}), "the script names token 50, and the vocabulary has 50");
  EXPECT_NE(message({.tokens = {-1}}), "fine");
  EXPECT_NE(message({.stall_s = 1e300}), "fine");
  EXPECT_NE(message({.stall_s = std::nan("")}), "fine");
}

}  // namespace
}  // namespace glint
