#include "tools/bench_drafts.h"

#include <algorithm>
#include <array>

#include "tools/turn_runner.h"

namespace glint {
namespace {

constexpr std::array<const char*, 6> kQuestions = {
    "Count from 1 to 30.",
    "What is 417 + 285?",
    "Sort these numbers: 31, 7, 52, 18, 4.",
    "Why is the sky blue?",
    "Tell me a short story about a fox that learns to swim.",
    "Write a Python function that returns the n-th Fibonacci number.",
};

// Tokens of one round of questions, and the seconds that decoding them took.
struct Round {
  int tokens = 0;
  double seconds = 0;
};

Result<Round> ask_all(Session& session, int tokens) {
  Round round;
  for (const char* question : kQuestions) {
    ChatRequest request;
    Json message;
    message.set("role", "user");
    message.set("content", question);
    request.messages.push_back(std::move(message));
    request.temperature = 0.0F;
    request.max_tokens = tokens;
    GLINT_TRY(const TurnResult result, run_turn(session, std::move(request), [](const auto&) {}));
    // The first token comes with the prompt's own pass.
    round.tokens += std::max(0, result.usage.completion_tokens - 1);
    round.seconds += result.usage.decode_s;
  }
  return round;
}

}  // namespace

double DraftBench::median() const {
  std::vector<double> sorted = tokens_per_s;
  std::ranges::sort(sorted);
  const std::size_t half = sorted.size() / 2;
  if (sorted.empty()) return 0;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double DraftBench::acceptance() const {
  return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted);
}

double DraftBench::tokens_per_step() const {
  return rounds == 0 ? 1 : 1 + static_cast<double>(accepted) / static_cast<double>(rounds);
}

Result<DraftBench> run_draft_bench(Session& session, int num_drafts, int tokens, int repetitions) {
  EngineOptions options = engine_options(session.plan);
  options.draft_mode = num_drafts > 0 ? DraftMode::kFixed : DraftMode::kOff;
  options.num_drafts = num_drafts;
  session.engine = std::make_unique<Engine>(*session.model, *session.exec, *session.cache, options);
  DraftBench bench{.num_drafts = num_drafts};
  for (int i = 0; i <= repetitions; ++i) {  // the first one warms up
    auto round = ask_all(session, tokens);
    if (!round) {
      session.engine.reset();
      return round.error();
    }
    if (i > 0 && round->seconds > 0) bench.tokens_per_s.push_back(round->tokens / round->seconds);
  }
  const DraftStats stats = session.engine->stats().drafts;
  bench.drafted = stats.drafted;
  bench.accepted = stats.accepted;
  bench.rounds = stats.rounds;
  session.engine.reset();
  return bench;
}

}  // namespace glint
