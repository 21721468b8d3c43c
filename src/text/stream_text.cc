// Text as it arrives: Detokenizer and StopMatcher.
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

std::string StopMatcher::push(std::string_view text) {
  std::string shown;
  if (matched_) return shown;
  if (const auto found = finder_.push(text, shown)) matched_ = stops_[found->phrase];
  return shown;
}

std::string StopMatcher::finish() {
  return finder_.finish();
}

}  // namespace glint
