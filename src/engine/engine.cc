#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "cache/page_store.h"
#include "engine/cache_tasks.h"
#include "engine/draft_policy.h"
#include "engine/step_loop.h"

namespace glint {

namespace {

constexpr double kStoreNap = 0.01;       // seconds, between looks at what the store is doing
constexpr double kLastSaveSeconds = 30;  // before the end

}  // namespace

// Who waits and runs as everybody sees it at once, while the engine thread may be in a long step.
// Outlives the engine: tickets hold it.
struct Places {
  std::atomic<int> taken{0};  // waiting and running, those not counted whose ticket is cancelled
  std::atomic<int> abandoned{0};  // cancelled while they waited, and still in a list
};

// The engine looks at the flag between steps. While it sleeps there is nothing to cancel, so nobody
// need wake it.
struct Ticket::Shared {
  explicit Shared(std::shared_ptr<Places> p) : places(std::move(p)) {}

  void queued() {
    stage = Stage::kWaiting;
    ++places->taken;
  }
  void cancel() {
    cancelled.store(true, std::memory_order_relaxed);
    Stage waiting = Stage::kWaiting, running = Stage::kRunning;
    if (stage.compare_exchange_strong(waiting, Stage::kAbandoned)) {
      ++places->abandoned;
      --places->taken;
    } else if (stage.compare_exchange_strong(running, Stage::kEnded)) {
      --places->taken;
    }
  }
  void started() {
    Stage waiting = Stage::kWaiting;
    stage.compare_exchange_strong(waiting, Stage::kRunning);
  }
  void ended() {
    const Stage before = stage.exchange(Stage::kEnded);
    if (before == Stage::kAbandoned) --places->abandoned;
    if (before == Stage::kWaiting || before == Stage::kRunning) --places->taken;
  }

  std::atomic<bool> cancelled{false};

 private:
  enum class Stage { kWaiting, kRunning, kAbandoned, kEnded };
  std::atomic<Stage> stage{Stage::kEnded};
  const std::shared_ptr<Places> places;
};

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  cancel();
  shared_ = std::move(other.shared_);
  return *this;
}

Ticket::~Ticket() {
  cancel();
}

void Ticket::cancel() {
  if (shared_ != nullptr) shared_->cancel();
}

struct Engine::State {
  State(const Model& m, Exec& e, Cache& c, EngineOptions o)
      : model(m),
        exec(e),
        cache(c),
        options(o),
        loop(m, e, c, options, [this] { publish(); }),
        tasks(c) {
    stats.cache = c.stats();
  }

  void run();
  void publish();
  // Takes what came in. False when the engine stops.
  bool take_work();
  // Whether one more request may be queued. With the mutex held.
  bool has_room() const;

  const Model& model;
  Exec& exec;
  Cache& cache;
  const EngineOptions options;
  // Of the engine thread alone.
  StepLoop loop;
  CacheTasks tasks;

  mutable std::mutex
      mutex;  // guards what follows; never held while the model computes or a sink runs
  std::condition_variable work;
  std::condition_variable all_ended;
  std::vector<std::unique_ptr<Sequence>> inbox;
  std::vector<std::pair<CacheAction, CacheSink>> task_inbox;
  bool stopping = false;
  bool draining = false;
  int open = 0;  // submitted, and not yet told that they finished
  EngineStats stats;

  const std::shared_ptr<Places> places = std::make_shared<Places>();
  std::atomic<Clock::rep> step_began{0};  // 0: no step is at work

  std::thread thread;
};

void Engine::State::publish() {
  const EngineStats fresh = loop.stats();
  const std::lock_guard lock(mutex);
  stats = fresh;
}

bool Engine::State::take_work() {
  std::unique_lock lock(mutex);
  stats = loop.stats();
  open = loop.size() + static_cast<int>(inbox.size());
  if (open == 0) all_ended.notify_all();
  work.wait(lock, [this] {
    return stopping || !inbox.empty() || !task_inbox.empty() || !tasks.empty() || !loop.idle();
  });
  for (std::unique_ptr<Sequence>& sequence : inbox) loop.add(std::move(sequence));
  inbox.clear();
  for (auto& [action, done] : task_inbox) tasks.add(action, std::move(done));
  task_inbox.clear();
  stats = loop.stats();
  const bool refuse = draining, stop = stopping;
  lock.unlock();
  // The sinks of those that end here run without the lock.
  if (refuse) loop.refuse_waiting(cancelled("the server is shutting down, and takes no new work"));
  return !stop;
}

void Engine::State::run() {
  while (take_work()) {
    tasks.advance();
    if (loop.idle()) {
      if (!tasks.empty()) cache.store()->wait_progress(kStoreNap);
      continue;
    }
    step_began = Clock::now().time_since_epoch().count();
    loop.step();
    step_began = 0;
  }
  loop.cancel_all();
  tasks.cancel_all(cancelled("the server is shutting down"));
  {
    const std::lock_guard lock(mutex);
    stats = loop.stats();
    open = 0;
    all_ended.notify_all();
  }
  CacheTasks::save_before_end(cache, kLastSaveSeconds);
}

namespace {

EngineOptions resolve(EngineOptions options, const Model& model, const Cache& cache) {
  GLINT_CHECK(options.context >= 2 && options.max_sequences >= 1 && options.max_queue >= 0);
  if (!model.can_draft()) options.draft_mode = DraftMode::kOff;
  // Everybody who decodes moves in every step, with all guesses.
  const int most = options.draft_mode == DraftMode::kOff     ? 1
                   : options.draft_mode == DraftMode::kFixed ? 1 + options.num_drafts
                                                             : 1 + DraftPolicy::kMaxAuto;
  options.max_batch_tokens = std::max(options.max_batch_tokens, options.max_sequences * most);
  options.prefix_reuse = cache.prefix_reuse();
  const std::size_t pages = (static_cast<std::size_t>(options.context) + kPageSize - 1) / kPageSize;
  GLINT_CHECK(cache.stats().total_pages >= pages);
  GLINT_CHECK(cache.spec().state_bytes == 0 ||
              cache.stats().total_states >= static_cast<std::size_t>(options.max_sequences));
  return options;
}

}  // namespace

Engine::Engine(const Model& model, Exec& exec, Cache& cache, EngineOptions options)
    : state_(std::make_unique<State>(model, exec, cache, resolve(options, model, cache))) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_one();
  state_->thread.join();
}

Result<Ticket> Engine::submit(GenerateRequest request, EventSink sink) {
  GLINT_CHECK(sink != nullptr);
  Ticket ticket;
  const auto shared = std::make_shared<Ticket::Shared>(state_->places);
  ticket.shared_ = shared;
  const EventSink counting = [shared, sink = std::move(sink)](TokenEvent event) {
    if (event.kind == TokenEvent::Kind::kStarted) shared->started();
    if (event.kind == TokenEvent::Kind::kFinished) shared->ended();
    sink(std::move(event));
  };
  if (!request.images.empty() && !state_->model.can_see()) {
    return unsupported(
        "the request holds images, and this model was loaded without a vision tower");
  }
  const std::shared_ptr<const std::atomic<bool>> flag(shared, &shared->cancelled);
  GLINT_TRY(auto sequence, make_sequence(std::move(request), counting, flag,
                                         state_->model.info().vocab_size, state_->options.context));
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->draining || state_->stopping) {
      return cancelled("the server is shutting down, and takes no new work");
    }
    if (!state_->has_room()) {
      return exhausted(
          fmt::format("{} requests run and {} wait, which is all the queue holds; try again later",
                      state_->options.max_sequences, state_->options.max_queue));
    }
    shared->queued();
    state_->inbox.push_back(std::move(sequence));
    ++state_->open;
  }
  state_->work.notify_one();
  return ticket;
}

// Slots that are free count as room, since the engine thread may not have had time to fill them.
bool Engine::State::has_room() const {
  const int slots_and_queue = options.max_sequences + options.max_queue;
  // Those that were cancelled hold memory until the step at work ends; so they are bounded too.
  const std::size_t most_unseen = 4 * static_cast<std::size_t>(slots_and_queue);
  return places->taken < slots_and_queue && inbox.size() < most_unseen;
}

void Engine::control_cache(CacheAction action, CacheSink done) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->stopping) {
      state_->task_inbox.emplace_back(action, std::exchange(done, nullptr));
    }
  }
  if (done != nullptr) return done(cancelled("the server is shutting down"));
  state_->work.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  EngineStats stats = state_->stats;
  const int waiting = stats.waiting + static_cast<int>(state_->inbox.size());
  stats.waiting = std::max(0, waiting - state_->places->abandoned);
  if (const Clock::rep began = state_->step_began; began != 0) {
    const Clock::time_point then{Clock::duration(began)};
    stats.step_age_s = std::max(0.0, seconds_between(then, Clock::now()));
  }
  return stats;
}

const EngineOptions& Engine::options() const {
  return state_->options;
}

bool Engine::drain(double timeout_s) {
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  state_->work.notify_one();
  const auto limit = std::chrono::duration<double>(std::clamp(timeout_s, 0.0, 1e9));
  return state_->all_ended.wait_for(lock, limit, [this] { return state_->open == 0; });
}

}  // namespace glint
