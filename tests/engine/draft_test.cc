// Guessing ahead changes nothing but the time: every answer is what it would be without.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "fake_constraint.h"
#include "step_runner.h"

namespace glint {
namespace {

using Wrong = std::function<bool(int depth, int slot)>;

EngineOptions drafting(int num_drafts, EngineOptions options = small_options()) {
  options.draft_mode = num_drafts > 0 ? DraftMode::kFixed : DraftMode::kOff;
  options.num_drafts = num_drafts;
  options.max_batch_tokens =
      std::max(options.max_batch_tokens, options.max_sequences * (1 + num_drafts));
  return options;
}

FakeRig drafting_rig(std::size_t num_pages = 64, int threads = 1) {
  return FakeRig(num_pages, true, threads, true);
}

// Everything that a client sees of one request.
struct Answer {
  Tokens tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  FinishReason reason = FinishReason::kStop;
  std::string error = {};

  bool operator==(const Answer& other) const {
    const auto same = [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.token == b.token && a.logprob == b.logprob;
    };
    return tokens == other.tokens && logprobs == other.logprobs && reason == other.reason &&
           error == other.error &&
           std::ranges::equal(top, other.top, [&](const auto& a, const auto& b) {
             return std::ranges::equal(a, b, same);
           });
  }
};

Answer answer_of(const Outcome& outcome) {
  Answer answer;
  answer.tokens = outcome.tokens;
  answer.reason = outcome.last.reason;
  answer.error = outcome.last.error.message;
  for (const TokenEvent& event : outcome.samples) {
    answer.logprobs.push_back(event.logprob);
    answer.top.push_back(event.top_logprobs);
  }
  return answer;
}

using Requests = std::function<std::vector<GenerateRequest>()>;

std::vector<Answer> answers(const Requests& requests, const EngineOptions& options,
                            const Wrong& wrong = {}, std::size_t num_pages = 64) {
  FakeRig rig(num_pages, true, 2, true);
  rig.model.guesses_wrong = wrong;
  Runner runner(rig, options);
  std::vector<Outcome*> outcomes;
  for (GenerateRequest& request : requests()) outcomes.push_back(&runner.add(std::move(request)));
  runner.run();
  std::vector<Answer> out;
  for (const Outcome* outcome : outcomes) out.push_back(answer_of(*outcome));
  if (options.draft_mode == DraftMode::kFixed && !wrong) {
    EXPECT_GT(rig.model.num_drafts, 0);
  }
  return out;
}

// With all guesses right, some wrong, and all wrong; with few and many of them.
void expect_same(const Requests& requests, const EngineOptions& options = small_options(),
                 std::size_t num_pages = 64) {
  const std::vector<Answer> plain = answers(requests, drafting(0, options), {}, num_pages);
  const Wrong never, always = [](int, int) { return true; };
  const Wrong some = [](int depth, int slot) { return fake_mix(slot * 7u + depth) % 3 == 0; };
  for (const int num_drafts : {1, 2, 3, 8}) {
    int i = 0;
    for (const Wrong& wrong : {never, some, always}) {
      EXPECT_TRUE(answers(requests, drafting(num_drafts, options), wrong, num_pages) == plain)
          << num_drafts << " guesses, pattern " << i;
      ++i;
    }
  }
}

GenerateRequest sampled_request(Tokens prompt, int max_tokens, std::uint64_t seed) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0.4f, .top_p = 0.95f, .seed = seed, .top_logprobs = 3},
          .max_tokens = max_tokens};
}

TEST(Draft, right_guesses_are_taken_and_save_steps) {
  for (const int num_drafts : {1, 2, 3, 5, 8}) {
    FakeRig rig = drafting_rig();
    Runner runner(rig, drafting(num_drafts, small_options(4, 40)));
    const Outcome& outcome = runner.add(greedy_request(fake_text("a", 100), 200));
    runner.run();
    EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("a", 100), 200));
    // The prompt takes three steps, the last of which samples.
    const int rounds = (199 + num_drafts) / (1 + num_drafts);
    EXPECT_EQ(static_cast<int>(rig.model.steps.size()), 3 + rounds);
    EXPECT_EQ(outcome.last.usage.drafted_tokens, outcome.last.usage.accepted_tokens);
    EXPECT_EQ(outcome.last.usage.accepted_tokens, 199 - rounds);
    const DraftStats drafts = runner.loop().stats().drafts;
    EXPECT_EQ(drafts.mode, DraftMode::kFixed);
    EXPECT_EQ(drafts.num_drafts, num_drafts);
    EXPECT_EQ(drafts.drafted, drafts.accepted);
    EXPECT_GE(static_cast<int>(drafts.rounds), rounds - 1);
    EXPECT_EQ(drafts.accepted_at[0], drafts.rounds);
  }
}

TEST(Draft, rejection_at_each_position_for_64_steps) {
  const auto expected = FakeModel::greedy(fake_text("a", 70), 150);
  for (int position = 0; position < 4; ++position) {
    FakeRig rig = drafting_rig();
    rig.model.guesses_wrong = [=](int depth, int) { return depth == position; };
    Runner runner(rig, drafting(4));
    const Outcome& outcome = runner.add(greedy_request(fake_text("a", 70), 150));
    runner.run();
    EXPECT_EQ(outcome.tokens, expected) << position;
    const DraftStats drafts = runner.loop().stats().drafts;
    if (position == 0) {
      EXPECT_EQ(drafts.accepted, 0u);
      EXPECT_GE(drafts.rounds, 64u);
    }
    for (int i = 0; i < 4; ++i) {
      const auto accepted = drafts.accepted_at[static_cast<std::size_t>(i)];
      if (i < position) {
        EXPECT_GE(accepted + 1, drafts.rounds);
      } else {
        EXPECT_EQ(accepted, 0u);
      }
    }
  }
}

TEST(Draft, wrong_guesses_of_every_pattern_change_nothing) {
  for (std::uint32_t pattern = 0; pattern < 40; ++pattern) {
    const Wrong wrong = [=](int depth, int slot) {
      return (fake_mix(pattern * 1000003u + static_cast<std::uint64_t>(slot) * 31 +
                       static_cast<std::uint64_t>(depth)) >>
              7) %
                 4 ==
             0;
    };
    const auto got = answers([] { return std::vector{greedy_request(fake_text("w", 30), 150)}; },
                             drafting(1 + static_cast<int>(pattern % 8)), wrong);
    EXPECT_EQ(got[0].tokens, FakeModel::greedy(fake_text("w", 30), 150)) << pattern;
  }
}

TEST(Draft, seeds_and_logprobs_are_the_same) {
  expect_same([] {
    std::vector<GenerateRequest> requests;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      requests.push_back(sampled_request(fake_text("s", 50 + static_cast<int>(seed)), 90, seed));
    }
    return requests;
  });
}

TEST(Draft, penalties_biases_and_bad_words_are_the_same) {
  expect_same([] {
    std::vector<GenerateRequest> requests;
    const Tokens likely = FakeModel::greedy(fake_text("p", 40), 20);
    GenerateRequest request = sampled_request(fake_text("p", 40), 100, 3);
    request.sampling.repetition_penalty = 1.3f;
    request.sampling.repeat_last_n = 20;
    request.sampling.presence_penalty = 0.4f;
    request.sampling.frequency_penalty = 0.2f;
    requests.push_back(request);
    request = greedy_request(fake_text("p", 40), 100);
    request.sampling.logit_bias = {{likely[3], -20.0f}, {7, 3.0f}};
    requests.push_back(request);
    request = greedy_request(fake_text("p", 40), 100);
    request.sampling.bad_sequences = {{likely[4], likely[5]}, {likely[7], likely[8], likely[9]}};
    requests.push_back(request);
    request = greedy_request(fake_text("p", 40), 100);
    for (std::int32_t token = 0; token < 60; ++token) {
      request.sampling.allowed_tokens.push_back(token);
    }
    requests.push_back(request);
    return requests;
  });
}

TEST(Draft, ends_are_the_same) {
  for (int end = 1; end <= 12; ++end) {
    expect_same([=] {
      std::vector<GenerateRequest> requests;
      const Tokens likely = FakeModel::greedy(fake_text("e", 60), 40);
      GenerateRequest request = greedy_request(fake_text("e", 60), 40);
      request.stop_ids = {likely[static_cast<std::size_t>(end - 1)]};
      requests.push_back(request);
      request.min_tokens = end + 4;
      requests.push_back(request);
      requests.push_back(greedy_request(fake_text("e", 60), end));
      return requests;
    });
  }
}

TEST(Draft, constraints_are_asked_once_a_token_and_decide_the_same) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    expect_same([=] {
      std::vector<GenerateRequest> requests;
      GenerateRequest request = greedy_request(fake_text("g", 45), 80);
      request.constraint = std::make_shared<FakeConstraint>(seed);
      requests.push_back(request);
      request = sampled_request(fake_text("g", 20), 80, seed);
      request.constraint = std::make_shared<FakeConstraint>(seed + 10);
      requests.push_back(request);
      return requests;
    });
  }
}

TEST(Draft, a_constraint_that_fails_fails_at_the_same_token) {
  for (int at = 0; at < 8; ++at) {
    for (const bool accepting : {false, true}) {
      expect_same([=] {
        GenerateRequest request = greedy_request(fake_text("g", 45), 80);
        const auto constraint = std::make_shared<FakeConstraint>(5);
        (accepting ? constraint->fail_accept_at : constraint->fail_next_at) = at;
        request.constraint = constraint;
        return std::vector{request};
      });
    }
  }
}

TEST(Draft, scripts_are_the_same) {
  for (int at = 0; at < 7; ++at) {
    expect_same([=] {
      std::vector<GenerateRequest> requests;
      Tokens script = FakeModel::greedy(fake_text("c", 30), 12);
      script[6] = 3;
      GenerateRequest request = greedy_request(fake_text("c", 30), 40);
      request.script = std::make_shared<TokenScript>(TokenScript{.tokens = script});
      requests.push_back(request);
      request.script =
          std::make_shared<TokenScript>(TokenScript{.tokens = {}, .stall_s = 0, .nan_at = at});
      requests.push_back(request);
      return requests;
    });
  }
}

TEST(Draft, the_context_limit_gives_the_same_tokens_and_logprobs) {
  expect_same(
      [] {
        std::vector<GenerateRequest> requests;
        for (const int prompt : {100, 120, 125, 126, 127}) {
          requests.push_back(sampled_request(fake_text("l", prompt), 1000, 4));
          requests.push_back(greedy_request(fake_text("l", prompt), 1000));
        }
        return requests;
      },
      small_options(3, 32, 128));
}

TEST(Draft, guesses_never_run_past_a_limit) {
  FakeRig rig = drafting_rig();
  int longest = 0;
  rig.model.before_forward = [&](const Batch& batch) {
    for (const SequenceSpan& span : batch.sequences) {
      longest = std::max(longest, span.start + span.count);
    }
  };
  rig.model.before_draft = [&](const DraftBatch& batch) {
    for (const SequenceSpan& span : batch.sequences) {
      longest = std::max(longest, span.start + span.count);
    }
  };
  Runner runner(rig, drafting(3, small_options(2, 64, 128)));
  runner.add(greedy_request(fake_text("l", 100), 1000));
  runner.run();
  EXPECT_EQ(longest, 127) << "the last token of the context is never computed";
  longest = 0;
  runner.add(greedy_request(fake_text("m", 20), 9));
  runner.run();
  EXPECT_EQ(longest, 28);
}

TEST(Draft, prompt_logprobs_of_1700_tokens_are_the_same) {
  const auto judged = [](int num_drafts, int chunk) {
    FakeRig rig = drafting_rig();
    Runner runner(rig, drafting(num_drafts, small_options(2, chunk, 2048)));
    GenerateRequest request = greedy_request(fake_text("j", 1700), 40);
    request.prompt_logprobs = 2;
    const Outcome& outcome = runner.add(std::move(request));
    runner.run();
    std::vector<float> out;
    for (const auto& event : outcome.prompt) {
      for (const PromptLogprob& p : event) {
        out.push_back(p.logprob);
        for (const TokenLogprob& top : p.top_logprobs) out.push_back(top.logprob);
      }
    }
    EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("j", 1700), 40));
    return out;
  };
  const auto plain = judged(0, 512);
  EXPECT_GT(plain.size(), 1700u);
  EXPECT_EQ(judged(3, 512), plain);
  EXPECT_EQ(judged(1, 37), plain);
}

TEST(Draft, eight_sequences_side_by_side) {
  expect_same(
      [] {
        std::vector<GenerateRequest> requests;
        for (int i = 0; i < 12; ++i) {
          const Tokens prompt = fake_text("b" + std::to_string(i % 5), 10 + 23 * i);
          requests.push_back(i % 2 == 0
                                 ? greedy_request(prompt, 30 + i)
                                 : sampled_request(prompt, 40, static_cast<std::uint64_t>(i)));
          if (i % 3 == 0) {
            requests.back().constraint =
                std::make_shared<FakeConstraint>(static_cast<std::uint64_t>(i));
          }
        }
        return requests;
      },
      small_options(8, 40));
}

TEST(Draft, preempted_equals_not) {
  // Each needs 5 pages in the end; 9 are there, for four at once.
  const Requests requests = [] {
    std::vector<GenerateRequest> out;
    for (int i = 0; i < 4; ++i) {
      out.push_back(sampled_request(fake_text("q" + std::to_string(i), 60), 240,
                                    static_cast<std::uint64_t>(i)));
    }
    return out;
  };
  expect_same(requests, small_options(4, 64), 9);
}

TEST(Draft, guesses_take_no_page_that_a_token_needs) {
  // Three pages, three sequences that end just before they need a second one.
  FakeRig rig = drafting_rig(4);
  Runner runner(rig, drafting(8, small_options(4, 256, 256)));
  std::vector<Outcome*> outcomes;
  for (int i = 0; i < 4; ++i) {
    outcomes.push_back(&runner.add(greedy_request(fake_text(std::to_string(i), 40), 24)));
  }
  runner.run();
  EXPECT_EQ(runner.loop().stats().preemptions, 0u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(i)]->tokens,
              FakeModel::greedy(fake_text(std::to_string(i), 40), 24));
  }
}

TEST(Draft, the_next_turn_starts_from_cached_pages_and_guesses_at_once) {
  FakeRig rig = drafting_rig();
  Runner runner(rig, drafting(3));
  const Outcome& first = runner.add(greedy_request(fake_text("t", 150), 100));
  runner.run();
  Tokens turn = fake_text("t", 150);
  turn.insert(turn.end(), first.tokens.begin(), first.tokens.end());
  for (int length = 250; length < 330; length += 7) {
    Tokens prompt = turn;
    const Tokens more = fake_text("more", length - 250);
    prompt.insert(prompt.end(), more.begin(), more.end());
    const Outcome& next = runner.add(greedy_request(prompt, 60));
    runner.run();
    EXPECT_GE(next.last.usage.cached_tokens, 192);
    EXPECT_EQ(next.tokens, FakeModel::greedy(prompt, 60)) << "cold, without guesses";
    EXPECT_EQ(next.last.usage.drafted_tokens, next.last.usage.accepted_tokens);
    EXPECT_EQ(next.last.usage.accepted_tokens, 59 - 15) << "from the first step on";
  }
}

// Pages that were filled while nobody guessed hold no rows of the draft layer.
TEST(Draft, pages_without_rows_are_not_looked_at) {
  FakeRig rig = drafting_rig();
  {
    Runner plain(rig, drafting(0));
    plain.add(greedy_request(fake_text("u", 150), 100));
    plain.run();
  }
  Runner runner(rig, drafting(3));
  for (const int length : {129, 150, 200, 255}) {
    Tokens prompt = fake_text("u", 150);
    const Tokens answer = FakeModel::greedy(prompt, 110);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    prompt.resize(static_cast<std::size_t>(length));
    const Outcome& outcome = runner.add(greedy_request(prompt, 100));
    runner.run();
    EXPECT_EQ(outcome.last.usage.cached_tokens, (length - 1) / 64 * 64);
    EXPECT_EQ(outcome.tokens, FakeModel::greedy(prompt, 100));
    EXPECT_GT(outcome.last.usage.accepted_tokens, 60) << "it sees what comes after them";
  }
}

// Two that compute the same pages at the same time, one of which judges its prompt and so keeps no
// rows: whose page enters the tree is chance.
TEST(Draft, pages_that_take_each_others_place_stay_right) {
  for (const bool judge_first : {false, true}) {
    FakeRig rig = drafting_rig();
    Runner runner(rig, drafting(3, small_options(2, 512, 512)));
    std::vector<Outcome*> outcomes;
    for (const bool judges : {judge_first, !judge_first}) {
      GenerateRequest request = greedy_request(fake_text("v", 130), 80);
      if (judges) request.prompt_logprobs = 0;
      outcomes.push_back(&runner.add(std::move(request)));
    }
    runner.run();
    for (const Outcome* outcome : outcomes) {
      EXPECT_EQ(outcome->tokens, FakeModel::greedy(fake_text("v", 130), 80));
      EXPECT_GT(outcome->last.usage.accepted_tokens, 30);
    }
    const Outcome& later = runner.add(greedy_request(fake_text("v", 200), 40));
    runner.run();
    EXPECT_EQ(later.tokens, FakeModel::greedy(fake_text("v", 200), 40));
  }
}

TEST(Draft, cancelling_between_the_tokens_of_one_step) {
  for (std::size_t at = 1; at < 12; ++at) {
    FakeRig rig = drafting_rig();
    Runner runner(rig, drafting(3));
    Outcome& outcome = runner.add(greedy_request(fake_text("x", 40), 100));
    Outcome& other = runner.add(greedy_request(fake_text("y", 40), 50));
    runner.on_event([&](const TokenEvent& event) {
      if (event.kind == TokenEvent::Kind::kToken && outcome.tokens.size() == at) runner.cancel(0);
    });
    runner.run();
    EXPECT_EQ(outcome.last.reason, FinishReason::kCancelled);
    EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("x", 40), static_cast<int>(at)));
    EXPECT_EQ(other.tokens, FakeModel::greedy(fake_text("y", 40), 50));
  }
}

TEST(Draft, rows_that_are_not_finite_matter_only_where_they_are_reached) {
  // Wrong guesses that poison the rows behind them.
  FakeRig rig = drafting_rig();
  rig.model.guesses_poison = true;
  Runner runner(rig, drafting(3));
  const Outcome& outcome = runner.add(greedy_request(fake_text("n", 40), 60));
  Tokens poisoned = fake_text("bad", 70);
  poisoned[30] = FakeModel::kPoison;
  const Outcome& bad = runner.add(greedy_request(poisoned, 20));
  runner.run();
  EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("n", 40), 60));
  EXPECT_GT(outcome.last.usage.drafted_tokens, 0);
  EXPECT_EQ(bad.last.reason, FinishReason::kError);
  EXPECT_EQ(rig.cache.match(poisoned).pages, 0);
}

// Random arrivals, cancellations and cache pressure with guesses of every quality.
TEST(Draft, random_loads_never_mix_answers) {
  for (std::uint32_t seed = 0; seed < 16; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](int n) {
      return static_cast<int>(random() % static_cast<std::uint32_t>(n));
    };
    FakeRig rig(static_cast<std::size_t>(5 + pick(12)), pick(4) != 0, 2, true);
    const int quality = 1 + pick(6);
    rig.model.guesses_wrong = [=](int depth, int slot) {
      return fake_mix(seed + static_cast<std::uint64_t>(slot * 8 + depth)) %
                 static_cast<std::uint64_t>(quality) ==
             0;
    };
    const int slots = 1 + pick(5);
    EngineOptions options = drafting(1 + pick(4), small_options(slots, slots + pick(100), 320));
    if (seed % 4 == 0) options.draft_mode = DraftMode::kAuto;
    Runner runner(rig, options);
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
      GenerateRequest request = greedy_request(prompt, max_tokens);
      if (pick(4) == 0) request.prompt_logprobs = 0;
      all.push_back({&runner.add(std::move(request)), prompt, max_tokens});
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
      if (e.cancelled) expected.resize(e.outcome->tokens.size());
      ASSERT_EQ(e.outcome->tokens, expected) << "seed " << seed;
    }
  }
}

// Whether two samples could be of one distribution: their chi-square statistic is below what three
// sigmas allow. Rare values count as one.
void expect_one_distribution(const std::vector<double>& a, const std::vector<double>& b) {
  const double total_a = std::accumulate(a.begin(), a.end(), 0.0);
  const double total_b = std::accumulate(b.begin(), b.end(), 0.0);
  double chi_square = 0, rare_a = 0, rare_b = 0;
  int degrees = -1;
  const auto add = [&](double x, double y) {
    const double difference = x * std::sqrt(total_b / total_a) - y * std::sqrt(total_a / total_b);
    chi_square += difference * difference / (x + y);
    ++degrees;
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] + b[i] >= 20) {
      add(a[i], b[i]);
    } else {
      rare_a += a[i], rare_b += b[i];
    }
  }
  if (rare_a + rare_b > 0) add(rare_a, rare_b);
  ASSERT_GT(degrees, 10);
  // Wilson and Hilferty: its cube root is nearly normal.
  const double d = degrees;
  const double limit = d * std::pow(1 - 2 / (9 * d) + 3 * std::sqrt(2 / (9 * d)), 3);
  EXPECT_LT(chi_square, limit) << degrees << " degrees of freedom";
}

// 20,000 draws with and without guesses, of different seeds: with the same they would be equal.
TEST(Draft, the_sampled_distribution_is_the_same) {
  const Tokens prompt = {1, 2, 3, 4};
  const std::int32_t likeliest = FakeModel::greedy(prompt, 1)[0];
  // Of the token that a guess is compared with, and of the one behind a right guess.
  std::vector<std::vector<double>> compared, behind;
  for (const int num_drafts : {0, 3}) {
    FakeRig rig(32, true, 1, true);
    Runner runner(rig, drafting(num_drafts, small_options(8, 64, 64)));
    std::vector<Outcome*> outcomes;
    for (std::uint64_t i = 0; i < 20000; ++i) {
      GenerateRequest request{.prompt = {1, 2, 3},
                              .sampling = {.temperature = 1, .seed = i * 2 + (num_drafts > 0)},
                              .max_tokens = 3};
      request.script = std::make_shared<TokenScript>(TokenScript{.tokens = {4}});
      outcomes.push_back(&runner.add(std::move(request)));
      if (i % 100 == 99) runner.run();
    }
    compared.emplace_back(FakeModel::kVocabSize, 0);
    behind.emplace_back(FakeModel::kVocabSize, 0);
    for (const Outcome* outcome : outcomes) {
      ++compared.back()[static_cast<std::size_t>(outcome->tokens.at(1))];
      if (outcome->tokens.at(1) != likeliest) continue;
      ++behind.back()[static_cast<std::size_t>(outcome->tokens.at(2))];
      EXPECT_EQ(outcome->last.usage.accepted_tokens, num_drafts > 0 ? 1 : 0);
    }
  }
  expect_one_distribution(compared[0], compared[1]);
  expect_one_distribution(behind[0], behind[1]);
}

TEST(Draft, automatic_pauses_where_guesses_lose_and_says_so) {
  FakeRig rig = drafting_rig();
  EngineOptions options = small_options(1, 64, 2048);
  options.draft_mode = DraftMode::kAuto;
  // Every token of a step costs as much as a step, and not all guesses are right.
  rig.model.guesses_wrong = [](int depth, int slot) { return fake_mix(slot + depth) % 3 == 0; };
  rig.model.before_forward = [](const Batch& batch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1) * batch.tokens.size());
  };
  Runner runner(rig, options);
  const auto& outcome = runner.add(greedy_request(fake_text("a", 20), 400));
  runner.run();
  EXPECT_EQ(outcome.tokens, FakeModel::greedy(fake_text("a", 20), 400));
  const DraftStats drafts = runner.loop().stats().drafts;
  EXPECT_EQ(drafts.mode, DraftMode::kAuto);
  EXPECT_TRUE(drafts.paused);
  EXPECT_EQ(drafts.num_drafts, 0);
  EXPECT_GT(drafts.drafted, 0u) << "it was tried";
}

TEST(Draft, automatic_guesses_where_they_pay) {
  FakeRig rig = drafting_rig();
  EngineOptions options = small_options(1, 64, 2048);
  options.draft_mode = DraftMode::kAuto;
  rig.model.before_forward = [](const Batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  };
  Runner runner(rig, options);
  const auto& outcome = runner.add(greedy_request(fake_text("a", 20), 600));
  runner.run();
  EXPECT_FALSE(runner.loop().stats().drafts.paused);
  EXPECT_GT(outcome.last.usage.accepted_tokens, 250);
}

TEST(Draft, off_asks_for_nothing) {
  FakeRig rig = drafting_rig();
  bool asked = false;
  rig.model.before_forward = [&](const Batch& batch) { asked |= !batch.hidden.empty(); };
  Runner runner(rig, drafting(0));
  runner.add(greedy_request(fake_text("a", 100), 20));
  runner.run();
  EXPECT_FALSE(asked);
  EXPECT_EQ(rig.model.num_drafts, 0);
}

}  // namespace
}  // namespace glint
