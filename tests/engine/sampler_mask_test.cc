// What may be sampled at all: masks, forced tokens, bad sequences, scripts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/logits.h"
#include "engine/sampler.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::uint32_t>;

Sampler sampler(SamplingParams params, int min_tokens = 0, Tokens stop_ids = {}) {
  return Sampler(std::move(params), min_tokens, std::move(stop_ids), {});
}

bool has(std::span<const std::uint32_t> words, std::size_t i) {
  return i / 32 < words.size() && ((words[i / 32] >> (i % 32)) & 1u) != 0;
}

Words words_of(const Tokens& tokens, std::size_t size) {
  Words words((size + 31) / 32, 0);
  for (const std::int32_t t : tokens) words[static_cast<std::size_t>(t) / 32] |= 1u << (t % 32);
  return words;
}

std::vector<float> random_logits(std::size_t n, std::mt19937& random, float spread = 3.0f) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

// Whole words of ones and zeros, sparse and dense ones; never empty.
Words random_mask(std::size_t n, std::mt19937& random) {
  Words words((n + 31) / 32);
  for (std::uint32_t& word : words) {
    const std::uint32_t a = random(), b = random();
    word = std::array{0u, ~0u, a, a & b}[random() % 4];
  }
  words[(random() % n) / 32] |= 1u;
  return words;
}

std::string error_of(const Result<Sample>& sample) {
  return sample.has_value() ? "none" : sample.error().message;
}

TEST(Mask, agrees_with_a_look_at_every_bit) {
  std::mt19937 random(1);
  for (std::size_t n = 1; n <= 130; ++n) {
    for (int round = 0; round < 4; ++round) {
      Words words = random_mask(n, random);
      if (round == 1) words.resize(words.size() / 2);
      if (round == 2) words.resize(words.size() + 2, ~0u);
      const auto logits = random_logits(n, random);
      auto masked = logits;
      apply_mask(masked, words);
      bool any = false;
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_EQ(masked[i], has(words, i) ? logits[i] : kMasked) << i << " of " << n;
        any = any || has(words, i);
      }
      EXPECT_EQ(allows_any(words, n), any);
    }
  }
}

TEST(Mask, no_parameter_lets_a_forbidden_token_through) {
  std::mt19937 random(2);
  const auto uniform = [&random] { return static_cast<float>(random() % 1000) / 1000.0f; };
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = 1 + random() % 200;
    SamplingParams params{.temperature = random() % 4 == 0 ? 0.0f : 2.0f * uniform() + 0.01f,
                          .top_p = random() % 2 == 0 ? 1.0f : uniform() * 0.999f + 0.001f,
                          .top_k = static_cast<int>(random() % 6),
                          .min_p = random() % 2 == 0 ? 0.0f : uniform(),
                          .repetition_penalty = 0.5f + uniform(),
                          .presence_penalty = uniform() - 0.5f,
                          .frequency_penalty = uniform() - 0.5f,
                          .seed = random()};
    for (int i = 0; i < 3; ++i) {
      params.logit_bias.emplace_back(static_cast<std::int32_t>(random() % n),
                                     random() % 2 == 0 ? 100.0f : -100.0f);
    }
    const Tokens stops = {static_cast<std::int32_t>(random() % n)};
    auto s = sampler(params, static_cast<int>(random() % 4), stops);
    for (int step = 0; step < 4; ++step) {
      const Words mask = random_mask(n, random);
      auto logits = random_logits(n, random, 0.1f + 20.0f * uniform());
      const auto script = static_cast<std::int32_t>(random() % n);
      const auto sample = s.next(logits, {.allowed = mask}, random() % 3 == 0 ? script : -1);
      ASSERT_TRUE(sample.has_value()) << sample.error().message;
      ASSERT_GE(sample->token, 0);
      ASSERT_LT(static_cast<std::size_t>(sample->token), n);
      EXPECT_TRUE(has(mask, static_cast<std::size_t>(sample->token)));
    }
  }
}

TEST(Mask, masking_equals_a_vocabulary_without_those_tokens) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::size_t n = 500;
    const auto logits = random_logits(n, random, 1.0f + static_cast<float>(round % 7));
    const Words mask = random_mask(n, random);
    std::vector<float> kept;
    Tokens ids;
    for (std::size_t i = 0; i < n; ++i) {
      if (!has(mask, i)) continue;
      kept.push_back(logits[i]);
      ids.push_back(static_cast<std::int32_t>(i));
    }
    for (const SamplingParams& params : std::vector<SamplingParams>{
             {.seed = random()},
             {.temperature = 0},
             {.temperature = 0.7f, .top_p = 0.9f, .seed = random()},
             {.top_k = 20, .seed = random()},
             {.top_k = 400, .seed = random()},
             {.min_p = 0.1f, .seed = random()},
             {.top_p = 0.8f, .top_k = 30, .min_p = 0.01f, .seed = random()}}) {
      auto masked = sampler(params), small = sampler(params);
      auto all = logits, few = kept;
      const auto a = masked.next(all, {.allowed = mask});
      const auto b = small.next(few);
      ASSERT_TRUE(a.has_value() && b.has_value());
      EXPECT_EQ(a->token, ids[static_cast<std::size_t>(b->token)]);
    }
  }
}

TEST(Mask, draws_follow_the_renormalised_distribution) {
  std::mt19937 random(4);
  const std::size_t n = 64;
  const auto logits = random_logits(n, random, 1.0f);
  Tokens allowed;
  for (std::int32_t t = 1; t < 64; t += 4) allowed.push_back(t);
  const Words mask = words_of(allowed, n);
  double total = 0;
  for (const std::int32_t t : allowed) total += std::exp(logits[static_cast<std::size_t>(t)]);
  constexpr int kDraws = 20000;
  std::vector<int> counts(n, 0);
  for (int i = 0; i < kDraws; ++i) {
    auto s = sampler({.seed = static_cast<std::uint64_t>(i)});
    auto row = logits;
    ++counts[static_cast<std::size_t>(s.next(row, {.allowed = mask})->token)];
  }
  double chi2 = 0;
  int seen = 0;
  for (const std::int32_t t : allowed) {
    const std::size_t i = static_cast<std::size_t>(t);
    const double expected = kDraws * std::exp(logits[i]) / total;
    EXPECT_GT(expected, 20);
    chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
    seen += counts[i];
  }
  EXPECT_EQ(seen, kDraws);
  EXPECT_LT(chi2, 45) << "99.99th percentile of 15 degrees of freedom";
}

TEST(Mask, a_forced_token_needs_no_likelihood) {
  auto s = sampler({.top_p = 0.1f, .top_k = 1, .min_p = 0.9f, .top_logprobs = 1});
  std::vector<float> logits = {9, 1, 2};
  const Words only_zero = {1};
  const auto sample = s.next(logits, {.allowed = only_zero, .forced = 1});
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->token, 1) << "it wins over the mask";
  const double log_sum = std::log(std::exp(9.0) + std::exp(1.0) + std::exp(2.0));
  EXPECT_NEAR(sample->logprob, 1 - log_sum, 1e-5) << "of the raw logits";
  EXPECT_EQ(sample->top_logprobs[0].token, 0);
}

TEST(Mask, logprobs_are_read_before_it) {
  auto s = sampler({.temperature = 0, .top_logprobs = 2});
  std::vector<float> logits = {3, 2, 1};
  const Words mask = {0b100};
  const auto sample = s.next(logits, {.allowed = mask});
  ASSERT_TRUE(sample.has_value());
  const double log_sum = std::log(std::exp(3.0) + std::exp(2.0) + std::exp(1.0));
  EXPECT_EQ(sample->token, 2);
  EXPECT_NEAR(sample->logprob, 1 - log_sum, 1e-5);
  EXPECT_EQ(sample->top_logprobs[0].token, 0);
  EXPECT_EQ(sample->top_logprobs[1].token, 1);
}

TEST(Mask, that_allows_nothing_is_an_internal_error) {
  for (const Words& mask : {Words{0}, Words{0xfffffff0u}, Words{0, 0, ~0u}}) {
    auto s = sampler({});
    std::vector<float> logits = {3, 2, 1};
    const auto sample = s.next(logits, {.allowed = mask});
    ASSERT_FALSE(sample.has_value());
    EXPECT_EQ(sample.error().code, ErrorCode::kInternal);
  }
  auto s = sampler({});
  std::vector<float> logits = {3, 2, 1};
  const auto sample = s.next(logits, {.forced = 3});
  ASSERT_FALSE(sample.has_value());
  EXPECT_EQ(sample.error().code, ErrorCode::kInternal);
  EXPECT_NE(error_of(sample).find("token 3"), std::string::npos);
}

TEST(Mask, that_contradicts_the_parameters_is_the_clients_mistake) {
  const Words mask = {0b011};
  const auto code = [](Sampler s, NextTokens rule) {
    std::vector<float> logits = {3, 2, 1};
    const auto sample = s.next(logits, rule);
    EXPECT_FALSE(sample.has_value());
    return sample.has_value() ? ErrorCode::kIo : sample.error().code;
  };
  EXPECT_EQ(code(sampler({.allowed_tokens = {2}}), {.allowed = mask}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(sampler({.allowed_tokens = {2}}), {.forced = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(sampler({.bad_sequences = {{1}}}), {.forced = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(sampler({.bad_sequences = {{0}, {1}, {2}}}), {}), ErrorCode::kInvalidArgument);
}

TEST(Mask, min_tokens_yields_to_it) {
  auto s = sampler({}, 5, {1});
  const Words only_stop = {0b010}, stop_or_two = {0b110};
  const auto next = [&s](NextTokens rule) {
    std::vector<float> logits = {3, 9, 1};
    return s.next(logits, rule)->token;
  };
  EXPECT_EQ(next({.allowed = only_stop}), 1);
  EXPECT_EQ(next({.forced = 1}), 1);
  EXPECT_EQ(next({.allowed = stop_or_two}), 2);
  EXPECT_EQ(next({}) == 1, false);
}

TEST(AllowedTokens, are_all_that_comes) {
  const auto run = [](std::uint64_t seed) {
    auto s = sampler({.temperature = 5.0f, .seed = seed, .allowed_tokens = {70, 3, 3}});
    std::vector<float> logits(100, 0.0f);
    return s.next(logits)->token;
  };
  int threes = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto token = run(seed);
    EXPECT_TRUE(token == 3 || token == 70);
    threes += token == 3;
  }
  EXPECT_GT(threes, 50);
  EXPECT_LT(threes, 150);
}

TEST(BadSequences, are_not_completed) {
  auto s = sampler({.temperature = 0, .bad_sequences = {{0}, {1, 2, 1}}});
  const auto next = [&s](std::vector<float> logits) { return s.next(logits)->token; };
  EXPECT_EQ(next({9, 8, 7, 6}), 1) << "a run of one never comes";
  EXPECT_EQ(next({9, 6, 8, 7}), 2);
  EXPECT_EQ(next({9, 8, 6, 7}), 3) << "1 2 1 would be complete";
  EXPECT_EQ(next({9, 8, 6, 7}), 1) << "3 1 is no such run";
  EXPECT_EQ(next({9, 6, 8, 7}), 2);
  EXPECT_EQ(next({9, 8, 7, 6}), 2);
  EXPECT_EQ(next({9, 8, 7, 6}), 1) << "2 2 1";
}

TEST(BadSequences, may_overlap_themselves) {
  auto s = sampler({.temperature = 0, .bad_sequences = {{1, 1, 1}}});
  Tokens tokens;
  for (int i = 0; i < 7; ++i) {
    std::vector<float> logits = {1, 2};
    tokens.push_back(s.next(logits)->token);
  }
  EXPECT_EQ(tokens, (Tokens{1, 1, 0, 1, 1, 0, 1}));
}

TEST(Script, is_followed_unless_a_mask_forbids) {
  auto s = sampler({.temperature = 0, .top_logprobs = 0}, 2, {2});
  const auto next = [&s](NextTokens rule, std::int32_t scripted) {
    std::vector<float> logits = {3, 9, 1, 4};
    return s.next(logits, rule, scripted)->token;
  };
  const Words mask = {0b1001};
  EXPECT_EQ(next({}, 0), 0);
  EXPECT_EQ(next({.allowed = mask}, 1), 3) << "the best that is allowed";
  EXPECT_EQ(next({.allowed = mask}, 0), 0);
  EXPECT_EQ(next({}, 2), 2) << "a stop id, after min_tokens";
  auto early = sampler({.temperature = 0}, 2, {2});
  std::vector<float> logits = {3, 9, 1, 4};
  EXPECT_EQ(early.next(logits, {}, 2)->token, 1);
}

TEST(CheckSampling, bounds_allowed_tokens_and_bad_sequences) {
  const auto message = [](SamplingParams params) {
    const Status status = check_sampling(params, 100);
    return status.has_value() ? std::string("fine") : status.error().message;
  };
  EXPECT_EQ(message({.allowed_tokens = {0, 99}, .bad_sequences = {{0}, {99, 1}}}), "fine");
  EXPECT_EQ(message({.allowed_tokens = {0, 100}}),
            "allowed_tokens names token 100, and the vocabulary has 100");
  EXPECT_EQ(message({.bad_sequences = {{1}, {-1, 2}}}),
            "bad_sequences names token -1, and the vocabulary has 100");
  EXPECT_EQ(message({.bad_sequences = {{}}}), "bad_sequences holds an empty run of tokens");
}

TEST(JudgeToken, counts_ranks_as_the_list_does) {
  const std::vector<float> logits = {1, 3, 3, 0, 5};
  const double log_sum = log_sum_exp(logits);
  const auto judge = [&](std::int32_t token) { return judge_token(logits, token, 9).value(); };
  for (std::int32_t token = 0; token < 5; ++token) {
    const PromptLogprob judged = judge(token);
    EXPECT_TRUE(judged.has_logprob);
    EXPECT_NEAR(judged.logprob, logits[static_cast<std::size_t>(token)] - log_sum, 1e-6);
    ASSERT_EQ(judged.top_logprobs.size(), 5u);
    EXPECT_EQ(judged.top_logprobs[static_cast<std::size_t>(judged.rank - 1)].token, token);
  }
  EXPECT_EQ(judge(4).rank, 1);
  EXPECT_EQ(judge(2).rank, 3);
  EXPECT_FALSE(judge_token(std::vector<float>{1, NAN}, 0, 1).has_value());
}

}  // namespace
}  // namespace glint
