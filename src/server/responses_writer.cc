#include "server/responses_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "server/chat_choices.h"
#include "server/custom_input.h"
#include "server/http_text.h"

namespace glint {
namespace {

using Event = OutputEvent::Kind;

Json object(Json::Object members) {
  return Json(std::move(members));
}

Json response_usage(const AnswerUsage& usage) {
  const Usage& u = usage.usage;
  return object(
      {{"input_tokens", Json(u.prompt_tokens)},
       {"input_tokens_details", object({{"cached_tokens", Json(u.cached_tokens)}})},
       {"output_tokens", Json(u.completion_tokens)},
       {"output_tokens_details", object({{"reasoning_tokens", Json(usage.reasoning_tokens)}})},
       {"total_tokens", Json(u.prompt_tokens + u.completion_tokens)}});
}

// Agents act on some of these words.
Json response_error(const ApiError& error) {
  std::string code = error.code.empty() ? "server_error" : error.code;
  std::string message = error.message;
  if (error.status == 500) code = "server_error";
  if (error.status == 429) {
    code = "rate_limit_exceeded";
    message += " Please try again in 1s.";
  }
  return object({{"code", Json(std::move(code))}, {"message", Json(std::move(message))}});
}

// One item of the output.
struct Item {
  enum class Kind { kReasoning, kMessage, kFunction, kCustom } kind = Kind::kMessage;
  std::string id = {};
  std::string call_id = {}, name = {}, name_space = {};  // of calls
  std::string text = {};                                 // thought, text, arguments or input
  Json::Array logprobs = {};                             // kMessage
  CustomInput input = {};                                // kCustom
};

const char* id_prefix(Item::Kind kind) {
  switch (kind) {
    case Item::Kind::kReasoning:
      return "rs_";
    case Item::Kind::kMessage:
      return "msg_";
    case Item::Kind::kFunction:
      return "fc_";
    case Item::Kind::kCustom:
      break;
  }
  return "ctc_";
}

class ResponseWriter : public AnswerWriter {
 public:
  explicit ResponseWriter(ResponseShape shape) : shape_(std::move(shape)), tally_(1, 1) {}

  std::string begin(const AnswerStart& start) override {
    start_ = start;
    id_ = "resp_" + random_name(24);
    std::string text = event("response.created", {{"response", response("in_progress")}});
    text += ping();
    return text;
  }

  std::string take(int choice, const ChatDelta& delta) override {
    tally_.take(choice, delta);
    if (delta.kind != ChatDelta::Kind::kOutput && delta.kind != ChatDelta::Kind::kFinished)
      return {};
    if (shape_.logprobs) keep_logprobs(delta);
    std::string text;
    for (const OutputEvent& one : delta.events) text += on_event(one);
    if (delta.kind == ChatDelta::Kind::kFinished) text += on_finish(delta);
    return text;
  }

  std::string end() override {
    usage_ = response_usage(tally_.sum());
    const bool is_whole = finish_reason_ != "length";
    final_ = response(is_whole ? "completed" : "incomplete");
    final_.set("output", Json(output_));
    if (is_whole) {
      final_.set("completed_at", Json(static_cast<std::int64_t>(std::time(nullptr))));
    } else {
      final_.set("incomplete_details", object({{"reason", Json("max_output_tokens")}}));
    }
    return event(is_whole ? "response.completed" : "response.incomplete", {{"response", final_}});
  }

  Json whole() override { return std::move(final_); }

  // What was not done stays so: clients keep, and agents run, what they are told is done.
  std::string fail(const ApiError& error) override {
    if (id_.empty()) {
      id_ = "resp_" + random_name(24);
      start_.created = static_cast<std::int64_t>(std::time(nullptr));
    }
    if (open_) output_.push_back(item_json("incomplete"));
    usage_ = response_usage(tally_.sum());
    Json failed = response("failed");
    failed.set("error", response_error(error));
    failed.set("output", Json(output_));
    return event("response.failed", {{"response", std::move(failed)}});
  }

  // Clients that wait for the next event do not count comments.
  std::string ping() override {
    return event("response.in_progress", {{"response", response("in_progress")}});
  }

 private:
  Json response(const char* status) const {
    Json out = object({{"id", Json(id_)},
                       {"object", Json("response")},
                       {"created_at", Json(start_.created)},
                       {"status", Json(status)},
                       {"completed_at", Json()},
                       {"error", Json()},
                       {"incomplete_details", Json()},
                       {"model", Json(start_.model)},
                       {"output", Json(Json::Array{})},
                       {"usage", usage_}});
    for (const auto& [key, value] : shape_.echo) {
      const bool is_default = value.is_null() && (key == "temperature" || key == "top_p");
      out.as_object().emplace_back(key, is_default ? default_of(key) : value);
    }
    return out;
  }

  // What holds when the request says nothing.
  Json default_of(const std::string& key) const {
    const Json* value = start_.text ? start_.text->sampling_defaults().find(key) : nullptr;
    return value != nullptr ? *value : Json(1.0);
  }

  std::string event(const char* type, Json::Object members) {
    const int number = sequence_++;
    if (!shape_.stream) return {};
    Json data = object({{"type", Json(type)}, {"sequence_number", Json(number)}});
    for (auto& member : members) data.as_object().push_back(std::move(member));
    return sse_event(type, data);
  }

  // An event of the open item, or of its one part of text.
  std::string item_event(const char* type, Json::Object members) {
    Json::Object all = {{"item_id", Json(open_->id)}, {"output_index", Json(next_index())}};
    const bool has_part = is_text();
    if (has_part) all.emplace_back("content_index", Json(0));
    for (auto& member : members) all.push_back(std::move(member));
    return event(type, std::move(all));
  }

  int next_index() const { return static_cast<int>(output_.size()); }
  bool is_text() const {
    return open_->kind == Item::Kind::kReasoning || open_->kind == Item::Kind::kMessage;
  }

  std::string on_event(const OutputEvent& one) {
    switch (one.kind) {
      case Event::kReasoning:
        if (one.text.empty() || !shape_.shows_reasoning) return {};
        return add_text(Item::Kind::kReasoning, one.text);
      case Event::kContent:
        if (one.text.empty()) return {};
        return add_text(Item::Kind::kMessage, one.text);
      case Event::kToolBegin:
        return open_call(one);
      case Event::kToolArgs:
        return open_ && !is_text() ? add_arguments(one.text) : std::string();
      case Event::kToolEnd:
        return close("completed");
    }
    return {};
  }

  std::string on_finish(const ChatDelta& delta) {
    finish_reason_ = delta.finish_reason;
    std::string text;
    if (shape_.include_stop_string && !delta.stop_string.empty())
      text += on_event({Event::kContent, delta.stop_string, -1});
    const bool is_whole = finish_reason_ != "length";
    // Clients look for a message, be it empty.
    if (is_whole && !has_answer_) text += open_text(Item::Kind::kMessage);
    // A call that never ended is no call to be run.
    if (open_ && !is_text()) {
      output_.push_back(item_json("incomplete"));
      open_.reset();
    }
    text += close(is_whole ? "completed" : "incomplete");
    return text;
  }

  std::string open(Item item) {
    std::string text = close("completed");
    item.id = id_prefix(item.kind) + random_name(24);
    has_answer_ = has_answer_ || item.kind != Item::Kind::kReasoning;
    open_ = std::move(item);
    return text + event("response.output_item.added",
                        {{"output_index", Json(next_index())}, {"item", item_json("in_progress")}});
  }

  std::string open_text(Item::Kind kind) {
    if (open_ && open_->kind == kind) return {};
    std::string text = open({.kind = kind});
    return text + item_event("response.content_part.added", {{"part", part_json()}});
  }

  std::string open_call(const OutputEvent& begin) {
    const auto tool = shape_.tools.find(begin.text);
    const bool is_known = tool != shape_.tools.end();
    const bool is_custom = is_known && tool->second.is_custom;
    Item item{.kind = is_custom ? Item::Kind::kCustom : Item::Kind::kFunction};
    item.call_id = begin.id.empty() ? "call_" + random_name(24) : begin.id;
    item.name = is_known ? tool->second.name : begin.text;
    if (is_known) item.name_space = tool->second.name_space;
    return open(std::move(item));
  }

  std::string add_text(Item::Kind kind, const std::string& more) {
    std::string text = open_text(kind);
    open_->text += more;
    if (kind == Item::Kind::kReasoning) {
      text += item_event("response.reasoning_text.delta", {{"delta", Json(more)}});
      return text;
    }
    Json::Array logprobs = std::exchange(logprobs_, {});
    open_->logprobs.insert(open_->logprobs.end(), logprobs.begin(), logprobs.end());
    text += item_event("response.output_text.delta",
                       {{"delta", Json(more)}, {"logprobs", Json(std::move(logprobs))}});
    return text;
  }

  std::string add_arguments(const std::string& piece) {
    const bool is_custom = open_->kind == Item::Kind::kCustom;
    const std::string more = is_custom ? open_->input.push(piece) : piece;
    if (more.empty()) return {};
    open_->text += more;
    return item_event(is_custom ? "response.custom_tool_call_input.delta"
                                : "response.function_call_arguments.delta",
                      {{"delta", Json(more)}});
  }

  // Ends the open item, if there is one.
  std::string close(const char* status) {
    if (!open_) return {};
    std::string text = closing_events();
    Json item = item_json(status);
    text +=
        event("response.output_item.done", {{"output_index", Json(next_index())}, {"item", item}});
    output_.push_back(std::move(item));
    open_.reset();
    return text;
  }

  std::string closing_events() {
    std::string text;
    switch (open_->kind) {
      case Item::Kind::kReasoning:
        text = item_event("response.reasoning_text.done", {{"text", Json(open_->text)}});
        text += item_event("response.content_part.done", {{"part", part_json()}});
        break;
      case Item::Kind::kMessage:
        text = item_event("response.output_text.done",
                          {{"text", Json(open_->text)}, {"logprobs", Json(open_->logprobs)}});
        text += item_event("response.content_part.done", {{"part", part_json()}});
        break;
      case Item::Kind::kFunction:
        text = item_event("response.function_call_arguments.done",
                          {{"name", Json(open_->name)}, {"arguments", Json(open_->text)}});
        break;
      case Item::Kind::kCustom:
        if (const std::string rest = open_->input.finish(); !rest.empty()) {
          open_->text += rest;
          text = item_event("response.custom_tool_call_input.delta", {{"delta", Json(rest)}});
        }
        text += item_event("response.custom_tool_call_input.done", {{"input", Json(open_->text)}});
    }
    return text;
  }

  Json part_json() const {
    if (open_->kind == Item::Kind::kReasoning)
      return object({{"type", Json("reasoning_text")}, {"text", Json(open_->text)}});
    return object({{"type", Json("output_text")},
                   {"text", Json(open_->text)},
                   {"annotations", Json(Json::Array{})},
                   {"logprobs", Json(open_->logprobs)}});
  }

  // The open item as it stands.
  Json item_json(const char* status) const {
    const Item& item = *open_;
    const bool has_begun = status != std::string_view("in_progress");
    Json parts(Json::Array{});
    if (has_begun && is_text()) parts.push_back(part_json());
    switch (item.kind) {
      case Item::Kind::kReasoning: {
        Json out = object({{"id", Json(item.id)},
                           {"type", Json("reasoning")},
                           {"status", Json(status)},
                           {"summary", Json(Json::Array{})},
                           {"content", std::move(parts)}});
        if (shape_.seals_thoughts)
          out.set("encrypted_content", has_begun ? Json(seal_thought(item.text)) : Json());
        return out;
      }
      case Item::Kind::kMessage:
        return object({{"id", Json(item.id)},
                       {"type", Json("message")},
                       {"status", Json(status)},
                       {"role", Json("assistant")},
                       {"content", std::move(parts)}});
      default:
        break;
    }
    const bool is_custom = item.kind == Item::Kind::kCustom;
    Json out = object({{"id", Json(item.id)},
                       {"type", Json(is_custom ? "custom_tool_call" : "function_call")},
                       {"status", Json(status)},
                       {"call_id", Json(item.call_id)},
                       {"name", Json(item.name)},
                       {is_custom ? "input" : "arguments", Json(item.text)}});
    if (!item.name_space.empty()) out.set("namespace", Json(item.name_space));
    return out;
  }

  // Of the tokens that are a message's text. Between that and thoughts or calls stands a marker,
  // which is an added token, as the stop token is.
  void keep_logprobs(const ChatDelta& delta) {
    const auto has = [&delta](Event kind) {
      return std::ranges::find(delta.events, kind, &OutputEvent::kind) != delta.events.end();
    };
    if (!has(Event::kContent) || delta.logprobs.empty()) return;
    const Tokenizer& tokenizer = start_.text->tokenizer();
    bool in_thought = has(Event::kReasoning);
    const bool has_call = has(Event::kToolBegin);
    for (const TokenEvent& token : delta.logprobs) {
      if (tokenizer.is_added(token.token)) {
        if (!std::exchange(in_thought, false) && has_call) break;
      } else if (!in_thought) {
        logprobs_.push_back(logprob_json(tokenizer, token));
      }
    }
  }

  static Json logprob_json(const Tokenizer& tokenizer, const TokenEvent& token) {
    const LogprobStyle style{&tokenizer, false};
    Json entry = token_fields(style, token.token, token.logprob);
    Json top(Json::Array{});
    for (const TokenLogprob& likely : token.top_logprobs)
      top.push_back(token_fields(style, likely.token, likely.logprob));
    entry.set("top_logprobs", std::move(top));
    return entry;
  }

  const ResponseShape shape_;
  AnswerStart start_;
  std::string id_;
  UsageTally tally_;
  int sequence_ = 0;
  Json usage_;  // null until the end
  Json::Array output_;
  std::optional<Item> open_;
  Json::Array logprobs_;  // of text whose event is still to come
  bool has_answer_ = false;
  std::string finish_reason_;
  Json final_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_response_writer(ResponseShape shape) {
  return std::make_unique<ResponseWriter>(std::move(shape));
}

}  // namespace glint
