// The bookkeeping of cache pages: which are free, which are leased and how often, and the prefix
// tree that finds full pages again by content. Knows no memory and no sequences. A page in the tree
// is its own node, so a page id names both; its snapshot leaves with it.
//
// Whoever leases a page of the tree leases its ancestors too. Hence an unleased page has only
// unleased descendants, and every unleased page can be evicted, leaves first. Leases end from the
// leaf upwards, so a parent was used after its descendants, and what is used least recently is
// always a leaf: a conversation leaves as a whole, from its end, before one that was used later.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/snapshot_pool.h"

namespace glint {

inline constexpr PageId kNoPage = -1;

class PagePool {
 public:
  // Borrows `snapshots`.
  PagePool(std::size_t num_pages, SnapshotPool& snapshots);

  // A page for one sequence alone, evicting the least recently used leaf if need be; kNoPage when
  // every page is leased.
  PageId acquire();
  // Leases a page that is in the tree once more.
  void lease(PageId page);
  // Ends one lease. An unleased page stays cached if it is in the tree, and is free otherwise.
  void release(PageId page);

  // The page that holds `tokens` after `parent` (kNoPage: at the start, for this salt), or kNoPage.
  PageId find(PageId parent, std::uint64_t salt, std::span<const std::int32_t> tokens) const;
  // Puts a page that its holder alone leases into the tree; find() must have failed.
  void insert(PageId page, PageId parent, std::uint64_t salt, std::span<const std::int32_t> tokens);
  bool in_tree(PageId page) const { return pages_[index(page)].node != nullptr; }
  bool is_leased(PageId page) const { return pages_[index(page)].leases > 0; }
  // Whether one sequence leases it and nothing hangs below it, so that it may leave the tree.
  bool can_detach(PageId page) const;
  // Takes such a page out of the tree, still leased.
  void detach(PageId page);
  // Drops every page that nobody leases, without telling the observer.
  void clear();
  // At most so many unleased pages stay in the tree.
  void limit_cached(std::size_t num_pages);
  // Called with each page that leaves the tree for want of room, while it is still there.
  void observe_evictions(std::function<void(PageId)> observer) { on_evict_ = std::move(observer); }
  // An unleased page counts as used now, but before its ancestors if they are touched next.
  void touch(PageId page);

  // Of a page of the tree.
  PageId parent(PageId page) const { return pages_[index(page)].node->parent; }
  std::uint64_t salt(PageId page) const { return pages_[index(page)].node->salt; }
  std::span<const std::int32_t> tokens(PageId page) const {
    return pages_[index(page)].node->tokens;
  }
  std::uint64_t last_use(PageId page) const { return pages_[index(page)].last_use; }

  std::size_t available() const { return free_count() + cached_; }
  std::size_t free_count() const { return free_.size() + (pages_.size() - num_touched_); }
  std::size_t cached_count() const { return cached_; }
  std::size_t leased_count() const { return leased_; }
  std::size_t total() const { return pages_.size(); }
  std::size_t max_cached() const { return std::min(max_cached_, pages_.size()); }
  std::uint64_t evicted() const { return evicted_; }
  // Aborts unless every count and link is right. leases[p]: how often sequences hold page p.
  void check_integrity(std::span<const int> leases) const;

 private:
  struct Node {
    PageId parent = kNoPage;
    int num_children = 0;
    std::uint64_t salt = 0;  // of the tenant; compared at the root only
    std::uint64_t hash = 0;
    std::array<std::int32_t, kPageSize> tokens{};
  };
  struct Page {
    int leases = 0;
    std::uint64_t last_use = 0;
    std::unique_ptr<Node> node;
  };
  static std::size_t index(PageId page) { return static_cast<std::size_t>(page); }
  std::uint64_t hash(PageId parent, std::uint64_t salt, std::span<const std::int32_t> tokens) const;
  bool evictable(const Page& page) const {
    return page.node != nullptr && page.leases == 0 && page.node->num_children == 0;
  }
  void remove_from_tree(PageId page);
  void drop(PageId page);
  void evict_oldest();

  SnapshotPool& snapshots_;
  std::vector<Page> pages_;
  std::vector<PageId>
      free_;  // given back, reused last in first out since their memory is touched already
  std::size_t num_touched_ = 0;  // pages [num_touched_, size) were never used
  std::size_t cached_ = 0;
  std::size_t leased_ = 0;
  std::size_t max_cached_ = std::numeric_limits<std::size_t>::max();
  std::uint64_t evicted_ = 0;
  std::function<void(PageId)> on_evict_;
  std::uint64_t clock_ = 0;
  std::uint64_t hash_key_ = 0;  // random, so that nobody can prepare prompts that collide
  std::unordered_multimap<std::uint64_t, PageId> by_hash_;
  std::set<std::pair<std::uint64_t, PageId>> evictable_;  // (last use, page): unleased leaves
};

}  // namespace glint
