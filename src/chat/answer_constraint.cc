#include "chat/answer_constraint.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace glint {
namespace {

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kBlanks = " \t\r\n\f\v";
constexpr int kMaxLeadingNewlines = 4;

void set_bit(std::vector<std::uint32_t>& mask, std::int32_t id) {
  const auto word = static_cast<std::size_t>(id) / 32;
  if (word < mask.size()) mask[word] |= 1u << (id % 32);
}

void clear_bit(std::vector<std::uint32_t>& mask, std::int32_t id) {
  const auto word = static_cast<std::size_t>(id) / 32;
  if (word < mask.size()) mask[word] &= ~(1u << (id % 32));
}

std::vector<std::uint32_t> full_mask(int vocab_size) {
  std::vector<std::uint32_t> mask((static_cast<std::size_t>(vocab_size) + 31) / 32, ~0u);
  if (vocab_size % 32 != 0) mask.back() = (1u << (vocab_size % 32)) - 1;
  return mask;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

// The longest end of `text` that is a beginning of </think>, but not all of it.
std::string closing_tail(std::string_view text) {
  std::size_t length = std::min(kThinkEnd.size() - 1, text.size());
  while (!text.ends_with(kThinkEnd.substr(0, length))) --length;
  return std::string(kThinkEnd.substr(0, length));
}

void add_closers(std::int32_t id, std::string_view bytes, AnswerTokens& out) {
  if (bytes.find('>') == std::string_view::npos) return;
  const std::size_t whole = bytes.find(kThinkEnd);
  if (whole != std::string_view::npos && !is_blank(bytes.substr(whole + kThinkEnd.size()))) {
    out.closers.push_back({id, ""});
    return;
  }
  for (std::size_t said = 1; said < kThinkEnd.size(); ++said) {
    const std::string_view rest = kThinkEnd.substr(said);
    if (bytes.starts_with(rest) && !is_blank(bytes.substr(rest.size()))) {
      out.closers.push_back({id, std::string(kThinkEnd.substr(0, said))});
    }
  }
}

}  // namespace

AnswerTokens find_answer_tokens(const Tokenizer& tokenizer,
                                const std::vector<std::int32_t>& end_tokens, ToolFormat tool_format,
                                ReasoningFormat reasoning_format) {
  AnswerTokens out;
  out.vocab_size = tokenizer.vocab_size();
  out.ends = end_tokens;
  out.call = call_token(tool_format, tokenizer);
  if (reasoning_format == ReasoningFormat::kThink) {
    out.think = think_token(tokenizer);
    out.think_end = think_end_token(tokenizer);
  }
  for (std::int32_t id = 0; id < out.vocab_size; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || tokenizer.is_added(id)) continue;
    if (bytes.find_first_not_of('\n') == std::string_view::npos) out.newlines.push_back(id);
    add_closers(id, bytes, out);
  }
  return out;
}

AnswerConstraint::AnswerConstraint(AnswerRules rules) : rules_(std::move(rules)) {
  const AnswerTokens& tokens = *rules_.tokens;
  place_.phase = rules_.starts_in_thinking ? Phase::kThinking : Phase::kContent;
  place_.may_open = rules_.reads_thoughts && !rules_.starts_in_thinking;
  if (rules_.forbids_calls && tokens.call) {
    free_mask_ = full_mask(tokens.vocab_size);
    clear_bit(free_mask_, *tokens.call);
  }
  if (rules_.content != nullptr) {
    // A model that ends inside its thought would leave out what was asked for.
    thought_mask_ = free_mask_.empty() ? full_mask(tokens.vocab_size) : free_mask_;
    for (const std::int32_t id : tokens.ends) clear_bit(thought_mask_, id);
  }
}

bool AnswerConstraint::is_end(std::int32_t token) const {
  return std::ranges::find(rules_.tokens->ends, token) != rules_.tokens->ends.end();
}

bool AnswerConstraint::is_newline(std::int32_t token) const {
  return std::ranges::find(rules_.tokens->newlines, token) != rules_.tokens->newlines.end();
}

bool AnswerConstraint::may_skip_newline() const {
  return rules_.leading_newlines && place_.blank && place_.leading < kMaxLeadingNewlines;
}

GrammarMatcher& AnswerConstraint::content() {
  if (!content_) content_.emplace(rules_.content->start());
  return *content_;
}

Result<NextTokens> AnswerConstraint::next() {
  switch (place_.phase) {
    case Phase::kThinking:
      return next_in_thought();
    case Phase::kContent:
      return next_in_content();
    case Phase::kCall: {
      GLINT_TRY(const std::span<const std::uint32_t> mask, call_->mask());
      return NextTokens{.allowed = mask};
    }
    case Phase::kEnded:
      break;
  }
  return NextTokens{.forced = rules_.tokens->ends.front()};
}

Result<NextTokens> AnswerConstraint::next_in_thought() {
  const AnswerTokens& tokens = *rules_.tokens;
  if (rules_.thinking_budget && tokens.think_end && place_.thought >= *rules_.thinking_budget) {
    return NextTokens{.forced = *tokens.think_end};
  }
  if (rules_.content == nullptr) return NextTokens{.allowed = free_mask_};
  // What ends the thought must not bring the beginning of the content along, unseen by its grammar.
  const auto closes = [&](const AnswerTokens::Closer& closer) {
    return place_.tail.ends_with(closer.before);
  };
  if (std::ranges::none_of(tokens.closers, closes)) return NextTokens{.allowed = thought_mask_};
  scratch_ = thought_mask_;
  for (const AnswerTokens::Closer& closer : tokens.closers) {
    if (closes(closer)) clear_bit(scratch_, closer.id);
  }
  return NextTokens{.allowed = scratch_};
}

Result<NextTokens> AnswerConstraint::next_in_content() {
  if (rules_.content == nullptr) return NextTokens{.allowed = free_mask_};
  const AnswerTokens& tokens = *rules_.tokens;
  GLINT_TRY(const std::span<const std::uint32_t> mask, content().mask());
  const bool thought = place_.may_open && rules_.offers_thought && place_.blank;
  const bool call = rules_.or_call && place_.blank;
  if (!thought && !call && !may_skip_newline()) return NextTokens{.allowed = mask};
  scratch_.assign(mask.begin(), mask.end());
  if (thought && tokens.think) set_bit(scratch_, *tokens.think);
  if (call && tokens.call) set_bit(scratch_, *tokens.call);
  if (may_skip_newline()) {
    for (const std::int32_t id : tokens.newlines) set_bit(scratch_, id);
  }
  return NextTokens{.allowed = scratch_};
}

Status AnswerConstraint::accept(std::int32_t token) {
  Step step{.before = place_};
  switch (place_.phase) {
    case Phase::kThinking:
      GLINT_TRY_VOID(take_in_thought(token, step));
      break;
    case Phase::kContent:
      GLINT_TRY_VOID(take_in_content(token, step));
      break;
    case Phase::kCall:
      GLINT_TRY_VOID(feed_call(token, step));
      break;
    case Phase::kEnded:
      break;
  }
  history_.push_back(std::move(step));
  if (history_.size() > kMaxRollback) history_.pop_front();
  return {};
}

Status AnswerConstraint::take_in_thought(std::int32_t token, Step& step) {
  const AnswerTokens& tokens = *rules_.tokens;
  if (token == tokens.think_end) {
    place_.phase = Phase::kContent;
    return {};
  }
  if (rules_.reads_calls && token == tokens.call) {
    place_.phase = Phase::kContent;
    return take_in_content(token, step);
  }
  ++place_.thought;
  if (rules_.tokenizer->is_special(token)) return {};  // not part of the text
  const std::string text = place_.tail + std::string(rules_.tokenizer->token_bytes(token));
  if (text.find(kThinkEnd) != std::string::npos) {
    place_.phase = Phase::kContent;
    place_.tail.clear();
  } else {
    place_.tail = closing_tail(text);
  }
  return {};
}

Status AnswerConstraint::take_in_content(std::int32_t token, Step& step) {
  const AnswerTokens& tokens = *rules_.tokens;
  if (place_.blank && place_.may_open && (token == tokens.think || token == tokens.think_end)) {
    place_.may_open = false;
    if (token == tokens.think) place_.phase = Phase::kThinking;
    return {};
  }
  const bool opens_call = rules_.reads_calls && token == tokens.call;
  if (opens_call && (rules_.content == nullptr || rules_.or_call)) {
    place_.blank = false;
    if (rules_.call == nullptr) return {};
    place_.phase = Phase::kCall;
    call_.emplace(rules_.call->start());
    return {};
  }
  const bool says_nothing =
      rules_.tokenizer->is_special(token) || is_blank(rules_.tokenizer->token_bytes(token));
  if (rules_.content != nullptr) GLINT_TRY_VOID(feed_content(token, step));
  place_.blank = place_.blank && says_nothing;
  return {};
}

Status AnswerConstraint::feed_content(std::int32_t token, Step& step) {
  if (is_end(token)) {
    place_.phase = Phase::kEnded;
    return {};
  }
  if (may_skip_newline() && is_newline(token)) {
    GLINT_TRY(const int allowed, content().num_allowed(std::span(&token, 1)));
    if (allowed == 0) {
      ++place_.leading;
      return {};
    }
  }
  step.fed_content = true;
  return content().accept(token);
}

Status AnswerConstraint::feed_call(std::int32_t token, Step& step) {
  if (is_end(token)) {
    place_.phase = Phase::kEnded;
    return {};
  }
  step.fed_call = true;
  return call_->accept(token);
}

Status AnswerConstraint::rollback(int count) {
  if (count < 0 || static_cast<std::size_t>(count) > history_.size()) {
    return internal_error("an answer's constraint cannot go back that far");
  }
  int fed_content = 0, fed_call = 0;
  for (int undone = 0; undone < count; ++undone) {
    Step& step = history_.back();
    fed_content += step.fed_content ? 1 : 0;
    fed_call += step.fed_call ? 1 : 0;
    place_ = std::move(step.before);
    history_.pop_back();
  }
  // Before these phases the grammars had not begun.
  if (place_.phase == Phase::kThinking) content_.reset();
  if (place_.phase == Phase::kThinking || place_.phase == Phase::kContent) call_.reset();
  if (content_ && fed_content > 0) GLINT_TRY_VOID(content_->rollback(fed_content));
  if (call_ && fed_call > 0) GLINT_TRY_VOID(call_->rollback(fed_call));
  return {};
}

}  // namespace glint
