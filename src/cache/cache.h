// The paged per-token cache: pages of kPageSize tokens, shared by prefix, leased by sequences; with
// them the recurrent states of the sequences that run, and snapshots of such states kept with
// pages. What leaves it for want of room may go to a store on disk (store_jobs.h brings it back).
// One engine thread uses it; no locks. Knows bytes per token, layer and state, not what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace glint {

class PageStore;

inline constexpr int kPageSize = 64;  // tokens

// A group of layers that store one row per token, [layers][row_bytes], and what is kept once a
// page.
struct CacheSpec {
  std::string name;  // "mla_latent", "kv_heads"
  int num_layers = 0;
  std::size_t row_bytes = 0;         // one token of one layer
  std::size_t page_state_bytes = 0;  // beside the rows of a page: what holds at its last token
  std::size_t page_model_bytes = 0;  // of those, the last: the model's own, not the engine's
  // What a sequence carries along while it runs, however long it is: recurrent states, and what its
  // last tokens may still need. 0: nothing.
  std::size_t state_bytes = 0;
  // What of it remains at the end of a page. With any, a prefix can be taken up only where somebody
  // kept a snapshot; with none, at the end of every page.
  std::size_t snapshot_bytes = 0;
  std::size_t bytes_per_token() const { return static_cast<std::size_t>(num_layers) * row_bytes; }
  // Rounded so that the rows of the next page start at a cache line when these do.
  std::size_t page_state_stride() const { return (page_state_bytes + 63) / 64 * 64; }
  std::size_t bytes_per_page() const { return bytes_per_token() * kPageSize + page_state_stride(); }
  std::size_t state_stride() const { return (state_bytes + 63) / 64 * 64; }
  std::size_t snapshot_stride() const { return (snapshot_bytes + 63) / 64 * 64; }
};

// How many recurrent states and snapshots there is room for; of no account where the spec has none.
struct StateRoom {
  std::size_t num_states = 0;  // as many sequences may be alive at once
  std::size_t num_snapshots = 0;
};

using PageId = std::int32_t;
using SnapshotId = std::int32_t;
inline constexpr SnapshotId kNoSnapshot = -1;

// What a PageStore holds and did so far. Pages and snapshots count alike, as entries.
struct StoreStats {
  std::uint64_t entries = 0, bytes = 0;  // on disk; of other models too
  std::uint64_t max_bytes = 0;
  std::uint64_t written = 0, read = 0, evicted = 0;  // entries
  std::uint64_t dropped = 0;                         // not written: the queue was full, or the disk
  std::uint64_t damaged = 0;  // found not to be what was written, and removed
};

struct CacheStats {
  std::size_t total_pages = 0;
  std::size_t free_pages = 0;    // never used, or given back and not in the prefix tree
  std::size_t cached_pages = 0;  // in the prefix tree and leased by nobody: may be evicted
  std::size_t leased_pages = 0;
  std::size_t page_bytes = 0;        // of one
  std::size_t max_cached_pages = 0;  // cached_pages is never more
  std::uint64_t evicted_pages = 0;   // that left the prefix tree for want of room
  std::uint64_t prefix_queries = 0;  // tokens asked for
  std::uint64_t prefix_hits = 0;     // tokens found
  std::size_t total_states = 0, used_states = 0;
  std::size_t total_snapshots = 0, kept_snapshots = 0;  // kept: with a page of the prefix tree
  std::uint64_t evicted_snapshots = 0;                  // that made room for others
  std::optional<StoreStats> store = {};                 // where there is one
};

class Cache;

// The pages, recurrent state and length of one sequence; move-only; gives everything back when
// destroyed.
class SequenceCache {
 public:
  SequenceCache() = default;
  SequenceCache(SequenceCache&& other) noexcept;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  ~SequenceCache();

  std::span<const PageId> pages() const { return pages_; }
  int length() const { return length_; }  // tokens whose rows are written (or shared)
  // [CacheSpec::state_bytes], at a cache line; null where there is none. Its own while it lives;
  // what an earlier sequence left there until Model::start_state().
  std::byte* state() const;
  // What was kept of the state at length() when start() found a prefix, until the first reserve();
  // null without.
  const std::byte* snapshot() const;

  // Makes rows [length, length + n) writable: the only rows that may be written, until the next
  // truncate. A page that truncation left half used while others share it is copied first.
  // kExhausted, with nothing changed, when pages run out even after eviction.
  Status reserve(int n);
  // The rows of `tokens` (which continue the sequence) are written: raises length, and offers each
  // page that filled to the prefix tree under the chain of all tokens so far. If the tree holds the
  // same page already, that one takes the place of ours in pages().
  void commit(std::span<const std::int32_t> tokens);
  // Room for a snapshot of the state after `length` tokens, a multiple of kPageSize: whoever writes
  // it does so before the commit that reaches that length, or the next one after that; this keeps
  // it with the page that ends there, unless that has one. `replaces`: it then takes the place of
  // the last such one of this sequence, if nobody started from that. Null: there is no room, or no
  // need.
  std::byte* reserve_snapshot(int length, bool replaces = false);
  // Forgets rows from `new_length` on (rejected drafts). Whole pages beyond it are given back,
  // reserved ones and room for snapshots too.
  void truncate(int new_length);

 private:
  friend class Cache;
  explicit SequenceCache(Cache* cache, std::uint64_t salt);
  void swap(SequenceCache& other) noexcept;
  void release();
  bool tail_is_shared() const;
  void offer(std::size_t page_index);
  void keep_snapshots();
  void end_reading();

  Cache* cache_ = nullptr;
  std::vector<PageId> pages_;  // with prefix reuse, the full ones are a path of the prefix tree
  std::vector<std::int32_t> tokens_;  // [length]
  int length_ = 0;
  std::uint64_t salt_ = 0;

  struct Written {
    int length;
    SnapshotId id;
    bool replaces;
  };
  int state_slot_ = -1;
  SnapshotId read_ = kNoSnapshot;  // pinned
  std::vector<Written> written_;
  SnapshotId last_ = kNoSnapshot;  // the last that `replaces`, and when it was entered
  std::uint64_t last_entered_ = 0;
};

class Cache {
 public:
  // Reserves address space for num_pages pages, and for states and snapshots; memory is touched as
  // it is used. Aborts where make() fails. prefix_reuse false: nothing is kept after a sequence
  // ends.
  Cache(CacheSpec spec, std::size_t num_pages, bool prefix_reuse, StateRoom room = {});
  // The same for sizes that come from outside. Errors: kInvalidArgument (no layers, empty rows,
  // sizes that overflow), kExhausted (the system has not that much address space); both name the
  // sizes.
  static Result<std::unique_ptr<Cache>> make(CacheSpec spec, std::size_t num_pages,
                                             bool prefix_reuse, StateRoom room = {});
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const CacheSpec& spec() const;
  bool prefix_reuse() const;
  // At most so many pages that nobody leases stay in the prefix tree, from now on; all unless this
  // is called. Those used least recently leave first, leaves before their parents.
  void limit_cached(std::size_t num_pages);
  // What leaves the prefix tree for want of room is written there. Before the first start().
  void attach(std::shared_ptr<PageStore> store);
  PageStore* store() const;  // null without
  // A sequence that starts with the longest cached prefix of `tokens` in whole pages, but never all
  // of them: at least one token is left to compute. With snapshot_bytes it ends at the deepest
  // snapshot. `salt` separates tenants: only equal salts share. Aborts when a state is needed and
  // all are used. See start_sequence() in models/model.h.
  SequenceCache start(std::span<const std::int32_t> tokens, std::uint64_t salt = 0);
  // What start() would find now, without taking it: pages, and how many of them nobody leases yet.
  struct PrefixMatch {
    int pages = 0;
    int unleased = 0;
    int known = 0;  // pages that are cached, those too that no snapshot lets anybody take up
  };
  PrefixMatch match(std::span<const std::int32_t> tokens, std::uint64_t salt = 0) const;
  // Pages that could be leased now (free + evictable).
  std::size_t available_pages() const;
  CacheStats stats() const;
  void clear_prefixes();  // drops every cached page that nobody leases; the store gets none of them
  // Aborts unless free + cached + leased == total and every reference count is right. For tests,
  // and after them.
  void check_integrity() const;

  // Where layer `layer` of `page` starts: kPageSize times row_bytes. How they are arranged is the
  // model's affair: token by token, or head by head (layers/gqa.h).
  std::byte* rows(PageId page, int layer);
  const std::byte* rows(PageId page, int layer) const;
  // spec().page_state_bytes that live and are found again with the page. They tell of its last
  // token, so they are zeros on a page handed out to be written, be it fresh or a full one that
  // truncation reopened; whoever has something to say writes them before the commit that fills the
  // page. That commit may put an equal page of the prefix tree, with its state, in ours' place.
  std::byte* page_state(PageId page);
  const std::byte* page_state(PageId page) const;

 private:
  friend class SequenceCache;
  friend class StoreJob;
  friend class Recall;
  struct State;
  void clear_page_state(PageId page);
  struct Prefix;
  Prefix find_prefix(std::span<const std::int32_t> tokens, std::uint64_t salt) const;
  explicit Cache(std::unique_ptr<State> state);
  static Result<std::unique_ptr<State>> make_state(CacheSpec spec, std::size_t num_pages,
                                                   bool prefix_reuse, StateRoom room);
  std::unique_ptr<State> state_;
};

}  // namespace glint
