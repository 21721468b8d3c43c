#include "text/phrase_finder.h"

#include <algorithm>
#include <utility>

namespace glint {
namespace {

// For every length of a beginning of `text`, the longest shorter beginning that it ends with.
std::vector<std::size_t> fallbacks(std::string_view text) {
  std::vector<std::size_t> table(text.size() + 1, 0);
  std::size_t matched = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (matched > 0 && text[i] != text[matched]) matched = table[matched];
    if (text[i] == text[matched]) ++matched;
    table[i + 1] = matched;
  }
  return table;
}

}  // namespace

PhraseFinder::PhraseFinder(const std::vector<std::string>& phrases) {
  for (std::size_t i = 0; i < phrases.size(); ++i) {
    if (phrases[i].empty()) continue;
    starts_[static_cast<unsigned char>(phrases[i].front())] = true;
    phrases_.push_back({phrases[i], fallbacks(phrases[i]), 0, i});
  }
}

bool PhraseFinder::advance(char c) {
  if (idle_ && !starts_[static_cast<unsigned char>(c)]) return false;
  bool complete = false;
  idle_ = true;
  for (Phrase& phrase : phrases_) {
    std::size_t& matched = phrase.matched;
    while (matched > 0 && phrase.text[matched] != c) matched = phrase.fallback[matched];
    if (phrase.text[matched] == c) ++matched;
    if (matched > 0) idle_ = false;
    complete = complete || matched == phrase.text.size();
  }
  return complete;
}

void PhraseFinder::reset() {
  for (Phrase& phrase : phrases_) phrase.matched = 0;
  idle_ = true;
}

std::optional<PhraseFinder::Found> PhraseFinder::push(std::string_view text, std::string& shown) {
  if (phrases_.empty()) {
    shown += text;
    return std::nullopt;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!advance(text[i])) continue;
    const Phrase* longest = nullptr;
    for (const Phrase& phrase : phrases_) {
      if (phrase.matched != phrase.text.size()) continue;
      if (longest == nullptr || phrase.text.size() > longest->text.size()) longest = &phrase;
    }
    held_ += text.substr(0, i + 1);
    held_.resize(held_.size() - longest->text.size());
    shown += std::exchange(held_, {});
    reset();
    return Found{longest->index, i + 1};
  }
  std::size_t longest = 0;
  for (const Phrase& phrase : phrases_) longest = std::max(longest, phrase.matched);
  held_ += text;
  const std::size_t safe = held_.size() - longest;
  shown.append(held_, 0, safe);
  held_.erase(0, safe);
  return std::nullopt;
}

std::string PhraseFinder::finish() {
  reset();
  return std::exchange(held_, {});
}

}  // namespace glint
