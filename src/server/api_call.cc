#include "server/api_call.h"

#include <fmt/format.h>

#include <algorithm>

namespace glint {

ApiError told_of(const ApiCall& call, ApiError error) {
  constexpr std::string_view kInner = "messages";
  if (!error.param.starts_with(kInner)) return error;
  error.param.replace(0, kInner.size(), call.conversation);
  if (error.message.starts_with(kInner)) error.message.replace(0, kInner.size(), call.conversation);
  return error;
}

std::string sse_event(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

std::string sse_event(std::string_view name, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data.dump());
}

void UsageTally::take(int choice, const ChatDelta& delta) {
  AnswerUsage& own = choices_[static_cast<std::size_t>(choice)];
  switch (delta.kind) {
    case ChatDelta::Kind::kStarted:
      own.usage = delta.usage;
      return;
    case ChatDelta::Kind::kFinished:
      own = {delta.usage, delta.reasoning_tokens};
      return;
    default:
      own.usage.completion_tokens += static_cast<int>(delta.tokens.size());
  }
}

AnswerUsage UsageTally::sum() const {
  AnswerUsage sum;
  AnswerUsage prompt;  // the choices of one prompt share it
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const AnswerUsage& one = choices_[i];
    const bool is_first = i % static_cast<std::size_t>(n_) == 0;
    if (is_first) prompt = {};
    const int more_prompt = std::max(0, one.usage.prompt_tokens - prompt.usage.prompt_tokens);
    // Siblings find the first one's prompt in the cache; what counts is what the first one found.
    if (is_first) sum.usage.cached_tokens += one.usage.cached_tokens;
    sum.usage.prompt_tokens += more_prompt;
    prompt.usage.prompt_tokens += more_prompt;
    sum.usage.completion_tokens += one.usage.completion_tokens;
    sum.reasoning_tokens += one.reasoning_tokens;
    sum.usage.drafted_tokens += one.usage.drafted_tokens;
    sum.usage.accepted_tokens += one.usage.accepted_tokens;
    sum.usage.queue_s = std::max(sum.usage.queue_s, one.usage.queue_s);
    sum.usage.prefill_s = std::max(sum.usage.prefill_s, one.usage.prefill_s);
    sum.usage.decode_s = std::max(sum.usage.decode_s, one.usage.decode_s);
  }
  return sum;
}

}  // namespace glint
