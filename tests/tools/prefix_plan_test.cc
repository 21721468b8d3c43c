// How much memory the prefix cache gets, by the numbers that its comments promise.
#include "tools/prefix_plan.h"

#include <gtest/gtest.h>

namespace glint {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

CacheSpec spec_of_mib_pages() {
  return {.name = "x", .num_layers = 1, .row_bytes = (std::size_t{1} << 20) / kPageSize};
}

TEST(PlanPrefix, default_keeps_what_is_idle_and_an_eighth_of_what_is_left) {
  const CacheSpec spec = spec_of_mib_pages();
  auto plan = plan_prefix({}, spec, 100, kGiB);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_pages, 128u);
  EXPECT_EQ(plan->bytes, 128 * kMiB);
  EXPECT_EQ(plan->max_cached, 228u);
  EXPECT_EQ(plan->max_bytes, 228 * kMiB);
  EXPECT_EQ(plan_prefix({}, spec, 0, 1000 * kGiB)->bytes, 8 * kGiB);
  plan = plan_prefix({}, spec, 100, 0);
  EXPECT_EQ(plan->bytes, 0u);
  EXPECT_EQ(plan->max_cached, 100u);
  EXPECT_EQ(asked_prefix_bytes({}, spec), 0u);
}

TEST(PlanPrefix, an_asked_size_bounds_what_stays_and_is_beside_the_sequences) {
  const CacheSpec spec = spec_of_mib_pages();
  const PrefixCacheOptions options{.bytes = 10 * kMiB + 5};
  const auto plan = plan_prefix(options, spec, 100, 0);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_pages, 10u);
  EXPECT_EQ(plan->max_cached, 10u);
  EXPECT_LE(plan->bytes, asked_prefix_bytes(options, spec));
  const auto small = plan_prefix({.bytes = kMiB - 1}, spec, 100, kGiB);
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().code, ErrorCode::kInvalidArgument);
  const auto off = plan_prefix({.enabled = false}, spec, 100, kGiB);
  EXPECT_EQ(off->bytes + off->max_cached, 0u);
}

TEST(PlanPrefix, what_waits_for_the_disk_counts) {
  CacheSpec spec = spec_of_mib_pages();
  const PrefixCacheOptions options{.bytes = 10 * kMiB, .folder = "x"};
  EXPECT_EQ(plan_prefix(options, spec, 0, 0)->bytes, 10 * kMiB + kPrefixQueueBytes);
  spec.snapshot_bytes = 150 * kMiB;
  EXPECT_EQ(plan_prefix(options, spec, 0, 0)->bytes, 160 * kMiB);
}

}  // namespace
}  // namespace glint
