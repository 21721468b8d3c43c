// What moves between a cache and its store while the engine goes on: a prefix that is read before a
// request starts, and saving and restoring all there is. Each is advanced by the thread that uses
// the cache, between its steps, and never waits for the disk there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache.h"
#include "cache/page_file.h"

namespace glint {

class StoreRead;
struct CacheHold;

// What the jobs share. None outlives the cache, which has a store.
class StoreJob {
 public:
  StoreJob(const StoreJob&) = delete;
  StoreJob& operator=(const StoreJob&) = delete;

 protected:
  explicit StoreJob(Cache& cache);
  ~StoreJob();  // waits for what is being read, and gives everything back
  void begin_reading(bool stops_at_failure);
  bool is_reading() const;
  void give_back();

  struct Item {
    StoreKey key;
    StoredKind kind = StoredKind::kPage;
    PageId page = -1;      // to read into, or the one whose snapshot it is
    SnapshotId slot = -1;  // to read into
    std::optional<StoredEntry> expected = {};
  };
  Cache::State& state_;
  std::unique_ptr<CacheHold> hold_;
  std::vector<Item> items_;
  std::shared_ptr<StoreRead> read_;
};

// The part of a prefix that only the store has, on its way into the prefix tree. Holds the whole
// path, so that none of it leaves before a sequence has started from it.
class Recall : private StoreJob {
 public:
  // Null when memory has as much of the prefix as the store, or there is no room for more.
  static std::unique_ptr<Recall> begin(Cache& cache, std::span<const std::int32_t> tokens,
                                       std::uint64_t salt = 0);
  ~Recall() = default;
  // True when all of it is in the tree that could be read; then match() and start() find it.
  bool is_done();

 private:
  explicit Recall(Cache& cache) : StoreJob(cache) {}
  bool plan(Cache& cache, std::span<const std::int32_t> tokens, std::uint64_t salt);
  void install();
  std::size_t num_known_ = 0;  // of the held pages, the first, that were in memory
  std::uint64_t salt_ = 0;
  bool installed_ = false;
};

// Removes the pages of these tokens from the store, where there is one: they may be broken.
void forget_stored(Cache& cache, std::span<const std::int32_t> tokens, std::uint64_t salt);

struct StoreReport {
  std::uint64_t pages = 0, snapshots = 0, bytes = 0;  // that went where they should
  std::uint64_t present = 0;                          // pages that were there before
  std::uint64_t left_out = 0;  // entries for which there was no room, or that were damaged
};

// Writes what the prefix tree holds and the store lacks, as far as the store has room, what was
// used last before the rest.
class SaveJob : private StoreJob {
 public:
  explicit SaveJob(Cache& cache);
  ~SaveJob() = default;
  bool advance();  // true when all is written; to be called again otherwise
  const StoreReport& report() const { return report_; }

 private:
  std::size_t next_ = 0;
  std::int64_t stamp_ = 0;
  StoreReport report_;
};

// Reads what was used last into free memory, as far as unleased pages may fill it.
class RestoreJob : private StoreJob {
 public:
  explicit RestoreJob(Cache& cache);
  ~RestoreJob();
  bool advance();  // true when all is read; to be called again otherwise
  const StoreReport& report() const { return report_; }

 private:
  bool begin_pages();
  bool begin_snapshot();
  void install_pages();
  void install_snapshot();
  PageId find(const StoreKey& key) const;

  std::size_t room_ = 0;  // pages that may still be read
  std::vector<StoreKey> wanted_, wanted_snapshots_;
  std::size_t next_ = 0, next_snapshot_ = 0;
  std::map<StoreKey, PageId> by_key_;
  std::vector<StoreKey> installed_;
  StoreReport report_;
};

}  // namespace glint
