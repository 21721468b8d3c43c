#include "text/tool_arguments.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "text/json_text.h"

namespace glint {
namespace {

constexpr unsigned kAll = 127;
constexpr int kMaxSchemaDepth = 32;
// Schemas visited for one argument, so that references cannot fan out without end.
constexpr int kMaxSchemas = 1000;

unsigned bits_of_name(std::string_view name) {
  if (name == "string") return JsonTypes::kString;
  if (name == "integer") return JsonTypes::kInteger;
  if (name == "number") return JsonTypes::kNumber | JsonTypes::kInteger;
  if (name == "boolean") return JsonTypes::kBoolean;
  if (name == "null") return JsonTypes::kNull;
  if (name == "array") return JsonTypes::kArray;
  if (name == "object") return JsonTypes::kObject;
  return 0;
}

unsigned bits_of_value(const Json& value) {
  if (value.is_double()) return JsonTypes::kNumber;
  return bits_of_name(value.type_name());
}

// The schema that a local reference names, or nullptr.
const Json* follow(const Json& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  reference.remove_prefix(1);
  const Json* node = &root;
  while (!reference.empty()) {
    if (reference.front() != '/') return nullptr;
    reference.remove_prefix(1);
    const std::size_t end = std::min(reference.find('/'), reference.size());
    std::string part;
    for (std::size_t i = 0; i < end; ++i) {
      if (reference[i] == '~' && i + 1 < end &&
          (reference[i + 1] == '0' || reference[i + 1] == '1')) {
        part += reference[++i] == '0' ? '~' : '/';
      } else {
        part += reference[i];
      }
    }
    reference.remove_prefix(end);
    if (node->is_array()) {
      std::size_t index = 0;
      const auto [last, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (error != std::errc() || last != part.data() + part.size() ||
          index >= node->as_array().size()) {
        return nullptr;
      }
      node = &node->as_array()[index];
    } else {
      node = node->find(part);
    }
    if (node == nullptr) return nullptr;
  }
  return node;
}

class SchemaReader {
 public:
  explicit SchemaReader(const Json& root) : root_(root) {}

  // All types when the schema does not restrict them.
  unsigned types(const Json& schema, int depth) {
    if (depth > kMaxSchemaDepth || --budget_ < 0 || !schema.is_object()) return kAll;
    unsigned bits = kAll;
    if (const Json* reference = schema.find("$ref"); reference && reference->is_string()) {
      if (const Json* target = follow(root_, reference->as_string())) {
        bits &= types(*target, depth + 1);
      }
    }
    bits &= declared(schema.find("type"));
    for (const char* word : {"anyOf", "oneOf"}) {
      const Json* choices = schema.find(word);
      if (choices == nullptr || !choices->is_array() || choices->as_array().empty()) continue;
      unsigned any = 0;
      for (const Json& choice : choices->as_array()) any |= types(choice, depth + 1);
      bits &= any;
    }
    if (const Json* parts = schema.find("allOf"); parts && parts->is_array()) {
      for (const Json& part : parts->as_array()) bits &= types(part, depth + 1);
    }
    if (const Json* values = schema.find("enum"); values && values->is_array()) {
      unsigned any = 0;
      for (const Json& value : values->as_array()) any |= bits_of_value(value);
      if (any != 0) bits &= any;
    }
    if (const Json* value = schema.find("const")) bits &= bits_of_value(*value);
    if (const Json* nullable = schema.find("nullable"); nullable && nullable->is_bool()) {
      if (nullable->as_bool() && bits != kAll) bits |= JsonTypes::kNull;
    }
    return bits;
  }

  // What an object's schema allows for one of its properties; nothing when it does not name it.
  std::optional<unsigned> property_types(const Json& schema, std::string_view key, int depth) {
    if (depth > kMaxSchemaDepth || --budget_ < 0 || !schema.is_object()) return std::nullopt;
    std::optional<unsigned> all;
    const auto narrow = [&](std::optional<unsigned> bits) {
      if (bits) all = all.value_or(kAll) & *bits;
    };
    if (const Json* properties = schema.find("properties")) {
      if (const Json* found = properties->find(key)) narrow(types(*found, depth + 1));
    }
    if (const Json* reference = schema.find("$ref"); reference && reference->is_string()) {
      if (const Json* target = follow(root_, reference->as_string())) {
        narrow(property_types(*target, key, depth + 1));
      }
    }
    if (const Json* parts = schema.find("allOf"); parts && parts->is_array()) {
      for (const Json& part : parts->as_array()) narrow(property_types(part, key, depth + 1));
    }
    for (const char* word : {"anyOf", "oneOf"}) {
      const Json* choices = schema.find(word);
      if (choices == nullptr || !choices->is_array()) continue;
      std::optional<unsigned> any;
      for (const Json& choice : choices->as_array()) {
        const auto bits = property_types(choice, key, depth + 1);
        if (bits) any = any.value_or(0) | *bits;
      }
      narrow(any);
    }
    if (all) return all;
    const Json* others = schema.find("additionalProperties");
    if (others == nullptr || !others->is_object()) return std::nullopt;
    return types(*others, depth + 1);
  }

 private:
  static unsigned declared(const Json* type) {
    if (type == nullptr) return kAll;
    unsigned bits = 0;
    if (type->is_string()) bits = bits_of_name(type->as_string());
    if (type->is_array()) {
      for (const Json& name : type->as_array()) {
        if (name.is_string()) bits |= bits_of_name(name.as_string());
      }
    }
    return bits == 0 ? kAll : bits;
  }

  const Json& root_;
  int budget_ = kMaxSchemas;
};

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

bool allows(JsonTypes types, JsonKind kind) {
  switch (kind) {
    case JsonKind::kString:
      return types.has(JsonTypes::kString);
    case JsonKind::kInteger:
      return types.has(JsonTypes::kInteger) || types.has(JsonTypes::kNumber);
    case JsonKind::kNumber:
      return types.has(JsonTypes::kNumber);
    case JsonKind::kBoolean:
      return types.has(JsonTypes::kBoolean);
    case JsonKind::kNull:
      return types.has(JsonTypes::kNull);
    case JsonKind::kArray:
      return types.has(JsonTypes::kArray);
    case JsonKind::kObject:
      return types.has(JsonTypes::kObject);
  }
  return false;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

// A value that must not stay text: what models write for it, most likely first.
std::optional<std::string> to_other_than_string(std::string_view text, JsonTypes types) {
  std::optional<JsonText> value = read_json_text(text, JsonDialect::kStrict);
  if (value && allows(types, value->kind)) return value->text;
  if (value && value->kind == JsonKind::kString) {
    std::optional<JsonText> inner = read_json_text(value->unquoted, JsonDialect::kStrict);
    if (inner && allows(types, inner->kind)) return inner->text;
    if (inner) value = std::move(inner);
  }
  if (value && value->kind == JsonKind::kNumber && types.has(JsonTypes::kInteger)) {
    if (auto digits = integer_digits(value->text)) return digits;
  }
  if (types.has(JsonTypes::kBoolean)) {
    if (equals_ignoring_case(text, "true")) return "true";
    if (equals_ignoring_case(text, "false")) return "false";
  }
  if (types.has(JsonTypes::kNull) && (text == "None" || equals_ignoring_case(text, "null"))) {
    return "null";
  }
  if (types.has(JsonTypes::kArray) || types.has(JsonTypes::kObject)) {
    const std::optional<JsonText> literal = read_json_text(text, JsonDialect::kPython);
    if (literal && allows(types, literal->kind)) return literal->text;
  }
  return std::nullopt;
}

}  // namespace

JsonTypes argument_types(const Json& tools, std::string_view tool, std::string_view key) {
  if (!tools.is_array()) return JsonTypes::unknown();
  for (const Json& entry : tools.as_array()) {
    const Json* function = entry.find("function");
    const Json& declared = function != nullptr && function->is_object() ? *function : entry;
    const Json* name = declared.find("name");
    if (name == nullptr || !name->is_string() || name->as_string() != tool) continue;
    const Json* schema = declared.find("parameters");
    if (schema == nullptr) schema = declared.find("input_schema");
    if (schema == nullptr) return JsonTypes::unknown();
    SchemaReader reader(*schema);
    const unsigned bits = reader.property_types(*schema, key, 0).value_or(kAll);
    return bits == kAll ? JsonTypes::unknown() : JsonTypes(bits);
  }
  return JsonTypes::unknown();
}

std::string argument_to_json(std::string_view raw, JsonTypes types) {
  if (types.only_string()) return quoted(raw);
  const std::string_view text = trim_ascii(raw);
  if (!types.is_unknown() && !types.has(JsonTypes::kString)) {
    if (auto value = to_other_than_string(text, types)) return *std::move(value);
    return quoted(raw);
  }
  const std::optional<JsonText> value = read_json_text(text, JsonDialect::kStrict);
  if (!value) return quoted(raw);
  if (types.is_unknown()) return value->text;
  return value->kind != JsonKind::kString && allows(types, value->kind) ? value->text : quoted(raw);
}

}  // namespace glint
