#include "base/direct_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "base/check.h"

namespace glint {
namespace {

constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

Error os_error(std::string_view action, const std::filesystem::path& path) {
  const int number = errno;
  const std::string message =
      fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(number));
  return number == ENOENT || number == ENOTDIR ? not_found(message) : io_error(message);
}

// Some file systems take the flag and then refuse the reads.
bool reads_directly(int fd) {
  void* page = nullptr;
  if (::posix_memalign(&page, kDirectAlignment, kDirectAlignment) != 0) return false;
  const bool reads = ::pread(fd, page, kDirectAlignment, 0) >= 0;
  ::free(page);
  return reads;
}

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::open(const std::filesystem::path& path) {
  int fd = ::open(path.c_str(), kFlags | O_DIRECT);
  if (fd >= 0 && !reads_directly(fd)) {
    ::close(fd);
    fd = -1;
  }
  const bool direct = fd >= 0;
  if (!direct) fd = ::open(path.c_str(), kFlags);
  if (fd < 0) return os_error("open", path);
  return std::unique_ptr<DirectFile>(new DirectFile(path, fd, direct));
}

DirectFile::DirectFile(std::filesystem::path path, int fd, bool direct)
    : path_(std::move(path)), fd_(fd), direct_(direct) {}

DirectFile::~DirectFile() {
  ::close(fd_);
}

Result<std::size_t> DirectFile::read(std::uint64_t offset, std::size_t nbytes,
                                     std::byte* to) const {
  GLINT_DCHECK(offset % kDirectAlignment == 0 && nbytes % kDirectAlignment == 0);
  std::size_t filled = 0;
  while (filled < nbytes) {
    const ssize_t n =
        ::pread(fd_, to + filled, nbytes - filled, static_cast<off_t>(offset + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error("read", path_);
    filled += static_cast<std::size_t>(n);
    // Behind a read that ends inside a page the file ends too.
    if (n == 0 || static_cast<std::size_t>(n) % kDirectAlignment != 0) break;
  }
  if (!direct_) {
    ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(nbytes),
                    POSIX_FADV_DONTNEED);
  }
  return filled;
}

}  // namespace glint
