#include "server/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/http_text.h"

namespace glint {
namespace {

Json object(Json::Object members) {
  return Json(std::move(members));
}

double per_second(int count, double seconds) {
  return seconds > 0 ? count / seconds : 0.0;
}

}  // namespace

Json ChoiceWriter::choice(Json delta) {
  Json logprobs;
  if (has_logprobs_ && !logprobs_.empty()) {
    logprobs.set("content", Json(std::exchange(logprobs_, {})));
    logprobs.set("refusal", Json());
  }
  return object({{"index", Json(options_.index)},
                 {"delta", std::move(delta)},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", Json()}});
}

Json ChoiceWriter::event_delta(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      if (!options_.include_reasoning || event.text.empty()) return Json();
      return object({{"reasoning_content", Json(event.text)}, {"reasoning", Json(event.text)}});
    case OutputEvent::Kind::kContent:
      if (event.text.empty()) return Json();
      return object({{"content", Json(event.text)}});
    case OutputEvent::Kind::kToolBegin: {
      Json function = object({{"name", Json(event.text)}, {"arguments", Json("")}});
      Json call = object({{"index", Json(event.tool_index)},
                          {"id", Json("call_" + random_name(24))},
                          {"type", Json("function")},
                          {"function", std::move(function)}});
      return object({{"tool_calls", Json(Json::Array{std::move(call)})}});
    }
    case OutputEvent::Kind::kToolArgs: {
      if (event.text.empty()) return Json();
      Json function = object({{"arguments", Json(event.text)}});
      Json call = object({{"index", Json(event.tool_index)}, {"function", std::move(function)}});
      return object({{"tool_calls", Json(Json::Array{std::move(call)})}});
    }
    case OutputEvent::Kind::kToolEnd:
      break;
  }
  return Json();
}

Json ChoiceWriter::token_fields(std::int32_t token, float logprob) const {
  constexpr double kNoProbability = -9999.0;  // JSON has no infinity
  const std::int32_t ids[] = {token};
  Json bytes(Json::Array{});
  for (const char byte : tokenizer_.token_bytes(token)) {
    bytes.push_back(Json(static_cast<int>(static_cast<unsigned char>(byte))));
  }
  return object(
      {{"token", Json(tokenizer_.decode(ids))},
       {"logprob", Json(std::isfinite(logprob) ? static_cast<double>(logprob) : kNoProbability)},
       {"bytes", std::move(bytes)}});
}

Json ChoiceWriter::logprob_entry(const TokenEvent& event) const {
  Json entry = token_fields(event.token, event.logprob);
  Json top(Json::Array{});
  for (const TokenLogprob& likely : event.top_logprobs)
    top.push_back(token_fields(likely.token, likely.logprob));
  entry.set("top_logprobs", std::move(top));
  return entry;
}

std::vector<Json> ChoiceWriter::write(const ChatDelta& delta) {
  std::vector<Json> choices;
  if (delta.kind == ChatDelta::Kind::kStarted) return choices;
  if (!has_role_) {
    has_role_ = true;
    choices.push_back(choice(object({{"role", Json("assistant")}, {"content", Json("")}})));
  }
  for (const TokenEvent& event : delta.logprobs) {
    has_logprobs_ = true;
    logprobs_.push_back(logprob_entry(event));
  }
  for (const OutputEvent& event : delta.events) {
    Json piece = event_delta(event);
    if (!piece.is_null()) choices.push_back(choice(std::move(piece)));
  }
  if (delta.kind == ChatDelta::Kind::kFinished) add_finish(delta, choices);
  return choices;
}

void ChoiceWriter::add_finish(const ChatDelta& delta, std::vector<Json>& choices) {
  if (options_.include_stop_string && !delta.stop_string.empty()) {
    choices.push_back(choice(object({{"content", Json(delta.stop_string)}})));
  }
  Json last = choice(Json(Json::Object{}));
  last.set("finish_reason", Json(delta.finish_reason));
  Json stop_reason;
  if (!delta.stop_string.empty()) {
    stop_reason = Json(delta.stop_string);
  } else if (std::ranges::find(options_.stop_token_ids, delta.stop_token) !=
             options_.stop_token_ids.end()) {
    stop_reason = Json(static_cast<std::int64_t>(delta.stop_token));
  }
  last.set("stop_reason", std::move(stop_reason));
  choices.push_back(std::move(last));
}

void ChoiceFold::add(const Json& choice) {
  index_ = static_cast<int>(choice.find("index")->as_int());
  if (const Json* logprobs = choice.find("logprobs"); !logprobs->is_null()) {
    if (logprobs_.is_null()) logprobs_.set("content", Json(Json::Array{}));
    for (const Json& entry : logprobs->find("content")->as_array())
      logprobs_.find("content")->push_back(entry);
  }
  if (const Json* reason = choice.find("finish_reason"); !reason->is_null()) {
    finish_reason_ = *reason;
    stop_reason_ = *choice.find("stop_reason");
  }
  const Json& delta = *choice.find("delta");
  if (const Json* text = delta.find("content")) content_ += text->as_string();
  if (const Json* text = delta.find("reasoning")) reasoning_ += text->as_string();
  const Json* calls = delta.find("tool_calls");
  if (calls == nullptr) return;
  const Json& call = calls->as_array().front();
  if (call.find("id") != nullptr) {
    Json::Object whole;
    for (const auto& [key, value] : call.as_object()) {
      if (key != "index") whole.emplace_back(key, value);
    }
    tool_calls_.push_back(Json(std::move(whole)));
  } else {
    Json& function = *tool_calls_.as_array().back().find("function");
    const std::string arguments = function.find("arguments")->as_string() +
                                  call.find("function")->find("arguments")->as_string();
    function.set("arguments", Json(arguments));
  }
}

Json ChoiceFold::take() {
  Json message = object({{"role", Json("assistant")}});
  const bool only_calls = !tool_calls_.is_null() && content_.empty();
  message.set("content", only_calls ? Json() : Json(std::move(content_)));
  if (!reasoning_.empty()) {
    message.set("reasoning_content", Json(reasoning_));
    message.set("reasoning", Json(std::move(reasoning_)));
  }
  if (!tool_calls_.is_null()) message.set("tool_calls", std::move(tool_calls_));
  if (!logprobs_.is_null()) logprobs_.set("refusal", Json());
  return object({{"index", Json(index_)},
                 {"message", std::move(message)},
                 {"logprobs", std::move(logprobs_)},
                 {"finish_reason", std::move(finish_reason_)},
                 {"stop_reason", std::move(stop_reason_)}});
}

AnswerUsage sum_usage(std::span<const AnswerUsage> choices) {
  AnswerUsage sum;
  for (const AnswerUsage& one : choices) {
    sum.usage.prompt_tokens = std::max(sum.usage.prompt_tokens, one.usage.prompt_tokens);
    sum.usage.cached_tokens = std::max(sum.usage.cached_tokens, one.usage.cached_tokens);
    sum.usage.completion_tokens += one.usage.completion_tokens;
    sum.usage.queue_s = std::max(sum.usage.queue_s, one.usage.queue_s);
    sum.usage.prefill_s = std::max(sum.usage.prefill_s, one.usage.prefill_s);
    sum.usage.decode_s = std::max(sum.usage.decode_s, one.usage.decode_s);
    sum.reasoning_tokens += one.reasoning_tokens;
  }
  return sum;
}

Json usage_json(const AnswerUsage& usage) {
  const Usage& u = usage.usage;
  return object({{"prompt_tokens", Json(u.prompt_tokens)},
                 {"completion_tokens", Json(u.completion_tokens)},
                 {"total_tokens", Json(u.prompt_tokens + u.completion_tokens)},
                 {"prompt_tokens_details", object({{"cached_tokens", Json(u.cached_tokens)}})},
                 {"completion_tokens_details",
                  object({{"reasoning_tokens", Json(usage.reasoning_tokens)}})}});
}

Json timings_json(const Usage& u) {
  const int computed = u.prompt_tokens - u.cached_tokens;
  return object(
      {{"cache_n", Json(u.cached_tokens)},
       {"prompt_n", Json(computed)},
       {"prompt_ms", Json(u.prefill_s * 1e3)},
       {"prompt_per_token_ms", Json(u.prefill_s * 1e3 / std::max(computed, 1))},
       {"prompt_per_second", Json(per_second(computed, u.prefill_s))},
       {"predicted_n", Json(u.completion_tokens)},
       {"predicted_ms", Json(u.decode_s * 1e3)},
       {"predicted_per_token_ms", Json(u.decode_s * 1e3 / std::max(u.completion_tokens, 1))},
       {"predicted_per_second", Json(per_second(u.completion_tokens, u.decode_s))}});
}

namespace {

Json headed(const AnswerHead& head, const char* kind, Json choices) {
  return object({{"id", Json(head.id)},
                 {"object", Json(kind)},
                 {"created", Json(head.created)},
                 {"model", Json(head.model)},
                 {"system_fingerprint", Json(head.fingerprint)},
                 {"choices", std::move(choices)}});
}

}  // namespace

Json chunk_json(const AnswerHead& head, Json choices) {
  return headed(head, "chat.completion.chunk", std::move(choices));
}

Json completion_json(const AnswerHead& head, Json choices, const AnswerUsage& usage) {
  Json out = headed(head, "chat.completion", std::move(choices));
  out.set("usage", usage_json(usage));
  out.set("timings", timings_json(usage.usage));
  return out;
}

std::string sse_event(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

}  // namespace glint
