// Reads of a file that leave nothing behind: no page of it counts as this process's memory, and
// none takes the place of what the system caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/result.h"

namespace glint {

// What offsets, sizes and addresses of direct reads are multiples of.
inline constexpr std::size_t kDirectAlignment = 4096;

class DirectFile {
 public:
  // Where the file system cannot read past its cache, reads go through it and are dropped from it.
  // Errors: kNotFound, kIo.
  static Result<std::unique_ptr<DirectFile>> open(const std::filesystem::path& path);
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile();

  const std::filesystem::path& path() const { return path_; }
  bool is_direct() const { return direct_; }
  // Reads [offset, offset + nbytes), of which the file may lack the end: returns how many bytes
  // there were. All three are multiples of kDirectAlignment. Any thread. Errors: kIo.
  Result<std::size_t> read(std::uint64_t offset, std::size_t nbytes, std::byte* to) const;

 private:
  DirectFile(std::filesystem::path path, int fd, bool direct);
  std::filesystem::path path_;
  int fd_;
  bool direct_;
};

}  // namespace glint
