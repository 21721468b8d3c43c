// A constraint whose masks depend on all tokens before, and that complains about wrong use.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "engine/constraint.h"
#include "fake_model.h"

namespace glint {

class FakeConstraint : public TokenConstraint {
 public:
  explicit FakeConstraint(std::uint64_t seed) : state_(seed) {}
  ~FakeConstraint() override { words_.assign(words_.size(), 0); }

  // The rule after some tokens, in the state that add() leaves.
  static bool allows(std::uint64_t state, std::int32_t token) {
    return token != FakeModel::kPoison &&
           (fake_mix(state + static_cast<std::uint64_t>(token) * 77) % 5 == 0 ||
            token == static_cast<std::int32_t>(state % FakeModel::kPoison));
  }
  static std::uint64_t add(std::uint64_t state, std::int32_t token) {
    return fake_mix(state * 31 + static_cast<std::uint64_t>(token) + 1);
  }
  // Of every seventh state: that token and no other.
  static std::int32_t forced(std::uint64_t state) {
    return state % 7 == 0 ? static_cast<std::int32_t>(fake_mix(state) % FakeModel::kPoison) : -1;
  }

  Result<NextTokens> next() override {
    EXPECT_FALSE(asked_) << "asked twice for one token";
    asked_ = true;
    if (during_next) during_next();
    if (asks++ == fail_next_at) return exhausted("the grammar grew too large");
    words_.assign(4, 0);
    if (allow_nothing) return NextTokens{.allowed = words_};
    for (std::int32_t token = 0; token < FakeModel::kVocabSize; ++token) {
      if (allows(state_, token)) words_[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    }
    return NextTokens{.allowed = words_, .forced = forced(state_)};
  }
  Status accept(std::int32_t token) override {
    EXPECT_TRUE(asked_) << "a token that nobody asked for";
    asked_ = false;
    const std::int32_t only = forced(state_);
    EXPECT_TRUE(only >= 0 ? token == only : allows(state_, token));
    state_ = add(state_, token);
    if (accepts++ == fail_accept_at) return internal_error("the grammar lost its way");
    return {};
  }
  Status rollback(int) override {
    ADD_FAILURE() << "nothing drafts";
    return {};
  }

  // The greedy answer under these rules.
  static std::vector<std::int32_t> greedy(std::uint64_t seed, std::vector<std::int32_t> tokens,
                                          int count) {
    std::vector<std::int32_t> out;
    for (std::uint64_t state = seed; count > 0; --count) {
      const auto logits = FakeModel::answer(tokens);
      std::int32_t best = forced(state);
      for (std::int32_t t = 0; t < FakeModel::kVocabSize && forced(state) < 0; ++t) {
        if (!allows(state, t)) continue;
        if (best < 0 ||
            logits[static_cast<std::size_t>(t)] > logits[static_cast<std::size_t>(best)])
          best = t;
      }
      out.push_back(best);
      tokens.push_back(best);
      state = add(state, best);
    }
    return out;
  }

  std::function<void()> during_next;
  int fail_next_at = -1, fail_accept_at = -1;
  bool allow_nothing = false;
  std::atomic<int> asks = 0, accepts = 0;

 private:
  std::uint64_t state_;
  bool asked_ = false;
  std::vector<std::uint32_t> words_;
};

}  // namespace glint
