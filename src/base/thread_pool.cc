#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/log.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace glint {
namespace {

// Long enough to bridge the serial code between two ops, short enough that an idle pool costs no
// quota.
constexpr auto kSpinTime = std::chrono::microseconds(50);
// Reading the clock costs about as much as one pause on some machines: look at it once per this
// many.
constexpr int kPausesPerClockRead = 16;
constexpr std::size_t kCacheLine = 64;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns once `value` differs from `old`: spins first, then sleeps in the kernel.
template <typename T>
T wait_while_equal(const std::atomic<T>& value, T old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      const T now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

void pin(pthread_t thread, int core, int worker) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool representable = core >= 0 && core < CPU_SETSIZE;
  if (representable) CPU_SET(core, &set);
  if (!representable || pthread_setaffinity_np(thread, sizeof set, &set) != 0) {
    log_debug("worker " + std::to_string(worker) + " could not be pinned to CPU " +
              std::to_string(core));
  }
}

}  // namespace

// One loop is one generation. Every worker takes part in every generation, if only to see that no
// task is left, and the caller waits for all of them: so the fields of a loop are never written
// while a worker may still read them.
struct ThreadPool::State {
  // Written by the caller before `generation` rises, read by workers after they saw it rise.
  TaskFn fn = nullptr;
  void* context = nullptr;
  std::size_t num_tasks = 0;
  bool stopping = false;

  alignas(kCacheLine) std::atomic<std::uint32_t> generation{0};
  alignas(kCacheLine) std::atomic<std::size_t> next_task{0};
  alignas(kCacheLine) std::atomic<int> workers_busy{0};

  std::vector<std::thread> threads;
  std::vector<int> cores;
  // The caller is pinned when it first runs a loop, not when it builds the pool: that may be
  // another thread, whose later children would inherit the mask. The destructor gives the old mask
  // back.
  std::thread::id pinned_caller;
  cpu_set_t caller_mask{};

  bool has_core(int worker) const { return static_cast<std::size_t>(worker) < cores.size(); }

  void pin_caller() {
    if (!has_core(0) || pinned_caller == std::this_thread::get_id()) return;
    pinned_caller = std::this_thread::get_id();
    if (pthread_getaffinity_np(pthread_self(), sizeof caller_mask, &caller_mask) != 0)
      CPU_ZERO(&caller_mask);
    pin(pthread_self(), cores[0], 0);
  }

  void unpin_caller() {
    if (pinned_caller != std::this_thread::get_id() || CPU_COUNT(&caller_mask) == 0) return;
    pthread_setaffinity_np(pthread_self(), sizeof caller_mask, &caller_mask);
  }

  void work(int worker) {
    for (;;) {
      const std::size_t task = next_task.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      fn(context, task, worker);
    }
  }

  void worker_loop(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_while_equal(generation, seen);
      if (stopping) return;
      work(worker);
      if (workers_busy.fetch_sub(1, std::memory_order_acq_rel) == 1) workers_busy.notify_one();
    }
  }

  void start_generation() {
    next_task.store(0, std::memory_order_relaxed);
    workers_busy.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void wait_for_workers() {
    for (int busy = workers_busy.load(std::memory_order_acquire); busy != 0;)
      busy = wait_while_equal(workers_busy, busy);
  }
};

ThreadPool::ThreadPool(int num_threads, std::vector<int> cores)
    : state_(std::make_unique<State>()) {
  GLINT_CHECK(num_threads >= 1);
  State* state = state_.get();
  state->cores = std::move(cores);
  state->threads.reserve(static_cast<std::size_t>(num_threads) - 1);
  for (int worker = 1; worker < num_threads; ++worker) {
    state->threads.emplace_back([state, worker] { state->worker_loop(worker); });
    if (state->has_core(worker)) {
      pin(state->threads.back().native_handle(), state->cores[static_cast<std::size_t>(worker)],
          worker);
    }
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  state_->start_generation();
  for (std::thread& thread : state_->threads) thread.join();
  state_->unpin_caller();
}

int ThreadPool::num_threads() const {
  return static_cast<int>(state_->threads.size()) + 1;
}

void ThreadPool::run_erased(std::size_t num_tasks, TaskFn fn, void* context) {
  State& state = *state_;
  if (num_tasks <= 1 || state.threads.empty()) {
    for (std::size_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  state.fn = fn;
  state.context = context;
  state.num_tasks = num_tasks;
  state.pin_caller();
  state.start_generation();
  state.work(0);
  state.wait_for_workers();
}

}  // namespace glint
