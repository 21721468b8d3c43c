// Which slots for snapshots of recurrent states are free, being written, or kept with a page of the
// prefix tree. When none is free the one that was used least recently makes room, and its page
// stays without. Knows no memory and no sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/cache.h"

namespace glint {

class SnapshotPool {
 public:
  explicit SnapshotPool(std::size_t num_slots) : slots_(num_slots) {}

  // A slot to write, for one sequence alone; kNoSnapshot when all are being written or read.
  SnapshotId acquire();
  // Ends that without a snapshot.
  void give_back(SnapshotId id);
  // Called with the page of each snapshot that makes room for another, while it is still there.
  void observe_evictions(std::function<void(PageId)> observer) { on_evict_ = std::move(observer); }
  // What was written is the snapshot of `page`, unless it has one: then the slot is given back.
  // Returns when it was entered, for drop_unused(); 0 for the latter.
  std::uint64_t attach(SnapshotId id, PageId page);

  // Of a page, or kNoSnapshot.
  SnapshotId find(PageId page) const;
  // Keeps it from being dropped, and counts as a use.
  void pin(SnapshotId id);
  void unpin(SnapshotId id);
  // When a page leaves the tree. Nobody reads its snapshot then.
  void drop(PageId page);
  // If that snapshot is still there, and nobody started from it since it was entered.
  void drop_unused(SnapshotId id, std::uint64_t entered);

  std::size_t total() const { return slots_.size(); }
  std::size_t free_count() const { return free_.size() + (slots_.size() - num_touched_); }
  std::size_t kept() const { return by_page_.size(); }
  std::uint64_t evicted() const { return evicted_; }
  // Aborts unless every count and link is right. written: the slots that sequences write; pins[i]:
  // how many read slot i.
  void check_integrity(std::span<const SnapshotId> written, std::span<const int> pins) const;

 private:
  static constexpr PageId kFree = -1, kWritten = -2;
  struct Slot {
    PageId page = kFree;
    int pins = 0;
    std::uint64_t last_use = 0;
  };
  Slot& slot(SnapshotId id) { return slots_[static_cast<std::size_t>(id)]; }
  void free(SnapshotId id);

  std::vector<Slot> slots_;
  std::vector<SnapshotId> free_;  // last in first out: their memory is touched already
  std::size_t num_touched_ = 0;   // slots [num_touched_, size) were never used
  std::uint64_t clock_ = 0;
  std::uint64_t evicted_ = 0;
  std::function<void(PageId)> on_evict_;
  std::unordered_map<PageId, SnapshotId> by_page_;
  std::set<std::pair<std::uint64_t, SnapshotId>> evictable_;  // (last use, kept and unpinned)
};

}  // namespace glint
