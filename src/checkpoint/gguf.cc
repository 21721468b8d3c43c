// A GGUF file, or the shards of one, opened: mappings, the metadata of the first shard, all
// tensors.
#include "checkpoint/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "checkpoint/file_kind.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSplitNo = "split.no", kSplitCount = "split.count",
                           kSplitTensors = "split.tensors.count";
constexpr std::int64_t kMaxShards = 1000;
constexpr std::size_t kMaxListed = 50;

using Metadata = std::map<std::string, GgufValue, std::less<>>;

const GgufScalar* scalar_of(const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : std::get_if<GgufScalar>(&found->second.value);
}

std::optional<std::int64_t> integer_of(const Metadata& metadata, std::string_view key) {
  const GgufScalar* scalar = scalar_of(metadata, key);
  const auto* value = scalar == nullptr ? nullptr : std::get_if<std::int64_t>(scalar);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

template <typename T>
const T* list_of(const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : std::get_if<T>(&found->second.value);
}

struct Shard {
  std::shared_ptr<const MappedFile> file;
  GgufFile::Header header;
};

Result<Shard> open_shard(const fs::path& path) {
  GLINT_TRY(auto file, MappedFile::open(path));
  GLINT_TRY(auto header, GgufFile::parse(file->bytes(), file->bytes().size(), path.string()));
  return Shard{std::move(file), std::move(header)};
}

// An integer of the split.* keys; `fallback` where the key is absent.
Result<std::int64_t> split_number(const Shard& shard, std::string_view key, std::int64_t fallback,
                                  std::int64_t low, std::int64_t high) {
  if (!shard.header.metadata.contains(key)) return fallback;
  const auto value = integer_of(shard.header.metadata, key);
  if (value && *value >= low && *value <= high) return *value;
  return corrupt(fmt::format("{}: key \"{}\" is not an integer from {} to {}; fetch the file again",
                             shard.file->path().string(), key, low, high));
}

std::string shard_suffix(std::int64_t index, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

// The names of all shards of the set that `path`, shard `index` of `count`, belongs to.
Result<std::vector<fs::path>> shard_paths(const fs::path& path, std::int64_t index,
                                          std::int64_t count) {
  std::string stem = path.filename().string();
  const std::string suffix = shard_suffix(index, count);
  if (!stem.ends_with(suffix)) {
    return corrupt(
        fmt::format("{} is shard {} of {} by its metadata, but its name does not end in {}, so the "
                    "others cannot be found; give the shards their names back",
                    path.string(), index + 1, count, suffix));
  }
  stem.resize(stem.size() - suffix.size());
  std::vector<fs::path> paths;
  std::vector<std::string> missing;
  for (std::int64_t i = 0; i < count; ++i) {
    paths.push_back(path.parent_path() / (stem + shard_suffix(i, count)));
    std::error_code ignored;
    if (!fs::is_regular_file(paths.back(), ignored)) {
      missing.push_back(paths.back().filename().string());
    }
  }
  if (missing.empty()) return paths;
  const std::size_t total = missing.size();
  missing.resize(std::min(total, kMaxListed));
  return not_found(fmt::format(
      "{} of {} shards are missing beside {}: {}{}; incomplete download? Fetch them", total, count,
      path.string(), fmt::join(missing, ", "),
      total > missing.size() ? fmt::format(" and {} more", total - missing.size()) : ""));
}

// That a shard found by its name is the one its metadata says, and of the same model.
Status check_shard(const Shard& shard, const Shard& first, std::int64_t index, std::int64_t count) {
  GLINT_TRY(const std::int64_t no, split_number(shard, kSplitNo, -1, 0, kMaxShards - 1));
  GLINT_TRY(const std::int64_t of, split_number(shard, kSplitCount, -1, 1, kMaxShards));
  if (no != index || of != count) {
    return corrupt(fmt::format(
        "{} is not shard {} of {} by its metadata (\"split.no\" {}, \"split.count\" {}); fetch it "
        "again",
        shard.file->path().string(), index + 1, count, no, of));
  }
  constexpr std::string_view kArchitecture = "general.architecture";
  const GgufScalar* architecture = scalar_of(shard.header.metadata, kArchitecture);
  const GgufScalar* firsts = scalar_of(first.header.metadata, kArchitecture);
  if (architecture != nullptr && (firsts == nullptr || *architecture != *firsts)) {
    return corrupt(fmt::format("{} and {} are not shards of one model: \"{}\" differs",
                               first.file->path().string(), shard.file->path().string(),
                               kArchitecture));
  }
  return {};
}

Result<std::vector<Shard>> open_shards(const fs::path& path) {
  std::vector<Shard> shards;
  GLINT_TRY(Shard given, open_shard(path));
  // A set merged into one file says 0.
  GLINT_TRY(const std::int64_t count, split_number(given, kSplitCount, 1, 0, kMaxShards));
  if (count <= 1) {
    shards.push_back(std::move(given));
    return shards;
  }
  GLINT_TRY(const std::int64_t given_index, split_number(given, kSplitNo, 0, 0, count - 1));
  GLINT_TRY(const std::vector<fs::path> paths, shard_paths(path, given_index, count));
  for (std::int64_t i = 0; i < count; ++i) {
    GLINT_TRY(Shard shard, open_shard(paths[static_cast<std::size_t>(i)]));
    shards.push_back(std::move(shard));
    GLINT_TRY_VOID(check_shard(shards.back(), shards.front(), i, count));
  }
  return shards;
}

Status check_total(const Shard& first, std::size_t total) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const auto found = static_cast<std::int64_t>(total);
  GLINT_TRY(const std::int64_t promised, split_number(first, kSplitTensors, found, 0, kMost));
  if (promised == found) return {};
  return corrupt(
      fmt::format("{} promises {} tensors (\"{}\"), the shards hold {}; fetch them again",
                  first.file->path().string(), promised, kSplitTensors, found));
}

}  // namespace

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const fs::path& path) {
  GLINT_TRY(std::vector<Shard> shards, open_shards(path));
  auto gguf = std::make_shared<GgufFile>();
  gguf->path_ = shards.front().file->path();
  std::map<std::string, fs::path, std::less<>> owners;
  for (Shard& shard : shards) {
    const fs::path& name = shard.file->path();
    gguf->files_.push_back(name.filename().string());
    for (Header::Tensor& tensor : shard.header.tensors) {
      const auto [place, inserted] = owners.try_emplace(tensor.name, name);
      if (!inserted) {
        return corrupt(fmt::format("tensor {} is both in {} and in {}; fetch the shards again",
                                   quote_name(tensor.name), place->second.string(), name.string()));
      }
      gguf->tensors_.push_back(
          {std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
           shard.file->bytes().subspan(tensor.begin, tensor.end - tensor.begin), shard.file});
    }
    gguf->mappings_.push_back(shard.file);
  }
  GLINT_TRY_VOID(check_total(shards.front(), gguf->tensors_.size()));
  gguf->metadata_ = std::move(shards.front().header.metadata);
  return std::shared_ptr<const GgufFile>(std::move(gguf));
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  return integer_of(metadata_, key);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufScalar* scalar = scalar_of(metadata_, key);
  if (scalar == nullptr) return std::nullopt;
  if (const auto* value = std::get_if<double>(scalar)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(scalar)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(scalar)) return static_cast<double>(*value);
  return std::nullopt;
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufScalar* scalar = scalar_of(metadata_, key);
  const auto* value = scalar == nullptr ? nullptr : std::get_if<bool>(scalar);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufScalar* scalar = scalar_of(metadata_, key);
  const auto* value = scalar == nullptr ? nullptr : std::get_if<std::string_view>(scalar);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

const std::vector<std::string_view>* GgufFile::strings(std::string_view key) const {
  return list_of<std::vector<std::string_view>>(metadata_, key);
}

const std::vector<std::int64_t>* GgufFile::integers(std::string_view key) const {
  return list_of<std::vector<std::int64_t>>(metadata_, key);
}

const std::vector<double>* GgufFile::numbers(std::string_view key) const {
  return list_of<std::vector<double>>(metadata_, key);
}

}  // namespace glint
