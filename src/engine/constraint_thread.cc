#include "engine/constraint_thread.h"

#include <sched.h>

#include <charconv>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "base/check.h"

namespace glint {
namespace {

// A child inherits the mask of its creator, which a pool may have pinned to the one processor that
// the engine thread computes on. So the calling thread takes the union of what all threads of the
// process have; when that cannot be read, all stays as it is.
void run_wherever_others_may() {
  cpu_set_t all, one;
  CPU_ZERO(&all);
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    pid_t id = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
    if (parsed.ec == std::errc() && sched_getaffinity(id, sizeof one, &one) == 0) {
      CPU_OR(&all, &all, &one);
    }
  }
  if (CPU_COUNT(&all) > 0) sched_setaffinity(0, sizeof all, &all);
}

}  // namespace

struct ConstraintThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::span<Question> questions;  // not empty: there is work
  bool stopping = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !questions.empty(); });
      if (stopping) return;
      lock.unlock();
      for (Question& question : questions) question.answer = question.constraint->next();
      lock.lock();
      questions = {};
      changed.notify_all();
    }
  }
};

ConstraintThread::ConstraintThread() : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = state_.get()] {
    run_wherever_others_may();
    state->run();
  });
}

ConstraintThread::~ConstraintThread() {
  wait();
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void ConstraintThread::start(std::span<Question> questions) {
  if (questions.empty()) return;
  {
    const std::lock_guard lock(state_->mutex);
    GLINT_CHECK(state_->questions.empty());
    state_->questions = questions;
  }
  state_->changed.notify_all();
}

void ConstraintThread::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->questions.empty(); });
}

}  // namespace glint
