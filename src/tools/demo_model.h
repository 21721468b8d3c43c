// Where the embedded demo model lies on disk: unpacked once into the user's cache folder, or into a
// private temporary folder when that cannot be written.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace glint {

// A folder to open now. A temporary one is deleted with this object: files that are already mapped
// stay readable.
class DemoFolder {
 public:
  DemoFolder(DemoFolder&& other) noexcept;
  DemoFolder& operator=(DemoFolder&&) = delete;
  ~DemoFolder();

  const std::filesystem::path& path() const { return path_; }
  bool temporary() const { return temporary_; }

 private:
  friend Result<DemoFolder> unpack_demo_model();
  DemoFolder(std::filesystem::path path, bool temporary);
  std::filesystem::path path_;
  bool temporary_;
};

// Compares every file with the embedded copy, byte by byte, and writes those that are missing or
// differ, each atomically. Errors: kIo when no folder at all can be written.
Result<DemoFolder> unpack_demo_model();

// "demo-<16 hex digits>", from the content of all files.
std::string demo_folder_name();

}  // namespace glint
