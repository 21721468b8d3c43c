// Finds the first of several phrases in text that arrives in pieces. Linear in the text, whatever
// the phrases.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glint {

class PhraseFinder {
 public:
  explicit PhraseFinder(const std::vector<std::string>& phrases);  // empty ones are never found

  struct Found {
    std::size_t phrase = 0;  // its place in the list
    std::size_t used = 0;    // bytes of the pushed text up to its end
  };
  // Appends to `shown` what belongs to no phrase, holding back what could still become one. Stops
  // behind the phrase that is complete first; of those that end together, the longest. So the
  // result does not depend on how the text is cut.
  std::optional<Found> push(std::string_view text, std::string& shown);
  // Gives up what was held back.
  std::string finish();

 private:
  struct Phrase {
    std::string text;
    std::vector<std::size_t> fallback;  // of each length: the next shorter one that still fits
    std::size_t matched = 0;            // the end of the text so far is this much of the phrase
    std::size_t index = 0;
  };
  bool advance(char c);  // true when a phrase is complete
  void reset();

  std::vector<Phrase> phrases_;
  std::array<bool, 256> starts_{};  // bytes that a phrase begins with
  bool idle_ = true;                // nothing is matched
  std::string held_;
};

}  // namespace glint
