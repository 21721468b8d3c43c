// Text as it arrives: Detokenizer and StopMatcher.
#include <algorithm>
#include <utility>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace glint {

std::string Detokenizer::push(std::int32_t id) {
  pending_ += tokenizer_.token_bytes(id);
  std::string text;
  pending_.erase(0, append_utf8(text, pending_, false));
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  append_utf8(text, pending_, true);
  pending_.clear();
  return text;
}

namespace {

struct Match {
  std::size_t start;
  std::size_t end;
  const std::string* stop;
};

// The stop that would complete first if the text came byte by byte; of those that end together, the
// longest. So the result does not depend on how the text is cut.
std::optional<Match> first_match(std::string_view text, const std::vector<std::string>& stops) {
  std::optional<Match> best;
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    const std::size_t start = text.find(stop);
    if (start == std::string_view::npos) continue;
    const std::size_t end = start + stop.size();
    if (!best || end < best->end || (end == best->end && start < best->start)) {
      best = Match{start, end, &stop};
    }
  }
  return best;
}

// Length of the longest end of `text` that a stop begins with.
std::size_t held_length(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    const std::size_t limit = std::min(text.size(), stop.size() - 1);
    for (std::size_t length = limit; length > longest; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  return longest;
}

}  // namespace

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  held_ += text;
  if (const std::optional<Match> match = first_match(held_, stops_)) {
    matched_ = *match->stop;
    held_.resize(match->start);
    return std::exchange(held_, {});
  }
  const std::size_t shown = held_.size() - held_length(held_, stops_);
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  return out;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace glint
