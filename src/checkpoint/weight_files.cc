#include "checkpoint/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/file_kind.h"
#include "checkpoint/json_file.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIndexBytes = 64u << 20;
constexpr std::size_t kMaxListed = 50;
constexpr std::string_view kExtension = ".safetensors", kGgufExtension = ".gguf";

std::string join_some(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    if (i != 0) out += ", ";
    out += names[i];
  }
  if (names.size() > kMaxListed) out += fmt::format(" and {} more", names.size() - kMaxListed);
  return out;
}

// A file below the folder, by a plain relative path.
bool stays_inside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() ||
      !path.has_filename())
    return false;
  return std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part == ".." || part == "."; });
}

Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  GLINT_TRY(const Json index, read_json_object(path, kMaxIndexBytes));
  const Json* map = index.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return corrupt(
        path.string() +
        " has no weight_map object; fetch it again, or delete it to have the shards scanned");
  }
  std::map<std::string, std::string> promised;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!file.is_string()) {
      return corrupt(fmt::format("{}: weight_map gives no file name for tensor {}; fetch it again",
                                 path.string(), quote_name(tensor)));
    }
    if (!stays_inside(file.as_string())) {
      return corrupt(
          fmt::format("{}: tensor {} is said to be in {}, which is no file below the model's "
                      "folder; the index is refused",
                      path.string(), quote_name(tensor), quote_name(file.as_string())));
    }
    if (!file.as_string().ends_with(kExtension)) {
      return unsupported(
          fmt::format("{}: tensor {} is said to be in {}; only .safetensors files are read, "
                      "convert the model to safetensors",
                      path.string(), quote_name(tensor), quote_name(file.as_string())));
    }
    promised.emplace(tensor, file.as_string());
  }
  if (promised.empty()) return corrupt(path.string() + " has an empty weight_map; fetch it again");
  return promised;
}

Error shards_missing(const fs::path& folder, std::vector<std::string> missing, std::size_t total,
                     std::string_view who_says, const std::vector<std::string>& unlisted) {
  std::string message = fmt::format(
      "{} of {} weight files of {} are missing: {} (named by {}); incomplete download? Fetch them",
      missing.size(), total, folder.string(), join_some(missing), who_says);
  if (!unlisted.empty()) {
    message += fmt::format(
        "; the folder holds {}, which the index does not name: if those are the weights, delete "
        "the index",
        join_some(unlisted));
  }
  return not_found(std::move(message));
}

Result<WeightFiles> from_index(const fs::path& folder,
                               const std::vector<std::string>& safetensors) {
  WeightFiles result;
  result.has_index = true;
  GLINT_TRY(result.promised, read_index(folder / kIndexName));
  std::set<std::string> named;
  for (const auto& [tensor, file] : result.promised) named.insert(file);
  result.names.assign(named.begin(), named.end());
  std::set_difference(safetensors.begin(), safetensors.end(), named.begin(), named.end(),
                      std::back_inserter(result.unlisted));
  std::vector<std::string> missing;
  for (const std::string& name : result.names) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty())
    return shards_missing(folder, std::move(missing), result.names.size(), kIndexName,
                          result.unlisted);
  return result;
}

// "PREFIX-00002-of-00005.safetensors"
struct ShardName {
  std::string prefix;
  std::string digits_of_total;
  std::size_t digits_of_number;
  unsigned number;
  unsigned total;
};

std::optional<unsigned> to_number(std::string_view digits) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return value;
}

std::optional<ShardName> parse_shard_name(std::string_view name, std::string_view extension) {
  constexpr std::string_view kOf = "-of-";
  if (!name.ends_with(extension)) return std::nullopt;
  name.remove_suffix(extension.size());
  const auto of = name.rfind(kOf);
  const auto dash = of == std::string_view::npos || of == 0 ? of : name.rfind('-', of - 1);
  if (of == std::string_view::npos || of == 0 || dash == std::string_view::npos)
    return std::nullopt;
  const std::string_view digits = name.substr(dash + 1, of - dash - 1);
  const std::string_view digits_of_total = name.substr(of + kOf.size());
  const auto number = to_number(digits);
  const auto total = to_number(digits_of_total);
  if (!number || !total) return std::nullopt;
  return ShardName{std::string(name.substr(0, dash)), std::string(digits_of_total), digits.size(),
                   *number, *total};
}

// Without an index the names are all there is to tell an incomplete download by.
Status check_numbering(const fs::path& folder, const std::vector<std::string>& names) {
  constexpr unsigned kMaxShards = 100000;
  for (const std::string& name : names) {
    const auto shard = parse_shard_name(name, kExtension);
    if (!shard || shard->total > kMaxShards) continue;
    std::vector<std::string> missing;
    for (unsigned number = 1; number <= shard->total; ++number) {
      const std::string wanted =
          fmt::format("{}-{:0{}}-of-{}{}", shard->prefix, number, shard->digits_of_number,
                      shard->digits_of_total, kExtension);
      if (!std::binary_search(names.begin(), names.end(), wanted)) missing.push_back(wanted);
    }
    if (!missing.empty()) {
      return shards_missing(folder, std::move(missing), shard->total,
                            fmt::format("the name of {}", name), {});
    }
  }
  return {};
}

Result<WeightFiles> from_names(const fs::path& folder,
                               const std::vector<std::string>& safetensors) {
  WeightFiles result;
  for (const std::string& name : safetensors) {
    (name.starts_with("model") || name == kMtpName ? result.names : result.unlisted)
        .push_back(name);
  }
  // Unusual names are taken only where no usual one is there, and never an adapter, which is no
  // model.
  const bool usual = std::any_of(result.names.begin(), result.names.end(),
                                 [](const std::string& n) { return n != kMtpName; });
  if (!usual) {
    const auto take = [](const std::string& name) { return !name.starts_with("adapter"); };
    std::copy_if(result.unlisted.begin(), result.unlisted.end(), std::back_inserter(result.names),
                 take);
    std::erase_if(result.unlisted, take);
    std::sort(result.names.begin(), result.names.end());
  }
  GLINT_TRY_VOID(check_numbering(folder, result.names));
  return result;
}

std::vector<std::string> with_extension(const std::vector<std::string>& files,
                                        std::initializer_list<std::string_view> extensions) {
  std::vector<std::string> found;
  std::copy_if(files.begin(), files.end(), std::back_inserter(found), [&](const std::string& name) {
    return std::any_of(extensions.begin(), extensions.end(),
                       [&](std::string_view e) { return name.ends_with(e); });
  });
  return found;
}

}  // namespace

Result<std::vector<std::string>> list_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  while (!error && entry != fs::directory_iterator()) {
    std::error_code ignored;  // a dangling link is no file
    if (entry->is_regular_file(ignored)) names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  if (error) return io_error(fmt::format("cannot list {}: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

Result<WeightFiles> find_weight_files(const fs::path& folder) {
  GLINT_TRY(const std::vector<std::string> files, list_files(folder));
  const std::vector<std::string> safetensors = with_extension(files, {kExtension});
  if (std::binary_search(files.begin(), files.end(), kIndexName))
    return from_index(folder, safetensors);
  return from_names(folder, safetensors);
}

Result<std::optional<fs::path>> find_gguf_model(const fs::path& folder) {
  GLINT_TRY(const std::vector<std::string> files, list_files(folder));
  if (!with_extension(files, {kExtension}).empty() ||
      std::binary_search(files.begin(), files.end(), kIndexName)) {
    return std::nullopt;
  }
  // The shards of a set as one, under the name of the first that is there: names are sorted.
  std::map<std::string, std::string> models;
  for (const std::string& name : with_extension(files, {kGgufExtension})) {
    const auto shard = parse_shard_name(name, kGgufExtension);
    models.try_emplace(shard ? shard->prefix + "-*-of-" + shard->digits_of_total : name, name);
  }
  if (models.empty()) return std::nullopt;
  if (models.size() == 1) return folder / models.begin()->second;
  std::vector<std::string> names;
  for (const auto& [model, first] : models) names.push_back(first);
  return invalid_argument(fmt::format("{} holds {} GGUF models: {}; give one of these files",
                                      folder.string(), names.size(), join_some(names)));
}

Error no_weights(const fs::path& folder, const std::vector<std::string>& files) {
  if (const auto pickles = with_extension(files, {".bin", ".pt", ".pth", ".ckpt", ".pkl"});
      !pickles.empty()) {
    return unsupported(
        fmt::format("{} holds its weights only as pickles ({}), which can run code when opened, so "
                    "glint never reads "
                    "them; convert the model to safetensors",
                    folder.string(), join_some(pickles)));
  }
  if (const auto adapters = with_extension(files, {kExtension}); !adapters.empty()) {
    return unsupported(
        fmt::format("{} holds no model, only {}; merge the adapter into its model first",
                    folder.string(), join_some(adapters)));
  }
  return not_found(
      fmt::format("{} holds no weights: neither {} nor model*.safetensors nor *.gguf; incomplete "
                  "download? Fetch the model again",
                  folder.string(), kIndexName));
}

}  // namespace glint
