// Which files of a folder make up the model: the safetensors that its index names, or, without an
// index, those whose names say so; or GGUF files. Decides from names and the index alone; opens no
// weights.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace glint {

inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kMtpName = "mtp.safetensors";

struct WeightFiles {
  bool has_index = false;
  std::vector<std::string> names;  // relative to the folder, sorted; empty: no safetensors at all
  std::map<std::string, std::string> promised;  // tensor -> file, as the index says
  std::vector<std::string> unlisted;            // other safetensors of the folder, sorted
};

// Errors: an index that is malformed, leaves the folder or names absent files (all are listed); a
// numbered set of shards with gaps.
Result<WeightFiles> find_weight_files(const std::filesystem::path& folder);

// Names of the regular files in `folder` (links followed), sorted.
Result<std::vector<std::string>> list_files(const std::filesystem::path& folder);

// The GGUF file, or the first shard, of a folder that holds no safetensors but GGUF; nullopt for
// any other. Errors: kInvalidArgument, listing them, where the GGUF files are of several models.
Result<std::optional<std::filesystem::path>> find_gguf_model(const std::filesystem::path& folder);

// Why a folder without safetensors and GGUF cannot be loaded: pickles, or nothing at all.
Error no_weights(const std::filesystem::path& folder, const std::vector<std::string>& files);

}  // namespace glint
