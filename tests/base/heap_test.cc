#include "base/heap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "temp_folder.h"

namespace glint {
namespace {

TEST(Heap, pages_of_files_are_told_apart) {
  constexpr std::size_t kBytes = 32u << 20, kMost = 8u << 20;
  TempFolder folder;
  const auto path = folder.write("file", std::string(kBytes, 'x'));
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::uint64_t all = resident_now(), without = resident_without_files();
  EXPECT_GT(without, 0u);
  EXPECT_LE(without, all);
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_GE(resident_now() + kMost, all + kBytes);
  EXPECT_LE(resident_without_files(), without + kMost);
  ::munmap(mapped, kBytes);
  ::close(file);
}

}  // namespace
}  // namespace glint
