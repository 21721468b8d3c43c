// Constrained decoding through the `llguidance` crate: which tokens may come next under a JSON
// schema, a regular expression or a Lark grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace glint {

struct GrammarSource {
  enum class Kind {
    kJsonSchema,  // text of a JSON schema
    kRegex,       // matches the whole answer
    kLark,        // llguidance's dialect; special tokens as <name>, schemas as %json {...}
    kGbnf,        // llama.cpp's; translated to Lark
  } kind = Kind::kJsonSchema;
  std::string text;
  // JSON schemas: what is not implemented is ignored instead of refused.
  bool lenient = false;
  bool any_whitespace = true;  // JSON schemas: between tokens of JSON
};

class Grammar;

// A place in a grammar: what one answer said so far. Not safe from two threads at once.
class GrammarMatcher {
 public:
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Bit i % 32 of word i / 32: token i may come next; end tokens only where the text is complete,
  // and nothing else may follow once it must be. Borrowed until the next call. Errors:
  // kInvalidArgument when the grammar needs more work for one token than is allowed.
  Result<std::span<const std::uint32_t>> mask();
  // Errors: kInvalidArgument when the token is not allowed here.
  Status accept(std::int32_t token);
  Status rollback(int count);
  // How many of `tokens` in a row could be accepted here. Changes nothing.
  Result<int> num_allowed(std::span<const std::int32_t> tokens);
  bool is_complete() const;  // the text so far is a whole sentence
  bool is_stopped() const;   // and nothing but an end token may follow

 private:
  friend class Grammar;
  struct State;
  explicit GrammarMatcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A compiled grammar. Immutable, safe from any thread.
class Grammar {
 public:
  ~Grammar();
  GrammarMatcher start() const;

 private:
  friend class GrammarCompiler;
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Compiles for one tokenizer, and keeps what it compiled last. Safe from any thread.
class GrammarCompiler {
 public:
  // Borrows the tokenizer for its life and that of its grammars. `end_tokens` may end an answer.
  static Result<std::unique_ptr<GrammarCompiler>> make(const Tokenizer& tokenizer,
                                                       std::span<const std::int32_t> end_tokens);
  ~GrammarCompiler();
  // Takes well under a second whatever the source. Errors: kInvalidArgument with the reason:
  // syntax, an unsupported keyword, too large (64 KiB of JSON schema, 256 KiB of the others), too
  // deep, too much work.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source);

 private:
  GrammarCompiler();
  struct State;
  std::unique_ptr<State> state_;
};

// llama.cpp's GBNF as Lark, or an error that names line and construct.
Result<std::string> gbnf_to_lark(std::string_view gbnf);

}  // namespace glint
