// What the generating endpoints share: each turns a body into an ApiCall, whose writer puts the
// answer into the endpoint's own words. Nothing here knows sockets or threads.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/chat.h"
#include "server/api_error.h"

namespace glint {

// What an answer knows once its prompts are rendered.
struct AnswerStart {
  std::string model;  // as it is reported
  std::string fingerprint;
  std::int64_t created = 0;  // Unix time
  std::shared_ptr<const TextAssets> text;
  std::vector<std::shared_ptr<const PreparedPrompt>> prompts;
};

// Deltas of the choices -> one API's events, and the whole answer as their fold, so that the two
// cannot disagree. Texts are complete server-sent events, and empty where nothing is to be sent.
// Choices are numbered prompt by prompt: prompt * n + i.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // First of all. The text goes out with the stream's head, before the model runs.
  virtual std::string begin(const AnswerStart& start) = 0;
  // Each delta of each choice, in order, kStarted and kFinished included; never an error.
  virtual std::string take(int choice, const ChatDelta& delta) = 0;
  // After the last kFinished.
  virtual std::string end() = 0;
  // The body of an answer that is not streamed; after end().
  virtual Json whole() = 0;
  // The end of a stream that failed. begin() may not have been called.
  virtual std::string fail(const ApiError& error) = 0;
  // A sign of life.
  virtual std::string ping() = 0;
};

struct ApiCall {
  std::vector<ChatRequest> prompts;  // at least one
  int n = 1;                         // choices of each
  std::string model;                 // as sent; empty when absent
  bool accepts_any_model = false;
  bool stream = false;
  int stream_interval = 0;  // tokens of a chunk; 0: the server's setting
  std::unique_ptr<AnswerWriter> writer;
  std::string conversation = "messages";  // the field that holds it
  std::vector<std::string> unknown_fields;
  std::vector<std::string> notes;  // what was left out on the way, for the log
};

// What parsing needs to know of the server. Immutable.
struct ApiSettings {
  int max_n = 16;         // choices of one request
  int max_logprobs = 20;  // -1: the vocabulary
  bool trust_request_templates = false;
  std::size_t max_prompt_bytes = 0;  // of text; 0: any number
  bool by_priority = false;
  bool shows_reasoning_content = true, shows_reasoning = true;  // names of the reasoning field
  bool takes_images = false;
  std::optional<bool> anthropic_thinking;  // when a request to /v1/messages does not say
  std::vector<std::pair<std::string, int>> effort_budgets;  // thinking budgets by effort
};

// An error of the conversation, which is "messages" below the API, under the call's own field.
ApiError told_of(const ApiCall& call, ApiError error);

// "data: DATA\n\n", with "event: NAME\n" in front unless empty.
std::string sse_event(std::string_view data);
std::string sse_event(std::string_view name, const Json& data);

// The sum over the choices of one request: each prompt counts once.
struct AnswerUsage {
  Usage usage;
  int reasoning_tokens = 0;
};

// Usage of the choices so far; kept by writers.
class UsageTally {
 public:
  UsageTally(int num_prompts, int n)
      : n_(n), choices_(static_cast<std::size_t>(num_prompts) * static_cast<std::size_t>(n)) {}
  void take(int choice, const ChatDelta& delta);
  AnswerUsage sum() const;

 private:
  int n_;
  std::vector<AnswerUsage> choices_;
};

}  // namespace glint
