// When a server near its limit of memory refuses, and when it ends answers.
#include "server/memory_guard.h"

#include <gtest/gtest.h>

#include <thread>

#include "server/pending_body.h"

namespace glint {
namespace {

using Level = MemoryGuard::Level;

struct Machine {
  std::uint64_t resident = 0;
  std::uint64_t kept = 0;  // by the allocator, until it is trimmed
  int trims = 0;
  MemoryGuard guard{1000, 160, [this] { return resident + kept; },
                    [this] {
                      ++trims;
                      kept = 0;
                    }};
  Level at(std::uint64_t used) {
    resident = used;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return guard.level();
  }
};

TEST(MemoryGuard, refuses_before_it_ends_anything) {
  Machine machine;
  EXPECT_EQ(machine.at(900), Level::kFine);
  EXPECT_EQ(machine.at(960), Level::kFine);
  EXPECT_EQ(machine.at(961), Level::kShort);
  EXPECT_EQ(machine.at(990), Level::kShort);
  EXPECT_EQ(machine.at(991), Level::kOver);
  EXPECT_EQ(machine.at(5000), Level::kOver);
  EXPECT_EQ(machine.at(900), Level::kFine);
}

TEST(MemoryGuard, gives_back_what_the_allocator_keeps_but_not_all_the_time) {
  Machine machine;
  machine.kept = 500;
  EXPECT_EQ(machine.at(600), Level::kFine);
  EXPECT_EQ(machine.trims, 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(machine.at(995), Level::kOver);
  EXPECT_EQ(machine.trims, 1);
}

TEST(MemoryGuard, without_a_limit_nothing_is_looked_at) {
  MemoryGuard guard(0, 100, [] { return ~std::uint64_t{0}; }, [] { FAIL(); });
  EXPECT_EQ(guard.level(), Level::kFine);
}

TEST(MemoryGuard, the_systems_numbers_are_read) {
  for (const bool counts_files : {true, false}) {
    EXPECT_EQ(MemoryGuard(1, 0, counts_files).level(), Level::kOver);
    EXPECT_EQ(MemoryGuard(std::uint64_t{1} << 50, 1000, counts_files).level(), Level::kFine);
  }
}

TEST(PendingBody, counts_until_it_goes_wherever_it_is_moved) {
  const auto total = std::make_shared<std::atomic<std::size_t>>(0);
  {
    PendingBody body(total, 100);
    EXPECT_EQ(total->load(), 100u);
    PendingBody moved(std::move(body));
    PendingBody other(total, 7);
    EXPECT_EQ(total->load(), 107u);
    {
      const PendingBody given_back = std::move(moved);
    }
    EXPECT_EQ(total->load(), 7u);
  }
  EXPECT_EQ(total->load(), 0u);
}

}  // namespace
}  // namespace glint
