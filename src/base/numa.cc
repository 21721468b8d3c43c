#include "base/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace glint {
namespace {

constexpr std::size_t kMaxNodes = 1024;  // of Linux, at its largest
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, kMaxNodes / kWordBits>;
constexpr unsigned long kMaskBits = kMaxNodes + 1;  // the kernel counts one less

Error no_numa(const char* call) {
  return unsupported(
      fmt::format("memory cannot be spread over NUMA nodes: this kernel refuses {} ({})", call,
                  std::strerror(errno)));
}

Result<NodeMask> allowed_nodes() {
  NodeMask mask{};
  if (::syscall(SYS_get_mempolicy, nullptr, mask.data(), kMaskBits, nullptr, MPOL_F_MEMS_ALLOWED) !=
      0) {
    return no_numa("get_mempolicy");
  }
  return mask;
}

int count(const NodeMask& mask) {
  int nodes = 0;
  for (const unsigned long word : mask) nodes += std::popcount(word);
  return nodes;
}

}  // namespace

Result<int> numa_nodes() {
  GLINT_TRY(const NodeMask mask, allowed_nodes());
  return count(mask);
}

Status interleave_memory(void* data, std::size_t nbytes) {
  GLINT_TRY(const NodeMask mask, allowed_nodes());
  if (count(mask) < 2) return {};
  if (::syscall(SYS_mbind, data, nbytes, MPOL_INTERLEAVE, mask.data(), kMaskBits, 0) != 0) {
    return no_numa("mbind");
  }
  return {};
}

}  // namespace glint
