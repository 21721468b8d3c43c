#include "server/text_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/json.h"
#include "server/common_fields.h"
#include "server/field_reader.h"
#include "server/openai_chat.h"
#include "server/openai_stream.h"

namespace glint {
namespace {

// A token's text, or its bytes where they are no text by themselves.
Json piece_json(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (is_utf8(bytes)) return Json(std::string(bytes));
  Json out(Json::Array{});
  for (const char byte : bytes)
    out.push_back(Json(static_cast<int>(static_cast<unsigned char>(byte))));
  return out;
}

// The first prompt of a body that a generating endpoint would take.
std::expected<PreparedPrompt, ApiError> prepare_first(const ServedModel& model, ApiCall& call) {
  if (const auto name = resolve_model(model, call); !name) return std::unexpected(name.error());
  auto prompt = prepare_prompt(model, call.prompts.front());
  if (!prompt) return std::unexpected(told_of(call, prompt.error()));
  return prompt;
}

// `content` with add_special, parse_special and with_pieces.
std::expected<Json, ApiError> tokenize_content(const ServedModel& model, FieldReader& fields,
                                               const std::string& content) {
  const Tokenizer& tokenizer = model.text->tokenizer();
  const std::size_t most = model.api.max_prompt_bytes;
  if (most > 0 && content.size() > most) {
    return std::unexpected(bad_request(
        "content", fmt::format("content: {} bytes of text are more than the {} that this server's "
                               "memory (--memory) leaves room to encode",
                               content.size(), most)));
  }
  const bool parse_special = fields.boolean_or("parse_special", true);
  std::vector<std::int32_t> ids;
  if (fields.boolean_or("add_special", false)) {
    ChatRequest raw;
    raw.raw = true;
    raw.add_special_tokens = true;
    if (auto prompt = model.text->prepare(raw)) ids = std::move(prompt->ids);
  }
  const auto more = tokenizer.encode(content, parse_special);
  ids.insert(ids.end(), more.begin(), more.end());
  Json out;
  if (!fields.boolean_or("with_pieces", false)) {
    out.set("tokens", token_ids_json(ids));
    return out;
  }
  Json pieces(Json::Array{});
  for (const std::int32_t id : ids) {
    pieces.push_back(Json(Json::Object{{"id", Json(static_cast<std::int64_t>(id))},
                                       {"piece", piece_json(tokenizer, id)}}));
  }
  out.set("tokens", std::move(pieces));
  return out;
}

Json tokenized(const ServedModel& model, const std::vector<std::int32_t>& ids, bool with_texts) {
  Json out(Json::Object{{"count", Json(static_cast<std::int64_t>(ids.size()))},
                        {"max_model_len", Json(model.engine->options().context)},
                        {"tokens", token_ids_json(ids)}});
  if (!with_texts) return out;
  Json texts(Json::Array{});
  for (const std::int32_t id : ids) {
    const std::int32_t one[] = {id};
    texts.push_back(Json(model.text->tokenizer().decode(one)));
  }
  out.set("token_strs", std::move(texts));
  return out;
}

}  // namespace

std::expected<Json, ApiError> tokenize(const ServedModel& model, std::string_view body) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  FieldReader fields(*parsed);
  const bool with_texts = fields.boolean_or("return_token_strs", false);
  if (const auto content = fields.string("content")) {
    auto out = tokenize_content(model, fields, *content);
    if (fields.error()) return std::unexpected(*fields.error());
    return out;
  }
  if (fields.get("messages") != nullptr) {
    auto call = parse_chat_call(body, model.api);
    if (!call) return std::unexpected(call.error());
    auto prompt = prepare_first(model, *call);
    if (!prompt) return std::unexpected(prompt.error());
    return tokenized(model, prompt->ids, with_texts);
  }
  const auto text = fields.string("prompt");
  if (!text && !fields.error()) {
    fields.fail("prompt", "give one of prompt, messages and content", "missing_field");
  }
  ChatRequest raw;
  raw.raw = true;
  raw.raw_prompt = text.value_or("");
  raw.add_special_tokens = fields.boolean_or("add_special_tokens", true);
  if (fields.error()) return std::unexpected(*fields.error());
  if (raw.raw_prompt.empty()) return tokenized(model, {}, with_texts);
  auto prompt = model.text->prepare(raw);
  if (!prompt) return std::unexpected(error_of(prompt.error()));
  return tokenized(model, prompt->ids, with_texts);
}

std::expected<Json, ApiError> detokenize(const ServedModel& model, std::string_view body) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  FieldReader fields(*parsed);
  const Json* tokens = fields.array("tokens");
  if (tokens == nullptr) fields.fail("tokens", "is required", "missing_field");
  if (fields.error()) return std::unexpected(*fields.error());
  std::vector<std::int32_t> ids;
  for (const Json& token : tokens->as_array()) {
    const auto id = integer_value(token);
    if (!id || *id < 0 || *id >= model.text->tokenizer().vocab_size()) {
      return std::unexpected(bad_request("tokens", "tokens: must hold ids of the vocabulary"));
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  const std::string text = model.text->tokenizer().decode(ids);
  return Json(Json::Object{{"prompt", Json(text)}, {"content", Json(text)}});
}

std::expected<Json, ApiError> apply_template(const ServedModel& model, std::string_view body) {
  auto call = parse_chat_call(body, model.api);
  if (!call) return std::unexpected(call.error());
  auto prompt = prepare_first(model, *call);
  if (!prompt) return std::unexpected(prompt.error());
  return Json(Json::Object{{"prompt", Json(std::move(prompt->text))}});
}

std::expected<Json, ApiError> render_call(const ServedModel& model, std::string_view body,
                                          ParseCall parse) {
  auto call = parse(body, model.api);
  if (!call) return std::unexpected(call.error());
  auto name = resolve_model(model, *call);
  if (!name) return std::unexpected(name.error());
  auto prompt = prepare_prompt(model, call->prompts.front());
  if (!prompt) return std::unexpected(told_of(*call, prompt.error()));
  return Json(Json::Object{{"model", Json(std::move(*name))},
                           {"token_ids", token_ids_json(prompt->ids)},
                           {"features", Json()}});
}

std::expected<Json, ApiError> count_call(const ServedModel& model, std::string_view body,
                                         ParseCall parse) {
  auto call = parse(body, model.api);
  if (!call) return std::unexpected(call.error());
  auto prompt = prepare_first(model, *call);
  if (!prompt) return std::unexpected(prompt.error());
  return Json(Json::Object{{"object", Json("response.input_tokens")},
                           {"input_tokens", Json(static_cast<std::int64_t>(prompt->ids.size()))}});
}

}  // namespace glint
