#include "base/aligned.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace glint {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Maps more than needed and gives the ends back, since mmap aligns to small pages only.
std::byte* map_on_huge_page_boundary(std::size_t nbytes) {
  void* raw = ::mmap(nullptr, nbytes + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const std::size_t before = round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePage) -
                             reinterpret_cast<std::uintptr_t>(begin);
  if (before != 0) ::munmap(begin, before);
  if (before != kHugePage) ::munmap(begin + before + nbytes, kHugePage - before);
  ::madvise(begin + before, nbytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t nbytes) : size_(nbytes) {
  if (nbytes == 0) return;
  GLINT_CHECK(nbytes <= std::numeric_limits<std::size_t>::max() / 4);
  if (nbytes >= kHugePage) {
    mapped_ = round_up(nbytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    data_ = map_on_huge_page_boundary(mapped_);
  } else {
    const std::size_t rounded = round_up(nbytes, kAlignment);
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (data_ != nullptr) std::memset(data_, 0, rounded);
  }
  const bool out_of_memory = data_ == nullptr;
  GLINT_CHECK(!out_of_memory);
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_ != 0) {
    ::munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace glint
