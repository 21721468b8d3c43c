// The engine with its thread: doors, queue, cancellation, shutdown.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include "fake_constraint.h"
#include "fake_model.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;
using namespace std::chrono_literals;

// The events of one request, for a thread that waits for them.
class Inbox {
 public:
  EventSink sink() {
    return [this](TokenEvent event) {
      const std::lock_guard lock(mutex_);
      switch (event.kind) {
        case TokenEvent::Kind::kStarted:
          ++starts_;
          break;
        case TokenEvent::Kind::kProgress:
        case TokenEvent::Kind::kPrompt:
          break;
        case TokenEvent::Kind::kToken:
          tokens_.push_back(event.token);
          break;
        case TokenEvent::Kind::kFinished:
          ++finishes_;
          last_ = event;
          break;
      }
      changed_.notify_all();
    };
  }
  // Aborts the test after a minute.
  TokenEvent wait() {
    std::unique_lock lock(mutex_);
    GLINT_CHECK(changed_.wait_for(lock, 60s, [this] { return finishes_ > 0; }));
    return last_;
  }
  void wait_for_tokens(std::size_t n) {
    std::unique_lock lock(mutex_);
    GLINT_CHECK(changed_.wait_for(lock, 60s, [&] { return tokens_.size() >= n; }));
  }
  Tokens tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  int starts() {
    const std::lock_guard lock(mutex_);
    return starts_;
  }
  int finishes() {
    const std::lock_guard lock(mutex_);
    return finishes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int starts_ = 0, finishes_ = 0;
  Tokens tokens_;
  TokenEvent last_;
};

// Holds the engine thread inside forward().
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || allowed_ > 0; });
    if (!open_) --allowed_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void let_one_pass() {
    const std::lock_guard lock(mutex_);
    ++allowed_;
    changed_.notify_all();
  }
  // Waits until the engine came here n times.
  void wait_for(int n) {
    std::unique_lock lock(mutex_);
    GLINT_CHECK(changed_.wait_for(lock, 60s, [&] { return arrived_ >= n; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int allowed_ = 0, arrived_ = 0;
};

GenerateRequest request(Tokens prompt, int max_tokens, float temperature = 0) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = temperature, .seed = 5},
          .max_tokens = max_tokens};
}

// Builds the engine last and destroys it first; the cache must be whole and unleased afterwards.
struct Rig {
  explicit Rig(EngineOptions options, std::size_t num_pages = 64, bool gated = false)
      : rig(num_pages) {
    if (gated) rig.model.before_forward = [this](const Batch&) { gate.pass(); };
    engine = std::make_unique<Engine>(rig.model, rig.exec, rig.cache, options);
  }
  ~Rig() {
    gate.open();
    engine.reset();
    rig.cache.check_integrity();
    EXPECT_EQ(rig.cache.stats().leased_pages, 0u);
  }
  Ticket submit(GenerateRequest r, Inbox& inbox) {
    auto ticket = engine->submit(std::move(r), inbox.sink());
    EXPECT_TRUE(ticket.has_value());
    return std::move(*ticket);
  }

  FakeRig rig;
  Gate gate;
  std::unique_ptr<Engine> engine;
};

TEST(Engine, thirty_two_parallel_requests_share_two_slots) {
  Rig s({.context = 256, .max_sequences = 2, .max_batch_tokens = 32});
  std::vector<Inbox> inboxes(32);
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      std::vector<Ticket> tickets;
      for (int i = c * 4; i < c * 4 + 4; ++i) {
        tickets.push_back(s.submit(request(fake_text(std::to_string(i), 20 + i), 10 + i),
                                   inboxes[static_cast<std::size_t>(i)]));
      }
      for (int i = c * 4; i < c * 4 + 4; ++i) {
        EXPECT_LE(s.engine->stats().running, 2);
        EXPECT_EQ(inboxes[static_cast<std::size_t>(i)].wait().reason, FinishReason::kLength);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(inboxes[static_cast<std::size_t>(i)].tokens(),
              FakeModel::greedy(fake_text(std::to_string(i), 20 + i), 10 + i));
  }
  EXPECT_EQ(s.engine->stats().finished, 32u);
}

TEST(Engine, answers_do_not_depend_on_the_company) {
  const auto sampled = [](int slots) {
    Rig s({.context = 256, .max_sequences = slots, .max_batch_tokens = 40});
    std::vector<Inbox> inboxes(6);
    std::vector<Ticket> tickets;
    for (int i = 0; i < 6; ++i) {
      tickets.push_back(s.submit(request(fake_text(std::to_string(i), 70), 30, 1.5f),
                                 inboxes[static_cast<std::size_t>(i)]));
    }
    std::vector<Tokens> answers;
    for (Inbox& inbox : inboxes) inbox.wait(), answers.push_back(inbox.tokens());
    return answers;
  };
  EXPECT_EQ(sampled(1), sampled(6));
}

TEST(Engine, cancelled_in_the_queue_never_runs) {
  Rig s({.context = 256, .max_sequences = 1}, 64, true);
  Inbox first, second;
  const Ticket running = s.submit(request(fake_text("a", 10), 3), first);
  s.gate.wait_for(1);
  Ticket queued = s.submit(request(fake_text("b", 10), 3), second);
  EXPECT_EQ(s.engine->stats().waiting, 1);
  queued.cancel();
  s.gate.let_one_pass();
  EXPECT_EQ(second.wait().reason, FinishReason::kCancelled) << "while the first still runs";
  EXPECT_EQ(first.finishes(), 0);
  EXPECT_EQ(second.starts(), 0);
  s.gate.open();
  EXPECT_EQ(first.wait().reason, FinishReason::kLength);
  EXPECT_EQ(s.engine->stats().cancelled, 1u);
}

TEST(Engine, cancelled_in_prefill_stops_at_the_chunk) {
  Rig s({.context = 512, .max_sequences = 1, .max_batch_tokens = 64}, 64, true);
  Inbox inbox;
  Ticket ticket = s.submit(request(fake_text("a", 400), 3), inbox);
  s.gate.wait_for(1);
  s.gate.let_one_pass();
  s.gate.wait_for(2);
  ticket.cancel();
  s.gate.let_one_pass();
  EXPECT_EQ(inbox.wait().reason, FinishReason::kCancelled) << "with the gate shut again";
  EXPECT_EQ(s.engine->stats().running, 0);
  EXPECT_EQ(s.engine->stats().cache.leased_pages, 0u);
  EXPECT_EQ(s.engine->stats().cache.cached_pages, 2u) << "a retry continues from here";
}

TEST(Engine, a_dropped_ticket_stops_decoding_within_a_step) {
  Rig s({.context = 512, .max_sequences = 1}, 64, true);
  Inbox inbox;
  {
    const Ticket ticket = s.submit(request(fake_text("a", 10), 300), inbox);
    s.gate.wait_for(1);
    s.gate.let_one_pass();
    s.gate.wait_for(2);
  }
  s.gate.let_one_pass();
  EXPECT_EQ(inbox.wait().reason, FinishReason::kCancelled);
  EXPECT_LE(inbox.tokens().size(), 2u);
}

TEST(Engine, a_sink_may_cancel_its_own_ticket) {
  Rig s({.context = 512, .max_sequences = 2});
  std::mutex mutex;
  Ticket ticket;
  Inbox inbox;
  std::atomic<int> tokens = 0;
  {
    const std::lock_guard lock(mutex);
    auto result = s.engine->submit(request(fake_text("a", 10), 300),
                                   [&, sink = inbox.sink()](TokenEvent event) {
                                     if (event.kind == TokenEvent::Kind::kToken && ++tokens == 5) {
                                       const std::lock_guard inner(mutex);
                                       ticket.cancel();
                                     }
                                     sink(std::move(event));
                                   });
    ASSERT_TRUE(result.has_value());
    ticket = std::move(*result);
  }
  EXPECT_EQ(inbox.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(tokens, 5);
}

TEST(Engine, tickets_of_finished_requests_are_harmless) {
  Ticket outlives;
  {
    Rig s({.context = 256, .max_sequences = 2});
    Inbox inbox;
    outlives = s.submit(request(fake_text("a", 10), 3), inbox);
    EXPECT_EQ(inbox.wait().reason, FinishReason::kLength);
    outlives.cancel();
    Inbox next;
    outlives = s.submit(request(fake_text("a", 10), 3), next);
    EXPECT_EQ(next.wait().reason, FinishReason::kLength);
    EXPECT_EQ(s.engine->stats().cancelled, 0u);
  }
  outlives.cancel();
  Ticket().cancel();
}

TEST(Engine, the_queue_is_bounded) {
  Rig s({.context = 256, .max_sequences = 2, .max_queue = 3}, 64, true);
  std::vector<Inbox> inboxes(6);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 5; ++i) {
    tickets.push_back(s.submit(request(fake_text(std::to_string(i), 10), 3), inboxes[i]));
  }
  auto refused = s.engine->submit(request(fake_text("x", 10), 3), inboxes[5].sink());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message.find("3 wait"), std::string::npos);
  s.gate.open();
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(inboxes[i].wait().reason, FinishReason::kLength);
  const Ticket later = s.submit(request(fake_text("x", 10), 3), inboxes[5]);
  EXPECT_EQ(inboxes[5].wait().reason, FinishReason::kLength);
}

TEST(Engine, a_cancelled_request_frees_its_place_in_the_queue_at_once) {
  Rig s({.context = 256, .max_sequences = 1, .max_queue = 1}, 64, true);
  Inbox first, second, third;
  const Ticket running = s.submit(request(fake_text("a", 10), 3), first);
  s.gate.wait_for(1);
  Ticket queued = s.submit(request(fake_text("b", 10), 3), second);
  EXPECT_FALSE(s.engine->submit(request(fake_text("c", 10), 3), third.sink()).has_value());
  queued.cancel();
  queued.cancel();
  EXPECT_EQ(s.engine->stats().waiting, 0) << "in the middle of a step";
  const Ticket next = s.submit(request(fake_text("c", 10), 3), third);
  EXPECT_EQ(s.engine->stats().waiting, 1);
  EXPECT_EQ(second.finishes(), 0) << "it hears of it after the step";
  s.gate.open();
  EXPECT_EQ(second.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(third.wait().reason, FinishReason::kLength);
  EXPECT_EQ(first.wait().reason, FinishReason::kLength);
}

TEST(Engine, those_that_come_and_go_during_a_step_are_bounded) {
  Rig s({.context = 256, .max_sequences = 1, .max_queue = 2}, 64, true);
  std::vector<Inbox> inboxes(20);
  const Ticket running = s.submit(request(fake_text("a", 10), 3), inboxes[0]);
  s.gate.wait_for(1);
  std::size_t accepted = 1;
  for (; accepted < inboxes.size(); ++accepted) {
    auto ticket = s.engine->submit(request(fake_text("b", 10), 3), inboxes[accepted].sink());
    if (ticket.has_value()) continue;
    EXPECT_EQ(ticket.error().code, ErrorCode::kExhausted);
    break;
  }
  EXPECT_GT(accepted, 3u);
  EXPECT_LT(accepted, inboxes.size()) << "what they hold is freed after the step only";
  s.gate.open();
  for (std::size_t i = 0; i < accepted; ++i) inboxes[i].wait();
  Inbox last;
  const Ticket later = s.submit(request(fake_text("c", 10), 3), last);
  EXPECT_EQ(last.wait().reason, FinishReason::kLength);
}

TEST(Engine, the_age_of_a_step_can_be_read_while_it_runs) {
  Rig s({.context = 256, .max_sequences = 1}, 64, true);
  EXPECT_EQ(s.engine->stats().step_age_s, 0);
  Inbox inbox;
  const Ticket ticket = s.submit(request(fake_text("a", 10), 1), inbox);
  s.gate.wait_for(1);
  std::this_thread::sleep_for(20ms);
  EXPECT_GE(s.engine->stats().step_age_s, 0.02);
  s.gate.open();
  inbox.wait();
  for (int i = 0; i < 6000 && s.engine->stats().step_age_s > 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(s.engine->stats().step_age_s, 0);
}

TEST(Engine, requests_of_a_whole_context_never_run_out_of_memory) {
  Rig s({.context = 256, .max_sequences = 4, .max_batch_tokens = 64}, 4);
  std::vector<Inbox> inboxes(6);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 6; ++i) {
    tickets.push_back(s.submit(request(fake_text(std::to_string(i), 20 + 40 * i), 1000),
                               inboxes[static_cast<std::size_t>(i)]));
  }
  for (int i = 0; i < 6; ++i) {
    Inbox& inbox = inboxes[static_cast<std::size_t>(i)];
    EXPECT_EQ(inbox.wait().reason, FinishReason::kLength);
    EXPECT_EQ(inbox.tokens(),
              FakeModel::greedy(fake_text(std::to_string(i), 20 + 40 * i), 236 - 40 * i));
  }
}

TEST(Engine, constrained_requests_may_be_dropped_at_any_time) {
  Rig s({.context = 256, .max_sequences = 4, .max_batch_tokens = 32});
  std::vector<Inbox> inboxes(40);
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (std::size_t i = c * 10; i < c * 10 + 10; ++i) {
        GenerateRequest r = request(fake_text(std::to_string(i), 20), 40);
        r.constraint = std::make_shared<FakeConstraint>(i);
        Ticket ticket = s.submit(std::move(r), inboxes[i]);
        if (i % 2 == 0) {
          inboxes[i].wait_for_tokens(i % 5);
          ticket.cancel();
        }
        inboxes[i].wait();
        if (i % 2 == 1) {
          EXPECT_EQ(inboxes[i].tokens(),
                    FakeConstraint::greedy(i, fake_text(std::to_string(i), 20), 40));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(s.engine->stats().running, 0);
  EXPECT_EQ(s.engine->stats().waiting, 0);
}

TEST(Engine, refuses_what_cannot_run_before_it_is_queued) {
  Rig s({.context = 100, .max_sequences = 2});
  const auto refusal = [&](GenerateRequest r) {
    auto ticket = s.engine->submit(std::move(r), [](TokenEvent) { ADD_FAILURE(); });
    return ticket.has_value() ? ErrorCode::kInternal : ticket.error().code;
  };
  EXPECT_EQ(refusal(request({}, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(request({FakeModel::kVocabSize}, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(request(fake_text("a", 101), 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(request(fake_text("a", 100), 3)), ErrorCode::kInvalidArgument);
  Inbox inbox;
  const Ticket ticket = s.submit(request(fake_text("a", 99), 3), inbox);
  EXPECT_EQ(inbox.wait().reason, FinishReason::kLength);
  EXPECT_EQ(inbox.tokens().size(), 1u);
}

TEST(Engine, drain_ends_the_running_and_refuses_the_rest) {
  Rig s({.context = 256, .max_sequences = 1}, 64, true);
  Inbox first, second;
  const Ticket running = s.submit(request(fake_text("a", 10), 3), first);
  s.gate.wait_for(1);
  const Ticket queued = s.submit(request(fake_text("b", 10), 3), second);
  EXPECT_FALSE(s.engine->drain(0.01)) << "the gate is shut";
  auto refused = s.engine->submit(request(fake_text("c", 10), 3), [](TokenEvent) {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kCancelled);
  s.gate.open();
  EXPECT_TRUE(s.engine->drain(60));
  EXPECT_EQ(first.finishes(), 1);
  EXPECT_EQ(first.wait().reason, FinishReason::kLength);
  EXPECT_EQ(second.finishes(), 1);
  EXPECT_EQ(second.wait().reason, FinishReason::kError);
  EXPECT_EQ(second.wait().error.code, ErrorCode::kCancelled);
  EXPECT_TRUE(s.engine->drain(0)) << "nothing is left";
}

TEST(Engine, destruction_cancels_everything) {
  FakeRig rig(8);
  rig.model.before_forward = [](const Batch&) { std::this_thread::sleep_for(5ms); };
  Inbox first, second;
  {
    Engine engine(rig.model, rig.exec, rig.cache, {.context = 512, .max_sequences = 1});
    auto a = engine.submit(request(fake_text("a", 10), 500), first.sink());
    auto b = engine.submit(request(fake_text("b", 10), 500), second.sink());
    ASSERT_TRUE(a.has_value() && b.has_value());
    first.wait_for_tokens(1);
  }
  EXPECT_EQ(first.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(second.wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(first.finishes(), 1);
  EXPECT_EQ(second.finishes(), 1);
  EXPECT_EQ(rig.cache.stats().leased_pages, 0u);
  rig.cache.check_integrity();
}

TEST(Engine, an_idle_engine_sleeps) {
  Rig s({.context = 256, .max_sequences = 2});
  Inbox inbox;
  const Ticket ticket = s.submit(request(fake_text("a", 10), 3), inbox);
  inbox.wait();
  std::this_thread::sleep_for(20ms);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST(Engine, the_slot_is_free_when_the_client_hears_of_the_end) {
  Rig s({.context = 256, .max_sequences = 1, .max_queue = 0});
  for (int i = 0; i < 50; ++i) {
    Inbox inbox;
    const Ticket ticket = s.submit(request(fake_text("a", 10), 2), inbox);
    inbox.wait();
    const EngineStats stats = s.engine->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.cache.leased_pages, 0u);
    EXPECT_EQ(stats.finished, static_cast<std::uint64_t>(i + 1));
  }
}

TEST(Engine, options_are_made_consistent) {
  FakeRig rig(8);
  const Engine engine(rig.model, rig.exec, rig.cache,
                      {.context = 256, .max_sequences = 9, .max_batch_tokens = 2});
  EXPECT_EQ(engine.options().max_batch_tokens, 9) << "everybody who decodes moves in every step";
}

TEST(EngineDeathTest, a_cache_smaller_than_the_context_is_a_mistake) {
  FakeRig rig(3);
  EXPECT_DEATH(Engine(rig.model, rig.exec, rig.cache, {.context = 256}), "total_pages");
}

}  // namespace
}  // namespace glint
