#include "server/field_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace glint {

FieldReader::FieldReader(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const Json* FieldReader::get(std::string_view name) {
  asked_.insert(std::string(name));
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::fail(std::string_view name, std::string_view what, std::string code) {
  if (error_) return;
  std::string path = fmt::format("{}{}", prefix_, name);
  std::string message = fmt::format("{}: {}", path, what);
  error_ = bad_request(std::move(path), std::move(message), std::move(code));
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail_type(std::string_view name, std::string_view wanted, const Json& value) {
  fail(name, fmt::format("must be {}, not {}", wanted, value.type_name()), "invalid_type");
}

void FieldReader::adopt(const FieldReader& inner) {
  if (!error_) error_ = inner.error_;
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->as_bool();
  fail_type(name, "true or false", *value);
  return std::nullopt;
}

std::optional<std::int64_t> integer_value(const Json& value) {
  if (value.is_int()) return value.as_int();
  if (value.is_double() && std::floor(value.as_double()) == value.as_double() &&
      std::abs(value.as_double()) < 9e15) {
    return static_cast<std::int64_t>(value.as_double());
  }
  return std::nullopt;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t low,
                                                 std::int64_t high) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = integer_value(*value);
  if (!number && !value->is_uint64()) {
    fail_type(name, "an integer", *value);
    return std::nullopt;
  }
  if (!number || *number < low || *number > high) {
    fail(name, fmt::format("must be from {} to {}", low, high));
    return std::nullopt;
  }
  return number;
}

std::optional<float> FieldReader::number(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return static_cast<float>(value->as_double());
  fail_type(name, "a number", *value);
  return std::nullopt;
}

std::optional<std::string> FieldReader::string(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->as_string();
  fail_type(name, "a string", *value);
  return std::nullopt;
}

const Json* FieldReader::object(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr || value->is_object()) return value;
  fail_type(name, "an object", *value);
  return nullptr;
}

const Json* FieldReader::array(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr || value->is_array()) return value;
  fail_type(name, "a list", *value);
  return nullptr;
}

std::vector<std::string> FieldReader::unknown_names() const {
  std::vector<std::string> names;
  if (!object_.is_object()) return names;
  for (const auto& [name, value] : object_.as_object()) {
    if (!asked_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace glint
