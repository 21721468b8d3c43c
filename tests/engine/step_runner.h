// A step loop whose sequences' events are kept.
#pragma once

#include <gtest/gtest.h>

#include "engine/step_loop.h"
#include "fake_model.h"

namespace glint {

using Tokens = std::vector<std::int32_t>;

struct Outcome {
  Tokens tokens;
  int starts = 0, finishes = 0;
  std::vector<int> progress;
  std::vector<std::vector<PromptLogprob>> prompt;  // of one event each
  std::vector<TokenEvent> samples;
  TokenEvent last;
};

class Runner {
 public:
  Runner(FakeRig& rig, EngineOptions options)
      : rig_(rig),
        options_(options),
        loop_(rig.model, rig.exec, rig.cache, options_, [this] { ++published_; }) {}
  ~Runner() {
    loop_.cancel_all();
    rig_.cache.check_integrity();
    EXPECT_EQ(rig_.cache.stats().leased_pages, 0u);
    for (const auto& outcome : outcomes_) EXPECT_EQ(outcome->finishes, 1);
    EXPECT_GE(published_, static_cast<int>(outcomes_.size()));
  }

  Outcome& add(GenerateRequest request) {
    outcomes_.push_back(std::make_unique<Outcome>());
    flags_.push_back(std::make_shared<std::atomic<bool>>(false));
    Outcome& outcome = *outcomes_.back();
    const auto sink = [this, &outcome](TokenEvent event) {
      EXPECT_EQ(outcome.finishes, 0) << "nothing follows kFinished";
      switch (event.kind) {
        case TokenEvent::Kind::kStarted:
          ++outcome.starts;
          break;
        case TokenEvent::Kind::kProgress:
          EXPECT_TRUE(outcome.tokens.empty());
          outcome.progress.push_back(event.prompt_computed);
          break;
        case TokenEvent::Kind::kPrompt:
          EXPECT_TRUE(outcome.tokens.empty());
          outcome.prompt.push_back(event.prompt_logprobs);
          break;
        case TokenEvent::Kind::kToken:
          EXPECT_EQ(outcome.starts, 1);
          outcome.tokens.push_back(event.token);
          outcome.samples.push_back(event);
          break;
        case TokenEvent::Kind::kFinished:
          ++outcome.finishes;
          break;
      }
      if (on_event_) on_event_(event);
      outcome.last = std::move(event);
    };
    auto sequence = make_sequence(std::move(request), sink, flags_.back(), FakeModel::kVocabSize,
                                  options_.context);
    EXPECT_TRUE(sequence.has_value());
    loop_.add(std::move(*sequence));
    return outcome;
  }
  void cancel(std::size_t i) { flags_[i]->store(true); }
  void run() {
    for (int i = 0; !loop_.idle(); ++i) {
      ASSERT_LT(i, 100000);
      loop_.step();
      if (i % 7 == 0) rig_.cache.check_integrity();
    }
  }
  StepLoop& loop() { return loop_; }
  // Called with every event, last of all.
  void on_event(std::function<void(const TokenEvent&)> fn) { on_event_ = std::move(fn); }

 private:
  FakeRig& rig_;
  EngineOptions options_;
  int published_ = 0;
  std::function<void(const TokenEvent&)> on_event_;
  std::vector<std::unique_ptr<Outcome>> outcomes_;
  std::vector<std::shared_ptr<std::atomic<bool>>> flags_;
  StepLoop loop_;
};

inline EngineOptions small_options(int slots = 4, int chunk = 32, int context = 512) {
  return {.context = context, .max_sequences = slots, .max_batch_tokens = chunk};
}

inline GenerateRequest greedy_request(Tokens prompt, int max_tokens) {
  return {.prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_tokens = max_tokens};
}

inline Tokens run_alone(GenerateRequest request, int chunk) {
  FakeRig rig(16);
  Runner runner(rig, small_options(1, chunk));
  const Outcome& outcome = runner.add(std::move(request));
  runner.run();
  return outcome.tokens;
}

}  // namespace glint
