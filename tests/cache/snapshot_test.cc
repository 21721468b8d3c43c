// Recurrent states and their snapshots: who has a slot, where a prefix can be taken up, and what
// makes room for what.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "cache/cache.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

CacheSpec recurrent_spec() {
  return {
      .name = "hybrid", .num_layers = 1, .row_bytes = 4, .state_bytes = 100, .snapshot_bytes = 8};
}

Tokens iota_tokens(int n, int first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Extends the sequence; keeps a snapshot that names each of the lengths.
void extend(SequenceCache& sequence, std::span<const std::int32_t> tokens,
            const std::vector<int>& lengths, bool replaces = false) {
  ASSERT_TRUE(sequence.reserve(static_cast<int>(tokens.size())).has_value());
  for (const int length : lengths) {
    std::byte* out = sequence.reserve_snapshot(length, replaces);
    ASSERT_NE(out, nullptr);
    std::memcpy(out, &length, sizeof length);
  }
  sequence.commit(tokens);
}

void run(Cache& cache, const Tokens& tokens, const std::vector<int>& lengths) {
  auto sequence = cache.start({});
  extend(sequence, tokens, lengths);
}

// Where a sequence of these tokens would start, by the snapshot that it finds there; -1 if the
// snapshot tells of another length.
int start_of(Cache& cache, const Tokens& tokens, std::uint64_t salt = 0) {
  const int matched = cache.match(tokens, salt).pages * kPageSize;
  const auto sequence = cache.start(tokens, salt);
  if (sequence.length() != matched) return -2;
  if (sequence.snapshot() == nullptr) return sequence.length() == 0 ? 0 : -1;
  int length = 0;
  std::memcpy(&length, sequence.snapshot(), sizeof length);
  return length == sequence.length() ? length : -1;
}

TEST(States, each_sequence_has_one_at_a_cache_line) {
  Cache cache(recurrent_spec(), 4, true, {.num_states = 3});
  std::vector<SequenceCache> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(cache.start({}));
    ASSERT_NE(sequences.back().state(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(sequences.back().state()) % 64, 0u);
    std::memset(sequences.back().state(), i, 100);
  }
  cache.check_integrity();
  EXPECT_EQ(cache.stats().used_states, 3u);
  for (int i = 0; i < 3; ++i) {
    const std::byte* state = sequences[static_cast<std::size_t>(i)].state();
    EXPECT_EQ(state[0], static_cast<std::byte>(i));
    EXPECT_EQ(state[99], static_cast<std::byte>(i));
  }
  std::byte* const freed = sequences[1].state();
  sequences[1] = SequenceCache();
  EXPECT_EQ(cache.stats().used_states, 2u);
  SequenceCache next = cache.start({});
  EXPECT_EQ(next.state(), freed);
  const SequenceCache moved = std::move(next);
  EXPECT_EQ(moved.state(), freed);
  cache.check_integrity();
}

TEST(StatesDeathTest, there_are_no_more_than_were_asked_for) {
  Cache cache(recurrent_spec(), 4, true, {.num_states = 1});
  const auto sequence = cache.start({});
  EXPECT_DEATH(cache.start({}), "free_states");
}

TEST(States, a_cache_without_needs_no_room_for_them) {
  Cache cache({"rows", 1, 4}, 4, true, {.num_states = 1, .num_snapshots = 5});
  const auto first = cache.start({});
  auto second = cache.start({});
  EXPECT_EQ(second.state(), nullptr);
  EXPECT_EQ(second.reserve_snapshot(64), nullptr);
  EXPECT_EQ(cache.stats().total_states + cache.stats().total_snapshots, 0u);
}

TEST(States, sizes_that_overflow_are_refused_with_their_numbers) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  const auto refused = [](std::size_t state, std::size_t snapshot, StateRoom room) {
    CacheSpec spec = recurrent_spec();
    spec.state_bytes = state;
    spec.snapshot_bytes = snapshot;
    auto cache = Cache::make(spec, 1, true, room);
    return cache.has_value() ? std::string("made") : cache.error().message;
  };
  EXPECT_NE(refused(kMax / 2, 8, {4, 4}).find("4 states of 9223372036854775807 bytes"),
            std::string::npos);
  EXPECT_NE(refused(8, kMax / 2, {4, 4}).find("4 snapshots of 9223372036854775807 bytes"),
            std::string::npos);
  EXPECT_NE(refused(kMax, 8, {4, 4}).find("overflow"), std::string::npos);
  EXPECT_NE(refused(8, 8, {std::size_t{1} << 31, 4}).find("overflow"), std::string::npos);
  EXPECT_NE(refused(std::size_t{1} << 60, 8, {4, 4}).find("address space"), std::string::npos);
  EXPECT_EQ(refused(8, 8, {4, 4}), "made");
}

TEST(Snapshots, prefix_hit_stops_at_deepest_snapshot) {
  Cache cache(recurrent_spec(), 8, true, {.num_states = 2, .num_snapshots = 4});
  const Tokens tokens = iota_tokens(300);
  run(cache, tokens, {64, 192});
  EXPECT_EQ(cache.stats().kept_snapshots, 2u);
  EXPECT_EQ(cache.match(tokens).known, 4);
  EXPECT_EQ(start_of(cache, tokens), 192);
  EXPECT_EQ(start_of(cache, iota_tokens(193)), 192);
  EXPECT_EQ(start_of(cache, iota_tokens(192)), 64);
  EXPECT_EQ(start_of(cache, iota_tokens(64)), 0);
  EXPECT_EQ(start_of(cache, tokens, 1), 0) << "of another tenant";
  const auto before = cache.stats().prefix_hits;
  EXPECT_EQ(cache.start(tokens).length(), 192);
  EXPECT_EQ(cache.stats().prefix_hits - before, 192u);
  cache.check_integrity();
}

TEST(Snapshots, nothing_is_found_without_room_for_them_or_reuse) {
  for (const bool reuse : {true, false}) {
    Cache cache(recurrent_spec(), 8, reuse, {.num_states = 2, .num_snapshots = reuse ? 0u : 4u});
    const Tokens tokens = iota_tokens(200);
    auto sequence = cache.start({});
    ASSERT_TRUE(sequence.reserve(200).has_value());
    EXPECT_EQ(sequence.reserve_snapshot(64), nullptr);
    sequence.commit(tokens);
    EXPECT_EQ(start_of(cache, tokens), 0);
  }
}

TEST(Snapshots, the_least_recently_used_makes_room_and_its_page_stays) {
  Cache cache(recurrent_spec(), 12, true, {.num_states = 2, .num_snapshots = 2});
  const Tokens a = iota_tokens(130), b = iota_tokens(130, 1000), c = iota_tokens(130, 2000);
  run(cache, a, {128});
  run(cache, b, {128});
  EXPECT_EQ(start_of(cache, a), 128);
  run(cache, c, {128});
  EXPECT_EQ(start_of(cache, b), 0) << "it was used before the others";
  EXPECT_EQ(cache.match(b).known, 2);
  EXPECT_EQ(start_of(cache, a), 128);
  EXPECT_EQ(start_of(cache, c), 128);
  EXPECT_EQ(cache.stats().evicted_snapshots, 1u);
  EXPECT_EQ(cache.stats().cached_pages, 6u);
  cache.check_integrity();
}

TEST(Snapshots, one_that_is_read_or_written_makes_no_room) {
  Cache cache(recurrent_spec(), 12, true, {.num_states = 3, .num_snapshots = 1});
  const Tokens a = iota_tokens(130);
  run(cache, a, {128});
  auto reader = cache.start(a);
  ASSERT_NE(reader.snapshot(), nullptr);
  auto writer = cache.start({});
  ASSERT_TRUE(writer.reserve(64).has_value());
  EXPECT_EQ(writer.reserve_snapshot(64), nullptr) << "it is being read";
  cache.check_integrity();
  ASSERT_TRUE(reader.reserve(2).has_value());
  EXPECT_EQ(reader.snapshot(), nullptr);
  ASSERT_NE(writer.reserve_snapshot(64), nullptr);
  EXPECT_EQ(reader.reserve_snapshot(192), nullptr) << "it is being written";
  cache.check_integrity();
  writer.truncate(0);
  EXPECT_NE(reader.reserve_snapshot(192), nullptr);
  cache.check_integrity();
}

TEST(Snapshots, one_leaves_with_its_page) {
  Cache cache(recurrent_spec(), 4, true, {.num_states = 2, .num_snapshots = 4});
  run(cache, iota_tokens(130), {64, 128});
  EXPECT_EQ(cache.stats().kept_snapshots, 2u);
  run(cache, iota_tokens(130, 1000), {});
  EXPECT_EQ(cache.stats().kept_snapshots, 1u) << "the deeper page was evicted";
  EXPECT_EQ(start_of(cache, iota_tokens(130)), 64);
  cache.clear_prefixes();
  EXPECT_EQ(cache.stats().kept_snapshots, 0u);
  EXPECT_EQ(cache.stats().evicted_snapshots, 0u);
  cache.check_integrity();
}

TEST(Snapshots, one_leaves_when_truncation_reopens_its_page) {
  Cache cache(recurrent_spec(), 4, true, {.num_states = 1, .num_snapshots = 4});
  auto sequence = cache.start({});
  extend(sequence, iota_tokens(128), {64, 128});
  sequence.truncate(100);
  ASSERT_TRUE(sequence.reserve(1).has_value());
  EXPECT_EQ(cache.stats().kept_snapshots, 1u);
  cache.check_integrity();
}

TEST(Snapshots, an_equal_page_keeps_its_own_or_gets_ours) {
  for (const bool has_one : {true, false}) {
    Cache cache(recurrent_spec(), 8, true, {.num_states = 3, .num_snapshots = 4});
    const Tokens tokens = iota_tokens(64);
    auto first = cache.start({});
    auto second = cache.start({});
    ASSERT_TRUE(second.reserve(64).has_value());
    std::byte* out = second.reserve_snapshot(64);
    const int theirs = 1, length = 64;
    std::memcpy(out, has_one ? &theirs : &length, sizeof(int));
    extend(first, tokens, has_one ? std::vector<int>{64} : std::vector<int>{});
    second.commit(tokens);
    EXPECT_EQ(first.pages()[0], second.pages()[0]);
    EXPECT_EQ(start_of(cache, iota_tokens(65)), 64);
    EXPECT_EQ(cache.stats().kept_snapshots, 1u);
    EXPECT_EQ(second.reserve_snapshot(64), nullptr) << "it has one";
    cache.check_integrity();
  }
}

TEST(Snapshots, one_may_come_a_step_late) {
  Cache cache(recurrent_spec(), 8, true, {.num_states = 2, .num_snapshots = 4});
  auto sequence = cache.start({});
  extend(sequence, iota_tokens(66), {});
  EXPECT_EQ(start_of(cache, iota_tokens(70)), 0);
  extend(sequence, iota_tokens(1, 66), {64});
  EXPECT_EQ(start_of(cache, iota_tokens(70)), 64);
  cache.check_integrity();
}

TEST(Snapshots, a_rolling_one_replaces_the_last_unless_somebody_started_there) {
  for (const bool started : {false, true}) {
    Cache cache(recurrent_spec(), 8, true, {.num_states = 2, .num_snapshots = 4});
    auto sequence = cache.start({});
    extend(sequence, iota_tokens(64), {64});  // to stay
    extend(sequence, iota_tokens(64, 64), {128}, true);
    if (started) {
      EXPECT_EQ(start_of(cache, iota_tokens(130)), 128);
    }
    extend(sequence, iota_tokens(64, 128), {192}, true);
    EXPECT_EQ(start_of(cache, iota_tokens(200)), 192);
    EXPECT_EQ(start_of(cache, iota_tokens(180)), started ? 128 : 64);
    EXPECT_EQ(cache.stats().kept_snapshots, started ? 3u : 2u);
    sequence = SequenceCache();
    EXPECT_EQ(start_of(cache, iota_tokens(200)), 192) << "the last one stays behind";
    cache.check_integrity();
  }
}

TEST(Snapshots, a_rolling_one_that_was_evicted_takes_nothing_with_it) {
  Cache cache(recurrent_spec(), 12, true, {.num_states = 2, .num_snapshots = 1});
  auto sequence = cache.start({});
  extend(sequence, iota_tokens(64), {64}, true);
  run(cache, iota_tokens(66, 1000), {64});  // in the same slot
  ASSERT_TRUE(sequence.reserve(1).has_value());
  sequence.commit(iota_tokens(1, 64));
  extend(sequence, iota_tokens(63, 65), {128}, true);  // again
  EXPECT_EQ(start_of(cache, iota_tokens(130)), 128);
  cache.check_integrity();
}

TEST(Snapshots, room_that_was_never_written_comes_back) {
  Cache cache(recurrent_spec(), 8, true, {.num_states = 1, .num_snapshots = 1});
  {
    auto sequence = cache.start({});
    ASSERT_TRUE(sequence.reserve(64).has_value());
    ASSERT_NE(sequence.reserve_snapshot(64), nullptr);
    cache.check_integrity();
  }
  cache.check_integrity();
  EXPECT_EQ(cache.stats().kept_snapshots, 0u);
  run(cache, iota_tokens(65), {64});
  EXPECT_EQ(start_of(cache, iota_tokens(65)), 64);
}

}  // namespace
}  // namespace glint
