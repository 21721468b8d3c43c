#include "checkpoint/gguf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "checkpoint/file_kind.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int32_t>::max();

// What all items are; nullopt when there is no array or it says several things.
template <typename T>
std::optional<T> common_item(const std::vector<T>* items) {
  if (items == nullptr || items->empty()) return std::nullopt;
  const bool same = std::all_of(items->begin(), items->end(),
                                [&](const T& item) { return item == items->front(); });
  return same ? std::optional(items->front()) : std::nullopt;
}

}  // namespace

double nearest_decimal(double value) {
  const auto narrow = static_cast<float>(value);
  if (!std::isfinite(narrow) || static_cast<double>(narrow) != value) return value;
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text, narrow);
  double nearest = value;
  std::from_chars(text, written.ptr, nearest);
  return nearest;
}

GgufKeys::GgufKeys(const GgufFile& file, std::string_view architecture, bool per_layer)
    : file_(file), prefix_(std::string(architecture) + "."), per_layer_(per_layer) {}

std::string GgufKeys::full(std::string_view key) const {
  return prefix_ + std::string(key);
}

std::string GgufKeys::place(std::string_view key) const {
  return fmt::format("{}: key {}", file_name(), quote_name(full(key)));
}

void GgufKeys::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void GgufKeys::contradiction(std::string_view key, std::string_view reason) {
  fail(corrupt(fmt::format("{} {}; convert the model again", place(key), reason)));
}

void GgufKeys::refuse(std::string_view key, std::string_view reason) {
  fail(unsupported(fmt::format("{} {}", place(key), reason)));
}

const GgufValue* GgufKeys::take(std::string_view key) {
  std::string name = full(key);
  const GgufValue* value = file_.find(name);
  seen_.insert(std::move(name));
  return value;
}

std::vector<std::int64_t> GgufKeys::integers_if(std::string_view key) {
  const GgufValue* value = take(key);
  if (value == nullptr) return {};
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value->value))
    return *integers;
  if (const auto* flags = std::get_if<std::vector<bool>>(&value->value))
    return {flags->begin(), flags->end()};
  contradiction(key, "is no array of integers");
  return {};
}

bool GgufKeys::has(std::string_view key) const {
  return file_.find(full(key)) != nullptr;
}

std::optional<std::int64_t> GgufKeys::integer_if(std::string_view key) {
  if (take(key) == nullptr) return std::nullopt;
  auto value = file_.integer(full(key));
  if (!value && per_layer_) value = common_item(file_.integers(full(key)));
  if (value && *value >= 0 && *value <= kMaxInteger) return value;
  contradiction(key, fmt::format("is not an integer from 0 to {}", kMaxInteger));
  return 0;
}

std::int64_t GgufKeys::integer(std::string_view key) {
  if (const auto value = integer_if(key)) return *value;
  contradiction(key, "is missing");
  return 0;
}

std::optional<double> GgufKeys::number_if(std::string_view key) {
  if (take(key) == nullptr) return std::nullopt;
  auto value = file_.number(full(key));
  if (!value && per_layer_) value = common_item(file_.numbers(full(key)));
  if (value && std::isfinite(*value)) return nearest_decimal(*value);
  contradiction(key, "is not a finite number");
  return 0;
}

double GgufKeys::number(std::string_view key) {
  if (const auto value = number_if(key)) return *value;
  contradiction(key, "is missing");
  return 0;
}

std::optional<bool> GgufKeys::boolean_if(std::string_view key) {
  if (take(key) == nullptr) return std::nullopt;
  if (const auto value = file_.boolean(full(key))) return value;
  contradiction(key, "is neither true nor false");
  return false;
}

std::optional<std::string_view> GgufKeys::string_if(std::string_view key) {
  if (take(key) == nullptr) return std::nullopt;
  if (const auto value = file_.string(full(key))) return value;
  contradiction(key, "is not a string");
  return "";
}

void GgufKeys::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) seen_.insert(full(key));
}

void GgufKeys::expect(std::string_view key, double only, std::string_view why) {
  const auto value = number_if(key);
  if (value && *value != only) {
    refuse(key, fmt::format("is {}: only {} is supported ({})", *value, only, why));
  }
}

Status GgufKeys::finish() const {
  if (error_) return *error_;
  std::string unknown;
  for (const auto& [key, value] : file_.metadata()) {
    if (!key.starts_with(prefix_) || seen_.contains(key)) continue;
    if (unknown.size() > 500) {
      unknown += ", ...";
      break;
    }
    unknown += (unknown.empty() ? "" : ", ") + quote_name(key);
  }
  if (unknown.empty()) return {};
  return unsupported(
      fmt::format("{}: unknown key {}: this version of glint does not know what it asks for",
                  file_name(), unknown));
}

Json gguf_token_ids(const GgufFile& file) {
  Json ids;
  Json ends(Json::Array{});
  for (const char* key : {"eos", "eot", "eom"}) {
    const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", key));
    if (!id) continue;
    const auto& known = ends.as_array();
    if (std::find(known.begin(), known.end(), Json(*id)) == known.end()) ends.push_back(*id);
  }
  if (!ends.as_array().empty()) ids.set("eos_token_id", std::move(ends));
  if (const auto pad = file.integer("tokenizer.ggml.padding_token_id")) {
    ids.set("pad_token_id", *pad);
  }
  if (ids.is_null()) ids = Json::Object{};
  return ids;
}

Json gguf_generation_config(const GgufFile& file) {
  Json config = gguf_token_ids(file);
  constexpr std::pair<const char*, const char*> kSampling[] = {
      {"temp", "temperature"},
      {"top_k", "top_k"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"penalty_repeat", "repetition_penalty"}};
  for (const auto& [key, name] : kSampling) {
    const std::string full = fmt::format("general.sampling.{}", key);
    if (const auto integer = file.integer(full)) {
      config.set(name, *integer);
    } else if (const auto number = file.number(full)) {
      config.set(name, nearest_decimal(*number));
    }
  }
  if (const Json* temperature = config.find("temperature")) {
    config.set("do_sample", temperature->as_double() > 0);
  }
  return config;
}

}  // namespace glint
