#include "engine/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/logits.h"
#include "fake_model.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

std::vector<float> expected_row(const Tokens& prompt, std::size_t position) {
  return FakeModel::answer(std::span(prompt).first(position + 1));
}

TEST(PromptLogits, are_the_models_at_every_chunk_and_batch) {
  const std::vector<Tokens> prompts = {fake_text("a", 1), fake_text("b", 150), fake_text("c", 64),
                                       fake_text("b", 100)};
  for (const bool all_at_once : {false, true}) {
    for (const int chunk : {1, 7, 64, 512}) {
      FakeRig rig(16);
      std::vector<std::size_t> done(prompts.size(), 0);
      const ScoreOptions options{
          .chunk = chunk, .max_batch_tokens = 80, .all_at_once = all_at_once};
      const Status status = prompt_logits(
          rig.model, rig.exec, rig.cache, prompts, options,
          [&](std::size_t prompt, int first, std::span<const float> logits) -> Status {
            EXPECT_EQ(static_cast<std::size_t>(first), done[prompt]) << "rows come in order";
            for (std::size_t i = 0; i < logits.size() / FakeModel::kVocabSize; ++i) {
              const auto row = logits.subspan(i * FakeModel::kVocabSize, FakeModel::kVocabSize);
              const auto expected = expected_row(prompts[prompt], done[prompt]++);
              EXPECT_TRUE(std::ranges::equal(row, expected));
            }
            return {};
          });
      EXPECT_TRUE(status.has_value());
      for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(done[i], prompts[i].size());
      std::size_t widest = 0;
      for (const auto& step : rig.model.steps) {
        int tokens = 0;
        for (const auto& span : step) {
          EXPECT_LE(span.count, chunk);
          tokens += span.count;
        }
        EXPECT_LE(tokens, std::max(80, chunk));
        widest = std::max(widest, step.size());
      }
      EXPECT_EQ(widest > 1, all_at_once);
      rig.cache.check_integrity();
      EXPECT_EQ(rig.cache.stats().leased_pages, 0u);
    }
  }
}

TEST(PromptLogits, cached_prefixes_are_computed_all_the_same) {
  FakeRig rig(16);
  const std::vector<Tokens> prompts = {fake_text("b", 150), fake_text("b", 150)};
  std::size_t rows = 0;
  const Status status =
      prompt_logits(rig.model, rig.exec, rig.cache, prompts, {},
                    [&](std::size_t, int, std::span<const float> logits) -> Status {
                      rows += logits.size() / FakeModel::kVocabSize;
                      return {};
                    });
  EXPECT_TRUE(status.has_value());
  EXPECT_EQ(rows, 300u);
}

TEST(PromptLogits, errors_name_the_prompt_and_stop_the_work) {
  FakeRig rig(2);
  const auto score = [&](std::vector<Tokens> prompts, Status reply = {}) -> Error {
    const Status status =
        prompt_logits(rig.model, rig.exec, rig.cache, prompts, {},
                      [&](std::size_t, int, std::span<const float>) { return reply; });
    return status.has_value() ? Error{ErrorCode::kInternal, "fine"} : status.error();
  };
  EXPECT_EQ(score({{1, 2}}).message, "fine");
  EXPECT_EQ(score({{1}, {}}).message, "prompt 1 is empty");
  EXPECT_EQ(score({{1}, {1, 101}}).message,
            "token 1 of prompt 1 is 101, and the vocabulary has 101");
  EXPECT_EQ(score({{-1}}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(score({fake_text("a", 129)}).code, ErrorCode::kExhausted);
  EXPECT_EQ(score({{1}}, Status(io_error("disk full"))).message, "disk full");
  rig.cache.check_integrity();
}

TEST(GreedyContinuation, is_the_models_at_every_chunk_cold_and_cached) {
  FakeRig rig(16);
  for (const int chunk : {1, 7, 64, 512}) {
    for (const int length : {1, 64, 130}) {
      const Tokens prompt = fake_text("a", length);
      const auto result = greedy_continuation(rig.model, rig.exec, rig.cache, prompt, 70, chunk);
      ASSERT_TRUE(result.has_value());
      EXPECT_EQ(*result, FakeModel::greedy(prompt, 70));
    }
  }
  EXPECT_GT(rig.cache.stats().prefix_hits, 0u);
  EXPECT_EQ(greedy_continuation(rig.model, rig.exec, rig.cache, fake_text("a", 5), 0).value(),
            Tokens{});
  rig.cache.check_integrity();
}

TEST(GreedyContinuation, refuses_empty_prompts_and_broken_logits) {
  FakeRig rig(16);
  const auto code = [&](Tokens prompt) {
    const auto result = greedy_continuation(rig.model, rig.exec, rig.cache, prompt, 3);
    return result.has_value() ? ErrorCode::kIo : result.error().code;
  };
  EXPECT_EQ(code({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({500}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, FakeModel::kPoison}), ErrorCode::kInternal);
  rig.cache.check_integrity();
}

// Window by window, from the definition.
NllSum expected_nll(const Tokens& tokens, int window, int stride) {
  NllSum sum;
  std::vector<char> seen(tokens.size(), 0);
  for (std::size_t begin = 0; begin < tokens.size(); begin += static_cast<std::size_t>(stride)) {
    const std::size_t end = std::min(tokens.size(), begin + static_cast<std::size_t>(window));
    for (std::size_t i = begin; i < end; ++i) {
      if (std::exchange(seen[i], 1) != 0 || i == begin) continue;
      const auto logits = FakeModel::answer(std::span(tokens).subspan(begin, i - begin));
      double total = 0;
      for (const float x : logits) total += std::exp(static_cast<double>(x));
      sum.nll += std::log(total) - logits[static_cast<std::size_t>(tokens[i])];
      ++sum.count;
    }
  }
  return sum;
}

TEST(Nll, sums_each_token_once_whatever_windows_and_chunks) {
  const Tokens tokens = fake_text("text", 331);
  for (const auto& [window, stride] :
       {std::pair{512, 0}, {100, 0}, {100, 50}, {100, 99}, {64, 1}, {2, 0}, {331, 0}}) {
    for (const int chunk : {1, 7, 512}) {
      FakeRig rig(16);
      std::size_t done = 0;
      const auto sum = negative_log_likelihood(rig.model, rig.exec, rig.cache, tokens,
                                               {.window = window, .stride = stride, .chunk = chunk},
                                               [&](std::size_t n) { done = n; });
      ASSERT_TRUE(sum.has_value());
      const NllSum expected = expected_nll(tokens, window, stride == 0 ? window : stride);
      EXPECT_EQ(sum->count, expected.count) << window << " " << stride;
      EXPECT_NEAR(sum->nll, expected.nll, 1e-5 * expected.nll) << window << " " << stride;
      EXPECT_EQ(done, tokens.size());
      rig.cache.check_integrity();
    }
  }
}

TEST(Nll, a_single_token_scores_nothing) {
  FakeRig rig(4);
  const auto sum = negative_log_likelihood(rig.model, rig.exec, rig.cache, Tokens{5}, {});
  ASSERT_TRUE(sum.has_value());
  EXPECT_EQ(sum->count, 0);
  EXPECT_FALSE(negative_log_likelihood(rig.model, rig.exec, rig.cache, Tokens{}, {}).has_value());
  EXPECT_EQ(
      negative_log_likelihood(rig.model, rig.exec, rig.cache, Tokens{FakeModel::kPoison, 1, 1}, {})
          .error()
          .code,
      ErrorCode::kInternal);
}

}  // namespace
}  // namespace glint
