#include "text/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar_limits.h"

namespace glint {
namespace {

constexpr int kMaxDepth = 64;          // nested schemas
constexpr int kMaxSchemas = 4000;      // all of them
constexpr int kMaxPatterns = 16;       // patternProperties of one object: each pair is compared
constexpr std::size_t kMaxTexts = 64;  // strings with a pattern: each is searched for a match

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};
constexpr std::array<std::string_view, 2> kMaps = {"properties", "patternProperties"};
constexpr std::array<std::string_view, 4> kLists = {"allOf", "anyOf", "oneOf", "prefixItems"};
constexpr std::array<std::string_view, 3> kParts = {"items", "additionalItems",
                                                    "additionalProperties"};
constexpr std::array<std::string_view, 6> kCounts = {"minItems",      "maxItems",  "minProperties",
                                                     "maxProperties", "minLength", "maxLength"};
constexpr std::array<std::string_view, 10> kValues = {
    "const",   "enum",    "required",         "pattern",          "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
// They say something about a document, and the crate cannot hold to it.
constexpr std::array<std::string_view, 17> kUnsupported = {"not",
                                                           "if",
                                                           "then",
                                                           "else",
                                                           "contains",
                                                           "minContains",
                                                           "maxContains",
                                                           "propertyNames",
                                                           "uniqueItems",
                                                           "unevaluatedItems",
                                                           "unevaluatedProperties",
                                                           "dependencies",
                                                           "dependentRequired",
                                                           "dependentSchemas",
                                                           "$dynamicRef",
                                                           "$recursiveRef",
                                                           "$vocabulary"};

template <std::size_t n>
bool is_one_of(std::string_view key, const std::array<std::string_view, n>& keys) {
  return std::ranges::find(keys, key) != keys.end();
}

// A keyword that is there and says nothing.
bool says_nothing(std::string_view key, const Json& value) {
  if (key == "uniqueItems") return value.is_bool() && !value.as_bool();
  if (key == "not" || key == "contains") return false;
  return (value.is_bool() && value.as_bool()) || (value.is_object() && value.as_object().empty());
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// One part of a JSON pointer in a URI fragment: %XX, ~0 and ~1.
std::string pointer_part(std::string_view part) {
  std::string out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size()) {
      const std::optional<int> high = hex_digit(part[i + 1]);
      const std::optional<int> low = hex_digit(part[i + 2]);
      if (high && low) {
        out += static_cast<char>(*high * 16 + *low);
        i += 2;
        continue;
      }
    }
    out += part[i];
  }
  std::string text;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool escape = out[i] == '~' && i + 1 < out.size();
    if (escape && (out[i + 1] == '0' || out[i + 1] == '1')) {
      text += out[++i] == '0' ? '~' : '/';
    } else {
      text += out[i];
    }
  }
  return text;
}

const Json* member_at(const Json& value, const std::string& part) {
  if (value.is_object()) return value.find(part);
  if (!value.is_array()) return nullptr;
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool whole = error == std::errc() && end == part.data() + part.size();
  return whole && index < value.as_array().size() ? &value.as_array()[index] : nullptr;
}

class SchemaCloser {
 public:
  SchemaCloser(const Json& root, const SchemaOptions& options) : root_(root), options_(options) {}

  Result<Json> close(const Json& schema) {
    GLINT_TRY(Json closed, copy(schema, "", 0));
    if (closed.is_bool()) {
      if (!closed.as_bool()) return invalid_argument("schema: false allows nothing");
      closed = Json(Json::Object());
    }
    Json defs = Json(Json::Object());
    // A copied definition may name more of them.
    for (std::size_t next = 0; next < pending_.size(); ++next) {
      const auto [pointer, target] = pending_[next];
      GLINT_TRY(Json definition, copy(*target, pointer, 0));
      defs.set(name_of_definition(next), std::move(definition));
    }
    if (!pending_.empty()) closed.set("$defs", std::move(defs));
    closed.set("x-guidance", guidance());
    return closed;
  }

 private:
  static std::string name_of_definition(std::size_t index) { return "d" + std::to_string(index); }

  Json guidance() const {
    Json json;
    json.set("lenient", options_.lenient);
    json.set("coerce_one_of", options_.lenient);
    json.set("whitespace_flexible", options_.any_whitespace);
    if (!options_.any_whitespace) {
      json.set("item_separator", ", ?");
      json.set("key_separator", ": ?");
    }
    return json;
  }

  static Error at(const std::string& place, const std::string& what) {
    return invalid_argument("schema" + (place.empty() ? "" : " at " + place) + ": " + what);
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<Json> copy(const Json& schema, const std::string& place, int depth) {
    if (depth > kMaxDepth) return at(place, "nested deeper than " + std::to_string(kMaxDepth));
    if (++num_schemas_ > kMaxSchemas) {
      return at(place, "more than " + std::to_string(kMaxSchemas) + " schemas");
    }
    if (schema.is_bool()) return schema;
    if (!schema.is_object()) {
      return at(place, std::string("an object or a boolean is needed, not ") + schema.type_name());
    }
    Json out = Json(Json::Object());
    for (const auto& [key, value] : schema.as_object()) {
      GLINT_TRY_VOID(copy_keyword(key, value, place, depth, out));
    }
    return out;
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Status copy_keyword(const std::string& key, const Json& value, const std::string& place,
                      int depth, Json& out) {
    const std::string here = place + "/" + key;
    if (is_one_of(key, kMaps)) {
      GLINT_TRY(Json copied, copy_map(value, here, depth));
      out.set(key, std::move(copied));
    } else if (is_one_of(key, kLists) || (key == "items" && value.is_array())) {
      GLINT_TRY(Json copied, copy_list(value, here, depth));
      out.set(key, std::move(copied));
    } else if (is_one_of(key, kParts)) {
      GLINT_TRY(Json copied, copy(value, here, depth + 1));
      out.set(key, std::move(copied));
    } else if (key == "$ref") {
      GLINT_TRY(std::string name, define(value, here));
      out.set(key, std::move(name));
    } else if (key == "type") {
      GLINT_TRY_VOID(check_type(value, here));
      out.set(key, value);
    } else if (is_one_of(key, kCounts)) {
      GLINT_TRY(Json count, count_of(value, here));
      out.set(key, std::move(count));
    } else if (is_one_of(key, kValues)) {
      if (key == "pattern" && ++num_patterns_ > kMaxTexts) {
        return at(here, "more than " + std::to_string(kMaxTexts) + " patterns");
      }
      if (key == "pattern" && value.is_string()) {
        GLINT_TRY_VOID(check_regex_limits(value.as_string()));
      }
      out.set(key, value);
    } else if (is_one_of(key, kUnsupported) && !options_.lenient && !says_nothing(key, value)) {
      return at(here, "the keyword \"" + key + "\" is not supported");
    }
    return {};
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<Json> copy_map(const Json& value, const std::string& here, int depth) {
    if (!value.is_object()) return at(here, "an object is needed");
    if (here.ends_with("/patternProperties") && value.as_object().size() > kMaxPatterns) {
      return at(here, "more than " + std::to_string(kMaxPatterns) + " patterns");
    }
    Json out = Json(Json::Object());
    for (const auto& [name, part] : value.as_object()) {
      GLINT_TRY_VOID(check_regex_limits(here.ends_with("/patternProperties") ? name : ""));
      GLINT_TRY(Json copied, copy(part, here + "/" + name, depth + 1));
      out.set(name, std::move(copied));
    }
    return out;
  }

  // NOLINTNEXTLINE(misc-no-recursion): bounded by kMaxDepth
  Result<Json> copy_list(const Json& value, const std::string& here, int depth) {
    if (!value.is_array()) return at(here, "an array is needed");
    Json out = Json(Json::Array());
    for (std::size_t i = 0; i < value.as_array().size(); ++i) {
      GLINT_TRY(Json copied, copy(value.as_array()[i], here + "/" + std::to_string(i), depth + 1));
      out.push_back(std::move(copied));
    }
    return out;
  }

  static Status check_type(const Json& value, const std::string& here) {
    const auto check = [&](const Json& name) -> Status {
      if (name.is_string() && is_one_of(name.as_string(), kTypes)) return {};
      return at(here, name.dump() + " is not a type");
    };
    if (!value.is_array()) return check(value);
    for (const Json& name : value.as_array()) GLINT_TRY_VOID(check(name));
    return {};
  }

  // JSON schema counts 3.0 as an integer.
  static Result<Json> count_of(const Json& value, const std::string& here) {
    if (value.is_double() && value.as_double() >= 0 && value.as_double() <= 4e9 &&
        std::floor(value.as_double()) == value.as_double()) {
      return Json(static_cast<std::int64_t>(value.as_double()));
    }
    if (!value.is_int() || value.as_int() < 0 || value.as_int() > 4'000'000'000) {
      return at(here, value.dump() + " is not a count");
    }
    return value;
  }

  Result<std::string> define(const Json& reference, const std::string& here) {
    if (!reference.is_string()) return at(here, "a string is needed");
    const std::string& text = reference.as_string();
    if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/')) {
      return at(here, "only references within the schema (#/...) are supported, not " +
                          Json(text).dump());
    }
    const Json* target = find_reference(root_, text);
    if (target == nullptr) return at(here, Json(text).dump() + " leads nowhere");
    const auto [found, fresh] = names_.try_emplace(target, pending_.size());
    if (fresh) pending_.emplace_back(text.substr(1), target);
    return "#/$defs/" + name_of_definition(found->second);
  }

  const Json& root_;
  const SchemaOptions& options_;
  int num_schemas_ = 0;
  std::size_t num_patterns_ = 0;
  std::map<const Json*, std::size_t> names_;
  std::vector<std::pair<std::string, const Json*>> pending_;
};

}  // namespace

const Json* find_reference(const Json& root, std::string_view reference) {
  if (reference == "#" || reference == "#/") return &root;
  if (!reference.starts_with("#/")) return nullptr;
  const Json* target = &root;
  for (std::size_t from = 2; from <= reference.size() && target != nullptr;) {
    const std::size_t end = std::min(reference.find('/', from), reference.size());
    target = member_at(*target, pointer_part(reference.substr(from, end - from)));
    from = end + 1;
  }
  return target;
}

Result<Json> closed_schema(const Json& schema, const Json& root, const SchemaOptions& options) {
  return SchemaCloser(root, options).close(schema);
}

}  // namespace glint
