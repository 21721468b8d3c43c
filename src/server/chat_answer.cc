#include "server/chat_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "server/http_text.h"

namespace glint {
namespace {

constexpr const char* kPing = ": ping\n\n";

// The name to report, or the 404.
std::expected<std::string, ApiError> resolve_model(const ServedModel& model,
                                                   const std::string& asked) {
  if (asked.empty()) return model.names.front();
  if (model.any_model || std::ranges::find(model.names, asked) != model.names.end()) return asked;
  return std::unexpected(ApiError{
      404, "not_found_error", "model_not_found", "model",
      fmt::format("The model '{}' is not served here; '{}' is.", asked, model.names.front())});
}

Json merged_kwargs(const Json& defaults, Json own) {
  if (!defaults.is_object()) return own;
  if (!own.is_null() && !own.is_object()) return own;
  for (const auto& [key, value] : defaults.as_object()) {
    const Json* given = own.find(key);
    if (given == nullptr || given->is_null()) own.set(key, value);
  }
  return own;
}

// What ends an answer that the engine had taken on.
ApiError run_error(const Error& error, bool has_time_limit) {
  if (error.code == ErrorCode::kCancelled && has_time_limit) {
    return error_of_status(408,
                           "The request took longer than this server allows (--request-timeout).");
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

}  // namespace

ChatAnswer::ChatAnswer(std::shared_ptr<const ServedModel> model,
                       std::shared_ptr<HttpExchange> exchange, std::shared_ptr<Mailbox> mailbox,
                       std::function<void(ChatAnswer*)> on_end)
    : model_(std::move(model)),
      exchange_(std::move(exchange)),
      mailbox_(std::move(mailbox)),
      on_end_(std::move(on_end)) {}

void ChatAnswer::start(Worker& worker) {
  exchange_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->end();
  });
  worker.post([self = shared_from_this()] { self->prepare(); });
}

void ChatAnswer::prepare() {
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

std::expected<ChatAnswer::Started, ApiError> ChatAnswer::start_turns() {
  auto call = parse_chat_call(exchange_->request().body, model_->max_n);
  if (!call) return std::unexpected(call.error());
  auto name = resolve_model(*model_, call->model);
  if (!name) return std::unexpected(name.error());
  call->model = std::move(*name);
  ChatRequest& chat = call->chat;
  chat.template_kwargs = merged_kwargs(model_->template_kwargs, std::move(chat.template_kwargs));
  chat.timeout_s = model_->request_timeout_s;

  auto prompt = model_->text->prepare(chat);
  if (!prompt) return std::unexpected(error_of(prompt.error()));
  const auto shared = std::make_shared<const PreparedPrompt>(std::move(*prompt));
  chat.messages = Json();  // rendered; the choices need no copies of it
  Started started{std::move(*call), {}};
  for (int choice = 0; choice < started.call.n; ++choice) {
    ChatRequest one = started.call.chat;
    if (one.seed) *one.seed += static_cast<std::uint64_t>(choice);
    auto turn =
        start_prepared_turn(*model_->engine, model_->text, std::move(one), shared, sink_of(choice));
    if (!turn) return std::unexpected(error_of(turn.error()));
    started.turns.push_back(std::move(*turn));
  }
  return started;
}

// Weak, because the turn that holds the sink is held by this answer.
DeltaSink ChatAnswer::sink_of(int choice) {
  return [weak = weak_from_this(), mailbox = mailbox_, choice](ChatDelta delta) {
    mailbox->post([weak, choice, delta = std::move(delta)] {
      if (const auto self = weak.lock()) self->on_delta(choice, delta);
    });
  };
}

void ChatAnswer::on_started(Started started) {
  call_ = std::move(started.call);
  turns_ = std::move(started.turns);
  for (const std::string& name : call_->unknown_fields)
    log_debug("ignored unknown request field " + name);
  head_ = {"chatcmpl-" + random_name(24), static_cast<std::int64_t>(std::time(nullptr)),
           call_->model, model_->fingerprint};
  for (int choice = 0; choice < call_->n; ++choice) {
    ChoiceWriter::Options options;
    options.index = choice;
    options.include_reasoning = call_->include_reasoning;
    options.include_stop_string = call_->include_stop_string;
    options.stop_token_ids = call_->chat.stop_token_ids;
    writers_.emplace_back(model_->text->tokenizer(), std::move(options));
  }
  folds_.resize(static_cast<std::size_t>(call_->n));
  usages_.resize(static_cast<std::size_t>(call_->n));
  if (call_->stream) exchange_->start_stream(stream_head(), kPing, model_->sse_ping_s);
  for (const auto& [choice, delta] : std::exchange(early_, {})) on_delta(choice, delta);
}

void ChatAnswer::on_delta(int choice, const ChatDelta& delta) {
  if (ended_) return;
  if (!call_) {
    early_.emplace_back(choice, delta);
    return;
  }
  const auto index = static_cast<std::size_t>(choice);
  if (delta.kind == ChatDelta::Kind::kStarted) {
    ++num_started_;
    usages_[index].usage = delta.usage;
    return;
  }
  if (delta.finish_reason == "error")
    return abort(run_error(delta.error, model_->request_timeout_s > 0));
  if (delta.finish_reason == "cancelled") return abort(draining_error());
  usages_[index].usage.completion_tokens += static_cast<int>(delta.tokens.size());
  if (delta.kind == ChatDelta::Kind::kFinished)
    usages_[index] = {delta.usage, delta.reasoning_tokens};
  std::vector<Json> choices = writers_[index].write(delta);
  if (call_->stream) {
    write_choices(std::move(choices));
  } else {
    for (const Json& one : choices) folds_[index].add(one);
  }
  if (delta.kind == ChatDelta::Kind::kFinished && ++num_finished_ == call_->n) complete();
}

Json ChatAnswer::chunk(Json choices) const {
  Json out = chunk_json(head_, std::move(choices));
  if (call_->continuous_usage) {
    out.set("usage", usage_json(sum_usage(usages_)));
  } else if (call_->include_usage) {
    out.set("usage", Json());
  }
  return out;
}

void ChatAnswer::write_choices(std::vector<Json> choices) {
  std::string text;
  for (Json& choice : choices)
    text += sse_event(chunk(Json(Json::Array{std::move(choice)})).dump());
  exchange_->write(text);
}

void ChatAnswer::complete() {
  const AnswerUsage usage = sum_usage(usages_);
  if (call_->stream) {
    std::string text;
    if (call_->include_usage) {
      Json last = chunk_json(head_, Json(Json::Array{}));
      last.set("usage", usage_json(usage));
      last.set("timings", timings_json(usage.usage));
      text += sse_event(last.dump());
    }
    text += sse_event("[DONE]");
    exchange_->write(text);
    exchange_->finish();
  } else {
    Json choices(Json::Array{});
    for (ChoiceFold& fold : folds_) choices.push_back(fold.take());
    HttpResponse response;
    response.body = completion_json(head_, std::move(choices), usage).dump();
    exchange_->respond(std::move(response));
  }
  log_info(fmt::format(
      "{} {}: {} prompt tokens ({} cached), {} generated, prefill {:.2f} s, decode {:.2f} s",
      exchange_->request().id, exchange_->request().path, usage.usage.prompt_tokens,
      usage.usage.cached_tokens, usage.usage.completion_tokens, usage.usage.prefill_s,
      usage.usage.decode_s));
  end();
}

void ChatAnswer::abort(const ApiError& error) {
  if (ended_) return;
  if (call_ && call_->stream) {
    exchange_->write(sse_event(error_object(error).dump()) + sse_event("[DONE]"));
    exchange_->finish();
  } else {
    exchange_->respond(error_response(error));
  }
  end();
}

void ChatAnswer::end() {
  if (ended_) return;
  ended_ = true;
  unwanted_.store(true, std::memory_order_relaxed);
  turns_.clear();  // cancels what still runs
  early_.clear();
  if (const auto callback = std::exchange(on_end_, nullptr)) callback(this);
}

}  // namespace glint
