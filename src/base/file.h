// Files: read-only memory mappings, and bounded reads of small ones.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace glint {

// A read-only private mapping of a regular file. Shared by everything that borrows its bytes.
class MappedFile {
 public:
  // Errors: kNotFound, kIo, kInvalidArgument (not a regular file, empty file).
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // The range was read and is not needed soon: its pages stop counting as this process's memory.
  // They stay readable, from the page cache or the file.
  void release(std::size_t offset, std::size_t nbytes) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a regular file, refused above max_bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes);
// Writes to a temporary sibling and renames it into place.
Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

}  // namespace glint
