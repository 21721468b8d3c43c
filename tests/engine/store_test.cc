// Requests whose prompts begin on disk: they wait for that, others go on meanwhile, and what they
// answer is what they would have answered.
#include <gtest/gtest.h>

#include <future>

#include "../base/temp_folder.h"
#include "cache/page_store.h"
#include "engine/engine.h"
#include "step_runner.h"

namespace glint {
namespace {

GenerateRequest request_of(Tokens prompt, int max_tokens = 5) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::shared_ptr<PageStore> open_store(const TempFolder& folder) {
  auto store = PageStore::open(
      {.folder = folder.path(), .max_bytes = std::uint64_t{1} << 30, .identity = "fake"});
  EXPECT_TRUE(store.has_value());
  return *store;
}

EngineOptions options_of(int slots) {
  return {.context = 1024, .max_sequences = slots, .max_batch_tokens = 128};
}

// What is cached goes to the folder, as at the end of a program.
void end(Cache& cache) {
  SaveJob save(cache);
  while (!save.advance()) cache.store()->wait_progress(0.01);
}

Tokens text(std::string_view name, int n) {
  return fake_text(name, n);
}

class StoredEngine : public testing::TestWithParam<bool> {
 public:
  static StateRoom states() { return GetParam() ? StateRoom{4, 12} : StateRoom{}; }
};

TEST_P(StoredEngine, a_restarted_engine_goes_on_from_disk_with_the_same_answers) {
  const TempFolder folder;
  Tokens cold[3];
  const Tokens prompts[3] = {text("a", 400), text("b", 500), text("a", 700)};
  {
    FakeRig rig(64, true, 1, false, states());
    rig.cache.attach(open_store(folder));
    Runner runner(rig, options_of(2));
    for (int i = 0; i < 3; ++i) {
      const Outcome& outcome = runner.add(request_of(prompts[i]));
      runner.run();
      cold[i] = outcome.tokens;
    }
    end(rig.cache);
  }
  FakeRig rig(64, true, 1, false, states());
  rig.cache.attach(open_store(folder));
  Runner runner(rig, options_of(2));
  const Outcome* outcomes[3];
  for (int i = 0; i < 3; ++i) outcomes[i] = &runner.add(request_of(prompts[i]));
  runner.run();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(outcomes[i]->tokens, cold[i]);
    EXPECT_GE(outcomes[i]->last.usage.cached_tokens, 320);
  }
  EXPECT_GT(rig.cache.stats().store->read, 15u);
  EXPECT_EQ(rig.cache.stats().store->damaged, 0u);
}

TEST_P(StoredEngine, nothing_deadlocks_where_pages_are_few) {
  const TempFolder folder;
  std::vector<Tokens> cold;
  const auto run_all = [&](std::size_t num_pages, std::vector<Tokens>& answers) {
    FakeRig rig(num_pages, true, 1, false, states());
    rig.cache.limit_cached(4);
    rig.cache.attach(open_store(folder));
    {
      Runner runner(rig, options_of(4));
      std::vector<const Outcome*> outcomes;
      for (const char* name : {"a", "b", "c", "d", "e", "f"})
        outcomes.push_back(&runner.add(request_of(text(name, 500), 30)));
      runner.run();
      for (const Outcome* outcome : outcomes) answers.push_back(outcome->tokens);
    }
    end(rig.cache);
  };
  run_all(16, cold);
  for (int again = 0; again < 3; ++again) {
    std::vector<Tokens> hot;
    run_all(16, hot);
    EXPECT_EQ(hot, cold);
  }
}

TEST_P(StoredEngine, cancelled_while_it_waits_for_the_disk) {
  const TempFolder folder;
  {
    FakeRig rig(64, true, 1, false, states());
    rig.cache.attach(open_store(folder));
    Runner runner(rig, options_of(1));
    runner.add(request_of(text("a", 700)));
    runner.run();
    end(rig.cache);
  }
  FakeRig rig(64, true, 1, false, states());
  rig.cache.attach(open_store(folder));
  Runner runner(rig, options_of(1));
  const Outcome& outcome = runner.add(request_of(text("a", 700)));
  runner.loop().step();
  runner.cancel(0);
  runner.run();
  EXPECT_EQ(outcome.last.reason, FinishReason::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(plain_and_recurrent, StoredEngine, testing::Bool());

TEST(StoredEngineControl, saves_restores_and_clears_between_steps) {
  const TempFolder folder;
  const auto ask = [](Engine& engine, CacheAction action) {
    std::promise<Result<CacheReport>> promise;
    engine.control_cache(
        action, [&promise](Result<CacheReport> report) { promise.set_value(std::move(report)); });
    return promise.get_future().get();
  };
  const auto generate = [](Engine& engine) {
    std::promise<int> cached;
    auto ticket = engine.submit(request_of(text("a", 300)), [&cached](TokenEvent event) {
      if (event.kind == TokenEvent::Kind::kFinished) cached.set_value(event.usage.cached_tokens);
    });
    EXPECT_TRUE(ticket.has_value());
    return cached.get_future().get();
  };
  {
    FakeRig rig(64);
    rig.cache.attach(open_store(folder));
    Engine engine(rig.model, rig.exec, rig.cache, options_of(2));
    EXPECT_EQ(generate(engine), 0);
    const auto saved = ask(engine, CacheAction::kSave);
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->pages, 4u);
    EXPECT_EQ(ask(engine, CacheAction::kSave)->present, 4u);
  }
  FakeRig rig(64);
  rig.cache.attach(open_store(folder));
  Engine engine(rig.model, rig.exec, rig.cache, options_of(2));
  const auto restored = ask(engine, CacheAction::kRestore);
  ASSERT_TRUE(restored.has_value());
  EXPECT_EQ(restored->pages, 4u);
  EXPECT_EQ(generate(engine), 256);
  const auto cleared = ask(engine, CacheAction::kClear);
  EXPECT_EQ(cleared->pages, 4u);
  EXPECT_EQ(cleared->disk_entries, 4u);
  EXPECT_EQ(generate(engine), 0);

  FakeRig bare(64), off(64, false);
  Engine without(bare.model, bare.exec, bare.cache, options_of(1));
  EXPECT_NE(ask(without, CacheAction::kSave).error().message.find("--prefix-cache-dir"),
            std::string::npos);
  EXPECT_TRUE(ask(without, CacheAction::kClear).has_value());
  Engine nothing(off.model, off.exec, off.cache, options_of(1));
  EXPECT_EQ(ask(nothing, CacheAction::kClear).error().code, ErrorCode::kUnsupported);
}

TEST(StoredEngineControl, a_request_waits_for_pages_that_restoring_holds) {
  const TempFolder folder;
  constexpr std::size_t kPages = 16;  // one context
  {
    FakeRig rig(kPages);
    rig.cache.attach(open_store(folder));
    Runner runner(rig, options_of(1));
    runner.add(request_of(text("a", 1000)));
    runner.run();
    end(rig.cache);
  }
  FakeRig rig(kPages);
  rig.cache.attach(open_store(folder));
  Runner runner(rig, options_of(1));
  {
    RestoreJob restore(rig.cache);
    EXPECT_FALSE(restore.advance()) << "it reads now";
    EXPECT_GE(rig.cache.stats().leased_pages, 15u);
    runner.add(request_of(text("b", 900)));
    for (int i = 0; i < 3; ++i) runner.loop().step();
    while (!restore.advance()) runner.loop().step();
    EXPECT_EQ(restore.report().pages, 15u);
  }
  runner.run();
}

TEST(StoredEngineControl, broken_logits_take_their_pages_from_the_disk) {
  const TempFolder folder;
  FakeRig rig(64);
  rig.cache.attach(open_store(folder));
  Runner runner(rig, options_of(1));
  Tokens prompt = text("a", 300);
  runner.add(request_of(prompt));
  runner.run();
  end(rig.cache);
  EXPECT_EQ(rig.cache.stats().store->entries, 4u);
  prompt.push_back(FakeModel::kPoison);
  const Outcome& broken = runner.add(request_of(prompt));
  runner.run();
  EXPECT_EQ(broken.last.reason, FinishReason::kError);
  EXPECT_EQ(rig.cache.stats().store->entries, 0u);
}

}  // namespace
}  // namespace glint
