// Same tokens, whatever the chunk, the neighbours, the cache or the interruptions; and what one
// step may do.
#include "engine/step_loop.h"

#include <gtest/gtest.h>

#include <random>

#include "step_runner.h"

namespace glint {
namespace {

GenerateRequest seeded_request(Tokens prompt, int max_tokens, std::uint64_t seed) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 2.0f,
                       .top_p = 0.9f,
                       .repetition_penalty = 1.2f,
                       .presence_penalty = 0.3f,
                       .seed = seed},
          .max_tokens = max_tokens};
}

TEST(Invariance, greedy_equals_the_models_own_continuation_at_every_chunk) {
  for (const int length : {1, 2, 63, 64, 65, 128, 200}) {
    const auto expected = FakeModel::greedy(fake_text("a", length), 70);
    for (const int chunk : {1, 7, 64, 512}) {
      EXPECT_EQ(run_alone(greedy_request(fake_text("a", length), 70), chunk), expected)
          << length << " tokens in chunks of " << chunk;
    }
  }
}

TEST(Invariance, seeded_sampling_is_the_same_at_every_chunk) {
  const auto expected = run_alone(seeded_request(fake_text("b", 130), 60, 11), 512);
  for (const int chunk : {1, 7, 64}) {
    EXPECT_EQ(run_alone(seeded_request(fake_text("b", 130), 60, 11), chunk), expected);
  }
  EXPECT_NE(run_alone(seeded_request(fake_text("b", 130), 60, 12), 512), expected);
}

TEST(Invariance, alone_equals_batched) {
  FakeRig rig(64, true, 3);
  Runner runner(rig, small_options(5, 24));
  std::vector<Outcome*> outcomes;
  const auto request = [](int i) {
    return seeded_request(fake_text("p" + std::to_string(i), 10 + 17 * i), 40 + i,
                          static_cast<std::uint64_t>(i));
  };
  for (int i = 0; i < 10; ++i) outcomes.push_back(&runner.add(request(i)));
  runner.run();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(i)]->tokens, run_alone(request(i), 512)) << i;
  }
}

TEST(Invariance, cold_equals_prefix_hit) {
  FakeRig rig(32);
  Runner runner(rig, small_options());
  const auto cold = runner.add(seeded_request(fake_text("c", 200), 80, 3));
  runner.run();
  Outcome& first = runner.add(seeded_request(fake_text("c", 200), 80, 3));
  runner.run();
  EXPECT_EQ(first.last.usage.cached_tokens, 192);
  EXPECT_EQ(first.tokens, run_alone(seeded_request(fake_text("c", 200), 80, 3), 512));
  // The answer is a prefix too, as in the next turn of a chat.
  Tokens turn = fake_text("c", 200);
  turn.insert(turn.end(), first.tokens.begin(), first.tokens.end());
  turn.push_back(5);
  Outcome& next = runner.add(greedy_request(turn, 10));
  runner.run();
  EXPECT_EQ(next.last.usage.cached_tokens, 256);
  EXPECT_EQ(next.tokens, FakeModel::greedy(turn, 10));
}

TEST(Invariance, preempted_equals_not) {
  // Each needs 5 pages in the end; 9 are there, for four at once.
  FakeRig rig(9);
  Runner runner(rig, small_options(4, 64));
  std::vector<Outcome*> outcomes;
  const auto request = [](int i) {
    return seeded_request(fake_text("q" + std::to_string(i), 60), 240,
                          static_cast<std::uint64_t>(i));
  };
  for (int i = 0; i < 4; ++i) outcomes.push_back(&runner.add(request(i)));
  runner.run();
  EXPECT_GT(runner.loop().stats().preemptions, 0u);
  for (int i = 0; i < 4; ++i) {
    Outcome& outcome = *outcomes[static_cast<std::size_t>(i)];
    EXPECT_EQ(outcome.tokens, run_alone(request(i), 512)) << i;
    EXPECT_EQ(outcome.starts, 1) << "a preempted request does not start twice";
    EXPECT_EQ(outcome.last.usage.prompt_tokens, 60);
    EXPECT_EQ(outcome.last.usage.completion_tokens, 240);
  }
}

TEST(Invariance, same_prompt_and_seed_give_the_same_answer_side_by_side) {
  FakeRig rig(64);
  Runner runner(rig, small_options(4, 16));
  std::vector<Outcome*> outcomes;
  for (int i = 0; i < 4; ++i)
    outcomes.push_back(&runner.add(seeded_request(fake_text("n", 100), 50, 9)));
  for (int i = 0; i < 4; ++i)
    outcomes.push_back(&runner.add(greedy_request(fake_text("n", 100), 50)));
  runner.run();
  for (const int base : {0, 4}) {
    for (int i = 1; i < 4; ++i) {
      EXPECT_EQ(outcomes[static_cast<std::size_t>(base + i)]->tokens,
                outcomes[static_cast<std::size_t>(base)]->tokens);
    }
  }
  EXPECT_NE(outcomes[0]->tokens, outcomes[4]->tokens);
}

// Random arrivals, cancellations and cache pressure; whoever is not cancelled gets the answer it
// would get alone.
TEST(Invariance, random_loads_never_mix_answers) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](int n) {
      return static_cast<int>(random() % static_cast<std::uint32_t>(n));
    };
    FakeRig rig(static_cast<std::size_t>(5 + pick(12)), pick(4) != 0);
    const int slots = 1 + pick(5);
    Runner runner(rig, small_options(slots, slots + pick(100), 320));
    struct Expectation {
      Outcome* outcome;
      Tokens prompt;
      int max_tokens;
      bool cancelled = false;
    };
    std::vector<Expectation> all;
    for (int i = 0; i < 40; ++i) {
      for (int steps = pick(12); steps > 0; --steps) runner.loop().step();
      Tokens prompt = fake_text(pick(2) == 0 ? "x" : "y", 1 + pick(200));
      if (pick(2) == 0) prompt.push_back(pick(100));
      const int max_tokens = 1 + pick(100);
      all.push_back({&runner.add(greedy_request(prompt, max_tokens)), prompt, max_tokens});
      if (pick(5) == 0) {
        const std::size_t victim = static_cast<std::size_t>(pick(i + 1));
        if (all[victim].outcome->finishes == 0) {
          runner.cancel(victim);
          all[victim].cancelled = true;
        }
      }
      rig.cache.check_integrity();
    }
    runner.run();
    for (const Expectation& e : all) {
      auto expected = FakeModel::greedy(
          e.prompt, std::min(e.max_tokens, 320 - static_cast<int>(e.prompt.size())));
      if (e.cancelled) {
        EXPECT_EQ(e.outcome->last.reason, FinishReason::kCancelled);
        expected.resize(e.outcome->tokens.size());
      }
      ASSERT_EQ(e.outcome->tokens, expected) << "seed " << seed;
    }
  }
}

TEST(StepLoop, a_step_holds_at_most_the_budget) {
  FakeRig rig(64);
  Runner runner(rig, small_options(4, 20));
  for (int i = 0; i < 6; ++i) runner.add(greedy_request(fake_text(std::to_string(i), 90), 30));
  runner.run();
  for (const auto& step : rig.model.steps) {
    int tokens = 0;
    for (const auto& span : step) tokens += span.count;
    EXPECT_LE(tokens, 20);
    EXPECT_LE(step.size(), 4u);
  }
}

TEST(StepLoop, a_long_prompt_does_not_stall_who_decodes) {
  FakeRig rig(64);
  Runner runner(rig, small_options(4, 16));
  Outcome& quick = runner.add(greedy_request(fake_text("quick", 5), 20));
  runner.loop().step();
  runner.add(greedy_request(fake_text("long", 400), 1));
  for (std::size_t expected = 2; expected <= 20; ++expected) {
    runner.loop().step();
    EXPECT_EQ(quick.tokens.size(), expected) << "a token in every step";
  }
  runner.run();
}

// Says once that experts could not be read.
class FailingExperts : public ExpertSource {
 public:
  ExpertStats stats() const override { return {.num_experts = 3}; }
  Status take_failure() override { return std::exchange(next, Status()); }
  Status next;
};

TEST(StepLoop, a_step_whose_experts_cannot_be_read_fails_its_requests_and_no_later_ones) {
  FakeRig rig(64);
  const auto experts = std::make_shared<FailingExperts>();
  rig.model.set_experts(experts);
  Runner runner(rig, small_options());
  const auto& first = runner.add(greedy_request(fake_text("a", 30), 10));
  const auto& second = runner.add(greedy_request(fake_text("b", 20), 10));
  experts->next = io_error("tensor t: cannot read f");
  runner.run();
  for (const Outcome* failed : {&first, &second}) {
    EXPECT_EQ(failed->last.reason, FinishReason::kError);
    EXPECT_EQ(failed->last.error.message, "tensor t: cannot read f");
    EXPECT_TRUE(failed->tokens.empty());
  }
  const auto& later = runner.add(greedy_request(fake_text("a", 30), 10));
  runner.run();
  EXPECT_EQ(later.tokens, FakeModel::greedy(fake_text("a", 30), 10));
}

TEST(StepLoop, not_finite_logits_end_their_request_alone) {
  FakeRig rig(64);
  Runner runner(rig, small_options(4, 64));
  Tokens poisoned = fake_text("bad", 70);
  poisoned[30] = FakeModel::kPoison;
  Outcome& before = runner.add(greedy_request(fake_text("one", 70), 20));
  Outcome& bad = runner.add(greedy_request(poisoned, 20));
  Outcome& after = runner.add(greedy_request(fake_text("two", 70), 20));
  runner.run();
  EXPECT_EQ(bad.last.reason, FinishReason::kError);
  EXPECT_EQ(bad.last.error.code, ErrorCode::kInternal);
  EXPECT_NE(bad.last.error.message.find("nan"), std::string::npos);
  EXPECT_TRUE(bad.tokens.empty());
  EXPECT_EQ(before.tokens, FakeModel::greedy(fake_text("one", 70), 20));
  EXPECT_EQ(after.tokens, FakeModel::greedy(fake_text("two", 70), 20));
  EXPECT_EQ(rig.cache.match(poisoned).pages, 0) << "its rows are not kept for others";
  EXPECT_EQ(runner.loop().stats().failed, 1u);
  EXPECT_EQ(runner.loop().stats().finished, 2u);
}

TEST(StepLoop, cancelling_mid_prefill_keeps_the_full_pages) {
  FakeRig rig(16);
  Runner runner(rig, small_options(2, 50));
  Outcome& first = runner.add(greedy_request(fake_text("r", 300), 5));
  for (int i = 0; i < 3; ++i) runner.loop().step();
  runner.cancel(0);
  runner.loop().step();
  EXPECT_EQ(first.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(rig.cache.stats().leased_pages, 0u);
  Outcome& retry = runner.add(greedy_request(fake_text("r", 300), 5));
  runner.run();
  EXPECT_EQ(retry.last.usage.cached_tokens, 128) << "150 tokens were computed";
  EXPECT_EQ(retry.tokens, FakeModel::greedy(fake_text("r", 300), 5));
}

TEST(StepLoop, a_salt_keeps_prefixes_apart) {
  FakeRig rig(32);
  Runner runner(rig, small_options());
  for (const std::uint64_t salt : {1u, 2u, 1u}) {
    auto request = greedy_request(fake_text("s", 150), 3);
    request.cache_salt = salt;
    Outcome& outcome = runner.add(std::move(request));
    const bool seen_before = rig.cache.match(fake_text("s", 150), salt).pages > 0;
    runner.run();
    EXPECT_EQ(outcome.last.usage.cached_tokens, seen_before ? 128 : 0);
    EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("s", 150), 3));
  }
  EXPECT_EQ(rig.cache.stats().prefix_hits, 128u);
}

TEST(StepLoop, a_request_past_its_time_limit_ends_with_an_error) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  auto request = greedy_request(fake_text("t", 10), 500);
  request.timeout_s = 1e-9;
  Outcome& outcome = runner.add(std::move(request));
  runner.run();
  EXPECT_EQ(outcome.last.reason, FinishReason::kError);
  EXPECT_EQ(outcome.last.error.code, ErrorCode::kCancelled);
}

TEST(StepLoop, usage_adds_up) {
  FakeRig rig(16);
  Runner runner(rig, small_options());
  auto request = greedy_request(fake_text("u", 40), 100);
  request.stop_ids = {FakeModel::greedy(fake_text("u", 40), 12).back()};
  Outcome& outcome = runner.add(std::move(request));
  runner.run();
  const Usage& usage = outcome.last.usage;
  EXPECT_EQ(outcome.last.reason, FinishReason::kStop);
  EXPECT_EQ(usage.prompt_tokens, 40);
  EXPECT_EQ(usage.completion_tokens, static_cast<int>(outcome.tokens.size()));
  EXPECT_LE(usage.completion_tokens, 12);
  EXPECT_GE(usage.queue_s, 0);
  EXPECT_GT(usage.prefill_s, 0);
  EXPECT_GT(usage.decode_s, 0);
  EXPECT_EQ(runner.loop().stats().generated_tokens, outcome.tokens.size());
  EXPECT_EQ(runner.loop().stats().prompt_tokens, 40u);
}

TEST(MakeSequence, clamps_the_answer_to_the_context) {
  FakeRig rig(16);
  Runner runner(rig, small_options(2, 64, 100));
  Outcome& outcome = runner.add(greedy_request(fake_text("v", 99), 1000000));
  Outcome& long_answer = runner.add(greedy_request(fake_text("v", 20), 1000000));
  runner.run();
  EXPECT_EQ(outcome.tokens.size(), 1u);
  EXPECT_EQ(outcome.last.reason, FinishReason::kLength);
  EXPECT_EQ(long_answer.tokens, FakeModel::greedy(fake_text("v", 20), 80));
}

TEST(MakeSequence, refusals_name_field_and_numbers) {
  const auto message = [](GenerateRequest request) {
    auto sequence = make_sequence(
        std::move(request), [](TokenEvent) {}, std::make_shared<std::atomic<bool>>(false), 50, 100);
    return sequence.has_value() ? std::string("fine") : sequence.error().message;
  };
  EXPECT_EQ(message({.prompt = Tokens(99, 1), .max_tokens = 1}), "fine");
  EXPECT_EQ(message({.prompt = {}, .max_tokens = 1}), "the prompt is empty");
  for (const std::size_t length : {100u, 101u, 5000u}) {
    const auto text = message({.prompt = Tokens(length, 1), .max_tokens = 1});
    EXPECT_NE(text.find("maximum context length is 100 tokens"), std::string::npos) << text;
    EXPECT_NE(text.find("the prompt has " + std::to_string(length)), std::string::npos) << text;
  }
  EXPECT_EQ(message({.prompt = {1, 50}, .max_tokens = 1}),
            "token 1 of the prompt is 50, and the vocabulary has 50");
  EXPECT_EQ(message({.prompt = {-1}, .max_tokens = 1}),
            "token 0 of the prompt is -1, and the vocabulary has 50");
  EXPECT_EQ(message({.prompt = {1}, .max_tokens = 0}), "max_tokens is 0, and must be 1 or more");
  EXPECT_NE(message({.prompt = {1}, .sampling = {.top_p = 0}, .max_tokens = 1}).find("top_p"),
            std::string::npos);
}

}  // namespace
}  // namespace glint
