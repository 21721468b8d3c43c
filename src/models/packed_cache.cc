#include "models/packed_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

// The file: a header, padded; then the used bytes of each chunk, each padded. Padding is to 2 MiB,
// a hole that takes no room, so that a file system with huge pages can map them.
//   magic "glint packed 1\n\0", key 2 x 8 bytes, number of chunks, used bytes of each chunk;
//   numbers are of 8 bytes, little-endian.
namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kAlignment = std::size_t{2} << 20;
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;  // of one read or write
constexpr std::string_view kMagic{"glint packed 1\n\0", 16};
constexpr std::string_view kSuffix = ".packed";

static_assert(std::endian::native == std::endian::little);

std::size_t aligned(std::size_t nbytes) {
  return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
}

void append(std::string& out, std::uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Error os_error(std::string_view action, const fs::path& path) {
  return io_error(fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno)));
}

// A file name out of any text.
std::string file_name_of(std::string_view name) {
  constexpr std::size_t kLongest = 150;
  std::string safe;
  for (const char c : name.substr(0, kLongest)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !safe.empty());
    safe += plain ? c : '_';
  }
  return safe.empty() ? "model" : safe;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// All of it, or false with errno (0 at the end of the file).
bool read_at(int fd, void* to, std::size_t nbytes, std::size_t offset) {
  auto* at = static_cast<char*>(to);
  while (nbytes > 0) {
    const ssize_t n = ::pread(fd, at, nbytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    at += n;
    offset += static_cast<std::size_t>(n);
    nbytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool write_at(int fd, const void* from, std::size_t nbytes, std::size_t offset) {
  const auto* at = static_cast<const char*>(from);
  while (nbytes > 0) {
    const ssize_t n = ::pwrite(fd, at, std::min(nbytes, kPieceBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    at += n;
    offset += static_cast<std::size_t>(n);
    nbytes -= static_cast<std::size_t>(n);
  }
  return true;
}

// A mapping that failed may have left a hole where the chunk was.
void make_anonymous(const PackedChunk& chunk) {
  void* data = ::mmap(chunk.buffer->data(), chunk.used, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  const bool mapped = data != MAP_FAILED;
  GLINT_CHECK(mapped);
  ::madvise(data, chunk.used, MADV_HUGEPAGE);
}

bool map_chunks(int fd, std::span<const PackedChunk> chunks,
                const std::vector<std::size_t>& offsets) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    GLINT_CHECK(reinterpret_cast<std::uintptr_t>(chunks[i].buffer->data()) % kAlignment == 0);
    void* data = ::mmap(chunks[i].buffer->data(), chunks[i].used, PROT_READ,
                        MAP_PRIVATE | MAP_FIXED, fd, static_cast<off_t>(offsets[i]));
    if (data == MAP_FAILED) {
      const int number = errno;
      for (std::size_t k = 0; k <= i; ++k) make_anonymous(chunks[k]);
      errno = number;
      return false;
    }
    ::madvise(data, chunks[i].used, MADV_HUGEPAGE);
  }
  return true;
}

bool read_chunks(int fd, std::span<const PackedChunk> chunks,
                 const std::vector<std::size_t>& offsets, ThreadPool* pool) {
  struct Piece {
    std::byte* to;
    std::size_t nbytes, offset;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (std::size_t at = 0; at < chunks[i].used; at += kPieceBytes) {
      pieces.push_back({chunks[i].buffer->data() + at, std::min(kPieceBytes, chunks[i].used - at),
                        offsets[i] + at});
    }
  }
  std::atomic<int> failure{0};
  std::atomic<bool> failed{false};
  const auto task = [&](std::size_t i, int) {
    if (failed || read_at(fd, pieces[i].to, pieces[i].nbytes, pieces[i].offset)) return;
    failure = errno;
    failed = true;
  };
  if (pool != nullptr) {
    pool->run(pieces.size(), task);
  } else {
    for (std::size_t i = 0; i < pieces.size(); ++i) task(i, 0);
  }
  errno = failure;
  return !failed;
}

}  // namespace

void PackedKeyBuilder::add(std::uint64_t value) {
  state_.first = mixed(state_.first ^ value) + 0x9e3779b97f4a7c15;
  state_.second = std::rotl(state_.second + value * 0xc2b2ae3d27d4eb4f, 29) * 0x9e3779b185ebca87;
}

void PackedKeyBuilder::add(std::span<const std::byte> bytes) {
  add(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    add(word);
  }
}

void PackedKeyBuilder::add(std::string_view text) {
  add(std::as_bytes(std::span(text)));
}

void PackedKeyBuilder::add(const PackedKey& key) {
  add(key.first);
  add(key.second);
}

PackedKey PackedKeyBuilder::key() const {
  return {mixed(state_.first), mixed(state_.second)};
}

// What a good file is, for these chunks.
struct PackedCache::Layout {
  std::string header;
  std::vector<std::size_t> offsets;  // of the chunks
  std::size_t nbytes = 0;            // of the file
};

PackedCache::Layout PackedCache::layout_of(std::span<const PackedChunk> chunks) const {
  Layout layout;
  layout.header = kMagic;
  append(layout.header, key_.first);
  append(layout.header, key_.second);
  append(layout.header, chunks.size());
  for (const PackedChunk& chunk : chunks) append(layout.header, chunk.used);
  layout.nbytes = aligned(layout.header.size());
  for (const PackedChunk& chunk : chunks) {
    layout.offsets.push_back(layout.nbytes);
    layout.nbytes += aligned(chunk.used);
  }
  return layout;
}

PackedCache::PackedCache(fs::path folder, std::string_view name, PackedKey key)
    : folder_(std::move(folder)),
      path_(folder_ / (file_name_of(name) + std::string(kSuffix))),
      key_(key) {}

bool PackedCache::fill(std::span<const PackedChunk> chunks, const LoadOptions& options) const {
  const Descriptor fd(
      ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));  // never waits
  if (fd.get() < 0) {
    if (errno != ENOENT && errno != ENOTDIR) log_warn(os_error("open", path_).message);
    return false;
  }
  const auto refuse = [&](std::string_view why) {
    log_info(fmt::format("{} is not used: {}", path_.string(), why));
    return false;
  };
  const Layout layout = layout_of(chunks);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return refuse("no regular file");
  std::string header(layout.header.size(), '\0');
  const bool has_header = read_at(fd.get(), header.data(), header.size(), 0);
  if (!has_header || !header.starts_with(kMagic))
    return refuse("no packed weights of this version");
  if (header != layout.header) return refuse("other weights, or packed with other options");
  if (static_cast<std::size_t>(info.st_size) != layout.nbytes) return refuse("it is truncated");
  const bool maps = options.placement == WeightPlacement::kMapped;
  const bool filled = maps ? map_chunks(fd.get(), chunks, layout.offsets)
                           : read_chunks(fd.get(), chunks, layout.offsets, options.pool);
  if (!filled) return refuse(errno == 0 ? "it ends early" : std::strerror(errno));
  log_info(fmt::format("packed weights come from {}", path_.string()));
  return true;
}

void PackedCache::save(std::span<const PackedChunk> chunks) const {
  const Status written = write(chunks);
  if (written) {
    log_info(fmt::format("packed weights are kept in {}", path_.string()));
  } else {
    log_warn(
        fmt::format("packed weights are not kept for the next start: {}", written.error().message));
  }
}

// The temporary file has one name, and a lock: a start that was killed leaves nothing that the next
// does not reuse, and two starts at once do not write into each other's.
Status PackedCache::write(std::span<const PackedChunk> chunks) const {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) return io_error(fmt::format("{}: {}", folder_.string(), failed.message()));
  fs::path temporary = path_;
  temporary += ".tmp";
  const Descriptor fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (fd.get() < 0) return os_error("create", temporary);
  const auto busy = [&] {
    return io_error(fmt::format("another process is writing {}", temporary.string()));
  };
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return errno == EWOULDBLOCK ? busy() : os_error("lock", temporary);
  struct stat opened{}, named{};
  const bool same = ::fstat(fd.get(), &opened) == 0 && S_ISREG(opened.st_mode) &&
                    ::lstat(temporary.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
                    opened.st_ino == named.st_ino;
  if (!same) return busy();  // it was renamed or removed before the lock was ours

  ::unlink(path_.c_str());  // of no use, and its room may be needed
  const Layout layout = layout_of(chunks);
  bool good = ::ftruncate(fd.get(), 0) == 0 &&
              write_at(fd.get(), layout.header.data(), layout.header.size(), 0);
  for (std::size_t i = 0; good && i < chunks.size(); ++i)
    good = write_at(fd.get(), chunks[i].buffer->data(), chunks[i].used, layout.offsets[i]);
  good = good && ::ftruncate(fd.get(), static_cast<off_t>(layout.nbytes)) == 0 &&
         ::fsync(fd.get()) == 0 && ::rename(temporary.c_str(), path_.c_str()) == 0;
  if (good) return {};
  const Error error = os_error("write", path_);
  ::unlink(temporary.c_str());
  return error;
}

}  // namespace glint
