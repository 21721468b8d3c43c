// Where the embedded demo model lies on disk: unpacked once into the user's cache folder, or into a
// private temporary folder when that cannot be written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"

namespace glint {

// A folder to open now. A temporary one is deleted with this object: files that are already mapped
// stay readable.
class ModelFolder {
 public:
  ModelFolder(ModelFolder&& other) noexcept;
  ModelFolder& operator=(ModelFolder&&) = delete;
  ~ModelFolder();

  const std::filesystem::path& path() const { return path_; }
  bool temporary() const { return temporary_; }

 private:
  friend Result<ModelFolder> unpack_demo_model();
  friend Result<ModelFolder> model_folder(const std::string& model);
  ModelFolder(std::filesystem::path path, bool temporary);
  std::filesystem::path path_;
  bool temporary_;
};

// Compares every file with the embedded copy, byte by byte, and writes those that are missing or
// differ, each atomically. Errors: kIo when no folder at all can be written.
Result<ModelFolder> unpack_demo_model();

// The folder that a MODEL argument means: the demo model for "" and "demo", else the path itself.
Result<ModelFolder> model_folder(const std::string& model);

// Where this user's programs keep what can be made anew: $XDG_CACHE_HOME or ~/.cache.
std::optional<std::filesystem::path> user_cache_folder();

// "demo-<16 hex digits>", from the content of all files.
std::string demo_folder_name();

}  // namespace glint
