#include "server/openai_stream.h"

#include <utility>

#include "server/chat_choices.h"

namespace glint {

StreamShape read_stream_shape(FieldReader& fields) {
  StreamShape shape;
  shape.stream = fields.boolean_or("stream", false);
  shape.timings_per_token = fields.boolean_or("timings_per_token", false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return shape;
  if (!shape.stream) {
    fields.fail("stream_options", "is only allowed with stream: true");
    return shape;
  }
  FieldReader inner(*options, "stream_options.");
  shape.include_usage = inner.boolean_or("include_usage", false);
  shape.continuous_usage = inner.boolean_or("continuous_usage_stats", false);
  fields.adopt(inner);
  return shape;
}

Json headed(const OpenAiHead& head, Json choices) {
  return Json(Json::Object{{"id", Json(head.id)},
                           {"object", Json(head.object)},
                           {"created", Json(head.created)},
                           {"model", Json(head.model)},
                           {"system_fingerprint", Json(head.fingerprint)},
                           {"choices", std::move(choices)}});
}

std::string chunk_event(const OpenAiHead& head, const StreamShape& shape, Json choice,
                        const AnswerUsage& usage) {
  Json out = headed(head, Json(Json::Array{std::move(choice)}));
  if (shape.continuous_usage) {
    out.set("usage", usage_json(usage));
  } else if (shape.include_usage) {
    out.set("usage", Json());
  }
  if (shape.timings_per_token) out.set("timings", timings_json(usage.usage));
  return sse_event(out.dump());
}

std::string progress_event(const OpenAiHead& head, const AnswerUsage& usage,
                           const ChatDelta& delta) {
  Json out = headed(head, Json(Json::Array{}));
  out.set("prompt_progress", Json(Json::Object{{"total", Json(usage.usage.prompt_tokens)},
                                               {"cache", Json(usage.usage.cached_tokens)},
                                               {"processed", Json(delta.prompt_computed)},
                                               {"time_ms", Json(delta.usage.prefill_s * 1e3)}}));
  return sse_event(out.dump());
}

std::string last_events(const OpenAiHead& head, const StreamShape& shape,
                        const AnswerUsage& usage) {
  std::string text;
  if (shape.include_usage) {
    Json last = headed(head, Json(Json::Array{}));
    last.set("usage", usage_json(usage));
    last.set("timings", timings_json(usage.usage));
    text = sse_event(last.dump());
  }
  return text + sse_event("[DONE]");
}

std::string openai_failure(const ApiError& error) {
  return sse_event(error_object(error).dump()) + sse_event("[DONE]");
}

void append_prompt_logprobs(const Tokenizer& tokenizer, const std::vector<PromptLogprob>& tokens,
                            Json& out) {
  const auto entry = [&](std::int32_t token, float logprob, int rank) {
    const std::int32_t ids[] = {token};
    return Json(Json::Object{{"logprob", Json(finite_logprob(logprob))},
                             {"rank", Json(rank)},
                             {"decoded_token", Json(tokenizer.decode(ids))}});
  };
  for (const PromptLogprob& one : tokens) {
    if (!one.has_logprob) {
      out.push_back(Json());
      continue;
    }
    Json position;
    position.set(std::to_string(one.token), entry(one.token, one.logprob, one.rank));
    int rank = 0;
    for (const TokenLogprob& likely : one.top_logprobs) {
      ++rank;
      if (likely.token == one.token) continue;
      position.set(std::to_string(likely.token), entry(likely.token, likely.logprob, rank));
    }
    out.push_back(std::move(position));
  }
}

Json token_ids_json(const std::vector<std::int32_t>& ids) {
  Json out(Json::Array{});
  for (const std::int32_t id : ids) out.push_back(Json(static_cast<std::int64_t>(id)));
  return out;
}

}  // namespace glint
