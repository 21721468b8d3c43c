#include "tools/demo_model.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "tools/demo_data.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

// FNV-1a over 8-byte words. Tells contents apart, and is no defence: reuse compares every byte.
std::uint64_t hash_bytes(std::uint64_t hash, std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  hash = (hash ^ bytes.size()) * kPrime;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  return hash;
}

bool holds(const fs::path& path, std::span<const std::byte> bytes) {
  auto file = MappedFile::open(path);
  return file && (*file)->bytes().size() == bytes.size() &&
         std::memcmp((*file)->bytes().data(), bytes.data(), bytes.size()) == 0;
}

Status unpack_into(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return io_error(fmt::format("{}: {}", folder.string(), failed.message()));
  for (const EmbeddedFile& file : demo_files()) {
    const fs::path path = folder / file.name;
    if (holds(path, file.bytes)) continue;
    GLINT_TRY_VOID(write_file_atomically(
        path, {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()}));
  }
  return {};
}

Result<fs::path> new_temporary_folder() {
  std::error_code failed;
  fs::path base = fs::temp_directory_path(failed);
  if (failed) base = "/tmp";
  std::string name = (base / "glint-demo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    return io_error(
        fmt::format("the demo model cannot be unpacked: {}: {}. Set TMPDIR or XDG_CACHE_HOME to a "
                    "folder with 13 MB free",
                    base.string(), std::strerror(errno)));
  }
  return fs::path(name);
}

}  // namespace

std::optional<fs::path> user_cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && fs::path(xdg).is_absolute()) return fs::path(xdg);
  const char* home = std::getenv("HOME");
  if (home != nullptr && fs::path(home).is_absolute()) return fs::path(home) / ".cache";
  return std::nullopt;
}

ModelFolder::ModelFolder(fs::path path, bool temporary)
    : path_(std::move(path)), temporary_(temporary) {}

ModelFolder::ModelFolder(ModelFolder&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, false)) {}

ModelFolder::~ModelFolder() {
  if (!temporary_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string demo_folder_name() {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const EmbeddedFile& file : demo_files()) {
    hash = hash_bytes(hash, std::as_bytes(std::span(file.name)));
    hash = hash_bytes(hash, file.bytes);
  }
  return fmt::format("demo-{:016x}", hash);
}

Result<ModelFolder> unpack_demo_model() {
  if (const auto cache = user_cache_folder()) {
    const fs::path folder = *cache / "glint" / demo_folder_name();
    const Status done = unpack_into(folder);
    if (done) return ModelFolder(folder, false);
    log_debug(fmt::format("the demo model goes to a temporary folder: {}", done.error().message));
  }
  GLINT_TRY(fs::path path, new_temporary_folder());
  ModelFolder folder(std::move(path), true);
  GLINT_TRY_VOID(unpack_into(folder.path()));
  return folder;
}

Result<ModelFolder> model_folder(const std::string& model) {
  if (model.empty() || model == "demo") return unpack_demo_model();
  return ModelFolder(model, false);
}

}  // namespace glint
