// The tasks of several jobs numbered through, so that one parallel region covers them all.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/workspace.h"

namespace glint {

class TaskRanges {
 public:
  // Workspace memory: valid until the enclosing scope ends.
  TaskRanges(Workspace& workspace, std::size_t max_jobs)
      : first_(workspace.array<std::size_t>(max_jobs + 1)) {
    first_[0] = 0;
  }
  // The next job's number of tasks, at least one.
  void add(int tasks) {
    first_[jobs_ + 1] = first_[jobs_] + static_cast<std::size_t>(tasks);
    ++jobs_;
  }
  std::size_t total() const { return first_[jobs_]; }

  struct Place {
    std::size_t job;
    int task;  // of that job
  };
  Place find(std::size_t task) const {
    const auto job =
        static_cast<std::size_t>(std::upper_bound(first_, first_ + jobs_ + 1, task) - first_) - 1;
    return {job, static_cast<int>(task - first_[job])};
  }

 private:
  std::size_t* first_;
  std::size_t jobs_ = 0;
};

}  // namespace glint
