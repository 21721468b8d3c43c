#include "base/heap.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>

namespace glint {

std::uint64_t resident_now() {
  // "size resident shared ...", in pages.
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::array<char, 128> text;
  const ssize_t count = ::read(file, text.data(), text.size());
  ::close(file);
  if (count <= 0) return 0;
  const std::string_view all(text.data(), static_cast<std::size_t>(count));
  const std::size_t space = all.find(' ');
  if (space == std::string_view::npos) return 0;
  std::uint64_t pages = 0;
  std::from_chars(all.data() + space + 1, all.data() + all.size(), pages);
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
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
