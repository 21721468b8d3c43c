#include "checkpoint/json_file.h"

#include <fmt/format.h>

#include "base/file.h"
#include "checkpoint/file_kind.h"

namespace glint {

Result<Json> parse_json_object(std::string_view text, std::string_view name,
                               std::size_t max_bytes) {
  JsonLimits limits = kConfigLimits;
  limits.max_bytes = max_bytes;
  auto value = parse_json(text, limits);
  if (!value) {
    if (const auto kind = foreign_kind(text)) return wrong_kind(name, *kind);
    if (text.empty()) return corrupt(fmt::format("{} is empty; fetch it again", name));
    return corrupt(
        fmt::format("{}: {}; fetch it again or correct it", name, value.error().message));
  }
  if (!value->is_object()) {
    return corrupt(fmt::format("{} must hold a JSON object, not {} {}; fetch it again", name,
                               value->is_array() || value->is_int() ? "an" : "a",
                               value->type_name()));
  }
  return std::move(*value);
}

Result<Json> read_json_object(const std::filesystem::path& path, std::size_t max_bytes) {
  GLINT_TRY(const std::string text, read_text_file(path, max_bytes));
  return parse_json_object(text, path.string(), max_bytes);
}

}  // namespace glint
