#include "cache/page_pool.h"

#include <algorithm>
#include <limits>
#include <random>

#include "base/check.h"

namespace glint {
namespace {

// The finaliser of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

PagePool::PagePool(std::size_t num_pages, SnapshotPool& snapshots)
    : snapshots_(snapshots), pages_(num_pages) {
  GLINT_CHECK(num_pages <= static_cast<std::size_t>(std::numeric_limits<PageId>::max()));
  std::random_device random;
  hash_key_ = (static_cast<std::uint64_t>(random()) << 32) | random();
}

std::uint64_t PagePool::hash(PageId parent, std::uint64_t salt,
                             std::span<const std::int32_t> tokens) const {
  std::uint64_t h = mix(hash_key_ ^ static_cast<std::uint32_t>(parent));
  if (parent == kNoPage) h = mix(h ^ salt);
  for (const std::int32_t token : tokens) {
    h = mix((h + 0x9e3779b97f4a7c15u) ^ static_cast<std::uint32_t>(token));
  }
  return h;
}

PageId PagePool::acquire() {
  if (free_count() == 0) {
    if (evictable_.empty()) return kNoPage;
    evict_oldest();
  }
  PageId page = kNoPage;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = static_cast<PageId>(num_touched_++);
  }
  pages_[index(page)].leases = 1;
  ++leased_;
  return page;
}

void PagePool::lease(PageId page) {
  Page& entry = pages_[index(page)];
  GLINT_CHECK(entry.node != nullptr);
  if (entry.leases++ == 0) {
    if (entry.node->num_children == 0) evictable_.erase({entry.last_use, page});
    --cached_;
    ++leased_;
  }
}

void PagePool::release(PageId page) {
  Page& entry = pages_[index(page)];
  GLINT_CHECK(entry.leases > 0);
  if (--entry.leases > 0) return;
  --leased_;
  if (entry.node == nullptr) {
    free_.push_back(page);
    return;
  }
  ++cached_;
  entry.last_use = ++clock_;
  if (entry.node->num_children == 0) evictable_.insert({entry.last_use, page});
  if (cached_ > max_cached_) evict_oldest();
}

void PagePool::limit_cached(std::size_t num_pages) {
  max_cached_ = num_pages;
  while (cached_ > max_cached_) evict_oldest();
}

void PagePool::touch(PageId page) {
  Page& entry = pages_[index(page)];
  GLINT_CHECK(entry.node != nullptr);
  if (entry.leases > 0) return;
  const bool listed = evictable_.erase({entry.last_use, page}) > 0;
  entry.last_use = ++clock_;
  if (listed) evictable_.insert({entry.last_use, page});
}

PageId PagePool::find(PageId parent, std::uint64_t salt,
                      std::span<const std::int32_t> tokens) const {
  const auto [first, last] = by_hash_.equal_range(hash(parent, salt, tokens));
  for (auto it = first; it != last; ++it) {
    const Node& node = *pages_[index(it->second)].node;
    if (node.parent == parent && (parent != kNoPage || node.salt == salt) &&
        std::ranges::equal(node.tokens, tokens)) {
      return it->second;
    }
  }
  return kNoPage;
}

void PagePool::insert(PageId page, PageId parent, std::uint64_t salt,
                      std::span<const std::int32_t> tokens) {
  Page& entry = pages_[index(page)];
  GLINT_CHECK(entry.node == nullptr && entry.leases == 1 && tokens.size() == kPageSize);
  entry.node = std::make_unique<Node>();
  entry.node->parent = parent;
  entry.node->salt = salt;
  entry.node->hash = hash(parent, salt, tokens);
  std::ranges::copy(tokens, entry.node->tokens.begin());
  if (parent != kNoPage) {
    Page& above = pages_[index(parent)];
    GLINT_CHECK(above.node != nullptr && above.leases > 0);
    ++above.node->num_children;
  }
  by_hash_.emplace(entry.node->hash, page);
}

bool PagePool::can_detach(PageId page) const {
  const Page& entry = pages_[index(page)];
  return entry.node != nullptr && entry.leases == 1 && entry.node->num_children == 0;
}

void PagePool::detach(PageId page) {
  GLINT_CHECK(can_detach(page));
  remove_from_tree(page);
}

void PagePool::remove_from_tree(PageId page) {
  Page& entry = pages_[index(page)];
  snapshots_.drop(page);
  const auto [first, last] = by_hash_.equal_range(entry.node->hash);
  by_hash_.erase(
      std::find_if(first, last, [page](const auto& item) { return item.second == page; }));
  if (const PageId parent = entry.node->parent; parent != kNoPage) {
    Page& above = pages_[index(parent)];
    --above.node->num_children;
    if (evictable(above)) evictable_.insert({above.last_use, parent});
  }
  entry.node.reset();
}

void PagePool::drop(PageId page) {
  evictable_.erase({pages_[index(page)].last_use, page});
  remove_from_tree(page);
  --cached_;
  free_.push_back(page);
}

void PagePool::evict_oldest() {
  const PageId page = evictable_.begin()->second;
  if (on_evict_) on_evict_(page);
  ++evicted_;
  drop(page);
}

void PagePool::clear() {
  while (!evictable_.empty()) drop(evictable_.begin()->second);
}

void PagePool::check_integrity(std::span<const int> leases) const {
  GLINT_CHECK(leases.size() == pages_.size());
  std::vector<char> is_free(pages_.size(), 0);
  for (std::size_t page = num_touched_; page < pages_.size(); ++page) is_free[page] = 1;
  for (const PageId page : free_) {
    GLINT_CHECK(page >= 0 && index(page) < num_touched_ && !is_free[index(page)]);
    is_free[index(page)] = 1;
  }
  std::vector<int> num_children(pages_.size(), 0);
  std::size_t num_nodes = 0, cached = 0, leased = 0, leaves = 0;
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    const Page& entry = pages_[page];
    GLINT_CHECK(entry.leases == leases[page]);
    GLINT_CHECK(static_cast<bool>(is_free[page]) == (entry.leases == 0 && entry.node == nullptr));
    if (entry.leases > 0) ++leased;
    if (entry.node == nullptr) continue;
    const Node& node = *entry.node;
    ++num_nodes;
    if (entry.leases == 0) ++cached;
    if (node.parent != kNoPage) {
      const Page& above = pages_[index(node.parent)];
      GLINT_CHECK(above.node != nullptr);
      GLINT_CHECK(entry.leases == 0 || above.leases > 0);
      // By subtree: while neither is leased, the parent was used last.
      GLINT_CHECK(above.leases > 0 || above.last_use > entry.last_use);
      ++num_children[index(node.parent)];
    }
    GLINT_CHECK(find(node.parent, node.salt, node.tokens) == static_cast<PageId>(page));
    const bool listed = evictable_.contains({entry.last_use, static_cast<PageId>(page)});
    GLINT_CHECK(listed == evictable(entry));
    if (listed) ++leaves;
  }
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    if (pages_[page].node != nullptr)
      GLINT_CHECK(pages_[page].node->num_children == num_children[page]);
  }
  GLINT_CHECK(num_nodes == by_hash_.size() && leaves == evictable_.size());
  GLINT_CHECK(cached == cached_ && leased == leased_ && cached_ <= max_cached_);
  GLINT_CHECK(free_count() + cached_ + leased_ == pages_.size());
}

}  // namespace glint
