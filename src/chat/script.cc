#include "chat/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/json.h"

namespace glint {
namespace {

constexpr double kMaxStall = 3600;
constexpr std::array<std::string_view, 5> kFields = {"when", "say", "end", "stall_s", "nan_at"};

Error field_error(int line, std::string_view field, std::string_view rule) {
  return invalid_argument(fmt::format("script: line {}: {}: {}", line, field, rule));
}

Result<std::string> text_field(const Json& entry, int line, std::string_view field) {
  const Json* value = entry.find(field);
  if (value == nullptr || !value->is_string()) return field_error(line, field, "must be a string");
  return value->as_string();
}

// The fields that make the engine misbehave on demand.
Status read_faults(const Json& entry, int line, TokenScript& script) {
  if (const Json* stall = entry.find("stall_s"); stall != nullptr && !stall->is_null()) {
    if (!stall->is_number() || !(stall->as_double() >= 0) || stall->as_double() > kMaxStall) {
      return field_error(line, "stall_s", fmt::format("must be 0 to {} seconds", kMaxStall));
    }
    script.stall_s = stall->as_double();
  }
  if (const Json* nan_at = entry.find("nan_at"); nan_at != nullptr && !nan_at->is_null()) {
    if (!nan_at->is_int() || nan_at->as_int() < 0 || nan_at->as_int() > 1'000'000'000) {
      return field_error(line, "nan_at", "must be the number of a generated token, from 0");
    }
    script.nan_at = static_cast<int>(nan_at->as_int());
  }
  return {};
}

Status check_names(const Json& entry, int line) {
  for (const auto& [name, value] : entry.as_object()) {
    if (std::ranges::find(kFields, name) == kFields.end()) {
      return field_error(line, name, "is no field; use when, say, end, stall_s, nan_at");
    }
  }
  return {};
}

Result<TokenScript> read_script(const Json& entry, int line, const Tokenizer& tokenizer,
                                std::int32_t end_token) {
  TokenScript script;
  GLINT_TRY(const std::string say, text_field(entry, line, "say"));
  script.tokens = tokenizer.encode(say);
  const Json* end = entry.find("end");
  if (end == nullptr || *end == Json("eos")) {
    script.tokens.push_back(end_token);
  } else if (*end != Json("none")) {
    return field_error(line, "end", "must be \"eos\" or \"none\"");
  }
  GLINT_TRY_VOID(read_faults(entry, line, script));
  return script;
}

}  // namespace

Result<Script> Script::parse(std::string_view lines, const Tokenizer& tokenizer,
                             std::int32_t end_token) {
  Script out;
  int line = 0;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view text = lines.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto entry = parse_json(text);
    if (!entry) {
      return invalid_argument(fmt::format("script: line {}: {}", line, entry.error().message));
    }
    if (!entry->is_object()) {
      return invalid_argument(fmt::format("script: line {}: must be an object", line));
    }
    GLINT_TRY_VOID(check_names(*entry, line));
    GLINT_TRY(std::string when, text_field(*entry, line, "when"));
    GLINT_TRY(TokenScript script, read_script(*entry, line, tokenizer, end_token));
    out.lines_.push_back({std::move(when), std::make_shared<const TokenScript>(std::move(script))});
  }
  return out;
}

std::shared_ptr<const TokenScript> Script::find(std::string_view prompt) const {
  for (const Line& line : lines_) {
    if (prompt.find(line.when) != std::string_view::npos) return line.script;
  }
  return nullptr;
}

}  // namespace glint
