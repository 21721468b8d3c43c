// The small JSON files of a model folder: bounded, strict, and refused by name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace glint {

// What config.json and its siblings may cost. Duplicate keys are refused: two readers could take
// different ones.
inline constexpr JsonLimits kConfigLimits{
    .max_depth = 64, .max_bytes = 16u << 20, .max_values = 1u << 20, .refuse_duplicate_keys = true};

// Parses `text` of file `name` as an object. Errors: kCorrupt, naming the file, and what it is if
// it is something else.
Result<Json> parse_json_object(std::string_view text, std::string_view name,
                               std::size_t max_bytes = kConfigLimits.max_bytes);
Result<Json> read_json_object(const std::filesystem::path& path,
                              std::size_t max_bytes = kConfigLimits.max_bytes);

}  // namespace glint
