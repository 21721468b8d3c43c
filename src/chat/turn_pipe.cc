#include "chat/turn_pipe.h"

#include <algorithm>
#include <utility>

namespace glint {
namespace {

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      break;
  }
  return "error";
}

std::vector<OutputEvent> as_content(std::string text) {
  if (text.empty()) return {};
  return {OutputEvent{OutputEvent::Kind::kContent, std::move(text), -1}};
}

// Drops what follows the first complete call.
void cut_after_first_call(std::vector<OutputEvent>& events) {
  const auto end = std::ranges::find(events, OutputEvent::Kind::kToolEnd, &OutputEvent::kind);
  if (end != events.end()) events.erase(end + 1, events.end());
}

}  // namespace

TurnPipe::TurnPipe(const Tokenizer& tokenizer, Options options, DeltaSink sink,
                   std::function<void()> end_early)
    : sink_(std::move(sink)),
      end_early_(std::move(end_early)),
      parallel_tool_calls_(options.parallel_tool_calls),
      logprobs_(options.logprobs),
      keep_special_(options.keep_special),
      tokenizer_(tokenizer),
      detokenizer_(tokenizer),
      stops_(options.raw ? options.stops : std::vector<std::string>()) {
  if (options.raw) return;
  OutputParser::Options parser;
  parser.tool_format = options.tool_format;
  parser.reasoning_format = options.reasoning_format;
  parser.keep_special = options.keep_special;
  parser.starts_in_thinking = options.starts_in_thinking;
  parser.tools = std::move(options.tools);
  parser.stops = std::move(options.stops);
  parser_.emplace(tokenizer, std::move(parser));
}

void TurnPipe::take(TokenEvent event) {
  if (finished_) return;
  switch (event.kind) {
    case TokenEvent::Kind::kStarted: {
      ChatDelta delta;
      delta.kind = ChatDelta::Kind::kStarted;
      delta.usage = event.usage;
      sink_(std::move(delta));
      return;
    }
    case TokenEvent::Kind::kProgress: {
      ChatDelta delta;
      delta.kind = ChatDelta::Kind::kProgress;
      delta.prompt_computed = event.prompt_computed;
      delta.usage = event.usage;
      sink_(std::move(delta));
      return;
    }
    case TokenEvent::Kind::kPrompt: {
      ChatDelta delta;
      delta.kind = ChatDelta::Kind::kPrompt;
      delta.prompt_logprobs = std::move(event.prompt_logprobs);
      sink_(std::move(delta));
      return;
    }
    case TokenEvent::Kind::kToken:
      if (!complete_) take_token(std::move(event));
      return;
    case TokenEvent::Kind::kFinished:
      take_finish(std::move(event));
      return;
  }
}

void TurnPipe::take_token(TokenEvent event) {
  ++num_tokens_;
  const std::int32_t token = event.token;
  const bool is_stop = event.is_stop;
  tokens_.push_back(token);
  if (logprobs_) token_logprobs_.push_back(std::move(event));
  if (is_stop) {
    stop_token_ = token;
    return;  // its text is never shown
  }
  std::vector<OutputEvent> events = text_of(token);
  const bool complete = is_complete(events);
  if (!events.empty()) flush(std::move(events));
  if (complete) {
    complete_ = true;
    end_early_();
  }
}

std::vector<OutputEvent> TurnPipe::text_of(std::int32_t token) {
  if (!parser_) {
    if (!keep_special_ && tokenizer_.is_special(token)) return {};
    return as_content(stops_.push(detokenizer_.push(token)));
  }
  std::vector<OutputEvent> events = parser_->push(token);
  if (!parallel_tool_calls_) cut_after_first_call(events);
  return events;
}

bool TurnPipe::is_complete(const std::vector<OutputEvent>& events) const {
  if (!parser_) return stops_.matched().has_value();
  return parser_->stopped() || (!parallel_tool_calls_ && !events.empty() &&
                                events.back().kind == OutputEvent::Kind::kToolEnd);
}

std::vector<OutputEvent> TurnPipe::text_at_end(bool by_stop) {
  if (!parser_) {
    std::string text = stops_.push(detokenizer_.finish());
    text += stops_.finish();
    return as_content(std::move(text));
  }
  std::vector<OutputEvent> events = parser_->finish(by_stop);
  if (!parallel_tool_calls_) {
    if (complete_) return {};
    cut_after_first_call(events);
  }
  return events;
}

void TurnPipe::flush(std::vector<OutputEvent> events) {
  ChatDelta delta;
  delta.events = std::move(events);
  delta.tokens = std::exchange(tokens_, {});
  delta.logprobs = std::exchange(token_logprobs_, {});
  sink_(std::move(delta));
}

void TurnPipe::take_finish(TokenEvent event) {
  finished_ = true;
  // An answer that was complete here ended well, whatever became of the engine's side of it.
  FinishReason reason = event.reason;
  if (complete_) reason = FinishReason::kStop;
  const bool by_stop = reason == FinishReason::kStop;

  ChatDelta delta;
  delta.kind = ChatDelta::Kind::kFinished;
  delta.events = text_at_end(by_stop);
  delta.tokens = std::exchange(tokens_, {});
  delta.logprobs = std::exchange(token_logprobs_, {});
  delta.finish_reason = reason_name(reason);
  if (parser_) {
    if (by_stop && parser_->complete_tool_calls() > 0) delta.finish_reason = "tool_calls";
    if (parser_->stopped()) delta.stop_string = parser_->stop_string();
    delta.reasoning_tokens = parser_->reasoning_tokens();
  } else {
    delta.stop_string = stops_.matched().value_or("");
  }
  if (by_stop && delta.stop_string.empty()) delta.stop_token = stop_token_;
  if (reason == FinishReason::kError) delta.error = std::move(event.error);
  delta.usage = event.usage;
  // Tokens of steps that ran before the engine heard of the end belong to no answer.
  delta.usage.completion_tokens = num_tokens_;
  sink_(std::move(delta));
}

}  // namespace glint
