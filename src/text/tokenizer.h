// Text to token ids and back, through the `tokenizers` crate. Immutable after load; safe from any
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/phrase_finder.h"

namespace glint {

class Tokenizer {
 public:
  // From the text of a tokenizer.json. Errors: kCorrupt with the parser's message, kUnsupported
  // (decoder is not byte-level).
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view json,
                                                      std::string_view file_name);
  ~Tokenizer();

  // Ids equal to transformers' encode(add_special_tokens=False). parse_special false: added tokens
  // written in `text` are encoded as ordinary text.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special = true) const;
  // Exact text; invalid UTF-8 becomes U+FFFD. skip_special drops tokens marked special.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  // The raw bytes of one token (UTF-8 fragments possible); empty for an unknown id.
  std::string_view token_bytes(std::int32_t id) const;
  std::optional<std::int32_t> token_id(
      std::string_view content) const;     // of a whole token, added tokens included
  bool is_special(std::int32_t id) const;  // marked special in tokenizer.json
  bool is_added(std::int32_t id) const;
  int vocab_size() const;  // one past the largest id

  // A rendered prompt in which kGuard (below) marks added-token look-alikes that came from
  // messages: those are encoded as text, everything else as encode() does.
  std::vector<std::int32_t> encode_guarded(std::string_view rendered) const;
  // Inserts kGuard into every look-alike of an added token inside `text`, and after an end that the
  // text behind it could complete to one; drops stray guards. tojson writes guards as they are.
  std::string guard(std::string_view text) const;
  static constexpr std::string_view kGuard = "\xEE\x80\x80";  // U+E000, private use
  static std::string remove_guards(std::string_view rendered);

 private:
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

// Token ids of one answer to text, piece by piece. Never emits part of a character.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(std::int32_t id);  // the text that became complete
  std::string finish();               // a dangling partial character as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

// Finds stop strings in streamed text; holds back what could still become one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops)
      : stops_(std::move(stops)), finder_(stops_) {}
  // Text that is safe to show. After a match: only what came before it, and matched() is set.
  std::string push(std::string_view text);
  std::string finish();  // what was held back (nothing after a match)
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  PhraseFinder finder_;
  std::optional<std::string> matched_;
};

}  // namespace glint
