#include "server/chat_choices.h"

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

double finite_logprob(float logprob) {
  constexpr double kNoProbability = -9999.0;
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kNoProbability;
}

std::string token_label(const LogprobStyle& style, std::int32_t token) {
  if (style.ids_as_text) return fmt::format("token_id:{}", token);
  const std::int32_t ids[] = {token};
  return style.tokenizer->decode(ids);
}

Json token_fields(const LogprobStyle& style, std::int32_t token, float logprob) {
  Json bytes(Json::Array{});
  for (const char byte : style.tokenizer->token_bytes(token)) {
    bytes.push_back(Json(static_cast<int>(static_cast<unsigned char>(byte))));
  }
  return object({{"token", Json(token_label(style, token))},
                 {"logprob", Json(finite_logprob(logprob))},
                 {"bytes", std::move(bytes)}});
}

Json ChoiceWriter::choice(Json delta) {
  Json logprobs;
  if (has_logprobs_ && !logprobs_.empty()) {
    logprobs.set("content", Json(std::exchange(logprobs_, {})));
    logprobs.set("refusal", Json());
  }
  Json out = object({{"index", Json(options_.index)},
                     {"delta", std::move(delta)},
                     {"logprobs", std::move(logprobs)},
                     {"finish_reason", Json()}});
  if (options_.token_ids) out.set("token_ids", Json(std::exchange(token_ids_, {})));
  return out;
}

Json ChoiceWriter::call_delta(const OutputEvent& event) {
  const bool begins = event.kind == OutputEvent::Kind::kToolBegin;
  Json function = begins ? object({{"name", Json(event.text)}, {"arguments", Json("")}})
                         : object({{"arguments", Json(event.text)}});
  if (options_.legacy_function_call) {
    // There is room for one call only.
    return event.tool_index > 0 ? Json() : object({{"function_call", std::move(function)}});
  }
  Json call = object({{"index", Json(event.tool_index)}});
  if (begins) {
    call.set("id", Json(event.id.empty() ? "call_" + random_name(24) : event.id));
    call.set("type", Json("function"));
  }
  call.set("function", std::move(function));
  return object({{"tool_calls", Json(Json::Array{std::move(call)})}});
}

Json ChoiceWriter::event_delta(const OutputEvent& event) {
  const bool begins = event.kind == OutputEvent::Kind::kToolBegin;
  if (event.text.empty() && !begins) return Json();
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning: {
      Json delta;
      if (options_.reasoning_content) delta.set("reasoning_content", Json(event.text));
      if (options_.reasoning) delta.set("reasoning", Json(event.text));
      return delta;
    }
    case OutputEvent::Kind::kContent:
      return object({{"content", Json(event.text)}});
    case OutputEvent::Kind::kToolBegin:
    case OutputEvent::Kind::kToolArgs:
      return call_delta(event);
    case OutputEvent::Kind::kToolEnd:
      break;
  }
  return Json();
}

Json ChoiceWriter::logprob_entry(const TokenEvent& event) const {
  Json entry = token_fields(options_.logprobs, event.token, event.logprob);
  Json top(Json::Array{});
  for (const TokenLogprob& likely : event.top_logprobs)
    top.push_back(token_fields(options_.logprobs, likely.token, likely.logprob));
  entry.set("top_logprobs", std::move(top));
  return entry;
}

std::vector<Json> ChoiceWriter::write(const ChatDelta& delta) {
  std::vector<Json> choices;
  if (delta.kind != ChatDelta::Kind::kOutput && delta.kind != ChatDelta::Kind::kFinished) {
    return choices;
  }
  if (!has_role_) {
    has_role_ = true;
    choices.push_back(choice(object({{"role", Json("assistant")}, {"content", Json("")}})));
  }
  for (const TokenEvent& event : delta.logprobs) {
    has_logprobs_ = true;
    logprobs_.push_back(logprob_entry(event));
  }
  for (const std::int32_t token : delta.tokens)
    token_ids_.push_back(Json(static_cast<std::int64_t>(token)));
  for (const OutputEvent& event : delta.events) {
    Json piece = event_delta(event);
    if (!piece.is_null()) choices.push_back(choice(std::move(piece)));
  }
  if (delta.kind == ChatDelta::Kind::kFinished) add_finish(delta, choices);
  return choices;
}

Json stop_reason_json(const ChatDelta& finished, const std::vector<std::int32_t>& stop_token_ids) {
  if (!finished.stop_string.empty()) return Json(finished.stop_string);
  const bool is_own =
      std::ranges::find(stop_token_ids, finished.stop_token) != stop_token_ids.end();
  return is_own ? Json(static_cast<std::int64_t>(finished.stop_token)) : Json();
}

void ChoiceWriter::add_finish(const ChatDelta& delta, std::vector<Json>& choices) {
  if (options_.include_stop_string && !delta.stop_string.empty()) {
    choices.push_back(choice(object({{"content", Json(delta.stop_string)}})));
  }
  Json last = choice(Json(Json::Object{}));
  const bool called = delta.finish_reason == "tool_calls" && options_.legacy_function_call;
  last.set("finish_reason", Json(called ? "function_call" : delta.finish_reason));
  last.set("stop_reason", stop_reason_json(delta, options_.stop_token_ids));
  choices.push_back(std::move(last));
}

void ChoiceFold::add(const Json& choice) {
  index_ = static_cast<int>(choice.find("index")->as_int());
  if (const Json* logprobs = choice.find("logprobs"); !logprobs->is_null()) {
    if (logprobs_.is_null()) logprobs_.set("content", Json(Json::Array{}));
    for (const Json& entry : logprobs->find("content")->as_array())
      logprobs_.find("content")->push_back(entry);
  }
  if (const Json* ids = choice.find("token_ids")) {
    if (token_ids_.is_null()) token_ids_ = Json(Json::Array{});
    for (const Json& id : ids->as_array()) token_ids_.push_back(id);
  }
  if (const Json* reason = choice.find("finish_reason"); !reason->is_null()) {
    finish_reason_ = *reason;
    stop_reason_ = *choice.find("stop_reason");
  }
  const Json& delta = *choice.find("delta");
  if (const Json* text = delta.find("content")) content_ += text->as_string();
  const Json* thought = nullptr;
  if (const Json* text = delta.find("reasoning_content")) {
    shows_reasoning_content_ = true;
    thought = text;
  }
  if (const Json* text = delta.find("reasoning")) {
    shows_reasoning_ = true;
    thought = text;
  }
  if (thought != nullptr) reasoning_ += thought->as_string();
  if (const Json* calls = delta.find("tool_calls")) add_call(calls->as_array().front());
  if (const Json* call = delta.find("function_call")) {
    if (call->find("name") != nullptr) {
      function_call_ = *call;
    } else {
      function_call_.set("arguments", Json(function_call_.find("arguments")->as_string() +
                                           call->find("arguments")->as_string()));
    }
  }
}

void ChoiceFold::add_call(const Json& call) {
  if (call.find("id") != nullptr) {
    Json::Object whole;
    for (const auto& [key, value] : call.as_object()) {
      if (key != "index") whole.emplace_back(key, value);
    }
    tool_calls_.push_back(Json(std::move(whole)));
    return;
  }
  Json& function = *tool_calls_.as_array().back().find("function");
  const std::string arguments = function.find("arguments")->as_string() +
                                call.find("function")->find("arguments")->as_string();
  function.set("arguments", Json(arguments));
}

Json ChoiceFold::take() {
  Json message = object({{"role", Json("assistant")}});
  const bool only_calls = (!tool_calls_.is_null() || !function_call_.is_null()) && content_.empty();
  message.set("content", only_calls ? Json() : Json(std::move(content_)));
  if (shows_reasoning_content_) message.set("reasoning_content", Json(reasoning_));
  if (shows_reasoning_) message.set("reasoning", Json(std::move(reasoning_)));
  if (!tool_calls_.is_null()) message.set("tool_calls", std::move(tool_calls_));
  if (!function_call_.is_null()) message.set("function_call", std::move(function_call_));
  if (!logprobs_.is_null()) logprobs_.set("refusal", Json());
  Json out = object({{"index", Json(index_)},
                     {"message", std::move(message)},
                     {"logprobs", std::move(logprobs_)},
                     {"finish_reason", std::move(finish_reason_)},
                     {"stop_reason", std::move(stop_reason_)}});
  if (!token_ids_.is_null()) out.set("token_ids", std::move(token_ids_));
  return out;
}

Json usage_json(const AnswerUsage& usage) {
  const Usage& u = usage.usage;
  Json details = object({{"reasoning_tokens", Json(usage.reasoning_tokens)}});
  if (u.drafted_tokens > 0) {
    details.set("accepted_prediction_tokens", Json(u.accepted_tokens));
    details.set("rejected_prediction_tokens", Json(u.drafted_tokens - u.accepted_tokens));
  }
  return object({{"prompt_tokens", Json(u.prompt_tokens)},
                 {"completion_tokens", Json(u.completion_tokens)},
                 {"total_tokens", Json(u.prompt_tokens + u.completion_tokens)},
                 {"prompt_tokens_details", object({{"cached_tokens", Json(u.cached_tokens)}})},
                 {"completion_tokens_details", std::move(details)}});
}

Json timings_json(const Usage& u) {
  const int computed = u.prompt_tokens - u.cached_tokens;
  Json out =
      object({{"cache_n", Json(u.cached_tokens)},
              {"prompt_n", Json(computed)},
              {"prompt_ms", Json(u.prefill_s * 1e3)},
              {"prompt_per_token_ms", Json(u.prefill_s * 1e3 / std::max(computed, 1))},
              {"prompt_per_second", Json(per_second(computed, u.prefill_s))},
              {"predicted_n", Json(u.completion_tokens)},
              {"predicted_ms", Json(u.decode_s * 1e3)},
              {"predicted_per_token_ms", Json(u.decode_s * 1e3 / std::max(u.completion_tokens, 1))},
              {"predicted_per_second", Json(per_second(u.completion_tokens, u.decode_s))}});
  if (u.drafted_tokens > 0) {
    out.set("draft_n", Json(u.drafted_tokens));
    out.set("draft_n_accepted", Json(u.accepted_tokens));
  }
  return out;
}

}  // namespace glint
