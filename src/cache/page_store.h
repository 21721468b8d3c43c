// Cache pages and state snapshots on disk: a folder with a file for each, written and read by one
// thread. Bounded: what was used least recently makes room. Nothing here is ever needed: what goes
// wrong is logged, and computed again.
//
// The folder belongs to one process at a time, and may hold pages of several models. Its files
// (page_file.h) appear whole, by renaming; a damaged one is found by its checksums and removed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "cache/page_file.h"

namespace glint {

struct StoreOptions {
  std::filesystem::path folder;  // made if need be
  std::uint64_t max_bytes = 0;   // of all its files
  // All that decides what a page holds but its tokens and salt: model, formats, arithmetic.
  std::string identity;
  // Memory of what waits to be written; one entry that is larger is taken when nothing else waits.
  std::uint64_t queue_bytes = std::uint64_t{64} << 20;
};

// When an entry was used, in nanoseconds since 1970; this stands for now.
inline constexpr std::int64_t kStampNow = -1;

// Entries that the store's thread reads, one by one in this order. Whoever holds this keeps the
// memory until is_done(), and reads nothing of it before.
class StoreRead {
 public:
  struct Item {
    StoreKey key;
    StoredKind kind = StoredKind::kPage;
    std::span<std::byte> to;              // as many bytes as the content must have
    std::optional<StoredEntry> expected;  // what the file must say of itself; any of that key, else
    StoredEntry found = {};               // what it says
    bool is_fine = false;                 // `found` and the memory are as they were written
  };
  explicit StoreRead(std::vector<Item> items, bool stops)
      : items_(std::move(items)), stops_at_failure_(stops) {}
  bool is_done() const { return done_.load(std::memory_order_acquire); }
  // Leaves out what was not begun.
  void cancel() { cancelled_.store(true); }
  const std::vector<Item>& items() const { return items_; }

 private:
  friend class PageStore;
  std::vector<Item> items_;
  const bool stops_at_failure_;
  std::atomic<bool> done_{false}, cancelled_{false};
};

// Every member may be called from any thread.
class PageStore {
 public:
  // Errors: kInvalidArgument (no folder can be there, no room), kIo, and kExhausted when another
  // process has the folder.
  static Result<std::shared_ptr<PageStore>> open(StoreOptions options);
  // Ends with the entry at work; what still waits is dropped.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  StoreKey root(std::uint64_t salt) const;
  StoreKey key_after(const StoreKey& parent, std::span<const std::int32_t> tokens) const;

  bool has(const StoreKey& key, StoredKind kind) const;    // on disk
  bool knows(const StoreKey& key, StoredKind kind) const;  // the same, or about to be
  // Those on disk, the newest first.
  std::vector<StoreKey> newest(StoredKind kind, std::size_t most) const;

  bool has_queue_room(std::uint64_t nbytes) const;
  // Copies an entry, to be written soon. False when the queue has no room: then it is dropped.
  // `stamp` orders what leaves the folder first: an entry makes no room that is not older than it.
  bool write(const StoredEntry& entry, std::span<const std::byte> content, std::int64_t stamp);
  // Was used then.
  void touch(const StoreKey& key, StoredKind kind, std::int64_t stamp);
  // Begins to read. `stops_at_failure`: what follows a failure is left out.
  std::shared_ptr<StoreRead> read(std::vector<StoreRead::Item> items, bool stops_at_failure);
  void remove(const StoreKey& key);  // a page and its snapshot
  struct Cleared {
    std::uint64_t entries = 0, bytes = 0;
  };
  Cleared clear();  // this model's, and what waits to be written

  // Until nothing waits to be written or read, or that time has passed. True when nothing does.
  bool wait_idle(double seconds) const;
  // Until the thread has finished anything, or that time has passed.
  void wait_progress(double seconds) const;
  StoreStats stats() const;

 private:
  struct State;
  explicit PageStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace glint
