// Reads single facts out of a config.json whose family glint need not run: every value is checked
// for its type and range before use, unknown keys are nobody's business. The first error is kept.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "serviceability/count.h"

namespace glint {

class ConfigView {
 public:
  using Keys =
      std::initializer_list<std::string_view>;  // spellings; the first that is there counts

  // `object` must outlive the view; `where` names it in errors ("config.json").
  ConfigView(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // The value of the first key that is there and not null; nullptr without.
  const Json* value(Keys keys) const;
  bool has(Keys keys) const { return value(keys) != nullptr; }

  // A whole number in [low, high]. Absent or null: nullopt, `fallback`, or an error and `low`.
  std::optional<std::int64_t> find(Keys keys, std::int64_t low, std::int64_t high);
  std::int64_t get(Keys keys, std::int64_t fallback, std::int64_t low, std::int64_t high);
  std::int64_t need(Keys keys, std::int64_t low, std::int64_t high);
  // A matrix side, 1 ... 2^24.
  Count width(Keys keys) { return need(keys, 1, kMostWidth); }

  bool flag(Keys keys, bool fallback);
  std::string text(Keys keys, std::string_view fallback);
  std::optional<double> number(Keys keys);
  // Words of a list; empty where it is absent or holds something else than words.
  std::vector<std::string> words(Keys keys, std::size_t most);
  // Whole numbers in [low, high] of a list.
  std::vector<std::int64_t> numbers(Keys keys, std::size_t most, std::int64_t low,
                                    std::int64_t high);

  void fail(std::string what);  // keeps the first: "WHERE: WHAT"
  Status status() const;
  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }

  static constexpr std::int64_t kMostWidth = 1 << 24;

 private:
  const Json& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace glint
