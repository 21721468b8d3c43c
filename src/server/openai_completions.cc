#include "server/openai_completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "server/chat_choices.h"
#include "server/common_fields.h"
#include "server/field_reader.h"
#include "server/http_text.h"
#include "server/openai_stream.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::size_t kMaxPrompts = 256;
constexpr int kDefaultMaxTokens = 16;

// How the answer is to look, beside what the model is asked.
struct CompletionShape {
  StreamShape stream;
  int n = 1;
  int num_prompts = 1;
  bool echo = false;
  bool logprobs = false;
  bool prompt_logprobs = false;  // those of vLLM, apart from the echo's
  bool no_output = false;        // max_tokens 0: what the model says is not shown
  bool include_stop_string = false;
  bool token_ids = false;
  bool ids_as_text = false;
  std::vector<std::int32_t> stop_token_ids;
};

// Characters that begin in these bytes, so that a character cut in two counts once.
std::int64_t count_characters(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char c) { return (c & 0xC0) != 0x80; });
}

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, growing.
class LogprobTable {
 public:
  void add(const LogprobStyle& style, std::int32_t token, std::optional<float> logprob,
           const std::vector<TokenLogprob>& top, std::int64_t offset) {
    tokens_.push_back(Json(token_label(style, token)));
    offsets_.push_back(Json(offset));
    if (!logprob) {
      logprobs_.push_back(Json());
      tops_.push_back(Json());
      return;
    }
    logprobs_.push_back(Json(finite_logprob(*logprob)));
    Json likely(Json::Object{});
    for (const TokenLogprob& one : top)
      likely.set(token_label(style, one.token), Json(finite_logprob(one.logprob)));
    if (likely.find(token_label(style, token)) == nullptr)
      likely.set(token_label(style, token), Json(finite_logprob(*logprob)));
    tops_.push_back(std::move(likely));
  }
  bool empty() const { return tokens_.empty(); }
  Json take() {
    return Json(Json::Object{{"tokens", Json(std::exchange(tokens_, {}))},
                             {"token_logprobs", Json(std::exchange(logprobs_, {}))},
                             {"top_logprobs", Json(std::exchange(tops_, {}))},
                             {"text_offset", Json(std::exchange(offsets_, {}))}});
  }

 private:
  Json::Array tokens_, logprobs_, tops_, offsets_;
};

// Deltas of one choice -> its chunks.
class TextChoice {
 public:
  TextChoice(const CompletionShape& shape, int index, const AnswerStart& start,
             const PreparedPrompt& prompt)
      : shape_(shape),
        index_(index),
        style_{&start.text->tokenizer(), shape.ids_as_text},
        prompt_(prompt) {}

  std::vector<Json> write(const ChatDelta& delta) {
    std::vector<Json> chunks;
    if (delta.kind == ChatDelta::Kind::kPrompt) add_prompt(delta.prompt_logprobs);
    if (delta.kind != ChatDelta::Kind::kOutput && delta.kind != ChatDelta::Kind::kFinished) {
      return chunks;
    }
    if (shape_.echo && !std::exchange(echoed_, true)) chunks.push_back(echo());
    if (!shape_.no_output) {
      for (const TokenEvent& event : delta.logprobs) add_token(event);
      for (const std::int32_t token : delta.tokens)
        token_ids_.push_back(Json(static_cast<std::int64_t>(token)));
      std::string text;
      for (const OutputEvent& event : delta.events) text += event.text;
      if (shape_.include_stop_string) text += delta.stop_string;
      if (!text.empty()) chunks.push_back(chunk(std::move(text)));
    }
    if (delta.kind == ChatDelta::Kind::kFinished) {
      Json last = chunk("");
      last.set("finish_reason", Json(shape_.no_output ? "length" : delta.finish_reason));
      last.set("stop_reason", stop_reason_json(delta, shape_.stop_token_ids));
      chunks.push_back(std::move(last));
    }
    return chunks;
  }

  Json& prompt_logprobs() { return prompt_logprobs_; }

 private:
  Json chunk(std::string text) {
    Json out(Json::Object{{"index", Json(index_)},
                          {"text", Json(std::move(text))},
                          {"logprobs", table_.empty() ? Json() : table_.take()},
                          {"finish_reason", Json()},
                          {"stop_reason", Json()}});
    if (shape_.token_ids) out.set("token_ids", Json(std::exchange(token_ids_, {})));
    return out;
  }

  std::string prompt_text() const {
    return prompt_.text.empty() ? style_.tokenizer->decode(prompt_.ids) : prompt_.text;
  }

  Json echo() {
    const std::string text = prompt_text();
    offset_ = count_characters(text);
    return chunk(text);
  }

  void add_prompt(const std::vector<PromptLogprob>& tokens) {
    if (shape_.prompt_logprobs) append_prompt_logprobs(*style_.tokenizer, tokens, prompt_logprobs_);
    if (!shape_.echo || !shape_.logprobs) return;
    if (!std::exchange(measured_, true)) {
      // What the tokenizer put in front is not in the echoed text: offset 0 for all of it.
      std::int64_t all = 0;
      for (const std::int32_t id : prompt_.ids)
        all += count_characters(style_.tokenizer->token_bytes(id));
      offset_ = count_characters(prompt_text()) - all;
    }
    for (const PromptLogprob& one : tokens) {
      const auto logprob = one.has_logprob ? std::optional<float>(one.logprob) : std::nullopt;
      table_.add(style_, one.token, logprob, one.top_logprobs, std::max<std::int64_t>(0, offset_));
      offset_ += count_characters(style_.tokenizer->token_bytes(one.token));
    }
  }

  void add_token(const TokenEvent& event) {
    table_.add(style_, event.token, event.logprob, event.top_logprobs, offset_);
    offset_ += count_characters(style_.tokenizer->token_bytes(event.token));
  }

  const CompletionShape& shape_;
  const int index_;
  const LogprobStyle style_;
  const PreparedPrompt& prompt_;
  LogprobTable table_;
  Json::Array token_ids_;
  Json prompt_logprobs_ = Json(Json::Array{});
  std::int64_t offset_ = 0;  // characters of the text so far, that of the echo included
  bool measured_ = false;
  bool echoed_ = false;
};

// Chunks of one choice -> the whole choice.
void fold_chunk(Json& whole, const Json& chunk) {
  if (whole.is_null()) {
    whole = chunk;
    return;
  }
  whole.set("text", Json(whole.find("text")->as_string() + chunk.find("text")->as_string()));
  for (const char* key : {"finish_reason", "stop_reason"}) {
    if (!chunk.find(key)->is_null()) whole.set(key, *chunk.find(key));
  }
  if (const Json* ids = chunk.find("token_ids")) {
    for (const Json& id : ids->as_array()) whole.find("token_ids")->push_back(id);
  }
  const Json* more = chunk.find("logprobs");
  if (more->is_null()) return;
  Json& table = *whole.find("logprobs");
  if (table.is_null()) {
    table = *more;
    return;
  }
  for (const auto& [key, values] : more->as_object()) {
    for (const Json& value : values.as_array()) table.find(key)->push_back(value);
  }
}

class CompletionWriter : public AnswerWriter {
 public:
  explicit CompletionWriter(CompletionShape shape)
      : shape_(std::move(shape)), tally_(shape_.num_prompts, shape_.n) {}

  std::string begin(const AnswerStart& start) override {
    start_ = start;
    head_ = {"cmpl-" + random_name(24), "text_completion", start.created, start.model,
             start.fingerprint};
    for (int prompt = 0; prompt < shape_.num_prompts; ++prompt) {
      for (int i = 0; i < shape_.n; ++i) {
        choices_.emplace_back(shape_, prompt * shape_.n + i, start,
                              *start_.prompts[static_cast<std::size_t>(prompt)]);
      }
    }
    wholes_.resize(choices_.size());
    return {};
  }

  std::string take(int choice, const ChatDelta& delta) override {
    if (shape_.no_output) {
      ChatDelta silent = delta;
      silent.tokens.clear();
      silent.usage.completion_tokens = 0;
      tally_.take(choice, silent);
    } else {
      tally_.take(choice, delta);
    }
    if (delta.kind == ChatDelta::Kind::kProgress) {
      return shape_.stream.stream ? progress_event(head_, tally_.sum(), delta) : "";
    }
    const auto index = static_cast<std::size_t>(choice);
    std::string text;
    for (Json& one : choices_[index].write(delta)) {
      if (shape_.stream.stream) {
        text += chunk_event(head_, shape_.stream, std::move(one), tally_.sum());
      } else {
        fold_chunk(wholes_[index], one);
      }
    }
    return text;
  }

  std::string end() override { return last_events(head_, shape_.stream, tally_.sum()); }

  Json whole() override {
    Json choices(Json::Array{});
    for (std::size_t i = 0; i < wholes_.size(); ++i) {
      if (shape_.prompt_logprobs) wholes_[i].set("prompt_logprobs", choices_[i].prompt_logprobs());
      if (shape_.token_ids) {
        wholes_[i].set("prompt_token_ids",
                       token_ids_json(start_.prompts[i / static_cast<std::size_t>(shape_.n)]->ids));
      }
      choices.push_back(std::move(wholes_[i]));
    }
    Json out = headed(head_, std::move(choices));
    out.set("usage", usage_json(tally_.sum()));
    out.set("timings", timings_json(tally_.sum().usage));
    return out;
  }

  std::string fail(const ApiError& error) override { return openai_failure(error); }
  std::string ping() override { return kCommentPing; }

 private:
  const CompletionShape shape_;
  AnswerStart start_;
  OpenAiHead head_;
  UsageTally tally_;
  std::vector<TextChoice> choices_;
  std::vector<Json> wholes_;  // unless streamed
};

// --- the request ---

std::optional<std::vector<std::int32_t>> token_list(const Json& value) {
  std::vector<std::int32_t> ids;
  for (const Json& one : value.as_array()) {
    const auto id = integer_value(one);
    if (!id || *id < 0 || *id > kMaxInt) return std::nullopt;
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

void add_prompt(FieldReader& fields, const Json& value, const ChatRequest& common,
                std::vector<ChatRequest>& prompts) {
  ChatRequest chat = common;
  chat.raw = true;
  if (value.is_string()) {
    chat.raw_prompt = value.as_string();
  } else if (value.is_array() && !value.as_array().empty()) {
    const auto ids = token_list(value);
    if (!ids) return fields.fail("prompt", "a list of tokens must hold token ids only");
    chat.raw_ids = *ids;
    chat.add_special_tokens = false;
  } else if (!value.is_null()) {
    return fields.fail("prompt", "must be a string, a list of tokens, or a list of these",
                       "invalid_type");
  }
  prompts.push_back(std::move(chat));
}

void read_prompts(FieldReader& fields, const ChatRequest& common,
                  std::vector<ChatRequest>& prompts) {
  const Json* value = fields.get("prompt");
  static const Json kNothing;
  if (value == nullptr) return add_prompt(fields, kNothing, common, prompts);
  const bool is_batch =
      value->is_array() && !value->as_array().empty() && !value->as_array().front().is_number();
  if (!is_batch) return add_prompt(fields, *value, common, prompts);
  if (value->as_array().size() > kMaxPrompts) {
    return fields.fail("prompt", fmt::format("takes at most {} prompts", kMaxPrompts));
  }
  for (const Json& one : value->as_array()) add_prompt(fields, one, common, prompts);
}

// Fill in the middle, in the words of GLM's code tokens.
void read_suffix(FieldReader& fields, std::vector<ChatRequest>& prompts) {
  const auto suffix = fields.string("suffix");
  if (!suffix || suffix->empty()) return;
  for (ChatRequest& chat : prompts) {
    if (!chat.raw_ids.empty()) return fields.fail("suffix", "needs prompts that are strings");
    chat.fill_suffix = *suffix;
  }
}

void read_lengths(FieldReader& fields, CompletionShape& shape, ChatRequest& chat) {
  const auto plain = fields.integer("max_tokens", 0, kMaxInt);
  const auto other = fields.integer("max_completion_tokens", 0, kMaxInt);
  const auto predict = fields.integer("n_predict", -1, kMaxInt);
  if (predict == 0) fields.fail("n_predict", "must be at least 1, or -1 for no limit");
  if (plain || other) {
    chat.max_tokens = static_cast<int>(plain ? *plain : *other);
  } else if (predict != -1) {
    chat.max_tokens = static_cast<int>(predict.value_or(kDefaultMaxTokens));
  }
  if (chat.max_tokens != 0) return;
  if (!shape.echo) return fields.fail("max_tokens", "must be at least 1 without echo");
  shape.no_output = true;
  chat.max_tokens = 1;
}

void read_logprobs(FieldReader& fields, const ApiSettings& settings, CompletionShape& shape,
                   ChatRequest& chat) {
  const std::int64_t most = settings.max_logprobs < 0 ? kMaxInt : settings.max_logprobs;
  if (const auto top = fields.integer("logprobs", 0, most)) {
    chat.top_logprobs = static_cast<int>(*top);
    shape.logprobs = true;
    if (shape.echo) chat.prompt_logprobs = chat.top_logprobs;
  }
  if (const auto prompt = fields.integer("prompt_logprobs", 0, most)) {
    if (shape.stream.stream) {
      fields.fail("prompt_logprobs", "is only allowed without stream: true");
    }
    chat.prompt_logprobs = std::max(chat.prompt_logprobs, static_cast<int>(*prompt));
    shape.prompt_logprobs = true;
  }
  shape.ids_as_text = fields.boolean_or("return_tokens_as_token_ids", false);
  shape.token_ids = fields.boolean_or("return_token_ids", false);
}

}  // namespace

std::expected<ApiCall, ApiError> parse_completions_call(std::string_view body,
                                                        const ApiSettings& settings) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  ApiCall call;
  ChatRequest chat;
  CompletionShape shape;
  FieldReader fields(*parsed);
  call.conversation = "prompt";
  call.model = fields.string("model").value_or("");
  shape.stream = read_stream_shape(fields);
  shape.echo = fields.boolean_or("echo", false);
  shape.include_stop_string = fields.boolean_or("include_stop_str_in_output", false);
  chat.add_special_tokens = fields.boolean_or("add_special_tokens", true);
  read_lengths(fields, shape, chat);
  read_sampling(fields, chat);
  read_limits(fields, chat);
  read_logprobs(fields, settings, shape, chat);
  read_answer_format(fields, chat);
  read_serving(fields, settings, call, chat);
  chat.progress = fields.boolean_or("return_progress", false) && shape.stream.stream;
  call.n = static_cast<int>(fields.integer("n", 1, settings.max_n).value_or(1));
  const auto best_of = fields.integer("best_of", 1, kMaxInt);
  if (best_of && *best_of != call.n) {
    fields.fail("best_of", "must equal n: choices are not ranked", "unsupported_value");
  }
  read_others(fields);
  read_prompts(fields, chat, call.prompts);
  read_suffix(fields, call.prompts);
  if (fields.error()) return std::unexpected(*fields.error());
  shape.n = call.n;
  shape.num_prompts = static_cast<int>(call.prompts.size());
  shape.stop_token_ids = chat.stop_token_ids;
  call.stream = shape.stream.stream;
  call.unknown_fields = fields.unknown_names();
  call.writer = std::make_unique<CompletionWriter>(std::move(shape));
  return call;
}

}  // namespace glint
