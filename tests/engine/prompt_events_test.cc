// What a client hears of its prompt, and in which order clients get their turn.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/chunk_pacer.h"
#include "engine/logits.h"
#include "engine/score.h"
#include "step_runner.h"

namespace glint {
namespace {

GenerateRequest judged(Tokens prompt, int max_tokens, int num_top) {
  GenerateRequest request = greedy_request(std::move(prompt), max_tokens);
  request.prompt_logprobs = num_top;
  return request;
}

std::vector<PromptLogprob> all_of(const Outcome& outcome) {
  std::vector<PromptLogprob> all;
  for (const auto& part : outcome.prompt) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void expect_equal(const std::vector<PromptLogprob>& a, const std::vector<PromptLogprob>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_EQ(a[i].has_logprob, b[i].has_logprob);
    EXPECT_EQ(a[i].logprob, b[i].logprob) << i;
    EXPECT_EQ(a[i].rank, b[i].rank);
    ASSERT_EQ(a[i].top_logprobs.size(), b[i].top_logprobs.size());
    for (std::size_t k = 0; k < a[i].top_logprobs.size(); ++k) {
      EXPECT_EQ(a[i].top_logprobs[k].token, b[i].top_logprobs[k].token);
      EXPECT_EQ(a[i].top_logprobs[k].logprob, b[i].top_logprobs[k].logprob);
    }
  }
}

// From the logits that `glint score` would see.
std::vector<PromptLogprob> expected_for(const Tokens& prompt, int num_top) {
  std::vector<PromptLogprob> expected = {{.token = prompt[0]}};
  FakeRig rig(16);
  const std::vector<Tokens> prompts = {prompt};
  const Status status = prompt_logits(
      rig.model, rig.exec, rig.cache, prompts, {},
      [&](std::size_t, int first, std::span<const float> logits) -> Status {
        constexpr std::size_t kVocab = FakeModel::kVocabSize;
        for (std::size_t row = 0; row * kVocab < logits.size(); ++row) {
          const std::size_t next = static_cast<std::size_t>(first) + row + 1;
          if (next >= prompt.size()) break;
          auto one = judge_token(logits.subspan(row * kVocab, kVocab), prompt[next], num_top);
          expected.push_back(std::move(*one));
        }
        return {};
      });
  EXPECT_TRUE(status.has_value());
  return expected;
}

TEST(PromptLogprobs, are_those_of_a_full_forward_at_every_chunk) {
  for (const int length : {1, 2, 64, 65, 150}) {
    const Tokens prompt = fake_text("a", length);
    const auto expected = expected_for(prompt, 3);
    EXPECT_FALSE(expected[0].has_logprob);
    for (const int chunk : {1, 7, 64, 512}) {
      FakeRig rig(16);
      Runner runner(rig, small_options(1, chunk));
      const Outcome& outcome = runner.add(judged(prompt, 4, 3));
      runner.run();
      expect_equal(all_of(outcome), expected);
      EXPECT_EQ(outcome.tokens, FakeModel::greedy(prompt, 4));
    }
  }
}

TEST(PromptLogprobs, take_nothing_from_the_prefix_cache) {
  FakeRig rig(32);
  Runner runner(rig, small_options());
  runner.add(greedy_request(fake_text("a", 150), 3));
  runner.run();
  const Outcome& outcome = runner.add(judged(fake_text("a", 150), 3, 0));
  runner.run();
  EXPECT_EQ(outcome.last.usage.cached_tokens, 0);
  EXPECT_EQ(all_of(outcome).size(), 150u);
  for (const PromptLogprob& one : all_of(outcome)) EXPECT_TRUE(one.top_logprobs.empty());
  const Outcome& after = runner.add(greedy_request(fake_text("a", 150), 3));
  runner.run();
  EXPECT_EQ(after.last.usage.cached_tokens, 128) << "others may start from what it computed";
}

TEST(PromptLogprobs, a_step_has_few_rows) {
  FakeRig rig(64, true, 2);
  std::size_t most = 0;
  rig.model.before_forward = [&](const Batch& batch) {
    most = std::max(most, batch.logit_rows.size());
  };
  Runner runner(rig, small_options(4, 400));
  std::vector<Outcome*> outcomes;
  for (int i = 0; i < 3; ++i) {
    outcomes.push_back(&runner.add(judged(fake_text(std::to_string(i), 300), 3, 2)));
  }
  runner.add(greedy_request(fake_text("plain", 300), 3));
  runner.run();
  EXPECT_LE(most, 64u + 4u);
  for (int i = 0; i < 3; ++i) {
    expect_equal(all_of(*outcomes[static_cast<std::size_t>(i)]),
                 expected_for(fake_text(std::to_string(i), 300), 2));
  }
}

TEST(PromptLogprobs, come_once_when_preempted_on_the_way) {
  FakeRig rig(4);
  Runner runner(rig, small_options(2, 8, 256));
  const Outcome& old = runner.add(greedy_request(fake_text("old", 60), 100));
  for (int i = 0; i < 9; ++i) runner.loop().step();
  const Outcome& young = runner.add(judged(fake_text("young", 180), 3, 1));
  while (runner.loop().stats().preemptions == 0 && young.finishes == 0) runner.loop().step();
  EXPECT_FALSE(young.prompt.empty());
  EXPECT_LT(all_of(young).size(), 180u) << "in the middle of its prompt";
  runner.run();
  EXPECT_EQ(old.tokens, FakeModel::greedy(fake_text("old", 60), 100));
  expect_equal(all_of(young), expected_for(fake_text("young", 180), 1));
  EXPECT_EQ(young.tokens, FakeModel::greedy(fake_text("young", 180), 3));
}

TEST(PromptLogprobs, logits_that_are_not_finite_end_the_request) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  Tokens prompt = fake_text("a", 100);
  prompt[70] = FakeModel::kPoison;
  const Outcome& outcome = runner.add(judged(prompt, 3, 0));
  runner.run();
  EXPECT_EQ(outcome.last.reason, FinishReason::kError);
  EXPECT_LE(all_of(outcome).size(), 71u);
}

TEST(Progress, is_told_after_every_chunk) {
  FakeRig rig(16);
  Runner runner(rig, small_options(2, 30));
  auto request = greedy_request(fake_text("a", 100), 3);
  request.progress = true;
  const Outcome& cold = runner.add(request);
  const Outcome& silent = runner.add(greedy_request(fake_text("b", 10), 3));
  runner.run();
  EXPECT_EQ(cold.progress.back(), 100);
  EXPECT_GE(cold.progress.size(), 4u);
  EXPECT_TRUE(std::ranges::is_sorted(cold.progress));
  EXPECT_TRUE(silent.progress.empty());
  const Outcome& warm = runner.add(request);
  runner.run();
  EXPECT_EQ(warm.progress, (std::vector<int>{94, 100})) << "the cached page counts";
}

// Who ends in which order when there is one slot; requests have prompts of different lengths.
std::vector<int> order_of_ends(bool by_priority) {
  FakeRig rig(16);
  EngineOptions options = small_options(1);
  options.by_priority = by_priority;
  Runner runner(rig, options);
  std::vector<int> order;
  runner.on_event([&order](const TokenEvent& event) {
    if (event.kind == TokenEvent::Kind::kFinished) order.push_back(event.usage.prompt_tokens);
  });
  const auto add = [&runner](int length, int priority) {
    auto request = greedy_request(fake_text("a", length), 5);
    request.priority = priority;
    runner.add(std::move(request));
  };
  add(1, 9);
  runner.loop().step();
  add(2, 5);
  add(3, 1);
  add(4, -1);
  add(5, 1);
  runner.run();
  return order;
}

TEST(Priority, orders_who_waits_when_it_is_asked_to) {
  EXPECT_EQ(order_of_ends(false), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(order_of_ends(true), (std::vector<int>{1, 4, 3, 5, 2}));
}

TEST(Priority, the_least_urgent_gives_way_when_pages_run_out) {
  FakeRig rig(4);
  EngineOptions options = small_options(2, 128, 256);
  options.by_priority = true;
  Runner runner(rig, options);
  auto low = greedy_request(fake_text("low", 60), 100),
       high = greedy_request(fake_text("high", 60), 100);
  low.priority = 1;
  const Outcome& first = runner.add(low);
  runner.loop().step();
  const Outcome& second = runner.add(high);
  while (second.finishes == 0) runner.loop().step();
  EXPECT_EQ(first.finishes, 0) << "though it came first";
  EXPECT_EQ(runner.loop().stats().preemptions, 1u);
  runner.run();
  EXPECT_EQ(first.tokens, FakeModel::greedy(fake_text("low", 60), 100));
  EXPECT_EQ(second.tokens, FakeModel::greedy(fake_text("high", 60), 100));
}

TEST(Stats, count_the_tokens_of_steps) {
  FakeRig rig(16);
  Runner runner(rig, small_options(2, 16));
  runner.add(greedy_request(fake_text("a", 20), 3));
  runner.run();
  const BatchHistogram histogram = runner.loop().stats().batch_tokens;  // 16, 4, 1, 1
  EXPECT_EQ(histogram.counts[0], 2u);
  EXPECT_EQ(histogram.counts[1], 1u);
  EXPECT_EQ(histogram.counts[2], 1u);
  EXPECT_EQ(histogram.sum, 22u);
}

TEST(ChunkPacer, aims_at_a_second) {
  ChunkPacer pacer(512, 2048);
  EXPECT_EQ(pacer.length(), 2048);
  pacer.ran(2048, 0.9);
  EXPECT_EQ(pacer.length(), 2048);
  pacer.ran(2048, 2.0);
  EXPECT_EQ(pacer.length(), 1024);
  pacer.ran(1, 5.0);
  EXPECT_EQ(pacer.length(), 1024) << "a token is no chunk";
  pacer.ran(1024, 100.0);
  EXPECT_EQ(pacer.length(), 512) << "as little as a step that others wait for";
  pacer.ran(512, 0.01);
  EXPECT_EQ(pacer.length(), 1024) << "it grows step by step";
  pacer.ran(1024, 0.0);
  pacer.ran(1024, 0.001);
  EXPECT_EQ(pacer.length(), 2048);
  EXPECT_EQ(ChunkPacer(512, 0).length(), 512);
}

}  // namespace
}  // namespace glint
