#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace glint {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close_now(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool close_now() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

Error os_error(int number, std::string_view action, const std::filesystem::path& path) {
  const std::string message =
      fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(number));
  return number == ENOENT || number == ENOTDIR ? not_found(message) : io_error(message);
}

// O_NONBLOCK: opening a pipe must not wait for its writer; it has no effect on regular files.
int open_for_reading(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

Result<std::size_t> regular_file_size(int fd, const std::filesystem::path& path) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return os_error(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) return invalid_argument(path.string() + " is not a regular file");
  return static_cast<std::size_t>(info.st_size);
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  const FileDescriptor fd(open_for_reading(path));
  if (fd.get() < 0) return os_error(errno, "open", path);
  GLINT_TRY(const std::size_t size, regular_file_size(fd.get(), path));
  if (size == 0) return invalid_argument(path.string() + " is empty");
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return os_error(errno, "map", path);
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->data_ = static_cast<const std::byte*>(data);
  file->size_ = size;
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::size_t offset, std::size_t nbytes) const {
  if (offset >= size_) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + std::min(nbytes, size_ - offset)) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_ + begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const FileDescriptor fd(open_for_reading(path));
  if (fd.get() < 0) return os_error(errno, "open", path);
  GLINT_TRY(const std::size_t size, regular_file_size(fd.get(), path));
  const auto too_large = [&] {
    return invalid_argument(
        fmt::format("{} is larger than the limit of {} bytes", path.string(), max_bytes));
  };
  if (size > max_bytes) return too_large();
  // Files of /proc and /sys report size 0 or a whole page, and a file may grow: read to its end,
  // not to its size.
  std::string text;
  std::size_t filled = 0;
  while (true) {
    if (filled > max_bytes) return too_large();
    if (filled == text.size())
      text.resize(filled == 0 ? size + 1 : filled + std::max<std::size_t>(filled, 4096));
    const ssize_t n = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(errno, "read", path);
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  text.resize(filled);
  return text;
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  static std::atomic<unsigned> counter{0};
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}-{}.tmp", ::getpid(), counter.fetch_add(1));
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return os_error(errno, "create", temporary);
  const bool written = write_all(fd.get(), bytes) && ::fsync(fd.get()) == 0 && fd.close_now();
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int number = errno;
  ::unlink(temporary.c_str());
  return os_error(number, "write", path);
}

}  // namespace glint
