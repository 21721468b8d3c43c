#include "cache/cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

namespace glint {
namespace {

CacheSpec small_spec() {
  return {.name = "rows", .num_layers = 2, .row_bytes = 4};
}

std::vector<std::int32_t> iota_tokens(int n, int first = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Writes the rows [from, to) with values that name position and layer, and commits `tokens` for
// them.
void write_and_commit(Cache& cache, SequenceCache& sequence, std::span<const std::int32_t> tokens) {
  ASSERT_TRUE(sequence.reserve(static_cast<int>(tokens.size())).has_value());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const int position = sequence.length() + static_cast<int>(i);
    for (int layer = 0; layer < cache.spec().num_layers; ++layer) {
      const std::int32_t value = tokens[i] * 2 + layer;
      std::memcpy(
          cache.rows(sequence.pages()[static_cast<std::size_t>(position / kPageSize)], layer) +
              static_cast<std::size_t>(position % kPageSize) * cache.spec().row_bytes,
          &value, sizeof value);
    }
  }
  sequence.commit(tokens);
}

// Whether every row of the sequence holds what write_and_commit wrote for `tokens`.
bool rows_hold(const Cache& cache, const SequenceCache& sequence,
               std::span<const std::int32_t> tokens) {
  if (sequence.length() != static_cast<int>(tokens.size())) return false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (int layer = 0; layer < cache.spec().num_layers; ++layer) {
      std::int32_t value = 0;
      std::memcpy(&value,
                  cache.rows(sequence.pages()[i / kPageSize], layer) +
                      i % kPageSize * cache.spec().row_bytes,
                  sizeof value);
      if (value != tokens[i] * 2 + layer) return false;
    }
  }
  return true;
}

TEST(CacheSpec, bytes_follow_from_layers_and_row) {
  const CacheSpec spec{.name = "mla_latent", .num_layers = 47, .row_bytes = 1152};
  EXPECT_EQ(spec.bytes_per_token(), 54144u);
  EXPECT_EQ(spec.bytes_per_page(), 54144u * 64);
}

TEST(Cache, sizes_that_overflow_are_refused_with_their_numbers) {
  const auto refused = [](CacheSpec spec, std::size_t pages) {
    auto cache = Cache::make(spec, pages, true);
    return cache.has_value() ? std::string("made") : cache.error().message;
  };
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  EXPECT_NE(refused({"x", 1, kMax / 32}, 1).find("overflow"), std::string::npos);
  EXPECT_NE(refused({"x", 1 << 30, kMax / 128}, 1).find("overflow"), std::string::npos);
  EXPECT_NE(refused({"x", 1024, 1 << 20}, kMax / 2).find("overflow"), std::string::npos);
  EXPECT_NE(refused({"x", 1, 1}, std::size_t{1} << 31).find("2147483648 pages"), std::string::npos);
  EXPECT_NE(refused({"x", 0, 16}, 4).find("0 layers"), std::string::npos);
  EXPECT_NE(refused({"x", 3, 0}, 4).find("0 bytes"), std::string::npos);
  EXPECT_EQ(refused({"x", 3, 16}, 4), "made");
}

TEST(Cache, address_space_that_the_system_lacks_is_an_error) {
  auto cache = Cache::make({"x", 1024, std::size_t{1} << 32}, 1 << 10, true);
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code, ErrorCode::kExhausted);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(Cache, memory_is_reserved_and_not_touched) {
  // 8 GiB of address space; only the page that is written gets memory.
  auto cache = Cache::make({"x", 16, 1024}, 1 << 13, true);
  ASSERT_TRUE(cache.has_value());
  const std::size_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  auto sequence = (*cache)->start({});
  ASSERT_TRUE(sequence.reserve(1).has_value());
  *(*cache)->rows(sequence.pages()[0], 15) = std::byte{7};
  EXPECT_LT(resident_bytes() - before, std::size_t{16} << 20);
  EXPECT_EQ((*cache)->stats().free_pages, (std::size_t{1} << 13) - 1);
}

TEST(Cache, rows_of_layers_and_pages_do_not_overlap) {
  Cache cache({"x", 3, 24}, 4, true);
  for (PageId page = 0; page < 4; ++page) {
    for (int layer = 0; layer < 3; ++layer) {
      const auto offset = cache.rows(page, layer) - cache.rows(0, 0);
      EXPECT_EQ(offset, (page * 3 + layer) * 64 * 24);
    }
  }
}

TEST(CacheSpec, a_page_state_is_counted_by_page_only) {
  const CacheSpec spec{.name = "x", .num_layers = 2, .row_bytes = 32, .page_state_bytes = 65};
  EXPECT_EQ(spec.bytes_per_token(), 64u);
  EXPECT_EQ(spec.bytes_per_page(), 64u * 64 + 128);
}

TEST(Cache, a_page_state_lies_beside_its_rows) {
  Cache cache({"x", 3, 24, 20}, 3, true);
  for (PageId page = 0; page < 3; ++page) {
    EXPECT_EQ(cache.rows(page, 2) + 64 * 24, cache.page_state(page));
    EXPECT_EQ(cache.page_state(page) - cache.page_state(0), page * (3 * 64 * 24 + 64));
  }
}

// The number that a page's state begins with.
std::int32_t& state_of(Cache& cache, PageId page) {
  return *reinterpret_cast<std::int32_t*>(cache.page_state(page));
}

TEST(Cache, a_page_is_found_again_with_its_state_and_lost_with_it) {
  Cache cache({"x", 1, 4, 8}, 3, true);
  const auto tokens = iota_tokens(129);
  {
    auto sequence = cache.start(tokens);
    for (int page = 0; page < 2; ++page) {
      ASSERT_TRUE(sequence.reserve(64).has_value());
      EXPECT_EQ(state_of(cache, sequence.pages().back()), 0);
      state_of(cache, sequence.pages().back()) = 70 + page;
      sequence.commit(std::span(tokens).subspan(static_cast<std::size_t>(64 * page), 64));
    }
  }
  {
    auto again = cache.start(tokens);
    ASSERT_EQ(again.length(), 128);
    EXPECT_EQ(state_of(cache, again.pages()[0]), 70);
    EXPECT_EQ(state_of(cache, again.pages()[1]), 71);
  }
  auto other = cache.start({});
  ASSERT_TRUE(other.reserve(3 * kPageSize).has_value());
  for (const PageId page : other.pages()) EXPECT_EQ(state_of(cache, page), 0);
}

// Its last token is gone, and with it what the state told of.
TEST(Cache, a_page_that_truncation_reopens_has_no_state) {
  for (const auto& [reuse, shared] : {std::pair{false, false}, {true, false}, {true, true}}) {
    Cache cache({"x", 1, 4, 8}, 4, reuse);
    const auto tokens = iota_tokens(70);
    auto sequence = cache.start({});
    ASSERT_TRUE(sequence.reserve(64).has_value());
    state_of(cache, sequence.pages()[0]) = 7;
    sequence.commit(std::span(tokens).first(64));
    SequenceCache sharer;
    if (shared) sharer = cache.start(tokens);
    sequence.truncate(60);
    ASSERT_TRUE(sequence.reserve(4).has_value());
    EXPECT_EQ(state_of(cache, sequence.pages()[0]), 0);
    if (shared) {
      EXPECT_EQ(state_of(cache, sharer.pages()[0]), 7);
    }
  }
}

TEST(SequenceCache, reserve_makes_room_and_commit_raises_length) {
  Cache cache(small_spec(), 4, true);
  auto sequence = cache.start(iota_tokens(10));
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_TRUE(sequence.reserve(0).has_value());
  EXPECT_EQ(sequence.pages().size(), 0u);
  write_and_commit(cache, sequence, iota_tokens(64));
  EXPECT_EQ(sequence.pages().size(), 1u);
  write_and_commit(cache, sequence, iota_tokens(1, 64));
  EXPECT_EQ(sequence.pages().size(), 2u);
  EXPECT_EQ(sequence.length(), 65);
  EXPECT_TRUE(rows_hold(cache, sequence, iota_tokens(65)));
  cache.check_integrity();
}

TEST(SequenceCache, exhausted_reserve_changes_nothing) {
  Cache cache(small_spec(), 3, true);
  auto first = cache.start({});
  write_and_commit(cache, first, iota_tokens(65));
  auto second = cache.start({});
  const auto status = second.reserve(128);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(second.pages().size(), 0u);
  EXPECT_EQ(cache.available_pages(), 1u);
  EXPECT_TRUE(second.reserve(64).has_value());
  cache.check_integrity();
}

TEST(SequenceCache, everything_is_given_back_on_destruction) {
  Cache cache(small_spec(), 4, false);
  {
    auto sequence = cache.start({});
    write_and_commit(cache, sequence, iota_tokens(130));
    EXPECT_EQ(cache.stats().leased_pages, 3u);
  }
  EXPECT_EQ(cache.stats().free_pages, 4u);
  EXPECT_EQ(cache.stats().cached_pages, 0u);
  EXPECT_EQ(cache.start(iota_tokens(130)).length(), 0);
  cache.check_integrity();
}

TEST(SequenceCache, moves_carry_the_lease) {
  Cache cache(small_spec(), 4, true);
  auto first = cache.start({});
  write_and_commit(cache, first, iota_tokens(70));
  SequenceCache second(std::move(first));
  EXPECT_EQ(second.length(), 70);
  cache.check_integrity();
  auto third = cache.start({});
  write_and_commit(cache, third, iota_tokens(3, 500));
  third = std::move(second);
  EXPECT_EQ(cache.stats().leased_pages, 2u);
  EXPECT_TRUE(rows_hold(cache, third, iota_tokens(70)));
  cache.check_integrity();
  third = SequenceCache();
  EXPECT_EQ(cache.stats().leased_pages, 0u);
  cache.check_integrity();
}

TEST(Prefix, full_pages_outlive_their_sequence) {
  Cache cache(small_spec(), 4, true);
  {
    auto sequence = cache.start({});
    write_and_commit(cache, sequence, iota_tokens(130));
  }
  EXPECT_EQ(cache.stats().cached_pages, 2u);
  EXPECT_EQ(cache.stats().free_pages, 2u);
  EXPECT_EQ(cache.available_pages(), 4u);
  auto again = cache.start(iota_tokens(200));
  EXPECT_EQ(again.length(), 128);
  EXPECT_TRUE(rows_hold(cache, again, iota_tokens(128)));
  EXPECT_EQ(cache.stats().prefix_queries, 200u);
  EXPECT_EQ(cache.stats().prefix_hits, 128u);
  cache.check_integrity();
}

TEST(Prefix, start_leaves_a_token_to_compute) {
  Cache cache(small_spec(), 4, true);
  {
    auto sequence = cache.start({});
    write_and_commit(cache, sequence, iota_tokens(128));
  }
  EXPECT_EQ(cache.start(iota_tokens(128)).length(), 64);
  EXPECT_EQ(cache.start(iota_tokens(129)).length(), 128);
  EXPECT_EQ(cache.start(iota_tokens(64)).length(), 0);
  EXPECT_EQ(cache.start({}).length(), 0);
  cache.check_integrity();
}

TEST(Prefix, match_says_what_start_would_take) {
  Cache cache(small_spec(), 8, true);
  auto sequence = cache.start({});
  write_and_commit(cache, sequence, iota_tokens(192));
  sequence = SequenceCache();
  const auto holder = cache.start(iota_tokens(65));
  EXPECT_EQ(cache.match(iota_tokens(192)).pages, 2);
  EXPECT_EQ(cache.match(iota_tokens(192)).unleased, 1);
  EXPECT_EQ(cache.match(iota_tokens(193)).pages, 3);
  EXPECT_EQ(cache.match(iota_tokens(193), 7).pages, 0);
  EXPECT_EQ(cache.stats().prefix_queries, 65u) << "asking is not starting";
}

TEST(Prefix, a_page_is_found_below_its_own_parent_only) {
  Cache cache(small_spec(), 8, true);
  auto tokens = iota_tokens(128);
  {
    auto sequence = cache.start({});
    write_and_commit(cache, sequence, tokens);
  }
  tokens[3] = 999;  // the first page differs, the second does not
  tokens.push_back(0);
  EXPECT_EQ(cache.start(tokens).length(), 0);
  tokens = iota_tokens(129);
  tokens[100] = 999;
  EXPECT_EQ(cache.start(tokens).length(), 64);
}

TEST(Prefix, salts_separate_tenants) {
  Cache cache(small_spec(), 8, true);
  {
    auto sequence = cache.start(iota_tokens(128), 1);
    write_and_commit(cache, sequence, iota_tokens(128));
  }
  EXPECT_EQ(cache.start(iota_tokens(129), 2).length(), 0);
  EXPECT_EQ(cache.start(iota_tokens(129), 0).length(), 0);
  EXPECT_EQ(cache.start(iota_tokens(129), 1).length(), 128);
  {
    auto sequence = cache.start(iota_tokens(128), 2);
    write_and_commit(cache, sequence, iota_tokens(128));
  }
  EXPECT_EQ(cache.stats().cached_pages, 4u);
  cache.check_integrity();
}

TEST(Prefix, a_page_computed_twice_is_kept_once) {
  Cache cache(small_spec(), 8, true);
  auto first = cache.start({});
  auto second = cache.start({});
  ASSERT_TRUE(first.reserve(70).has_value());
  ASSERT_TRUE(second.reserve(70).has_value());
  write_and_commit(cache, first, iota_tokens(70));
  write_and_commit(cache, second, iota_tokens(70));
  EXPECT_EQ(first.pages()[0], second.pages()[0]);
  EXPECT_NE(first.pages()[1], second.pages()[1]);
  EXPECT_EQ(cache.stats().leased_pages, 3u);
  EXPECT_TRUE(rows_hold(cache, first, iota_tokens(70)));
  EXPECT_TRUE(rows_hold(cache, second, iota_tokens(70)));
  cache.check_integrity();
}

TEST(Eviction, oldest_leaf_goes_first_and_parents_after_children) {
  Cache cache(small_spec(), 5, true);
  {
    auto old = cache.start({});
    write_and_commit(cache, old, iota_tokens(192));  // 3 pages
  }
  {
    auto young = cache.start({});
    write_and_commit(cache, young, iota_tokens(128, 1000));  // 2 pages
  }
  EXPECT_EQ(cache.stats().free_pages, 0u);
  auto third = cache.start({});
  ASSERT_TRUE(third.reserve(128).has_value());
  EXPECT_EQ(cache.start(iota_tokens(200)).length(), 64)
      << "the two deepest pages of the old chain went";
  EXPECT_EQ(cache.start(iota_tokens(200, 1000)).length(), 128);
  cache.check_integrity();
}

TEST(Eviction, a_hit_makes_a_prefix_young_again) {
  Cache cache(small_spec(), 2, true);
  {
    auto a = cache.start({});
    write_and_commit(cache, a, iota_tokens(64));
  }
  {
    auto b = cache.start({});
    write_and_commit(cache, b, iota_tokens(64, 1000));
  }
  {
    auto hit = cache.start(iota_tokens(65));
  }
  auto third = cache.start({});
  ASSERT_TRUE(third.reserve(1).has_value());
  EXPECT_EQ(cache.start(iota_tokens(65, 1000)).length(), 0);
  EXPECT_EQ(cache.start(iota_tokens(65)).length(), 64);
  cache.check_integrity();
}

TEST(Eviction, leased_pages_are_never_taken) {
  Cache cache(small_spec(), 3, true);
  auto first = cache.start({});
  write_and_commit(cache, first, iota_tokens(128));
  auto second = cache.start(iota_tokens(129));
  EXPECT_EQ(second.length(), 128);
  first = SequenceCache();
  EXPECT_EQ(cache.available_pages(), 1u);
  auto third = cache.start({});
  EXPECT_FALSE(third.reserve(65).has_value());
  EXPECT_TRUE(third.reserve(64).has_value());
  EXPECT_TRUE(rows_hold(cache, second, iota_tokens(128)));
  cache.check_integrity();
}

TEST(Eviction, clear_drops_what_nobody_leases) {
  Cache cache(small_spec(), 8, true);
  {
    auto sequence = cache.start({});
    write_and_commit(cache, sequence, iota_tokens(192));
  }
  auto holder = cache.start(iota_tokens(65));
  EXPECT_EQ(holder.length(), 64);
  cache.clear_prefixes();
  EXPECT_EQ(cache.stats().cached_pages, 0u);
  EXPECT_EQ(cache.stats().leased_pages, 1u);
  EXPECT_EQ(cache.start(iota_tokens(192)).length(), 64);
  cache.check_integrity();
}

TEST(Truncate, gives_back_whole_pages_and_reserved_ones) {
  Cache cache(small_spec(), 4, true);
  auto sequence = cache.start({});
  write_and_commit(cache, sequence, iota_tokens(70));
  ASSERT_TRUE(sequence.reserve(100).has_value());
  EXPECT_EQ(cache.stats().leased_pages, 3u);
  sequence.truncate(70);
  EXPECT_EQ(cache.stats().leased_pages, 2u);
  sequence.truncate(64);
  EXPECT_EQ(cache.stats().leased_pages, 1u);
  EXPECT_TRUE(rows_hold(cache, sequence, iota_tokens(64)));
  sequence.truncate(0);
  EXPECT_EQ(sequence.pages().size(), 0u);
  EXPECT_EQ(cache.stats().cached_pages, 1u);
  cache.check_integrity();
}

TEST(Truncate, into_a_page_that_others_read_copies_before_writing) {
  Cache cache(small_spec(), 6, true);
  auto first = cache.start({});
  write_and_commit(cache, first, iota_tokens(140));
  auto second = cache.start(iota_tokens(129));
  ASSERT_EQ(second.length(), 128);
  second.truncate(100);
  cache.check_integrity();
  EXPECT_TRUE(rows_hold(cache, second, iota_tokens(100)));
  write_and_commit(cache, second, iota_tokens(50, 5000));
  EXPECT_EQ(first.pages()[0], second.pages()[0]);
  EXPECT_NE(first.pages()[1], second.pages()[1]);
  EXPECT_TRUE(rows_hold(cache, first, iota_tokens(140)));
  auto expected = iota_tokens(100);
  for (const auto token : iota_tokens(50, 5000)) expected.push_back(token);
  EXPECT_TRUE(rows_hold(cache, second, expected));
  EXPECT_EQ(cache.start(iota_tokens(129)).length(), 128) << "the shared page is still offered";
  cache.check_integrity();
}

TEST(Truncate, into_an_own_page_takes_it_out_of_the_tree_without_a_copy) {
  Cache cache(small_spec(), 2, true);
  auto sequence = cache.start({});
  write_and_commit(cache, sequence, iota_tokens(128));
  const PageId page = sequence.pages()[1];
  sequence.truncate(100);
  write_and_commit(cache, sequence, iota_tokens(28, 5000));
  EXPECT_EQ(sequence.pages()[1], page);
  EXPECT_EQ(cache.start(iota_tokens(129)).length(), 64) << "its old content is no longer offered";
  auto expected = iota_tokens(100);
  for (const auto token : iota_tokens(28, 5000)) expected.push_back(token);
  EXPECT_TRUE(rows_hold(cache, sequence, expected));
  cache.check_integrity();
}

TEST(Truncate, copy_without_a_page_left_is_exhausted_and_harmless) {
  Cache cache(small_spec(), 2, true);
  auto first = cache.start({});
  write_and_commit(cache, first, iota_tokens(128));
  auto second = cache.start(iota_tokens(129));
  second.truncate(100);
  EXPECT_FALSE(second.reserve(1).has_value());
  EXPECT_TRUE(rows_hold(cache, second, iota_tokens(100)));
  cache.check_integrity();
  first = SequenceCache();
  EXPECT_TRUE(second.reserve(1).has_value());
  EXPECT_TRUE(rows_hold(cache, second, iota_tokens(100)));
  cache.check_integrity();
}

TEST(Truncate, own_page_with_cached_children_is_copied_over_them) {
  Cache cache(small_spec(), 2, true);
  auto sequence = cache.start({});
  write_and_commit(cache, sequence, iota_tokens(128));
  sequence.truncate(30);  // the second page stays cached below the first, and must go to make room
  write_and_commit(cache, sequence, iota_tokens(1, 777));
  auto expected = iota_tokens(30);
  expected.push_back(777);
  EXPECT_TRUE(rows_hold(cache, sequence, expected));
  EXPECT_EQ(cache.start(iota_tokens(129)).length(), 64);
  cache.check_integrity();
}

TEST(CacheDeathTest, writing_more_than_was_reserved_is_caught) {
  Cache cache(small_spec(), 2, true);
  auto sequence = cache.start({});
  ASSERT_TRUE(sequence.reserve(1).has_value());
  EXPECT_DEATH(sequence.commit(iota_tokens(65)), "cache.cc");
  write_and_commit(cache, sequence, iota_tokens(64));
  auto other = cache.start(iota_tokens(65));
  other.truncate(10);
  EXPECT_DEATH(other.commit(iota_tokens(1)), "tail_is_shared")
      << "truncated, and not reserved anew";
}

}  // namespace
}  // namespace glint
