#include "server/openai_chat.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <utility>

#include "server/chat_choices.h"
#include "server/common_fields.h"
#include "server/field_reader.h"
#include "server/http_text.h"
#include "server/openai_stream.h"
#include "server/turn_fields.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

// How the answer is to look, beside what the model is asked.
struct ChatShape {
  StreamShape stream;
  bool include_stop_string = false;
  bool legacy_function_call = false;
  bool token_ids = false;
  bool ids_as_text = false;
  bool reasoning_content = true, reasoning = true;
  bool prompt_logprobs = false;
  int n = 1;
  std::vector<std::int32_t> stop_token_ids;
};

// --- the answer ---

class ChatWriter : public AnswerWriter {
 public:
  explicit ChatWriter(ChatShape shape) : shape_(std::move(shape)), tally_(1, shape_.n) {}

  std::string begin(const AnswerStart& start) override {
    start_ = start;
    head_ = {"chatcmpl-" + random_name(24),
             shape_.stream.stream ? "chat.completion.chunk" : "chat.completion", start.created,
             start.model, start.fingerprint};
    for (int choice = 0; choice < shape_.n; ++choice) {
      ChoiceWriter::Options options;
      options.index = choice;
      options.reasoning_content = shape_.reasoning_content;
      options.reasoning = shape_.reasoning;
      options.include_stop_string = shape_.include_stop_string;
      options.legacy_function_call = shape_.legacy_function_call;
      options.token_ids = shape_.token_ids;
      options.stop_token_ids = shape_.stop_token_ids;
      options.logprobs = {&start.text->tokenizer(), shape_.ids_as_text};
      writers_.emplace_back(std::move(options));
    }
    folds_.resize(static_cast<std::size_t>(shape_.n));
    return {};
  }

  std::string take(int choice, const ChatDelta& delta) override {
    tally_.take(choice, delta);
    if (delta.kind == ChatDelta::Kind::kProgress) {
      return shape_.stream.stream ? progress_event(head_, tally_.sum(), delta) : "";
    }
    if (delta.kind == ChatDelta::Kind::kPrompt && choice == 0) {
      append_prompt_logprobs(start_.text->tokenizer(), delta.prompt_logprobs, prompt_logprobs_);
    }
    std::string text;
    for (Json& one : writers_[static_cast<std::size_t>(choice)].write(delta)) {
      if (shape_.stream.stream) {
        text += chunk_event(head_, shape_.stream, std::move(one), tally_.sum());
      } else {
        folds_[static_cast<std::size_t>(choice)].add(one);
      }
    }
    return text;
  }

  std::string end() override { return last_events(head_, shape_.stream, tally_.sum()); }

  Json whole() override {
    Json choices(Json::Array{});
    for (ChoiceFold& fold : folds_) choices.push_back(fold.take());
    Json out = headed(head_, std::move(choices));
    out.set("usage", usage_json(tally_.sum()));
    out.set("timings", timings_json(tally_.sum().usage));
    if (shape_.prompt_logprobs) out.set("prompt_logprobs", std::move(prompt_logprobs_));
    if (shape_.token_ids) out.set("prompt_token_ids", token_ids_json(start_.prompts.front()->ids));
    return out;
  }

  std::string fail(const ApiError& error) override { return openai_failure(error); }
  std::string ping() override { return kCommentPing; }

 private:
  const ChatShape shape_;
  AnswerStart start_;
  OpenAiHead head_;
  UsageTally tally_;
  std::vector<ChoiceWriter> writers_;
  std::vector<ChoiceFold> folds_;  // unless streamed
  Json prompt_logprobs_ = Json(Json::Array{});
};

// --- the request ---

void read_length(FieldReader& fields, ChatRequest& chat) {
  const auto preferred = fields.integer("max_completion_tokens", 1, kMaxInt);
  const auto plain = fields.integer("max_tokens", 1, kMaxInt);
  const auto predict = fields.integer("n_predict", -1, kMaxInt);
  if (predict == 0) fields.fail("n_predict", "must be at least 1, or -1 for no limit");
  std::optional<std::int64_t> limit = preferred ? preferred : plain;
  if (!limit && predict > 0) limit = predict;
  chat.max_tokens = as_int(limit);
}

int top_limit(const ApiSettings& settings) {
  return settings.max_logprobs < 0 ? static_cast<int>(kMaxInt) : settings.max_logprobs;
}

void read_logprobs(FieldReader& fields, const ApiSettings& settings, ChatShape& shape,
                   ChatRequest& chat) {
  const bool wanted = fields.boolean_or("logprobs", false);
  const int lowest = settings.max_logprobs < 0 ? -1 : 0;
  auto top = fields.integer("top_logprobs", lowest, top_limit(settings));
  if (top.value_or(0) != 0 && !wanted) return fields.fail("top_logprobs", "needs logprobs: true");
  if (top == -1) top = kMaxInt;
  chat.top_logprobs = wanted ? static_cast<int>(top.value_or(0)) : -1;
  if (const auto prompt = fields.integer("prompt_logprobs", 0, top_limit(settings))) {
    if (shape.stream.stream) fields.fail("prompt_logprobs", "is only allowed without stream: true");
    chat.prompt_logprobs = static_cast<int>(*prompt);
    shape.prompt_logprobs = true;
  }
  shape.ids_as_text = fields.boolean_or("return_tokens_as_token_ids", false);
  shape.token_ids = fields.boolean_or("return_token_ids", false);
}

// Functions as the API had them before tools.
void read_functions(FieldReader& fields, ChatShape& shape, ChatRequest& chat) {
  const Json* functions = fields.array("functions");
  const Json* choice = fields.get("function_call");
  if (functions == nullptr || functions->as_array().empty()) {
    if (choice != nullptr && *choice != Json("none") && *choice != Json("auto"))
      fields.fail("function_call", "needs functions");
    return;
  }
  if (!chat.tools.is_null()) return fields.fail("functions", "cannot be combined with tools");
  for (const Json& function : functions->as_array()) {
    chat.tools.push_back(Json(Json::Object{{"type", Json("function")}, {"function", function}}));
  }
  shape.legacy_function_call = true;
  chat.parallel_tool_calls = false;
  if (choice != nullptr) read_tool_choice(fields, "function_call", *choice, chat.tool_choice);
}

void read_tools(FieldReader& fields, ChatShape& shape, ChatRequest& chat) {
  if (const Json* tools = fields.array("tools"); tools != nullptr && !tools->as_array().empty()) {
    chat.tools = *tools;
  }
  chat.parallel_tool_calls = fields.boolean_or("parallel_tool_calls", true);
  if (const Json* choice = fields.get("tool_choice"))
    read_tool_choice(fields, "tool_choice", *choice, chat.tool_choice);
  read_functions(fields, shape, chat);
  const bool forces = chat.tool_choice.kind == ToolChoice::Kind::kRequired ||
                      chat.tool_choice.kind == ToolChoice::Kind::kNamed;
  if (forces && chat.tools.is_null()) fields.fail("tool_choice", "needs tools");
}

void read_conversation(FieldReader& fields, const ApiSettings& settings, ChatRequest& chat) {
  if (const Json* messages = fields.array("messages")) {
    chat.messages = *messages;
  } else {
    fields.fail("messages", "is required", "missing_field");
  }
  const auto add_prompt = fields.boolean("add_generation_prompt");
  chat.continue_final_message = fields.boolean_or("continue_final_message", false);
  if (chat.continue_final_message && add_prompt.value_or(false)) {
    fields.fail("add_generation_prompt", "cannot be true with continue_final_message");
  }
  chat.add_generation_prompt = add_prompt.value_or(true);
  if (const Json* documents = fields.array("documents")) chat.documents = *documents;
  if (const auto source = fields.string("chat_template")) {
    if (!settings.trust_request_templates) {
      fields.fail("chat_template",
                  "requests may not bring their own template (the server was not started with "
                  "--trust-request-chat-template); use chat_template_kwargs",
                  "unsupported_value");
    }
    chat.chat_template = *source;
  }
  if (fields.boolean_or("add_special_tokens", false)) {
    fields.fail("add_special_tokens", "chat templates write the special tokens themselves",
                "unsupported_value");
  }
  if (fields.boolean_or("echo", false)) {
    fields.fail("echo", "is for /v1/completions; use continue_final_message", "unsupported_value");
  }
}

}  // namespace

std::expected<ApiCall, ApiError> parse_chat_call(std::string_view body,
                                                 const ApiSettings& settings) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(parsed.error());
  ApiCall call;
  ChatRequest chat;
  ChatShape shape;
  shape.reasoning_content = settings.shows_reasoning_content;
  shape.reasoning = settings.shows_reasoning;
  FieldReader fields(*parsed);
  call.model = fields.string("model").value_or("");
  read_conversation(fields, settings, chat);
  shape.stream = read_stream_shape(fields);
  read_length(fields, chat);
  read_sampling(fields, chat);
  read_limits(fields, chat);
  shape.include_stop_string = fields.boolean_or("include_stop_str_in_output", false);
  read_logprobs(fields, settings, shape, chat);
  read_tools(fields, shape, chat);
  if (!read_thinking(fields, settings, chat)) shape.reasoning_content = shape.reasoning = false;
  read_answer_format(fields, chat);
  read_serving(fields, settings, call, chat);
  chat.progress = fields.boolean_or("return_progress", false) && shape.stream.stream;
  call.n = static_cast<int>(fields.integer("n", 1, settings.max_n).value_or(1));
  read_others(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  shape.n = call.n;
  shape.stop_token_ids = chat.stop_token_ids;
  call.stream = shape.stream.stream;
  call.unknown_fields = fields.unknown_names();
  call.prompts.push_back(std::move(chat));
  call.writer = std::make_unique<ChatWriter>(std::move(shape));
  return call;
}

}  // namespace glint
