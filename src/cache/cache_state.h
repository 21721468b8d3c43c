// What a Cache is made of, for the files that implement it; nobody else includes this.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/cache.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "cache/snapshot_pool.h"

namespace glint {

// Address space. Nothing of it is backed until it is written.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  bool map(std::size_t nbytes) {
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return false;
    data_ = static_cast<std::byte*>(data);
    size_ = nbytes;
    // Advice only: a kernel without huge pages is fine.
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    if (nbytes >= kHugePage) madvise(data, nbytes, MADV_HUGEPAGE);
    return true;
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// What others than sequences hold of a cache.
struct CacheHold {
  std::vector<PageId> pages;  // one lease each
  SnapshotId written = kNoSnapshot, pinned = kNoSnapshot;
};

struct Cache::State {
  State(CacheSpec s, std::size_t num_pages, bool reuse, StateRoom room)
      : spec(std::move(s)),
        prefix_reuse(reuse),
        snapshots(room.num_snapshots),
        pool(num_pages, snapshots),
        num_states(room.num_states) {
    for (int slot = static_cast<int>(num_states) - 1; slot >= 0; --slot)
      free_states.push_back(slot);
  }

  CacheSpec spec;
  bool prefix_reuse;
  std::size_t layer_bytes = 0;  // one layer of one page
  std::size_t rows_bytes = 0;   // all layers of one page
  std::size_t page_bytes = 0;   // rows, then the page's state
  Mapping memory, state_memory, snapshot_memory;
  SnapshotPool snapshots;
  PagePool pool;
  std::size_t num_states;
  std::vector<int> free_states;                 // the next one last
  std::vector<const SequenceCache*> sequences;  // alive; few
  std::uint64_t prefix_queries = 0;
  std::uint64_t prefix_hits = 0;
  std::shared_ptr<PageStore> store;  // null: none
  std::vector<StoreKey> keys;        // with a store: of each page of the tree
  std::vector<const CacheHold*> holds;

  void remove(const SequenceCache* sequence) {
    const auto it = std::ranges::find(sequences, sequence);
    GLINT_CHECK(it != sequences.end());
    *it = sequences.back();
    sequences.pop_back();
  }
  void replace(const SequenceCache* from, const SequenceCache* to) {
    const auto it = std::ranges::find(sequences, from);
    GLINT_CHECK(it != sequences.end());
    *it = to;
  }
  std::span<std::byte> page(PageId id) const {
    return {memory.data() + static_cast<std::size_t>(id) * page_bytes, page_bytes};
  }
  // What page `id` of the tree is called in the store, from its parent's name; likewise a page that
  // is not there yet.
  StoreKey key_after(PageId parent, std::uint64_t salt,
                     std::span<const std::int32_t> tokens) const {
    const StoreKey before =
        parent == kNoPage ? store->root(salt) : keys[static_cast<std::size_t>(parent)];
    return store->key_after(before, tokens);
  }
  void entered(PageId id) {
    if (store == nullptr) return;
    keys[static_cast<std::size_t>(id)] = key_after(pool.parent(id), pool.salt(id), pool.tokens(id));
  }
  // What the store writes about a page of the tree, or its snapshot.
  StoredEntry entry_of(PageId id, StoredKind kind) const;
  // Hands a page of the tree, or a snapshot, to the store, unless that has it. False: no room there
  // at present. `stamp`: see PageStore::write().
  bool spill(PageId id, StoredKind kind, std::int64_t stamp);
  std::byte* state_of(int slot) const {
    return state_memory.data() + static_cast<std::size_t>(slot) * spec.state_stride();
  }
  std::byte* snapshot_of(SnapshotId id) const {
    return snapshot_memory.data() + static_cast<std::size_t>(id) * spec.snapshot_stride();
  }
};

// What the prefix tree has of some tokens.
struct Cache::Prefix {
  std::vector<PageId> pages;
  std::size_t usable = 0;  // of these, the first
  SnapshotId snapshot = kNoSnapshot;
};

}  // namespace glint
