// A team of threads for data-parallel loops. The calling thread is worker 0; between loops the
// others spin briefly and then sleep. One loop at a time: the engine thread owns the pool.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace glint {

class ThreadPool {
 public:
  // num_threads >= 1, the caller included. `cores` (may be empty): workers are pinned to
  // cores[worker] when it has an entry; the caller at its first loop of several tasks, until the
  // pool is destroyed (by the same thread).
  explicit ThreadPool(int num_threads, std::vector<int> cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls fn(task, worker) for every task in [0, num_tasks), in any order, each exactly once, and
  // returns when all are done. Tasks are handed out one at a time, so their costs may differ. fn
  // must not throw, and must not call the pool.
  template <typename Fn>
  void run(std::size_t num_tasks, Fn&& fn) {
    run_erased(
        num_tasks,
        [](void* context, std::size_t task, int worker) {
          (*static_cast<std::remove_reference_t<Fn>*>(context))(task, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using TaskFn = void (*)(void* context, std::size_t task, int worker);
  void run_erased(std::size_t num_tasks, TaskFn fn, void* context);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
