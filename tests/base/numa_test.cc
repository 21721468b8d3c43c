// Memory can be asked to lie on all nodes; what is written there stays.
#include "base/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/aligned.h"

namespace glint {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;

TEST(Numa, memory_is_spread_or_refused_by_name) {
  AlignedBuffer buffer(kBytes);
  const auto nodes = numa_nodes();
  const Status spread = interleave_memory(buffer.data(), buffer.size());
  ASSERT_EQ(nodes.has_value(), spread.has_value());
  if (!nodes) {
    EXPECT_EQ(nodes.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(nodes.error().message, testing::HasSubstr("NUMA"));
    return;
  }
  EXPECT_GE(*nodes, 1);
  std::fill_n(buffer.data(), kBytes, std::byte{7});
  EXPECT_EQ(buffer.data()[kBytes - 1], std::byte{7});
}

}  // namespace
}  // namespace glint
