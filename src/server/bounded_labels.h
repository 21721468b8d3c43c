// Labels of metrics whose names come from clients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace glint {

// A set of labels that stops growing.
class BoundedLabels {
 public:
  static constexpr std::size_t kMaxName = 64;
  explicit BoundedLabels(std::size_t limit) : limit_(limit) {}
  // The name itself, or "other".
  std::string take(std::string_view name) {
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             std::string_view("_-./{}").find(c) != std::string_view::npos;
    };
    if (name.empty() || name.size() > kMaxName || !std::ranges::all_of(name, is_plain)) {
      return "other";
    }
    if (known_.contains(name)) return std::string(name);
    if (known_.size() >= limit_) return "other";
    return *known_.emplace(name).first;
  }

 private:
  const std::size_t limit_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace glint
