#include "base/heap.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace glint {
namespace {

struct Resident {
  std::uint64_t all = 0, of_files = 0;  // bytes
};

Resident resident() {
  // "size resident shared ...", in pages.
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::array<char, 128> text = {};
  const ssize_t count = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  unsigned long long pages = 0, shared = 0;
  if (count <= 0 || std::sscanf(text.data(), "%*s %llu %llu", &pages, &shared) != 2) return {};
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {pages * page, shared * page};
}

}  // namespace

std::uint64_t resident_now() {
  return resident().all;
}

std::uint64_t resident_without_files() {
  const Resident now = resident();
  return now.all - now.of_files;
}

#ifdef __GLIBC__
void keep_heap_small() {
  constexpr int kLargeBlock = 256 << 10, kKeptAtTop = 1 << 20;
  ::mallopt(M_ARENA_MAX, 2);
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  ::mallopt(M_TRIM_THRESHOLD, kKeptAtTop);
}
void trim_heap() {
  ::malloc_trim(0);
}
#else
void keep_heap_small() {}
void trim_heap() {}
#endif

}  // namespace glint
