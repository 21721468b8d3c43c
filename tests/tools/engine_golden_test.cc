// Whole models in the engine: what is found in the prefix cache or on disk, guessed ahead, computed
// in pieces or beside others gives the tokens that an empty cache and no guesses give.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "../base/temp_folder.h"
#include "cache/page_store.h"
#include "engine/engine.h"
#include "kernels/isa.h"
#include "models/registry.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Answer {
  Tokens tokens;
  int cached_tokens = 0;
};

// A model with an engine and a cache of its own.
class Rig {
 public:
  // `folder`: of what it keeps on disk; empty: nothing.
  Rig(const std::string& name, int num_drafts, int chunk, bool reuse = true,
      const std::filesystem::path& folder = {})
      : exec_{kernel_table(available_isas().front()), pool_, workspace_} {
    LoadOptions load;
    load.latent_form = LatentForm::kAbsorbed;
    load.draft = num_drafts > 0 ? DraftLayer::kRequired : DraftLayer::kOff;
    load.kernels = &exec_.kernels;
    load.pool = &pool_;
    auto checkpoint = Checkpoint::open(std::string(GLINT_TEST_DATA) + "/golden/" + name);
    GLINT_CHECK(checkpoint.has_value());
    auto model = load_model(std::move(*checkpoint), load);
    GLINT_CHECK(model.has_value());
    model_ = std::move(*model);
    cache_ = std::make_unique<Cache>(model_->cache_spec(), 64, reuse,
                                     StateRoom{.num_states = 3, .num_snapshots = 6});
    if (!folder.empty()) {
      auto store = PageStore::open({.folder = folder, .max_bytes = 1u << 30, .identity = name});
      GLINT_CHECK(store.has_value());
      cache_->attach(std::move(*store));
    }
    engine_ = std::make_unique<Engine>(
        *model_, exec_, *cache_,
        EngineOptions{.context = 640,
                      .max_sequences = 3,
                      .max_batch_tokens = chunk,
                      .draft_mode = num_drafts > 0 ? DraftMode::kFixed : DraftMode::kOff,
                      .num_drafts = num_drafts});
  }
  ~Rig() {
    engine_.reset();
    cache_->check_integrity();
  }

  // Greedy continuations of prompts that come at once.
  std::vector<Answer> ask(const std::vector<Tokens>& prompts, int max_tokens) {
    std::vector<Answer> answers(prompts.size());
    std::vector<Ticket> tickets;
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t num_ended = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto sink = [&, i](const TokenEvent& event) {
        const std::lock_guard lock(mutex);
        if (event.kind == TokenEvent::Kind::kToken) answers[i].tokens.push_back(event.token);
        if (event.kind != TokenEvent::Kind::kFinished) return;
        EXPECT_EQ(event.reason, FinishReason::kLength) << event.error.message;
        answers[i].cached_tokens = event.usage.cached_tokens;
        ++num_ended;
        ended.notify_one();
      };
      auto ticket = engine_->submit(
          {.prompt = prompts[i], .sampling = {.temperature = 0}, .max_tokens = max_tokens}, sink);
      GLINT_CHECK(ticket.has_value());
      tickets.push_back(std::move(*ticket));
    }
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return num_ended == prompts.size(); });
    return answers;
  }
  Answer ask(const Tokens& prompt, int max_tokens) {
    return ask(std::vector<Tokens>{prompt}, max_tokens)[0];
  }

  int vocab() const { return model_->info().vocab_size; }

 private:
  ThreadPool pool_{1};
  Workspace workspace_;
  Exec exec_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Engine> engine_;
};

Tokens text(int vocab, int seed, int count) {
  Tokens tokens;
  auto state = static_cast<std::uint32_t>(seed) * 2654435761u + 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(vocab)));
  }
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EngineGolden : public testing::TestWithParam<const char*> {};

TEST_P(EngineGolden, turns_guesses_and_company_change_no_token) {
  constexpr int kTokens = 40;
  Rig cold(GetParam(), 0, 512, false);
  const Tokens first = text(cold.vocab(), 1, 150), head(first.begin(), first.begin() + 90);
  const Tokens other = joined(head, text(cold.vocab(), 2, 60));
  const Tokens first_answer = cold.ask(first, kTokens).tokens;
  const Tokens second = joined(joined(first, first_answer), text(cold.vocab(), 3, 30));
  const Tokens second_answer = cold.ask(second, kTokens).tokens;
  const Tokens other_answer = cold.ask(other, kTokens).tokens;
  for (const int num_drafts : {0, 3, 8}) {
    if (num_drafts != 3 && std::string_view(GetParam()) != "glm5_next") continue;
    Rig hot(GetParam(), num_drafts, num_drafts == 3 ? 512 : 37);
    EXPECT_EQ(hot.ask(first, kTokens).tokens, first_answer) << num_drafts;
    EXPECT_EQ(hot.ask(other, kTokens).tokens, other_answer) << num_drafts;
    const Answer turn = hot.ask(second, kTokens);
    EXPECT_EQ(turn.tokens, second_answer) << num_drafts;
    EXPECT_GE(turn.cached_tokens, 128) << num_drafts;
    const auto together = hot.ask({first, second, other, second}, kTokens);
    EXPECT_EQ(together[0].tokens, first_answer) << num_drafts;
    EXPECT_EQ(together[1].tokens, second_answer) << num_drafts;
    EXPECT_EQ(together[2].tokens, other_answer) << num_drafts;
    EXPECT_EQ(together[3].tokens, second_answer) << num_drafts;
    EXPECT_GT(together[2].cached_tokens, 0) << num_drafts;
  }
}

TEST_P(EngineGolden, a_restart_goes_on_from_disk_and_changes_no_token) {
  constexpr int kTokens = 20;
  Rig cold(GetParam(), 0, 512, false);
  const Tokens first = text(cold.vocab(), 1, 280);
  const Tokens second =
      joined(joined(first, cold.ask(first, kTokens).tokens), text(cold.vocab(), 3, 30));
  const Tokens answer = cold.ask(second, kTokens).tokens;
  for (const int num_drafts : {0, 3}) {
    const TempFolder folder;
    {
      Rig(GetParam(), num_drafts, 512, true, folder.path()).ask(first, kTokens);
    }
    Rig again(GetParam(), num_drafts, 64, true, folder.path());
    const Answer turn = again.ask(second, kTokens);
    EXPECT_EQ(turn.tokens, answer) << num_drafts;
    EXPECT_GE(turn.cached_tokens, 256) << num_drafts;
  }
}

INSTANTIATE_TEST_SUITE_P(models, EngineGolden, testing::Values("glm5_next", "glm5_next_shared"));

}  // namespace
}  // namespace glint
