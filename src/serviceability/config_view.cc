#include "serviceability/config_view.h"

#include <fmt/format.h>

#include <cmath>

namespace glint {
namespace {

// A value in an error: enough to find it, however long it is.
std::string shown(const Json& value) {
  if (value.is_array() || value.is_object()) return std::string(value.type_name());
  std::string text = value.dump();
  constexpr std::size_t kMost = 60;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

std::string first(ConfigView::Keys keys) {
  return std::string(*keys.begin());
}

// Some exporters write 1e6 for 1000000.
std::optional<std::int64_t> whole(const Json& value) {
  if (value.is_int()) return value.as_int();
  if (!value.is_double()) return std::nullopt;
  const double number = value.as_double();
  if (std::abs(number) >= 9e15 || number != std::floor(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace

const Json* ConfigView::value(Keys keys) const {
  for (const std::string_view key : keys) {
    const Json* found = object_.find(key);
    if (found != nullptr && !found->is_null()) return found;
  }
  return nullptr;
}

std::optional<std::int64_t> ConfigView::find(Keys keys, std::int64_t low, std::int64_t high) {
  const Json* found = value(keys);
  if (found == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = whole(*found);
  if (number && *number >= low && *number <= high) return number;
  fail(fmt::format("\"{}\" must be a whole number from {} to {}, and is {}", first(keys), low, high,
                   shown(*found)));
  return std::nullopt;
}

std::int64_t ConfigView::get(Keys keys, std::int64_t fallback, std::int64_t low,
                             std::int64_t high) {
  return find(keys, low, high).value_or(fallback);
}

std::int64_t ConfigView::need(Keys keys, std::int64_t low, std::int64_t high) {
  if (!has(keys)) fail(fmt::format("required key \"{}\" is missing", first(keys)));
  return find(keys, low, high).value_or(low);
}

bool ConfigView::flag(Keys keys, bool fallback) {
  const Json* found = value(keys);
  if (found == nullptr) return fallback;
  if (found->is_bool()) return found->as_bool();
  fail(fmt::format("\"{}\" must be true or false, and is {}", first(keys), shown(*found)));
  return fallback;
}

std::string ConfigView::text(Keys keys, std::string_view fallback) {
  const Json* found = value(keys);
  if (found == nullptr) return std::string(fallback);
  if (found->is_string()) return found->as_string();
  fail(fmt::format("\"{}\" must be a word, and is {}", first(keys), shown(*found)));
  return std::string(fallback);
}

std::optional<double> ConfigView::number(Keys keys) {
  const Json* found = value(keys);
  if (found == nullptr) return std::nullopt;
  if (found->is_number() && std::isfinite(found->as_double())) return found->as_double();
  fail(fmt::format("\"{}\" must be a number, and is {}", first(keys), shown(*found)));
  return std::nullopt;
}

std::vector<std::string> ConfigView::words(Keys keys, std::size_t most) {
  std::vector<std::string> list;
  const Json* found = value(keys);
  if (found == nullptr) return list;
  if (!found->is_array() || found->as_array().size() > most) {
    fail(fmt::format("\"{}\" must list at most {} words", first(keys), most));
    return list;
  }
  for (const Json& item : found->as_array()) {
    if (!item.is_string()) return {};
    list.push_back(item.as_string());
  }
  return list;
}

std::vector<std::int64_t> ConfigView::numbers(Keys keys, std::size_t most, std::int64_t low,
                                              std::int64_t high) {
  std::vector<std::int64_t> list;
  const Json* found = value(keys);
  if (found == nullptr) return list;
  bool fits = found->is_array() && found->as_array().size() <= most;
  for (std::size_t i = 0; fits && i < found->as_array().size(); ++i) {
    const std::optional<std::int64_t> number = whole(found->as_array()[i]);
    fits = number && *number >= low && *number <= high;
    if (fits) list.push_back(*number);
  }
  if (fits) return list;
  fail(fmt::format("\"{}\" must list at most {} whole numbers from {} to {}", first(keys), most,
                   low, high));
  return {};
}

void ConfigView::fail(std::string what) {
  if (!error_) error_ = corrupt(fmt::format("{}: {}", where_, what));
}

Status ConfigView::status() const {
  if (error_) return *error_;
  return {};
}

}  // namespace glint
