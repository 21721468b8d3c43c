#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <thread>

#include "base/log.h"
#include "server/pending_body.h"

namespace glint {
namespace {

// What ends an answer that the engine had taken on.
ApiError run_error(const Error& error, bool has_time_limit) {
  if (error.code == ErrorCode::kCancelled && has_time_limit) {
    return error_of_status(408,
                           "The request took longer than this server allows (--request-timeout).");
  }
  // What only shows while the model runs: a grammar that explodes.
  if (error.code == ErrorCode::kInvalidArgument) {
    return bad_request("", "The form that was asked of the answer cannot be held: " + error.message,
                       "invalid_schema");
  }
  if (error.code == ErrorCode::kExhausted)
    return {503, "unavailable_error", "cache_full", "", error.message};
  return error_of(error);
}

HttpResponse stream_head() {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return head;
}

template <typename T>
void move_to_end(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Memory that a delta takes until it is written, about.
std::size_t bytes_of(const ChatDelta& delta) {
  std::size_t bytes = sizeof delta;
  for (const OutputEvent& event : delta.events) bytes += sizeof event + event.text.size();
  const auto add = [&bytes](const auto& logprobs) {
    for (const auto& one : logprobs)
      bytes += sizeof one + one.top_logprobs.size() * sizeof(TokenLogprob);
  };
  add(delta.logprobs);
  add(delta.prompt_logprobs);
  return bytes;
}

// `later` continues `delta`.
void merge(ChatDelta& delta, ChatDelta later) {
  for (OutputEvent& event : later.events) {
    const bool joins = !delta.events.empty() && delta.events.back().kind == event.kind &&
                       delta.events.back().tool_index == event.tool_index &&
                       event.kind != OutputEvent::Kind::kToolBegin &&
                       event.kind != OutputEvent::Kind::kToolEnd;
    if (joins) {
      delta.events.back().text += event.text;
    } else {
      delta.events.push_back(std::move(event));
    }
  }
  move_to_end(later.tokens, delta.tokens);
  move_to_end(later.logprobs, delta.logprobs);
}

}  // namespace

Answer::Answer(std::shared_ptr<const ServedModel> model, GenerateRoute route,
               std::shared_ptr<HttpExchange> exchange, std::shared_ptr<Mailbox> mailbox,
               const AnswerObserver& observer, std::function<void(Answer*)> on_end)
    : model_(std::move(model)),
      route_(route),
      exchange_(std::move(exchange)),
      mailbox_(std::move(mailbox)),
      observer_(observer),
      on_end_(std::move(on_end)) {}

void Answer::start(Worker& worker) {
  exchange_->on_close([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->report("abort");
    self->end();
  });
  worker.post([self = shared_from_this()] { self->prepare(); });
}

void Answer::prepare() {
  if (unwanted_.load(std::memory_order_relaxed)) return;
  auto started = std::make_shared<std::expected<Started, ApiError>>(start_turns());
  mailbox_->post([weak = weak_from_this(), started] {
    const auto self = weak.lock();
    if (!self || self->ended_) return;
    if (*started) {
      self->on_started(std::move(**started));
    } else {
      self->abort(started->error());
    }
  });
}

std::expected<Answer::Started, ApiError> Answer::start_turns() {
  auto call = route_.parse(exchange_->request().body, model_->api);
  if (!call) return std::unexpected(call.error());
  auto name = resolve_model(*model_, *call);
  if (!name) return std::unexpected(name.error());

  Started started;
  started.start.model = std::move(*name);
  started.start.fingerprint = model_->fingerprint;
  started.start.created = static_cast<std::int64_t>(std::time(nullptr));
  started.start.text = model_->text;
  for (ChatRequest& chat : call->prompts) {
    auto prompt = prepare_prompt(*model_, chat);
    if (!prompt) return std::unexpected(told_of(*call, prompt.error()));
    started.start.prompts.push_back(std::make_shared<const PreparedPrompt>(std::move(*prompt)));
    chat.messages = Json();  // rendered; the choices need no copies of it
    chat.timeout_s = model_->request_timeout_s;
  }
  for (std::size_t prompt = 0; prompt < call->prompts.size(); ++prompt) {
    for (int i = 0; i < call->n; ++i) {
      ChatRequest one = call->prompts[prompt];
      const int choice = static_cast<int>(started.turns.size());
      if (one.seed) *one.seed += static_cast<std::uint64_t>(choice);
      auto turn = start_prepared_turn(*model_->engine, model_->text, std::move(one),
                                      started.start.prompts[prompt], sink_of(choice));
      if (!turn) return std::unexpected(told_of(*call, error_of(turn.error())));
      started.turns.push_back(std::move(*turn));
    }
  }
  started.call = std::move(*call);
  return started;
}

// Weak, because the turn that holds the sink is held by this answer.
DeltaSink Answer::sink_of(int choice) {
  return [weak = weak_from_this(), mailbox = mailbox_, backlog = model_->backlog,
          choice](ChatDelta delta) {
    if (backlog.most == 0) {
      mailbox->post([weak, choice, delta = std::move(delta)]() mutable {
        if (const auto self = weak.lock()) self->on_delta(choice, std::move(delta));
      });
      return;
    }
    // Given back when it was handled, or dropped.
    auto pending = std::make_shared<PendingBody>(backlog.bytes, bytes_of(delta));
    mailbox->post([weak, choice, delta = std::move(delta), pending = std::move(pending)]() mutable {
      if (const auto self = weak.lock()) self->on_delta(choice, std::move(delta));
    });
    constexpr int kMostNaps = 20;  // the model must not stand still for a thread that does
    for (int nap = 0; nap < kMostNaps && backlog.bytes->load() > backlog.most; ++nap)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
}

void Answer::on_started(Started started) {
  call_ = std::move(started.call);
  turns_ = std::move(started.turns);
  choices_.resize(turns_.size());
  interval_ = call_->stream_interval > 0 ? call_->stream_interval : model_->stream_interval;
  for (const std::string& name : call_->unknown_fields) observer_.on_unknown_field(name);
  for (const std::string& note : call_->notes)
    log_info(fmt::format("{} {}", exchange_->request().id, note));
  const std::string opening = call_->writer->begin(started.start);
  if (call_->stream) {
    exchange_->start_stream(
        stream_head(),
        [weak = weak_from_this()] {
          const auto self = weak.lock();
          return self && self->call_ ? self->call_->writer->ping() : std::string();
        },
        model_->sse_ping_s);
    if (!opening.empty()) exchange_->write(opening);
  }
  for (auto& [choice, delta] : std::exchange(early_, {})) on_delta(choice, std::move(delta));
}

void Answer::on_delta(int index, ChatDelta delta) {
  if (ended_) return;
  if (!call_) {
    early_.emplace_back(index, std::move(delta));
    return;
  }
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  measure(choice, delta);
  if (!hold(delta)) return abort(memory_error());
  if (delta.finish_reason == "error")
    return abort(run_error(delta.error, model_->request_timeout_s > 0));
  if (delta.finish_reason == "cancelled") return abort(draining_error());
  const bool is_last = delta.kind == ChatDelta::Kind::kFinished;
  if (const auto ready = due(choice, std::move(delta))) {
    const std::string text = call_->writer->take(index, *ready);
    if (call_->stream && !text.empty()) exchange_->write(text);
  }
  if (is_last && ++num_finished_ == static_cast<int>(choices_.size())) complete();
}

// Streams pass on what comes; whole answers pile it up.
bool Answer::hold(const ChatDelta& delta) {
  if (call_->stream || !observer_.on_held) return true;
  std::ptrdiff_t count = 0;
  const auto add = [&count](const auto& logprobs) {
    for (const auto& one : logprobs)
      count += 1 + static_cast<std::ptrdiff_t>(one.top_logprobs.size());
  };
  add(delta.logprobs);
  add(delta.prompt_logprobs);
  num_held_ += count;
  return count == 0 || observer_.on_held(count);
}

void Answer::measure(Choice& choice, const ChatDelta& delta) {
  if (delta.kind == ChatDelta::Kind::kStarted) ++num_started_;
  if (delta.kind == ChatDelta::Kind::kStarted || delta.kind == ChatDelta::Kind::kFinished) {
    choice.usage.usage = delta.usage;
  }
  if (delta.kind == ChatDelta::Kind::kFinished) {
    choice.usage.reasoning_tokens = delta.reasoning_tokens;
    choice.reason = delta.finish_reason;
  }
  if (delta.tokens.empty()) return;
  const auto now = Clock::now();
  const auto seconds = [now](Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count();
  };
  if (!choice.has_token) {
    observer_.on_first_token(seconds(began_));
  } else {
    observer_.on_token_gap(seconds(choice.last_token), static_cast<int>(delta.tokens.size()));
  }
  choice.has_token = true;
  choice.last_token = now;
}

std::optional<ChatDelta> Answer::due(Choice& choice, ChatDelta delta) {
  if (delta.kind == ChatDelta::Kind::kFinished && choice.held) {
    ChatDelta whole = std::move(*std::exchange(choice.held, std::nullopt));
    std::vector<OutputEvent> events = std::move(delta.events);
    ChatDelta rest;
    rest.events = std::move(events);
    rest.tokens = std::move(delta.tokens);
    rest.logprobs = std::move(delta.logprobs);
    merge(whole, std::move(rest));
    delta.events = std::move(whole.events);
    delta.tokens = std::move(whole.tokens);
    delta.logprobs = std::move(whole.logprobs);
    return delta;
  }
  if (delta.kind != ChatDelta::Kind::kOutput || interval_ <= 1) return delta;
  if (choice.held) {
    merge(*choice.held, std::move(delta));
  } else {
    choice.held = std::move(delta);
  }
  if (static_cast<int>(choice.held->tokens.size()) < interval_) return std::nullopt;
  return std::exchange(choice.held, std::nullopt);
}

AnswerUsage Answer::usage() const {
  UsageTally tally(static_cast<int>(call_->prompts.size()), call_->n);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    ChatDelta delta;
    delta.kind = ChatDelta::Kind::kFinished;
    delta.usage = choices_[i].usage.usage;
    delta.reasoning_tokens = choices_[i].usage.reasoning_tokens;
    tally.take(static_cast<int>(i), delta);
  }
  return tally.sum();
}

void Answer::complete() {
  const std::string closing = call_->writer->end();
  if (call_->stream) {
    if (!closing.empty()) exchange_->write(closing);
    exchange_->finish();
  } else {
    HttpResponse response;
    response.body = call_->writer->whole().dump();
    exchange_->respond(std::move(response));
  }
  report(choices_.front().reason);
  end();
}

// Once for each answer that the engine had to do with.
void Answer::report(std::string reason) {
  if (reported_ || !call_) return;
  reported_ = true;
  AnswerRecord record;
  record.reason = std::move(reason);
  record.usage = usage();
  record.n = static_cast<int>(choices_.size());
  record.max_tokens = call_->prompts.front().max_tokens.value_or(0);
  record.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const Usage& used = record.usage.usage;
  log_info(fmt::format(
      "{} {} {}: {} prompt tokens ({} cached), {} generated, waited {:.2f} s, prefill {:.2f} s, "
      "decode {:.2f} s",
      exchange_->request().id, exchange_->request().path, record.reason, used.prompt_tokens,
      used.cached_tokens, used.completion_tokens, used.queue_s, used.prefill_s, used.decode_s));
  observer_.on_done(record);
}

void Answer::abort(const ApiError& error) {
  if (ended_) return;
  if (call_ && call_->stream) {
    exchange_->write(call_->writer->fail(error));
    exchange_->finish();
  } else {
    exchange_->respond(error_response(error, route_.shape, exchange_->request().id));
  }
  report("error");
  end();
}

void Answer::end() {
  if (ended_) return;
  ended_ = true;
  unwanted_.store(true, std::memory_order_relaxed);
  if (num_held_ > 0) observer_.on_held(-num_held_);
  turns_.clear();  // cancels what still runs
  early_.clear();
  if (const auto callback = std::exchange(on_end_, nullptr)) callback(this);
}

}  // namespace glint
