// One POST /v1/chat/completions from its body to its last byte: prepared on the worker, run by the
// engine, written on the I/O thread. The server's registry owns it; a client that goes away, a
// drain or a failure end it early.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/chat.h"
#include "server/api_error.h"
#include "server/chat_fields.h"
#include "server/http.h"
#include "server/openai.h"
#include "server/worker.h"

namespace glint {

// What answers need to know of the model. Immutable once attached.
struct ServedModel {
  Engine* engine = nullptr;
  std::shared_ptr<const TextAssets> text;
  std::vector<std::string> names;
  bool any_model = false;
  std::string fingerprint;
  Json template_kwargs;  // under each request's own
  int max_n = 1;
  double sse_ping_s = 5;
  double request_timeout_s = 0;
};

class ChatAnswer : public std::enable_shared_from_this<ChatAnswer> {
 public:
  // `on_end` is called once, on the I/O thread, when nothing of this answer is left to do.
  ChatAnswer(std::shared_ptr<const ServedModel> model, std::shared_ptr<HttpExchange> exchange,
             std::shared_ptr<Mailbox> mailbox, std::function<void(ChatAnswer*)> on_end);

  void start(Worker& worker);
  // True once the engine took up the first of its choices.
  bool is_running() const { return num_started_ > 0; }
  // Ends the answer with this error, in the stream if that has begun.
  void abort(const ApiError& error);

 private:
  struct Started {
    ChatCall call;
    std::vector<Turn> turns;
  };
  // Worker thread.
  void prepare();
  std::expected<Started, ApiError> start_turns();
  DeltaSink sink_of(int choice);
  // I/O thread.
  void on_started(Started started);
  void on_delta(int choice, const ChatDelta& delta);
  void on_finished(int choice, const ChatDelta& delta);
  void write_choices(std::vector<Json> choices);
  Json chunk(Json choices) const;
  void complete();
  void end();

  const std::shared_ptr<const ServedModel> model_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::function<void(ChatAnswer*)> on_end_;
  // Set with ended_, for the worker: what it would prepare is wanted no more.
  std::atomic<bool> unwanted_{false};

  // I/O thread only, like all that follows.
  std::optional<ChatCall> call_;  // once the turns run
  std::vector<Turn> turns_;
  std::vector<std::pair<int, ChatDelta>> early_;  // deltas that overtook on_started
  AnswerHead head_;
  std::vector<ChoiceWriter> writers_;
  std::vector<ChoiceFold> folds_;  // unless streamed
  std::vector<AnswerUsage> usages_;
  int num_started_ = 0;
  int num_finished_ = 0;
  bool ended_ = false;
};

}  // namespace glint
