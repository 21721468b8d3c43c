#include "chat/tokenizer_prefix.h"

#include <string>

namespace glint {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// The index behind the string that begins at `begin` (a quote), or the end of the text.
std::size_t end_of_string(std::string_view json, std::size_t begin) {
  for (std::size_t at = begin + 1; at < json.size(); ++at) {
    if (json[at] == '\\') {
      ++at;
    } else if (json[at] == '"') {
      return at + 1;
    }
  }
  return json.size();
}

// The index behind the value that begins at `begin`.
std::size_t end_of_value(std::string_view json, std::size_t begin) {
  int depth = 0;
  for (std::size_t at = begin; at < json.size();) {
    const char c = json[at];
    if (c == '"') {
      at = end_of_string(json, at);
      if (depth == 0) return at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}')) return at;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
    ++at;
  }
  return json.size();
}

// The ids of the special token that a template's piece names.
void add_special(const Json& processor, const Json& piece, const Tokenizer& tokenizer,
                 std::vector<std::int32_t>& out) {
  const Json* name = piece.find("id");
  if (name == nullptr || !name->is_string()) return;
  const Json* table = processor.find("special_tokens");
  const Json* entry = table == nullptr ? nullptr : table->find(name->as_string());
  const Json* ids = entry == nullptr ? nullptr : entry->find("ids");
  if (ids == nullptr || !ids->is_array()) return;
  for (const Json& id : ids->as_array()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() >= tokenizer.vocab_size()) continue;
    out.push_back(static_cast<std::int32_t>(id.as_int()));
  }
}

std::vector<std::int32_t> of_processor(const Json& processor, const Tokenizer& tokenizer,
                                       int depth) {
  std::vector<std::int32_t> out;
  if (depth > 4) return out;
  if (const Json* list = processor.find("processors"); list != nullptr && list->is_array()) {
    for (const Json& inner : list->as_array()) {
      out = of_processor(inner, tokenizer, depth + 1);
      if (!out.empty()) return out;
    }
  }
  const Json* single = processor.find("single");
  if (single == nullptr || !single->is_array()) return out;
  for (const Json& piece : single->as_array()) {
    const Json* special = piece.find("SpecialToken");
    if (special == nullptr) break;  // the text itself
    add_special(processor, *special, tokenizer, out);
  }
  return out;
}

std::vector<std::int32_t> of_config(const Json& config, const Tokenizer& tokenizer) {
  const Json* adds = config.find("add_bos_token");
  if (adds == nullptr || *adds != Json(true)) return {};
  const Json* bos = config.find("bos_token");
  if (bos != nullptr && bos->is_object()) bos = bos->find("content");
  if (bos == nullptr || !bos->is_string()) return {};
  const auto id = tokenizer.token_id(bos->as_string());
  return id ? std::vector<std::int32_t>{*id} : std::vector<std::int32_t>();
}

}  // namespace

std::string_view top_level_member(std::string_view json, std::string_view key) {
  std::size_t at = json.find('{');
  if (at == std::string_view::npos) return {};
  ++at;
  while (at < json.size()) {
    at = json.find_first_not_of(", \t\r\n", at);
    if (at == std::string_view::npos || json[at] != '"') return {};
    const std::size_t name_end = end_of_string(json, at);
    const std::string_view name = json.substr(at, name_end - at);
    at = json.find_first_not_of(kBlanks, name_end);
    if (at == std::string_view::npos || json[at] != ':') return {};
    at = json.find_first_not_of(kBlanks, at + 1);
    if (at == std::string_view::npos) return {};
    const std::size_t end = end_of_value(json, at);
    if (name.size() == key.size() + 2 && name.substr(1, key.size()) == key) {
      return json.substr(at, end - at);
    }
    at = end;
  }
  return {};
}

std::vector<std::int32_t> prefix_tokens(std::string_view tokenizer_json,
                                        const Json& tokenizer_config,
                                        std::string_view template_source,
                                        const Tokenizer& tokenizer) {
  const auto processor = parse_json(top_level_member(tokenizer_json, "post_processor"));
  if (processor) {
    std::vector<std::int32_t> ids = of_processor(*processor, tokenizer, 0);
    if (!ids.empty()) return ids;
  }
  std::vector<std::int32_t> ids = of_config(tokenizer_config, tokenizer);
  if (!ids.empty()) return ids;
  constexpr std::string_view kGlmPrefix = "[gMASK]<sop>";
  const auto mask = tokenizer.token_id("[gMASK]"), sop = tokenizer.token_id("<sop>");
  if (!mask || !sop || template_source.find(kGlmPrefix) == std::string_view::npos) return {};
  return {*mask, *sop};
}

}  // namespace glint
