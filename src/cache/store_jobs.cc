#include "cache/store_jobs.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "cache/cache_state.h"
#include "cache/page_store.h"

namespace glint {
namespace {

// Restoring reads so much at once.
constexpr std::size_t kBatchBytes = std::size_t{16} << 20;

std::size_t index(PageId page) {
  return static_cast<std::size_t>(page);
}

}  // namespace

StoreJob::StoreJob(Cache& cache) : state_(*cache.state_), hold_(std::make_unique<CacheHold>()) {
  GLINT_CHECK(state_.store != nullptr);
  state_.holds.push_back(hold_.get());
}

StoreJob::~StoreJob() {
  if (read_ != nullptr) read_->cancel();
  while (is_reading()) state_.store->wait_progress(0.1);
  give_back();
  std::erase(state_.holds, hold_.get());
}

void StoreJob::begin_reading(bool stops_at_failure) {
  std::vector<StoreRead::Item> items;
  for (const Item& item : items_) {
    const std::span<std::byte> to =
        item.kind == StoredKind::kPage
            ? state_.page(item.page)
            : std::span(state_.snapshot_of(item.slot), state_.spec.snapshot_bytes);
    items.push_back({.key = item.key, .kind = item.kind, .to = to, .expected = item.expected});
  }
  read_ = state_.store->read(std::move(items), stops_at_failure);
}

bool StoreJob::is_reading() const {
  return read_ != nullptr && !read_->is_done();
}

void StoreJob::give_back() {
  if (const SnapshotId id = std::exchange(hold_->written, kNoSnapshot); id != kNoSnapshot)
    state_.snapshots.give_back(id);
  if (const SnapshotId id = std::exchange(hold_->pinned, kNoSnapshot); id != kNoSnapshot)
    state_.snapshots.unpin(id);
  // From the end, so that a parent is never less recently used than its child.
  while (!hold_->pages.empty()) {
    state_.pool.release(hold_->pages.back());
    hold_->pages.pop_back();
  }
}

std::unique_ptr<Recall> Recall::begin(Cache& cache, std::span<const std::int32_t> tokens,
                                      std::uint64_t salt) {
  if (cache.store() == nullptr) return nullptr;
  std::unique_ptr<Recall> recall(new Recall(cache));
  if (!recall->plan(cache, tokens, salt)) return nullptr;
  recall->begin_reading(true);
  return recall;
}

bool Recall::plan(Cache& cache, std::span<const std::int32_t> tokens, std::uint64_t salt) {
  if (tokens.empty()) return false;
  salt_ = salt;
  PageStore& store = *state_.store;
  const Cache::Prefix found = cache.find_prefix(tokens, salt);
  const std::size_t num_known = found.pages.size();
  const std::size_t most = (tokens.size() - 1) / kPageSize;
  std::vector<StoredEntry> entries;  // beyond those, as the store should have them
  StoreKey key = num_known == 0 ? store.root(salt) : state_.keys[index(found.pages.back())];
  while (num_known + entries.size() < most) {
    StoredEntry entry;
    const auto content = tokens.subspan((num_known + entries.size()) * kPageSize, kPageSize);
    entry.parent = std::exchange(key, store.key_after(key, content));
    entry.key = key;
    entry.salt = salt;
    std::ranges::copy(content, entry.tokens.begin());
    if (!store.has(key, StoredKind::kPage)) break;
    entries.push_back(entry);
  }
  std::size_t depth = num_known + entries.size();
  const bool by_snapshot = state_.spec.snapshot_bytes > 0;
  const auto key_at = [&](std::size_t length) {
    return length > num_known ? entries[length - num_known - 1].key
                              : state_.keys[index(found.pages[length - 1])];
  };
  if (by_snapshot) {
    while (depth > found.usable && !store.has(key_at(depth), StoredKind::kSnapshot)) --depth;
  }
  if (depth <= found.usable) return false;

  num_known_ = std::min(depth, num_known);
  for (const PageId page : std::span(found.pages).first(num_known_)) {
    state_.pool.lease(page);
    hold_->pages.push_back(page);
  }
  entries.resize(depth - num_known_);
  if (entries.size() > state_.pool.available()) {
    if (by_snapshot || state_.pool.available() == 0) return false;
    entries.resize(state_.pool.available());
  }
  if (by_snapshot) {
    const SnapshotId slot = state_.snapshots.acquire();
    if (slot == kNoSnapshot) return false;
    hold_->written = slot;
  }
  for (const StoredEntry& entry : entries) {
    const PageId page = state_.pool.acquire();
    hold_->pages.push_back(page);
    items_.push_back(
        {.key = entry.key, .kind = StoredKind::kPage, .page = page, .expected = entry});
  }
  if (by_snapshot) {
    items_.push_back({.key = key_at(depth),
                      .kind = StoredKind::kSnapshot,
                      .page = hold_->pages.back(),
                      .slot = hold_->written});
  }
  return true;
}

bool Recall::is_done() {
  if (is_reading()) return false;
  if (!std::exchange(installed_, true)) install();
  return true;
}

void Recall::install() {
  std::vector<PageId>& pages = hold_->pages;
  const auto& read = read_->items();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].kind == StoredKind::kSnapshot) {
      if (!read[i].is_fine || pages.size() != num_known_ + i) continue;
      const SnapshotId id = std::exchange(hold_->written, kNoSnapshot);
      state_.snapshots.attach(id, pages.back());
      hold_->pinned = state_.snapshots.find(pages.back());
      state_.snapshots.pin(hold_->pinned);
      continue;
    }
    const std::size_t at = num_known_ + i;
    if (!read[i].is_fine) {
      while (pages.size() > at) {
        state_.pool.release(pages.back());
        pages.pop_back();
      }
      break;
    }
    const PageId parent = at == 0 ? kNoPage : pages[at - 1];
    const auto& tokens = items_[i].expected->tokens;
    if (const PageId same = state_.pool.find(parent, salt_, tokens); same != kNoPage) {
      state_.pool.lease(same);
      state_.pool.release(std::exchange(pages[at], same));
    } else {
      state_.pool.insert(pages[at], parent, salt_, tokens);
      state_.entered(pages[at]);
    }
  }
  if (const SnapshotId id = std::exchange(hold_->written, kNoSnapshot); id != kNoSnapshot)
    state_.snapshots.give_back(id);
}

void forget_stored(Cache& cache, std::span<const std::int32_t> tokens, std::uint64_t salt) {
  PageStore* store = cache.store();
  if (store == nullptr) return;
  StoreKey key = store->root(salt);
  for (; tokens.size() >= kPageSize; tokens = tokens.subspan(kPageSize)) {
    key = store->key_after(key, tokens.first(kPageSize));
    store->remove(key);
  }
}

SaveJob::SaveJob(Cache& cache) : StoreJob(cache) {
  const PagePool& pool = state_.pool;
  struct Candidate {
    PageId page;
    int depth;
  };
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < pool.total(); ++i) {
    const auto page = static_cast<PageId>(i);
    if (!pool.in_tree(page)) continue;
    int depth = 0;
    for (PageId at = pool.parent(page); at != kNoPage; at = pool.parent(at)) ++depth;
    candidates.push_back({page, depth});
  }
  // What is in use counts as newest; a parent comes before its children everywhere.
  std::ranges::sort(candidates, [&pool](const Candidate& a, const Candidate& b) {
    const bool a_leased = pool.is_leased(a.page), b_leased = pool.is_leased(b.page);
    if (a_leased != b_leased) return a_leased;
    if (a_leased) return std::pair(a.depth, a.page) < std::pair(b.depth, b.page);
    return pool.last_use(a.page) > pool.last_use(b.page);
  });
  std::uint64_t left = state_.store->stats().max_bytes;
  for (const Candidate& candidate : candidates) {
    const StoreKey key = state_.keys[index(candidate.page)];
    const auto add = [&](StoredKind kind, std::uint64_t nbytes) {
      const std::uint64_t file_bytes = nbytes + kStoredHeaderBytes;
      if (file_bytes > left) return;
      left -= file_bytes;
      items_.push_back({.key = key, .kind = kind, .page = candidate.page});
    };
    add(StoredKind::kPage, state_.page_bytes);
    if (state_.snapshots.find(candidate.page) != kNoSnapshot)
      add(StoredKind::kSnapshot, state_.spec.snapshot_bytes);
  }
  // They count as used one after the other, the first one last.
  stamp_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
               .count();
  std::erase_if(items_, [this](const Item& item) {
    if (!state_.store->knows(item.key, item.kind)) return false;
    state_.store->touch(item.key, item.kind, --stamp_);
    if (item.kind == StoredKind::kPage) ++report_.present;
    return true;
  });
}

bool SaveJob::advance() {
  PageStore& store = *state_.store;
  while (next_ < items_.size()) {
    const Item& item = items_[next_];
    const bool is_page = item.kind == StoredKind::kPage;
    if (!store.has_queue_room(is_page ? state_.page_bytes : state_.spec.snapshot_bytes))
      return false;
    ++next_;
    // What left the tree meanwhile went to the store then.
    if (!state_.pool.in_tree(item.page) || state_.keys[index(item.page)] != item.key) continue;
    if (!is_page && state_.snapshots.find(item.page) == kNoSnapshot) continue;
    state_.spill(item.page, item.kind, --stamp_);
  }
  if (!store.wait_idle(0)) return false;
  for (const Item& item : std::exchange(items_, {})) {
    if (!store.has(item.key, item.kind)) {
      ++report_.left_out;
    } else if (item.kind == StoredKind::kPage) {
      ++report_.pages;
      report_.bytes += state_.page_bytes;
    } else {
      ++report_.snapshots;
      report_.bytes += state_.spec.snapshot_bytes;
    }
  }
  next_ = 0;
  return true;
}

RestoreJob::RestoreJob(Cache& cache) : StoreJob(cache) {
  const PagePool& pool = state_.pool;
  for (std::size_t i = 0; i < pool.total(); ++i) {
    const auto page = static_cast<PageId>(i);
    if (pool.in_tree(page)) by_key_.emplace(state_.keys[i], page);
  }
  room_ = std::min(pool.max_cached() - pool.cached_count(), pool.free_count());
  for (const StoreKey& key : state_.store->newest(StoredKind::kPage, pool.total() + room_)) {
    if (by_key_.contains(key)) {
      ++report_.present;
    } else if (wanted_.size() < room_) {
      wanted_.push_back(key);
    }
  }
  if (state_.snapshots.total() > 0)
    wanted_snapshots_ = state_.store->newest(StoredKind::kSnapshot, pool.total());
}

// What was read counts as used in the order it was used in: the newest last.
RestoreJob::~RestoreJob() {
  for (auto it = installed_.rbegin(); it != installed_.rend(); ++it) {
    for (PageId at = find(*it); at != kNoPage; at = state_.pool.parent(at)) state_.pool.touch(at);
  }
}

bool RestoreJob::advance() {
  while (!is_reading()) {
    if (read_ != nullptr) {
      if (items_.front().kind == StoredKind::kPage) {
        install_pages();
      } else {
        install_snapshot();
      }
      read_.reset();
      items_.clear();
      give_back();
    }
    if (!begin_pages() && !begin_snapshot()) return true;
  }
  return false;
}

// Of free pages alone: nothing has to leave for what is restored.
bool RestoreJob::begin_pages() {
  const PagePool& pool = state_.pool;
  const std::size_t most = std::max<std::size_t>(1, kBatchBytes / state_.page_bytes);
  while (next_ < wanted_.size() && items_.size() < most && pool.free_count() > 0 &&
         pool.cached_count() + items_.size() < pool.max_cached()) {
    const PageId page = state_.pool.acquire();
    hold_->pages.push_back(page);
    items_.push_back({.key = wanted_[next_++], .kind = StoredKind::kPage, .page = page});
  }
  if (items_.empty()) return false;
  begin_reading(false);
  return true;
}

bool RestoreJob::begin_snapshot() {
  while (next_snapshot_ < wanted_snapshots_.size() && state_.snapshots.free_count() > 0) {
    const StoreKey key = wanted_snapshots_[next_snapshot_++];
    const PageId page = find(key);
    if (page == kNoPage || state_.snapshots.find(page) != kNoSnapshot) continue;
    hold_->written = state_.snapshots.acquire();
    items_.push_back(
        {.key = key, .kind = StoredKind::kSnapshot, .page = page, .slot = hold_->written});
    begin_reading(false);
    return true;
  }
  return false;
}

PageId RestoreJob::find(const StoreKey& key) const {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return kNoPage;
  const PageId page = it->second;
  return state_.pool.in_tree(page) && state_.keys[index(page)] == key ? page : kNoPage;
}

void RestoreJob::install_pages() {
  PagePool& pool = state_.pool;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const StoreRead::Item& read = read_->items()[i];
    const StoredEntry& entry = read.found;
    const PageId page = items_[i].page;
    const bool is_first = read.is_fine && entry.parent == state_.store->root(entry.salt);
    const PageId parent = read.is_fine && !is_first ? find(entry.parent) : kNoPage;
    const bool has_place = is_first || (parent != kNoPage && pool.salt(parent) == entry.salt);
    if (!read.is_fine || !has_place || pool.find(parent, entry.salt, entry.tokens) != kNoPage) {
      ++report_.left_out;
      continue;
    }
    // Whoever leases a page leases its ancestors.
    std::vector<PageId> path;
    for (PageId at = parent; at != kNoPage; at = pool.parent(at)) path.push_back(at);
    for (const PageId at : path) pool.lease(at);
    pool.insert(page, parent, entry.salt, entry.tokens);
    state_.entered(page);
    std::erase(hold_->pages, page);
    pool.release(page);
    for (const PageId at : path) pool.release(at);
    by_key_[entry.key] = page;
    installed_.push_back(entry.key);
    ++report_.pages;
    report_.bytes += state_.page_bytes;
  }
}

void RestoreJob::install_snapshot() {
  const SnapshotId id = std::exchange(hold_->written, kNoSnapshot);
  const PageId page = find(items_.front().key);
  if (!read_->items().front().is_fine || page == kNoPage) {
    state_.snapshots.give_back(id);
    ++report_.left_out;
    return;
  }
  if (state_.snapshots.attach(id, page) == 0) return;
  ++report_.snapshots;
  report_.bytes += state_.spec.snapshot_bytes;
}

}  // namespace glint
