#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/logits.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

Sampler sampler(SamplingParams params, Tokens prompt = {}, int min_tokens = 0,
                Tokens stop_ids = {}) {
  return Sampler(std::move(params), min_tokens, std::move(stop_ids), prompt);
}

std::int32_t next_token(Sampler& s, std::vector<float> logits) {
  auto sample = s.next(logits);
  return sample.has_value() ? sample->token : -1;
}

std::vector<float> random_logits(int n, std::uint32_t seed, float spread = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<std::size_t>(n));
  for (float& x : logits) x = normal(random);
  return logits;
}

// How often each token comes in `draws` draws from the same logits, each of its own seed.
std::map<std::int32_t, int> histogram(SamplingParams params, const std::vector<float>& logits,
                                      int draws) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    params.seed = static_cast<std::uint64_t>(i);
    auto s = sampler(params);
    ++counts[next_token(s, logits)];
  }
  return counts;
}

TEST(Draw, is_uniform_and_a_function_of_seed_and_index) {
  EXPECT_EQ(uniform_draw(5, 9), uniform_draw(5, 9));
  EXPECT_NE(uniform_draw(5, 9), uniform_draw(9, 5));
  EXPECT_NE(uniform_draw(5, 9), uniform_draw(5, 10));
  for (const bool over_seeds : {false, true}) {
    std::vector<int> bins(16, 0);
    double sum = 0;
    for (std::uint64_t i = 0; i < 16000; ++i) {
      const double u = over_seeds ? uniform_draw(i, 3) : uniform_draw(3, i);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      ++bins[static_cast<std::size_t>(u * 16)];
      sum += u;
    }
    EXPECT_NEAR(sum / 16000, 0.5, 0.01);  // 4 standard errors
    double chi2 = 0;
    for (const int n : bins) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi2, 45) << "99.99th percentile of 15 degrees of freedom";
  }
}

TEST(Argmax, takes_the_lowest_id_among_equals) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}).value(), 1);
  EXPECT_EQ(argmax(std::vector<float>{-5}).value(), 0);
}

TEST(Argmax, refuses_logits_that_are_not_finite) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY, -std::nanf("")}) {
    const auto result = argmax(std::vector<float>{1, bad, 3});
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kInternal);
    EXPECT_NE(result.error().message.find("token 1"), std::string::npos);
  }
  EXPECT_TRUE(argmax(std::vector<float>{std::numeric_limits<float>::max(), -0.0f,
                                        std::numeric_limits<float>::denorm_min()})
                  .has_value());
}

TEST(Argmax, sees_every_position_of_every_length) {
  for (std::size_t n = 1; n <= 50; ++n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> logits(n, -3.0f);
      logits[i] = -2.0f;
      EXPECT_EQ(argmax(logits).value(), static_cast<std::int32_t>(i));
      logits[i] = -std::nanf("");
      EXPECT_FALSE(argmax(logits).has_value());
      logits[i] = INFINITY;
      EXPECT_FALSE(argmax(logits).has_value());
    }
  }
}

TEST(Sampler, temperature_zero_is_greedy_whatever_else_is_set) {
  const auto logits = random_logits(300, 1);
  const std::int32_t best = argmax(logits).value();
  for (const float temperature : {0.0f, 9e-6f}) {
    auto s = sampler({.temperature = temperature, .top_p = 0.1f, .top_k = 50, .min_p = 0.2f});
    EXPECT_EQ(next_token(s, logits), best);
  }
}

TEST(Sampler, draws_follow_the_softmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    const auto counts = histogram({.temperature = temperature}, logits, 20000);
    double total = 0;
    for (const float x : logits) total += std::exp(x / temperature);
    for (std::int32_t t = 0; t < 4; ++t) {
      const double p = std::exp(logits[static_cast<std::size_t>(t)] / temperature) / total;
      const double sigma = std::sqrt(20000 * p * (1 - p));
      EXPECT_NEAR(counts.contains(t) ? counts.at(t) : 0, 20000 * p, 4.5 * sigma + 1) << t;
    }
  }
}

TEST(Sampler, seed_and_index_decide_the_draw) {
  const auto logits = random_logits(500, 2);
  const auto run = [&](std::uint64_t seed) {
    auto s = sampler({.seed = seed});
    Tokens tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(next_token(s, logits));
    return tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  const auto tokens = run(1);
  EXPECT_GT(std::set(tokens.begin(), tokens.end()).size(), 5u) << "each index draws anew";
}

// The set that may be drawn, by sorting everything.
std::set<std::int32_t> expected_set(const std::vector<float>& logits,
                                    const SamplingParams& params) {
  Tokens order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t t) { return logits[static_cast<std::size_t>(t)]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logit(a) > logit(b); });
  std::vector<double> p;
  for (const auto t : order)
    p.push_back(std::exp((logit(t) - logit(order[0])) / params.temperature));
  std::size_t n = 0;
  while (n < p.size() && p[n] >= params.min_p) ++n;
  if (params.top_k > 0) n = std::min(n, static_cast<std::size_t>(params.top_k));
  const double whole = std::accumulate(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(n), 0.0);
  double sum = 0;
  std::size_t kept = 0;
  while (kept < n && (kept == 0 || sum < params.top_p * whole)) sum += p[kept++];
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept)};
}

TEST(Sampler, limits_keep_exactly_the_set_of_a_full_sort) {
  for (const SamplingParams& params : std::vector<SamplingParams>{
           {.top_k = 1},
           {.top_k = 4},
           {.top_p = 0.5f},
           {.top_p = 1e-6f},
           {.min_p = 0.3f},
           {.min_p = 1.0f},
           {.top_p = 0.7f, .top_k = 6},
           {.top_p = 0.8f, .top_k = 5, .min_p = 0.05f},
           {.temperature = 2.0f, .top_p = 0.6f},
           {.temperature = 0.3f, .top_p = 0.99f, .top_k = 3},
       }) {
    const auto logits = random_logits(12, 3, 1.5f);
    const auto expected = expected_set(logits, params);
    std::set<std::int32_t> seen;
    for (const auto& [token, count] : histogram(params, logits, 4000)) seen.insert(token);
    for (const auto token : seen) EXPECT_TRUE(expected.contains(token)) << token;
    // Tokens of a thousandth or less may not have come up.
    const float max = *std::ranges::max_element(logits);
    for (const auto token : expected) {
      const float x = (logits[static_cast<std::size_t>(token)] - max) / params.temperature;
      if (x > -4.0f) {
        EXPECT_TRUE(seen.contains(token)) << token;
      }
    }
  }
}

// The token that a full sort and the same draw over the ids that it keeps would give.
std::int32_t draw_by_sorting(const std::vector<float>& logits, const SamplingParams& params) {
  const float max = *std::ranges::max_element(logits);
  const auto weight = [&](std::int32_t t) {
    return std::exp((logits[static_cast<std::size_t>(t)] - max) / params.temperature);
  };
  const auto set = expected_set(logits, params);
  double total = 0;
  for (const auto t : set) total += weight(t);
  double left = uniform_draw(params.seed, 0) * total;
  for (const auto t : set) {
    left -= weight(t);
    if (left < 0) return t;
  }
  return *set.rbegin();
}

TEST(Sampler, partial_selection_agrees_with_sorting_a_large_vocabulary) {
  int different = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    // From peaked to flat, so that every cut is tried.
    const float spread = std::array{0.01f, 0.5f, 2.0f, 5.0f, 12.0f}[seed % 5];
    const auto logits = random_logits(3000, static_cast<std::uint32_t>(seed), spread);
    for (SamplingParams params :
         std::vector<SamplingParams>{{.top_p = 0.95f},
                                     {.top_p = 0.2f},
                                     {.top_k = 40},
                                     {.top_p = 0.9f, .top_k = 1000},
                                     {.temperature = 0.6f, .top_p = 0.95f, .min_p = 0.01f}}) {
      params.seed = seed;
      auto s = sampler(params);
      // The reference rounds its sums in another order: a draw may sit on a boundary.
      different += next_token(s, logits) != draw_by_sorting(logits, params);
    }
  }
  EXPECT_LE(different, 1) << "of 150";
}

TEST(Sampler, ties_at_a_limit_go_to_lower_ids) {
  const std::vector<float> logits(50, 1.0f);
  for (const auto& [token, count] : histogram({.top_k = 3}, logits, 500)) EXPECT_LT(token, 3);
  for (const auto& [token, count] : histogram({.top_p = 0.1f}, logits, 500)) EXPECT_LE(token, 5);
}

TEST(Sampler, logit_bias_moves_and_forbids) {
  const std::vector<float> logits = {5, 4, 3};
  auto s = sampler({.temperature = 0, .logit_bias = {{0, -100.0f}, {2, 0.5f}}});
  EXPECT_EQ(next_token(s, logits), 1);
  s = sampler({.temperature = 0, .logit_bias = {{2, 2.5f}}});
  EXPECT_EQ(next_token(s, logits), 2);
  s = sampler({.temperature = 0, .logit_bias = {{2, 3e38f}, {1, -3e38f}}});
  EXPECT_EQ(next_token(s, {3e38f, 4, 3e38f}), 2) << "a sum beyond float stays comparable";
}

TEST(Sampler, repetition_penalty_divides_positive_and_multiplies_negative_logits) {
  // Prompt holds 0 and 1.
  auto s = sampler({.temperature = 0, .repetition_penalty = 2.0f}, {0, 0, 1});
  EXPECT_EQ(next_token(s, {4.0f, -1.0f, 2.1f}), 2) << "4 / 2 is below 2.1, however often it came";
  s = sampler({.temperature = 0, .repetition_penalty = 2.0f}, {0, 1});
  EXPECT_EQ(next_token(s, {-3.0f, -1.0f, -2.1f}), 1) << "-1 * 2 is above -2.1";
  EXPECT_EQ(next_token(s, {4.5f, -3.0f, 2.1f}), 0);
}

TEST(Sampler, repetition_window_slides_over_prompt_and_answer) {
  // The window of 2 holds (1, 2) of the prompt.
  auto s = sampler({.temperature = 0, .repetition_penalty = 10.0f, .repeat_last_n = 2}, {0, 1, 2});
  const std::vector<float> logits = {5.0f, 5.5f, 5.2f, 1.0f};
  EXPECT_EQ(next_token(s, logits), 0);  // window (2, 0)
  EXPECT_EQ(next_token(s, logits), 1);  // window (0, 1)
  EXPECT_EQ(next_token(s, logits), 2);  // window (1, 2)
  EXPECT_EQ(next_token(s, logits), 0);
  s = sampler({.temperature = 0, .repetition_penalty = 10.0f, .repeat_last_n = 0}, {0, 1, 2});
  EXPECT_EQ(next_token(s, logits), 1) << "no window, no penalty";
  s = sampler({.temperature = 0, .repetition_penalty = 10.0f, .repeat_last_n = 3}, {0, 0, 0});
  EXPECT_EQ(next_token(s, {5.0f, 0.4f, 0.3f, 0.2f}), 0) << "5 / 10 still leads";
}

TEST(Sampler, a_window_longer_than_the_prompt_fills_up_first) {
  auto s = sampler({.temperature = 0, .repetition_penalty = 10.0f, .repeat_last_n = 3}, {0});
  const std::vector<float> logits = {9.0f, 8.0f, 7.0f, 6.0f, 5.0f};
  Tokens tokens;
  for (int i = 0; i < 8; ++i) tokens.push_back(next_token(s, logits));
  EXPECT_EQ(tokens, (Tokens{1, 2, 3, 0, 1, 2, 3, 0}));
}

TEST(Sampler, presence_and_frequency_count_generated_tokens_only) {
  auto s = sampler({.temperature = 0, .presence_penalty = 1.0f}, {0, 0, 0});
  EXPECT_EQ(next_token(s, {3.0f, 2.5f}), 0) << "the prompt does not count";
  EXPECT_EQ(next_token(s, {3.0f, 2.5f}), 1);
  EXPECT_EQ(next_token(s, {3.0f, 2.5f}), 0) << "both are penalised once";
  EXPECT_EQ(next_token(s, {3.0f, 2.5f}), 0);
  auto f = sampler({.temperature = 0, .frequency_penalty = 0.4f});
  EXPECT_EQ(next_token(f, {3.0f, 2.5f}), 0);
  EXPECT_EQ(next_token(f, {3.0f, 2.5f}), 0);
  EXPECT_EQ(next_token(f, {3.0f, 2.5f}), 1) << "3 - 2 * 0.4 is below 2.5";
}

TEST(Sampler, min_tokens_masks_stop_ids_until_reached) {
  auto s = sampler({.temperature = 0}, {}, 2, {1, 7});
  EXPECT_EQ(next_token(s, {1.0f, 5.0f}), 0);
  EXPECT_EQ(next_token(s, {1.0f, 5.0f}), 0);
  EXPECT_EQ(next_token(s, {1.0f, 5.0f}), 1);
}

TEST(Sampler, a_bias_does_not_bring_back_a_masked_token) {
  auto s = sampler({.temperature = 0, .logit_bias = {{1, 100.0f}}}, {}, 1, {1});
  EXPECT_EQ(next_token(s, {1.0f, 5.0f}), 0);
}

TEST(Sampler, min_tokens_yields_when_nothing_else_is_left) {
  for (const float temperature : {0.0f, 1.0f}) {
    auto s = sampler({.temperature = temperature}, {}, 1, {0, 1, 1, 0});
    EXPECT_GE(next_token(s, {1, 2}), 0);
  }
  auto s = sampler({.temperature = 0}, {}, 1, {0, 1, 1, 0});
  EXPECT_EQ(next_token(s, {1, 2}), 1) << "with the logits they had";
}

TEST(Sampler, logprobs_are_of_the_raw_logits) {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f, 0.0f};
  auto s = sampler({.temperature = 0, .logit_bias = {{2, -100.0f}}, .top_logprobs = 2});
  auto copy = logits;
  const auto sample = s.next(copy);
  ASSERT_TRUE(sample.has_value());
  const double log_sum = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0) + 1.0);
  EXPECT_EQ(sample->token, 1);
  EXPECT_NEAR(sample->logprob, 2.0 - log_sum, 1e-6);
  ASSERT_EQ(sample->top_logprobs.size(), 2u);
  EXPECT_EQ(sample->top_logprobs[0].token, 2);
  EXPECT_NEAR(sample->top_logprobs[0].logprob, 3.0 - log_sum, 1e-6);
  EXPECT_EQ(sample->top_logprobs[1].token, 1);
}

TEST(Sampler, top_logprobs_are_sorted_bounded_and_optional) {
  const auto logits = random_logits(1000, 4);
  const auto sample = [&](int n) {
    auto s = sampler({.temperature = 0, .top_logprobs = n});
    auto copy = logits;
    return s.next(copy).value();
  };
  EXPECT_TRUE(sample(-1).top_logprobs.empty());
  EXPECT_EQ(sample(-1).logprob, 0);
  EXPECT_TRUE(sample(0).top_logprobs.empty());
  EXPECT_LT(sample(0).logprob, 0);
  EXPECT_EQ(sample(5000).top_logprobs.size(), 1000u);
  const auto top = sample(20).top_logprobs;
  Tokens order(1000);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  ASSERT_EQ(top.size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(top[i].token, order[i]);
  double mass = 0;
  for (const auto& entry : sample(1000).top_logprobs) mass += std::exp(entry.logprob);
  EXPECT_NEAR(mass, 1.0, 1e-4);
}

TEST(Sampler, extreme_temperatures_stay_finite) {
  const auto logits = random_logits(100, 5, 1e30f);
  for (const float temperature : {1e-5f, 1e-3f, 100.0f, 1e30f}) {
    auto s = sampler({.temperature = temperature, .top_p = 0.9f});
    const auto token = next_token(s, logits);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 100);
  }
}

TEST(CheckSampling, names_the_field_and_its_range) {
  const auto message = [](SamplingParams params) {
    const Status status = check_sampling(params, 100);
    return status.has_value() ? std::string("fine") : status.error().message;
  };
  EXPECT_EQ(message({}), "fine");
  EXPECT_EQ(message({.temperature = 0, .top_p = 1e-3f, .min_p = 1, .logit_bias = {{99, -100}}}),
            "fine");
  EXPECT_EQ(message({.temperature = -1}), "temperature is -1, and must be 0 or more");
  EXPECT_NE(message({.temperature = std::nanf("")}), "fine");
  EXPECT_NE(message({.temperature = INFINITY}), "fine");
  EXPECT_EQ(message({.top_p = 0}), "top_p is 0, and must be in (0, 1]");
  EXPECT_NE(message({.top_p = 1.5f}), "fine");
  EXPECT_EQ(message({.min_p = -0.5f}), "min_p is -0.5, and must be in [0, 1]");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty is 0, and must be above 0");
  EXPECT_NE(message({.presence_penalty = INFINITY}), "fine");
  EXPECT_NE(message({.frequency_penalty = std::nanf("")}), "fine");
  EXPECT_EQ(message({.logit_bias = {{100, 1}}}),
            "logit_bias names token 100, and the vocabulary has 100");
  EXPECT_NE(message({.logit_bias = {{-1, 1}}}), "fine");
  EXPECT_NE(message({.logit_bias = {{1, INFINITY}}}), "fine");
}

}  // namespace
}  // namespace glint
