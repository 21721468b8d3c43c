#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/cpu.h"

namespace glint {
namespace {

TEST(ThreadPool, every_task_runs_exactly_once_whatever_the_counts) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const std::size_t num_tasks : {0u, 1u, 2u, 3u, 7u, 100u, 1000u}) {
      std::vector<int> runs(num_tasks, 0);
      pool.run(num_tasks, [&](std::size_t task, int) { ++runs[task]; });
      EXPECT_EQ(runs, std::vector<int>(num_tasks, 1))
          << num_threads << " threads, " << num_tasks << " tasks";
    }
  }
}

TEST(ThreadPool, worker_numbers_stay_in_range_and_are_never_shared_by_two_threads) {
  ThreadPool pool(4);
  std::vector<std::thread::id> owner(4);
  std::atomic<int> mistakes{0};
  for (int loop = 0; loop < 50; ++loop) {
    pool.run(64, [&](std::size_t, int worker) {
      if (worker < 0 || worker >= 4) {
        ++mistakes;
        return;
      }
      std::thread::id& mine = owner[static_cast<std::size_t>(worker)];
      if (mine == std::thread::id()) mine = std::this_thread::get_id();
      if (mine != std::this_thread::get_id()) ++mistakes;
    });
  }
  EXPECT_EQ(mistakes, 0);
  EXPECT_EQ(owner[0], std::this_thread::get_id());
}

TEST(ThreadPool, two_tasks_that_wait_for_each_other_run_at_the_same_time) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  pool.run(2, [&](std::size_t, int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPool, what_tasks_wrote_is_visible_after_run_and_in_the_next_loop) {
  ThreadPool pool(3);
  std::vector<long> values(257, 0);
  for (int loop = 1; loop <= 2000; ++loop) {
    pool.run(values.size(),
             [&](std::size_t task, int) { values[task] += static_cast<long>(task); });
  }
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 2000 * static_cast<long>(i));
}

TEST(ThreadPool, sleeping_workers_wake_for_the_next_loop) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> done{0};
    pool.run(30, [&](std::size_t, int) { ++done; });
    EXPECT_EQ(done, 30);
  }
}

TEST(ThreadPool, idle_workers_use_no_processor_time) {
  ThreadPool pool(4);
  pool.run(4, [](std::size_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 0.1) << "three spinning workers would use up to 0.6 s";
}

TEST(ThreadPool, single_tasks_and_single_threads_run_inline_on_the_caller) {
  const auto caller = std::this_thread::get_id();
  ThreadPool several(4);
  several.run(1, [&](std::size_t, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  ThreadPool alone(1);
  std::vector<std::size_t> order;
  alone.run(5, [&](std::size_t task, int) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, pins_every_worker_and_gives_the_caller_its_mask_back) {
  const CpuBudget budget = cpu_budget();
  const int core = budget.cores.front();
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  {
    ThreadPool pool(2, {core, core});
    std::atomic<int> pinned{0};
    std::atomic<int> arrived{0};
    pool.run(2, [&](std::size_t, int) {
      cpu_set_t mine;
      if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) == 1 &&
          CPU_ISSET(core, &mine))
        ++pinned;
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(pinned, 2);
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, impossible_cores_are_ignored) {
  ThreadPool pool(3, {-1, 1 << 20, 1023});
  std::atomic<int> done{0};
  pool.run(10, [&](std::size_t, int) { ++done; });
  EXPECT_EQ(done, 10);
}

TEST(ThreadPool, pools_start_and_stop_without_ever_running) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace glint
