#include "engine/cache_tasks.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "cache/page_store.h"
#include "cache/store_jobs.h"

namespace glint {
namespace {

CacheReport report_of(CacheAction action, const StoreReport& report) {
  return {.action = action,
          .pages = report.pages,
          .snapshots = report.snapshots,
          .bytes = report.bytes,
          .present = report.present,
          .left_out = report.left_out};
}

CacheReport clear(Cache& cache) {
  CacheReport report{.action = CacheAction::kClear};
  const CacheStats before = cache.stats();
  cache.clear_prefixes();
  const CacheStats after = cache.stats();
  report.pages = before.cached_pages - after.cached_pages;
  report.snapshots = before.kept_snapshots - after.kept_snapshots;
  report.bytes = report.pages * after.page_bytes +
                 report.snapshots * static_cast<std::uint64_t>(cache.spec().snapshot_bytes);
  if (cache.store() == nullptr) return report;
  const PageStore::Cleared cleared = cache.store()->clear();
  report.disk_entries = cleared.entries;
  report.disk_bytes = cleared.bytes;
  return report;
}

}  // namespace

struct CacheTasks::Task {
  Task(CacheAction a, CacheSink d) : action(a), done(std::move(d)) {}
  CacheAction action;
  CacheSink done;
  std::optional<SaveJob> save = {};
  std::optional<RestoreJob> restore = {};
};

CacheTasks::CacheTasks(Cache& cache) : cache_(cache) {}
CacheTasks::~CacheTasks() = default;

void CacheTasks::add(CacheAction action, CacheSink done) {
  tasks_.push_back(std::make_unique<Task>(action, std::move(done)));
}

void CacheTasks::advance() {
  while (!tasks_.empty() && run(*tasks_.front())) tasks_.pop_front();
}

// True when the task is over.
bool CacheTasks::run(Task& task) {
  std::optional<CacheReport> report;
  if (!cache_.prefix_reuse()) {
    task.done(unsupported("the prefix cache is off: start with --prefix-cache on or a size"));
    return true;
  }
  if (task.action == CacheAction::kClear) {
    report = clear(cache_);
  } else if (cache_.store() == nullptr) {
    task.done(unsupported(
        "pages of the prefix cache are not kept on disk: start with --prefix-cache-dir DIR"));
    return true;
  } else if (task.action == CacheAction::kSave) {
    if (!task.save) task.save.emplace(cache_);
    if (!task.save->advance()) return false;
    report = report_of(task.action, task.save->report());
    task.save.reset();
  } else {
    if (!task.restore) task.restore.emplace(cache_);
    if (!task.restore->advance()) return false;
    report = report_of(task.action, task.restore->report());
    task.restore.reset();
  }
  task.done(*report);
  return true;
}

void CacheTasks::cancel_all(const Error& error) {
  while (!tasks_.empty()) {
    const std::unique_ptr<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    task->done(error);
  }
}

void CacheTasks::save_before_end(Cache& cache, double most_seconds) {
  if (cache.store() == nullptr) return;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(most_seconds);
  SaveJob save(cache);
  bool done = save.advance();
  while (!done && Clock::now() < end) {
    cache.store()->wait_progress(0.1);
    done = save.advance();
  }
  const StoreReport& report = save.report();
  if (!done) {
    log_warn(fmt::format("not all of the prefix cache was written within {:g} s", most_seconds));
  } else if (report.pages > 0) {
    log_info(
        fmt::format("{} more pages of the prefix cache are on disk, {} bytes with {} snapshots",
                    report.pages, report.bytes, report.snapshots));
  }
}

}  // namespace glint
