#include "cache/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "cache/cache_state.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "cache/snapshot_pool.h"

namespace glint {
namespace {

std::size_t pages_for(int length) {
  return (static_cast<std::size_t>(length) + kPageSize - 1) / kPageSize;
}

}  // namespace

Result<std::unique_ptr<Cache::State>> Cache::make_state(CacheSpec spec, std::size_t num_pages,
                                                        bool prefix_reuse, StateRoom room) {
  if (spec.num_layers <= 0 || spec.row_bytes == 0) {
    return invalid_argument(fmt::format("cache {}: {} layers of {} bytes per token hold nothing",
                                        spec.name, spec.num_layers, spec.row_bytes));
  }
  std::size_t layer_bytes = 0, rows_bytes = 0, page_bytes = 0, total_bytes = 0;
  if (__builtin_mul_overflow(spec.row_bytes, std::size_t{kPageSize}, &layer_bytes) ||
      __builtin_mul_overflow(layer_bytes, static_cast<std::size_t>(spec.num_layers), &rows_bytes) ||
      spec.page_state_stride() < spec.page_state_bytes ||
      __builtin_add_overflow(rows_bytes, spec.page_state_stride(), &page_bytes) ||
      __builtin_mul_overflow(page_bytes, num_pages, &total_bytes) ||
      total_bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) ||
      num_pages > static_cast<std::size_t>(std::numeric_limits<PageId>::max())) {
    return invalid_argument(
        fmt::format("cache {}: {} pages of {} layers of {} bytes per token and {} bytes per page "
                    "overflow; ask for a smaller context or fewer sequences",
                    spec.name, num_pages, spec.num_layers, spec.row_bytes, spec.page_state_bytes));
  }
  if (spec.state_bytes == 0) room.num_states = 0;
  if (spec.snapshot_bytes == 0 || !prefix_reuse) room.num_snapshots = 0;
  constexpr auto kMostSlots = static_cast<std::size_t>(std::numeric_limits<SnapshotId>::max());
  constexpr auto kMostBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  std::size_t state_bytes = 0, snapshot_bytes = 0;
  if (spec.state_stride() < spec.state_bytes || spec.snapshot_stride() < spec.snapshot_bytes ||
      room.num_states > kMostSlots || room.num_snapshots > kMostSlots ||
      __builtin_mul_overflow(spec.state_stride(), room.num_states, &state_bytes) ||
      __builtin_mul_overflow(spec.snapshot_stride(), room.num_snapshots, &snapshot_bytes) ||
      state_bytes > kMostBytes || snapshot_bytes > kMostBytes) {
    return invalid_argument(fmt::format(
        "cache {}: {} states of {} bytes and {} snapshots of {} bytes overflow; ask "
        "for fewer sequences or snapshots",
        spec.name, room.num_states, spec.state_bytes, room.num_snapshots, spec.snapshot_bytes));
  }
  auto state = std::make_unique<State>(std::move(spec), num_pages, prefix_reuse, room);
  state->layer_bytes = layer_bytes;
  state->rows_bytes = rows_bytes;
  state->page_bytes = page_bytes;
  if (total_bytes > 0 && !state->memory.map(total_bytes)) {
    return exhausted(fmt::format(
        "cache {}: the system has no {} MiB of address space; ask for a smaller context or fewer "
        "sequences",
        state->spec.name, total_bytes >> 20));
  }
  if ((state_bytes > 0 && !state->state_memory.map(state_bytes)) ||
      (snapshot_bytes > 0 && !state->snapshot_memory.map(snapshot_bytes))) {
    return exhausted(fmt::format(
        "cache {}: the system has no {} MiB of address space for recurrent states and {} MiB for "
        "snapshots; ask for fewer sequences or snapshots",
        state->spec.name, state_bytes >> 20, snapshot_bytes >> 20));
  }
  return state;
}

Cache::Cache(std::unique_ptr<State> state) : state_(std::move(state)) {}

Cache::Cache(CacheSpec spec, std::size_t num_pages, bool prefix_reuse, StateRoom room) {
  auto state = make_state(std::move(spec), num_pages, prefix_reuse, room);
  GLINT_CHECK(state.has_value());
  state_ = std::move(*state);
}

Result<std::unique_ptr<Cache>> Cache::make(CacheSpec spec, std::size_t num_pages, bool prefix_reuse,
                                           StateRoom room) {
  GLINT_TRY(auto state, make_state(std::move(spec), num_pages, prefix_reuse, room));
  return std::unique_ptr<Cache>(new Cache(std::move(state)));
}

Cache::~Cache() {
  GLINT_CHECK(state_->sequences.empty() && state_->holds.empty());
}

void Cache::limit_cached(std::size_t num_pages) {
  state_->pool.limit_cached(num_pages);
}

void Cache::attach(std::shared_ptr<PageStore> store) {
  State& state = *state_;
  GLINT_CHECK(store != nullptr && state.store == nullptr && state.sequences.empty());
  GLINT_CHECK(state.prefix_reuse && state.pool.cached_count() == 0);
  state.store = std::move(store);
  state.keys.resize(state.pool.total());
  state.pool.observe_evictions([&state](PageId page) {
    state.spill(page, StoredKind::kPage, kStampNow);
    if (state.snapshots.find(page) != kNoSnapshot)
      state.spill(page, StoredKind::kSnapshot, kStampNow);
  });
  state.snapshots.observe_evictions(
      [&state](PageId page) { state.spill(page, StoredKind::kSnapshot, kStampNow); });
}

PageStore* Cache::store() const {
  return state_->store.get();
}

StoredEntry Cache::State::entry_of(PageId id, StoredKind kind) const {
  StoredEntry entry;
  entry.kind = kind;
  entry.key = keys[static_cast<std::size_t>(id)];
  entry.salt = pool.salt(id);
  const PageId parent = pool.parent(id);
  entry.parent =
      parent == kNoPage ? store->root(entry.salt) : keys[static_cast<std::size_t>(parent)];
  std::ranges::copy(pool.tokens(id), entry.tokens.begin());
  entry.nbytes = kind == StoredKind::kPage ? page_bytes : spec.snapshot_bytes;
  return entry;
}

bool Cache::State::spill(PageId id, StoredKind kind, std::int64_t stamp) {
  const StoreKey& key = keys[static_cast<std::size_t>(id)];
  if (store->knows(key, kind)) {
    store->touch(key, kind, stamp);
    return true;
  }
  const std::byte* content =
      kind == StoredKind::kPage ? page(id).data() : snapshot_of(snapshots.find(id));
  const StoredEntry entry = entry_of(id, kind);
  return store->write(entry, {content, entry.nbytes}, stamp);
}

const CacheSpec& Cache::spec() const {
  return state_->spec;
}

bool Cache::prefix_reuse() const {
  return state_->prefix_reuse;
}

// The longest path of the prefix tree along `tokens` that leaves one token over.
Cache::Prefix Cache::find_prefix(std::span<const std::int32_t> tokens, std::uint64_t salt) const {
  Prefix prefix;
  std::vector<PageId>& pages = prefix.pages;
  if (!state_->prefix_reuse || tokens.empty()) return prefix;
  // The last token is always computed: its logits are what the caller is after.
  const std::size_t max_pages = (tokens.size() - 1) / kPageSize;
  while (pages.size() < max_pages) {
    const PageId parent = pages.empty() ? kNoPage : pages.back();
    const auto content = tokens.subspan(pages.size() * kPageSize, kPageSize);
    const PageId page = state_->pool.find(parent, salt, content);
    if (page == kNoPage) break;
    pages.push_back(page);
    if (const SnapshotId id = state_->snapshots.find(page); id != kNoSnapshot) {
      prefix.usable = pages.size();
      prefix.snapshot = id;
    }
  }
  if (state_->spec.snapshot_bytes == 0) prefix.usable = pages.size();
  return prefix;
}

SequenceCache Cache::start(std::span<const std::int32_t> tokens, std::uint64_t salt) {
  SequenceCache sequence(this, salt);
  Prefix found = find_prefix(tokens, salt);
  found.pages.resize(found.usable);
  sequence.pages_ = std::move(found.pages);
  for (const PageId page : sequence.pages_) state_->pool.lease(page);
  sequence.read_ = found.snapshot;
  if (found.snapshot != kNoSnapshot) state_->snapshots.pin(found.snapshot);
  const auto prefix = tokens.first(sequence.pages_.size() * kPageSize);
  sequence.tokens_.assign(prefix.begin(), prefix.end());
  sequence.length_ = static_cast<int>(prefix.size());
  state_->prefix_queries += tokens.size();
  state_->prefix_hits += prefix.size();
  return sequence;
}

Cache::PrefixMatch Cache::match(std::span<const std::int32_t> tokens, std::uint64_t salt) const {
  const Prefix found = find_prefix(tokens, salt);
  const auto usable = std::span(found.pages).first(found.usable);
  const auto unleased =
      std::ranges::count_if(usable, [this](PageId page) { return !state_->pool.is_leased(page); });
  return {.pages = static_cast<int>(usable.size()),
          .unleased = static_cast<int>(unleased),
          .known = static_cast<int>(found.pages.size())};
}

std::size_t Cache::available_pages() const {
  return state_->pool.available();
}

CacheStats Cache::stats() const {
  const PagePool& pool = state_->pool;
  return {.total_pages = pool.total(),
          .free_pages = pool.free_count(),
          .cached_pages = pool.cached_count(),
          .leased_pages = pool.leased_count(),
          .page_bytes = state_->page_bytes,
          .max_cached_pages = state_->prefix_reuse ? pool.max_cached() : 0,
          .evicted_pages = pool.evicted(),
          .prefix_queries = state_->prefix_queries,
          .prefix_hits = state_->prefix_hits,
          .total_states = state_->num_states,
          .used_states = state_->num_states - state_->free_states.size(),
          .total_snapshots = state_->snapshots.total(),
          .kept_snapshots = state_->snapshots.kept(),
          .evicted_snapshots = state_->snapshots.evicted(),
          .store = state_->store == nullptr ? std::nullopt
                                            : std::optional<StoreStats>(state_->store->stats())};
}

void Cache::clear_prefixes() {
  state_->pool.clear();
}

void Cache::check_integrity() const {
  std::vector<int> leases(state_->pool.total(), 0);
  std::vector<char> is_used(state_->num_states, 0);  // states
  for (const int slot : state_->free_states) {
    GLINT_CHECK(!is_used[static_cast<std::size_t>(slot)]);
    is_used[static_cast<std::size_t>(slot)] = 1;
  }
  std::vector<SnapshotId> written;
  std::vector<int> pins(state_->snapshots.total(), 0);
  for (const SequenceCache* sequence : state_->sequences) {
    GLINT_CHECK(sequence->cache_ == this);
    GLINT_CHECK((sequence->state_slot_ >= 0) == (state_->spec.state_bytes > 0));
    if (sequence->state_slot_ >= 0) {
      GLINT_CHECK(!is_used[static_cast<std::size_t>(sequence->state_slot_)]);
      is_used[static_cast<std::size_t>(sequence->state_slot_)] = 1;
    }
    for (const SequenceCache::Written& snapshot : sequence->written_)
      written.push_back(snapshot.id);
    if (sequence->read_ != kNoSnapshot) {
      ++pins[static_cast<std::size_t>(sequence->read_)];
      GLINT_CHECK(state_->snapshots.find(sequence->pages_.back()) == sequence->read_);
    }
    GLINT_CHECK(sequence->tokens_.size() == static_cast<std::size_t>(sequence->length_));
    GLINT_CHECK(sequence->pages_.size() >= pages_for(sequence->length_));
    const std::size_t full_pages = static_cast<std::size_t>(sequence->length_ / kPageSize);
    for (std::size_t i = 0; i < sequence->pages_.size(); ++i) {
      const PageId page = sequence->pages_[i];
      GLINT_CHECK(page >= 0 && static_cast<std::size_t>(page) < leases.size());
      ++leases[static_cast<std::size_t>(page)];
      if (i >= full_pages || !state_->prefix_reuse) continue;
      const auto content = std::span(sequence->tokens_).subspan(i * kPageSize, kPageSize);
      const PageId parent = i == 0 ? kNoPage : sequence->pages_[i - 1];
      GLINT_CHECK(state_->pool.find(parent, sequence->salt_, content) == page);
    }
  }
  for (const CacheHold* hold : state_->holds) {
    for (const PageId page : hold->pages) ++leases[static_cast<std::size_t>(page)];
    if (hold->written != kNoSnapshot) written.push_back(hold->written);
    if (hold->pinned != kNoSnapshot) ++pins[static_cast<std::size_t>(hold->pinned)];
  }
  GLINT_CHECK(std::ranges::all_of(is_used, [](char used) { return used != 0; }));
  state_->pool.check_integrity(leases);
  state_->snapshots.check_integrity(written, pins);
  for (std::size_t page = 0; page < state_->pool.total(); ++page) {
    const auto id = static_cast<PageId>(page);
    GLINT_CHECK(state_->pool.in_tree(id) || state_->snapshots.find(id) == kNoSnapshot);
  }
}

std::byte* Cache::rows(PageId page, int layer) {
  GLINT_DCHECK(page >= 0 && static_cast<std::size_t>(page) < state_->pool.total());
  GLINT_DCHECK(layer >= 0 && layer < state_->spec.num_layers);
  return state_->memory.data() + static_cast<std::size_t>(page) * state_->page_bytes +
         static_cast<std::size_t>(layer) * state_->layer_bytes;
}

const std::byte* Cache::rows(PageId page, int layer) const {
  return const_cast<Cache*>(this)->rows(page, layer);
}

std::byte* Cache::page_state(PageId page) {
  GLINT_DCHECK(page >= 0 && static_cast<std::size_t>(page) < state_->pool.total());
  return state_->memory.data() + static_cast<std::size_t>(page) * state_->page_bytes +
         state_->rows_bytes;
}

const std::byte* Cache::page_state(PageId page) const {
  return const_cast<Cache*>(this)->page_state(page);
}

void Cache::clear_page_state(PageId page) {
  // Not touched without need: a page's memory comes with its first write.
  if (const std::size_t n = state_->spec.page_state_bytes; n > 0)
    std::memset(page_state(page), 0, n);
}

SequenceCache::SequenceCache(Cache* cache, std::uint64_t salt) : cache_(cache), salt_(salt) {
  cache_->state_->sequences.push_back(this);
  if (cache_->spec().state_bytes == 0) return;
  GLINT_CHECK(!cache_->state_->free_states.empty());
  state_slot_ = cache_->state_->free_states.back();
  cache_->state_->free_states.pop_back();
}

SequenceCache::SequenceCache(SequenceCache&& other) noexcept {
  swap(other);
}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this == &other) return *this;
  release();
  swap(other);
  return *this;
}

// Of one that holds nothing with any.
void SequenceCache::swap(SequenceCache& other) noexcept {
  GLINT_CHECK(cache_ == nullptr);
  std::swap(cache_, other.cache_);
  std::swap(pages_, other.pages_);
  std::swap(tokens_, other.tokens_);
  std::swap(length_, other.length_);
  std::swap(salt_, other.salt_);
  std::swap(state_slot_, other.state_slot_);
  std::swap(read_, other.read_);
  std::swap(written_, other.written_);
  std::swap(last_, other.last_);
  std::swap(last_entered_, other.last_entered_);
  if (cache_ != nullptr) cache_->state_->replace(&other, this);
}

SequenceCache::~SequenceCache() {
  release();
}

void SequenceCache::release() {
  if (cache_ == nullptr) return;
  truncate(0);
  if (state_slot_ >= 0) cache_->state_->free_states.push_back(state_slot_);
  state_slot_ = -1;
  last_ = kNoSnapshot;
  cache_->state_->remove(this);
  cache_ = nullptr;
}

std::byte* SequenceCache::state() const {
  return state_slot_ < 0 ? nullptr : cache_->state_->state_of(state_slot_);
}

const std::byte* SequenceCache::snapshot() const {
  return read_ == kNoSnapshot ? nullptr : cache_->state_->snapshot_of(read_);
}

void SequenceCache::end_reading() {
  if (read_ != kNoSnapshot) cache_->state_->snapshots.unpin(read_);
  read_ = kNoSnapshot;
}

std::byte* SequenceCache::reserve_snapshot(int length, bool replaces) {
  GLINT_CHECK(cache_ != nullptr && length > 0 && length % kPageSize == 0);
  Cache::State& state = *cache_->state_;
  const std::size_t page = static_cast<std::size_t>(length / kPageSize) - 1;
  if (state.snapshots.total() == 0) return nullptr;
  if (length <= length_ && state.snapshots.find(pages_[page]) != kNoSnapshot) return nullptr;
  const SnapshotId id = state.snapshots.acquire();
  if (id == kNoSnapshot) return nullptr;
  written_.push_back({length, id, replaces});
  return state.snapshot_of(id);
}

// Those that were written lie at full pages of the prefix tree now.
void SequenceCache::keep_snapshots() {
  SnapshotPool& snapshots = cache_->state_->snapshots;
  std::erase_if(written_, [&](const Written& written) {
    if (written.length > length_) return false;
    const PageId page = pages_[static_cast<std::size_t>(written.length / kPageSize) - 1];
    const std::uint64_t entered = snapshots.attach(written.id, page);
    if (!written.replaces) return true;
    if (last_ != kNoSnapshot) snapshots.drop_unused(last_, last_entered_);
    last_ = entered > 0 ? written.id : kNoSnapshot;
    last_entered_ = entered;
    return true;
  });
}

// Whether the next row to write lies in a page that the prefix tree still offers.
bool SequenceCache::tail_is_shared() const {
  return length_ % kPageSize != 0 &&
         cache_->state_->pool.in_tree(pages_[static_cast<std::size_t>(length_ / kPageSize)]);
}

Status SequenceCache::reserve(int n) {
  GLINT_CHECK(cache_ != nullptr && n >= 0 && n <= std::numeric_limits<int>::max() - length_);
  end_reading();
  if (n == 0) return {};
  PagePool& pool = cache_->state_->pool;
  const std::size_t wanted = pages_for(length_ + n);
  const std::size_t tail = static_cast<std::size_t>(length_ / kPageSize);
  const bool detach = tail_is_shared() && pool.can_detach(pages_[tail]);
  const bool copy = tail_is_shared() && !detach;
  const std::size_t missing =
      (wanted > pages_.size() ? wanted - pages_.size() : 0) + (copy ? 1 : 0);
  if (missing > pool.available()) {
    return exhausted(fmt::format("the cache has {} pages left of {}, and {} more are needed",
                                 pool.available(), pool.total(), missing));
  }
  if (detach) pool.detach(pages_[tail]);
  if (copy) {
    const PageId own = pool.acquire();
    std::memcpy(cache_->rows(own, 0), cache_->rows(pages_[tail], 0), cache_->state_->rows_bytes);
    pool.release(pages_[tail]);
    pages_[tail] = own;
  }
  if (detach || copy) cache_->clear_page_state(pages_[tail]);
  while (pages_.size() < wanted) {
    pages_.push_back(pool.acquire());
    cache_->clear_page_state(pages_.back());
  }
  return {};
}

void SequenceCache::commit(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  GLINT_CHECK(cache_ != nullptr && !tail_is_shared());
  GLINT_CHECK(tokens.size() <= pages_.size() * kPageSize - static_cast<std::size_t>(length_));
  const std::size_t full_before = static_cast<std::size_t>(length_ / kPageSize);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  length_ = static_cast<int>(tokens_.size());
  if (!cache_->state_->prefix_reuse) return;
  for (std::size_t i = full_before; i < static_cast<std::size_t>(length_ / kPageSize); ++i)
    offer(i);
  keep_snapshots();
}

void SequenceCache::offer(std::size_t page_index) {
  PagePool& pool = cache_->state_->pool;
  const PageId parent = page_index == 0 ? kNoPage : pages_[page_index - 1];
  const auto content = std::span(tokens_).subspan(page_index * kPageSize, kPageSize);
  const PageId same = pool.find(parent, salt_, content);
  if (same == kNoPage) {
    pool.insert(pages_[page_index], parent, salt_, content);
    cache_->state_->entered(pages_[page_index]);
    return;
  }
  // Another sequence got here first. Holding its page and not ours keeps the path of tree pages
  // leased as a whole.
  pool.lease(same);
  pool.release(pages_[page_index]);
  pages_[page_index] = same;
}

void SequenceCache::truncate(int new_length) {
  GLINT_CHECK(new_length >= 0 && new_length <= length_);
  if (cache_ == nullptr) return;
  end_reading();
  for (const Written& snapshot : written_) cache_->state_->snapshots.give_back(snapshot.id);
  written_.clear();
  // From the end, so that a parent is never less recently used than its child.
  while (pages_.size() > pages_for(new_length)) {
    cache_->state_->pool.release(pages_.back());
    pages_.pop_back();
  }
  const bool reopens = new_length % kPageSize != 0 && length_ / kPageSize > new_length / kPageSize;
  if (reopens && !cache_->state_->pool.in_tree(pages_.back()))
    cache_->clear_page_state(pages_.back());
  tokens_.resize(static_cast<std::size_t>(new_length));
  length_ = new_length;
}

}  // namespace glint
