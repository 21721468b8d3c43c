// What is asked of the prefix cache as a whole: saving it to disk, restoring it, dropping it. Done
// a piece at a time between the steps of the engine, by its thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "cache/cache.h"
#include "engine/engine.h"

namespace glint {

class CacheTasks {
 public:
  explicit CacheTasks(Cache& cache);
  ~CacheTasks();
  CacheTasks(const CacheTasks&) = delete;
  CacheTasks& operator=(const CacheTasks&) = delete;

  bool empty() const { return tasks_.empty(); }
  void add(CacheAction action, CacheSink done);
  // Goes on with the first of them, and waits for nothing.
  void advance();
  // Ends all of them with this error.
  void cancel_all(const Error& error);
  // What a program does at its end: writes what the store lacks, for at most so long.
  static void save_before_end(Cache& cache, double most_seconds);

 private:
  struct Task;
  bool run(Task& task);
  Cache& cache_;
  std::deque<std::unique_ptr<Task>> tasks_;
};

}  // namespace glint
