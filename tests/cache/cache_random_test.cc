// Random operations on the cache beside a model that knows only what must be true: what each
// sequence holds, and which prefixes were ever committed; with recurrent states, also that a
// sequence starts with the state of the tokens it starts with; with a store, also after restarts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <set>

#include "../base/temp_folder.h"
#include "cache/cache.h"
#include "cache/page_store.h"
#include "cache/store_jobs.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

// What a row must hold: a digest of every token up to it, so that a page under a wrong parent is
// noticed.
std::uint64_t digest(std::uint64_t before, std::int32_t token, std::uint64_t salt) {
  return (before ^ static_cast<std::uint32_t>(token) ^ (salt << 40)) * 0x100000001b3u + 1;
}

constexpr std::size_t kNumStates = 9;

CacheSpec spec_of(bool recurrent) {
  CacheSpec spec{.name = "digests", .num_layers = 1, .row_bytes = sizeof(std::uint64_t)};
  if (recurrent) spec.state_bytes = spec.snapshot_bytes = sizeof(std::uint64_t);
  return spec;
}

class Oracle {
 public:
  // num_snapshots 0: no recurrent states. `max_cached`: Cache::limit_cached(). `store_bytes` 0: no
  // store.
  Oracle(std::uint32_t seed, std::size_t num_pages, bool reuse, std::size_t num_snapshots,
         std::size_t max_cached = 1000, std::uint64_t store_bytes = 0)
      : random_(seed),
        reuse_(reuse),
        recurrent_(num_snapshots > 0),
        num_pages_(num_pages),
        num_snapshots_(num_snapshots),
        max_cached_(max_cached),
        store_bytes_(store_bytes) {
    open();
  }

  void step() {
    const int action = pick(100);
    if (store_bytes_ > 0 && pick(25) == 0) {
      use_store();
    } else if (entries_.empty() || action < 16) {
      start();
    } else if (action < 75) {
      extend(choose());
    } else if (action < 90) {
      truncate(choose());
    } else if (action < 98) {
      entries_.erase(entries_.begin() + pick(static_cast<int>(entries_.size())));
    } else if (action < 99) {
      cache_->clear_prefixes();
    } else if (entries_.size() > 1) {
      std::swap(entries_.front(), entries_.back());
    }
    cache_->check_integrity();
    ASSERT_LE(cache_->stats().cached_pages, max_cached_);
    if (store_bytes_ > 0) {
      ASSERT_LE(cache_->stats().store->bytes, store_bytes_);
    }
    for (const Entry& entry : entries_) check(entry);
  }
  void finish() {
    entries_.clear();
    cache_->check_integrity();
    EXPECT_EQ(cache_->stats().leased_pages, 0u);
    if (!reuse_) {
      EXPECT_EQ(cache_->stats().cached_pages, 0u);
    }
    cache_->clear_prefixes();
    EXPECT_EQ(cache_->stats().free_pages, cache_->stats().total_pages);
    cache_->check_integrity();
    EXPECT_GT(num_hits_, reuse_ ? 10 : -1);
    EXPECT_EQ(cache_->stats().used_states + cache_->stats().kept_snapshots, 0u);
    if (recurrent_ && reuse_ && store_bytes_ == 0) {
      EXPECT_GT(cache_->stats().evicted_snapshots, 4u);
    }
    EXPECT_GT(num_refused_, 0) << "the cache never ran out";
    if (store_bytes_ == 0) return;
    EXPECT_GT(num_recalled_, 5);
    EXPECT_GT(num_restored_, 0u);
    EXPECT_EQ(num_damaged_, 0u);
  }

 private:
  struct Entry {
    SequenceCache sequence;
    Tokens tokens;
    std::uint64_t salt = 0;
  };

  void open() {
    const bool again = cache_.has_value();
    if (again && store_bytes_ > 0) num_damaged_ += cache_->stats().store->damaged;
    cache_.reset();
    cache_.emplace(spec_of(recurrent_), num_pages_, reuse_, StateRoom{kNumStates, num_snapshots_});
    cache_->limit_cached(max_cached_);
    if (store_bytes_ == 0) return;
    auto store = PageStore::open(
        {.folder = folder_.path(), .max_bytes = store_bytes_, .identity = "digests"});
    ASSERT_TRUE(store.has_value()) << store.error().message;
    cache_->attach(*store);
  }
  // Saves, restores, or starts anew with what an earlier process left.
  void use_store() {
    const auto finish = [this](auto& job) {
      while (!job.advance()) {
        cache_->check_integrity();
        cache_->store()->wait_progress(0.01);
      }
    };
    switch (pick(3)) {
      case 0: {
        SaveJob job(*cache_);
        finish(job);
        break;
      }
      case 1: {
        RestoreJob job(*cache_);
        finish(job);
        num_restored_ += job.report().pages;
        break;
      }
      default:
        entries_.clear();
        if (pick(2) == 0) {
          SaveJob job(*cache_);
          finish(job);
        }
        open();
    }
  }

  int pick(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  Entry& choose() {
    return entries_[static_cast<std::size_t>(pick(static_cast<int>(entries_.size())))];
  }

  // Mostly along one of few fixed continuations, so that prefixes coincide and then part.
  std::int32_t next_token(const Tokens& tokens) {
    const int position = static_cast<int>(tokens.size());
    return pick(150) == 0 ? pick(3) : position / 50 % 3;
  }
  std::uint64_t* row(const SequenceCache& sequence, std::size_t position) {
    std::byte* page = cache_->rows(sequence.pages()[position / kPageSize], 0);
    return reinterpret_cast<std::uint64_t*>(page) + position % kPageSize;
  }

  // The states after each token of the sequence, as its rows have them.
  std::uint64_t state_at(const SequenceCache& sequence, int length) {
    return length == 0 ? 0 : *row(sequence, static_cast<std::size_t>(length) - 1);
  }

  void start() {
    if (recurrent_ && entries_.size() == kNumStates) return;
    Tokens wanted;
    const int n = pick(400);
    while (static_cast<int>(wanted.size()) < n) wanted.push_back(next_token(wanted));
    const std::uint64_t salt = static_cast<std::uint64_t>(pick(2));
    std::unique_ptr<Recall> recall;
    if (store_bytes_ > 0) recall = Recall::begin(*cache_, wanted, salt);
    if (recall != nullptr) {
      const int before = cache_->match(wanted, salt).pages;
      cache_->check_integrity();
      while (!recall->is_done()) cache_->store()->wait_progress(0.01);
      cache_->check_integrity();
      if (cache_->match(wanted, salt).pages > before) ++num_recalled_;
    }
    SequenceCache sequence = cache_->start(wanted, salt);
    ASSERT_EQ(sequence.length() % kPageSize, 0);
    ASSERT_LE(sequence.length(), std::max(0, n - 1));
    if (sequence.length() > 0) ++num_hits_;
    if (recurrent_) {
      std::uint64_t state = 0;
      ASSERT_EQ(sequence.snapshot() != nullptr, sequence.length() > 0);
      if (sequence.snapshot() != nullptr) std::memcpy(&state, sequence.snapshot(), sizeof state);
      ASSERT_EQ(state, state_at(sequence, sequence.length()));
    }
    wanted.resize(static_cast<std::size_t>(sequence.length()));
    if (!wanted.empty()) {
      ASSERT_TRUE(committed_[salt].contains(wanted));
    }
    entries_.push_back({std::move(sequence), std::move(wanted), salt});
  }

  void extend(Entry& entry) {
    const int n = 1 + pick(pick(2) == 0 ? 4 : 150);
    const auto before = cache_->stats();
    const int pages_before = static_cast<int>(entry.sequence.pages().size());
    if (!entry.sequence.reserve(n).has_value()) {
      ++num_refused_;
      ASSERT_EQ(static_cast<int>(entry.sequence.pages().size()), pages_before);
      ASSERT_EQ(cache_->stats().free_pages, before.free_pages);
      ASSERT_EQ(cache_->stats().cached_pages, before.cached_pages);
      entries_.erase(entries_.begin() + pick(static_cast<int>(entries_.size())));
      return;
    }
    const int used = 1 + pick(n);  // as if the rest had been rejected drafts
    const int before_length = entry.sequence.length();
    std::vector<std::pair<int, std::byte*>> snapshots;
    for (int at = before_length / kPageSize * kPageSize; at <= before_length + used;
         at += kPageSize) {
      if (at == 0 || pick(2) == 0) continue;
      std::byte* out = entry.sequence.reserve_snapshot(at, pick(2) == 0);
      if (out != nullptr) snapshots.emplace_back(at, out);
    }
    Tokens fresh;
    std::uint64_t value = entry.tokens.empty() ? 0 : *row(entry.sequence, entry.tokens.size() - 1);
    for (int i = 0; i < n; ++i) {
      const std::size_t position = entry.tokens.size();
      if (i >= used) {
        *row(entry.sequence, position + static_cast<std::size_t>(i - used)) = 0xdead;
        continue;
      }
      const std::int32_t token = next_token(entry.tokens);
      value = digest(value, token, entry.salt);
      *row(entry.sequence, position) = value;
      entry.tokens.push_back(token);
      fresh.push_back(token);
      if (entry.tokens.size() % kPageSize == 0) committed_[entry.salt].insert(entry.tokens);
    }
    for (const auto& [at, out] : snapshots) {
      const std::uint64_t state = state_at(entry.sequence, at);
      std::memcpy(out, &state, sizeof state);
    }
    entry.sequence.commit(fresh);
  }

  void truncate(Entry& entry) {
    const int length = static_cast<int>(entry.tokens.size());
    const int kept = pick(3) == 0 ? pick(length + 1) : std::max(0, length - pick(6));
    entry.sequence.truncate(kept);
    entry.tokens.resize(static_cast<std::size_t>(kept));
  }

  void check(const Entry& entry) {
    ASSERT_EQ(entry.sequence.length(), static_cast<int>(entry.tokens.size()));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < entry.tokens.size(); ++i) {
      value = digest(value, entry.tokens[i], entry.salt);
      ASSERT_EQ(*row(entry.sequence, i), value) << "position " << i;
    }
  }

  std::mt19937 random_;
  bool reuse_, recurrent_;
  std::size_t num_pages_, num_snapshots_, max_cached_;
  std::uint64_t store_bytes_;
  TempFolder folder_;
  std::optional<Cache> cache_;
  std::vector<Entry> entries_;
  std::set<Tokens> committed_[2];
  int num_hits_ = 0;
  int num_refused_ = 0;
  int num_recalled_ = 0;
  std::uint64_t num_restored_ = 0, num_damaged_ = 0;
};

class RandomCache : public testing::TestWithParam<std::tuple<int, int, bool, int>> {};

TEST_P(RandomCache, agrees_with_the_oracle) {
  const auto [seed, num_pages, reuse, num_snapshots] = GetParam();
  Oracle oracle(static_cast<std::uint32_t>(seed), static_cast<std::size_t>(num_pages), reuse,
                static_cast<std::size_t>(num_snapshots));
  for (int i = 0; i < 1500; ++i) {
    oracle.step();
    if (HasFatalFailure()) FAIL() << "at step " << i;
  }
  oracle.finish();
}

class BoundedCache : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(BoundedCache, keeps_no_more_than_its_limit) {
  const auto [seed, max_cached, num_snapshots] = GetParam();
  Oracle oracle(static_cast<std::uint32_t>(seed), 18, true, static_cast<std::size_t>(num_snapshots),
                static_cast<std::size_t>(max_cached));
  for (int i = 0; i < 700; ++i) {
    oracle.step();
    if (HasFatalFailure()) FAIL() << "at step " << i;
  }
  oracle.finish();
}

INSTANTIATE_TEST_SUITE_P(limits, BoundedCache,
                         testing::Combine(testing::Range(1, 4), testing::Values(5, 9),
                                          testing::Values(0, 4)));

class StoredCache : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(StoredCache, agrees_with_the_oracle) {
  const auto [seed, num_entries, num_snapshots] = GetParam();
  const std::uint64_t page_file = kStoredHeaderBytes + kPageSize * sizeof(std::uint64_t);
  Oracle oracle(static_cast<std::uint32_t>(seed), 14, true, static_cast<std::size_t>(num_snapshots),
                9, static_cast<std::uint64_t>(num_entries) * page_file);
  for (int i = 0; i < 1000; ++i) {
    oracle.step();
    if (HasFatalFailure()) FAIL() << "at step " << i;
  }
  oracle.finish();
}

INSTANTIATE_TEST_SUITE_P(seeds, StoredCache,
                         testing::Combine(testing::Range(1, 4), testing::Values(12, 1000),
                                          testing::Values(0, 4)));

INSTANTIATE_TEST_SUITE_P(seeds, RandomCache,
                         testing::Combine(testing::Range(1, 9), testing::Values(7, 18, 32),
                                          testing::Bool(), testing::Values(0)));
INSTANTIATE_TEST_SUITE_P(recurrent, RandomCache,
                         testing::Combine(testing::Range(1, 9), testing::Values(9, 18),
                                          testing::Values(true), testing::Values(1, 4)));

}  // namespace
}  // namespace glint
