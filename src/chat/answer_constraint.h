// What an answer may say next: a thought of bounded length, then content or calls that fit their
// grammars. Follows the same rules as text/output_parser.h, so that what is held to a grammar is
// what the parser gives out as content or calls.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/constraint.h"
#include "text/grammar.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace glint {

// The tokens of one model that matter here.
struct AnswerTokens {
  int vocab_size = 0;
  std::optional<std::int32_t> think, think_end;  // unset where answers have no thoughts
  std::optional<std::int32_t> call;              // opens a call, or the section of calls
  std::vector<std::int32_t> ends;
  std::vector<std::int32_t> newlines;  // tokens that are nothing but newlines
  // Tokens that, behind `before`, spell the end of a thought from ordinary pieces and go on with
  // more than blanks.
  struct Closer {
    std::int32_t id;
    std::string before;
  };
  std::vector<Closer> closers;
};

AnswerTokens find_answer_tokens(const Tokenizer& tokenizer,
                                const std::vector<std::int32_t>& end_tokens, ToolFormat tool_format,
                                ReasoningFormat reasoning_format);

struct AnswerRules {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const AnswerTokens> tokens;
  bool starts_in_thinking = false;
  bool reads_thoughts = false;         // <think> at the start opens a thought, even if not offered
  bool offers_thought = false;         // the content's grammar leaves room for a thought before it
  bool reads_calls = false;            // the parser takes calls, so that one ends a thought
  bool forbids_calls = false;          // the token that opens one is masked
  bool leading_newlines = false;       // may come before what `content` says
  std::optional<int> thinking_budget;  // tokens of a thought, then </think> is forced
  std::shared_ptr<const Grammar> content;  // null: free. From the first token after the thought
  bool or_call = false;                    // a call may be made instead of `content`
  std::shared_ptr<const Grammar> call;     // null: free. From behind the token that opens a call

  bool constrain() const {
    return forbids_calls || content != nullptr || call != nullptr ||
           (thinking_budget.has_value() && reads_thoughts);
  }
};

class AnswerConstraint : public TokenConstraint {
 public:
  explicit AnswerConstraint(AnswerRules rules);

  Result<NextTokens> next() override;
  Status accept(std::int32_t token) override;
  // At most kMaxRollback tokens.
  Status rollback(int count) override;

  static constexpr int kMaxRollback = 256;

 private:
  enum class Phase { kThinking, kContent, kCall, kEnded };
  struct Place {
    Phase phase = Phase::kContent;
    bool may_open = false;  // <think> opens a thought while nothing but blanks was said
    bool blank = true;      // nothing but blanks since the start or the thought
    int leading = 0;        // newlines that went past the grammar
    int thought = 0;        // tokens of it
    std::string tail;       // of the thought: what could become </think>
  };
  struct Step {
    Place before;
    bool fed_content = false;
    bool fed_call = false;
  };

  bool is_end(std::int32_t token) const;
  bool is_newline(std::int32_t token) const;
  bool may_skip_newline() const;
  Result<NextTokens> next_in_thought();
  Result<NextTokens> next_in_content();
  Status take_in_thought(std::int32_t token, Step& step);
  Status take_in_content(std::int32_t token, Step& step);
  Status feed_content(std::int32_t token, Step& step);
  Status feed_call(std::int32_t token, Step& step);
  GrammarMatcher& content();

  const AnswerRules rules_;
  std::vector<std::uint32_t> free_mask_;     // empty: all tokens
  std::vector<std::uint32_t> thought_mask_;  // of a thought that something has to follow
  std::vector<std::uint32_t> scratch_;
  Place place_;
  std::optional<GrammarMatcher> content_;
  std::optional<GrammarMatcher> call_;
  std::deque<Step> history_;
};

}  // namespace glint
