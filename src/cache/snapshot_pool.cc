#include "cache/snapshot_pool.h"

#include <algorithm>

#include "base/check.h"

namespace glint {

SnapshotId SnapshotPool::acquire() {
  if (free_.empty() && num_touched_ == slots_.size()) {
    if (evictable_.empty()) return kNoSnapshot;
    const PageId page = slot(evictable_.begin()->second).page;
    if (on_evict_) on_evict_(page);
    drop(page);
    ++evicted_;
  }
  SnapshotId id = kNoSnapshot;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    id = static_cast<SnapshotId>(num_touched_++);
  }
  slot(id).page = kWritten;
  return id;
}

void SnapshotPool::free(SnapshotId id) {
  slot(id) = {};
  free_.push_back(id);
}

void SnapshotPool::give_back(SnapshotId id) {
  GLINT_CHECK(slot(id).page == kWritten);
  free(id);
}

std::uint64_t SnapshotPool::attach(SnapshotId id, PageId page) {
  if (find(page) != kNoSnapshot) {
    give_back(id);
    return 0;
  }
  GLINT_CHECK(slot(id).page == kWritten && page >= 0);
  slot(id) = {.page = page, .last_use = ++clock_};
  by_page_.emplace(page, id);
  evictable_.emplace(clock_, id);
  return clock_;
}

SnapshotId SnapshotPool::find(PageId page) const {
  const auto it = by_page_.find(page);
  return it == by_page_.end() ? kNoSnapshot : it->second;
}

void SnapshotPool::pin(SnapshotId id) {
  Slot& entry = slot(id);
  GLINT_CHECK(entry.page >= 0);
  if (entry.pins++ == 0) evictable_.erase({entry.last_use, id});
  entry.last_use = ++clock_;
}

void SnapshotPool::unpin(SnapshotId id) {
  Slot& entry = slot(id);
  GLINT_CHECK(entry.pins > 0);
  if (--entry.pins == 0) evictable_.emplace(entry.last_use, id);
}

void SnapshotPool::drop(PageId page) {
  const SnapshotId id = find(page);
  if (id == kNoSnapshot) return;
  GLINT_CHECK(slot(id).pins == 0);
  evictable_.erase({slot(id).last_use, id});
  by_page_.erase(page);
  free(id);
}

void SnapshotPool::drop_unused(SnapshotId id, std::uint64_t entered) {
  if (slot(id).page >= 0 && slot(id).last_use == entered) drop(slot(id).page);
}

void SnapshotPool::check_integrity(std::span<const SnapshotId> written,
                                   std::span<const int> pins) const {
  GLINT_CHECK(pins.size() == slots_.size());
  std::vector<char> is_free(slots_.size(), 0), is_written(slots_.size(), 0);
  for (std::size_t i = num_touched_; i < slots_.size(); ++i) is_free[i] = 1;
  for (const SnapshotId id : free_) {
    GLINT_CHECK(!is_free[static_cast<std::size_t>(id)]);
    is_free[static_cast<std::size_t>(id)] = 1;
  }
  for (const SnapshotId id : written) {
    GLINT_CHECK(!is_written[static_cast<std::size_t>(id)]);
    is_written[static_cast<std::size_t>(id)] = 1;
  }
  std::size_t kept = 0, evictable = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& entry = slots_[i];
    const auto id = static_cast<SnapshotId>(i);
    GLINT_CHECK(entry.pins == pins[i]);
    GLINT_CHECK(static_cast<bool>(is_free[i]) == (entry.page == kFree));
    GLINT_CHECK(static_cast<bool>(is_written[i]) == (entry.page == kWritten));
    if (entry.page < 0) {
      GLINT_CHECK(entry.pins == 0);
      continue;
    }
    ++kept;
    GLINT_CHECK(find(entry.page) == id);
    if (entry.pins > 0) continue;
    ++evictable;
    GLINT_CHECK(evictable_.contains({entry.last_use, id}));
  }
  GLINT_CHECK(kept == by_page_.size() && evictable == evictable_.size());
}

}  // namespace glint
