// One request of a generating endpoint from its body to its last byte: prepared on the worker, run
// by the engine, written on the I/O thread. The server's registry owns it; a client that goes away,
// a drain or a failure end it early.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/chat.h"
#include "server/api_call.h"
#include "server/http.h"
#include "server/served_model.h"
#include "server/worker.h"

namespace glint {

// An endpoint that generates: how its body is read, and how its errors look.
struct GenerateRoute {
  std::expected<ApiCall, ApiError> (*parse)(std::string_view body,
                                            const ApiSettings& settings) = nullptr;
  ErrorShape shape = ErrorShape::kOpenAi;
};

// What became of one answer, for metrics and the log.
struct AnswerRecord {
  std::string reason;  // of the first choice: "stop", "length", "tool_calls", "abort", "error"
  AnswerUsage usage;
  int n = 1;
  int max_tokens = 0;  // 0: not limited by the request
  double seconds = 0;
};

// Told on the I/O thread.
struct AnswerObserver {
  std::function<void(double seconds)> on_first_token;
  std::function<void(double seconds, int tokens)> on_token_gap;
  std::function<void(const std::string& field)> on_unknown_field;
  std::function<void(const AnswerRecord&)> on_done;
  // Log-probs that an answer keeps until it is whole, or (negative) keeps no longer: false when
  // there is no memory for them. May be empty.
  std::function<bool(std::ptrdiff_t num_logprobs)> on_held;
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // `on_end` is called once, on the I/O thread, when nothing of this answer is left to do.
  Answer(std::shared_ptr<const ServedModel> model, GenerateRoute route,
         std::shared_ptr<HttpExchange> exchange, std::shared_ptr<Mailbox> mailbox,
         const AnswerObserver& observer, std::function<void(Answer*)> on_end);

  void start(Worker& worker);
  // True once the engine took up the first of its choices.
  bool is_running() const { return num_started_ > 0; }
  std::chrono::steady_clock::time_point began() const { return began_; }
  // Ends the answer with this error, in the stream if that has begun.
  void abort(const ApiError& error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Started {
    ApiCall call;
    AnswerStart start;
    std::vector<Turn> turns;
  };
  // One choice on its way.
  struct Choice {
    std::optional<ChatDelta> held;  // tokens of a chunk that is not full yet
    AnswerUsage usage;
    std::string reason;
    Clock::time_point last_token;
    bool has_token = false;
  };
  // Worker thread.
  void prepare();
  std::expected<Started, ApiError> start_turns();
  DeltaSink sink_of(int choice);
  // I/O thread.
  void on_started(Started started);
  void on_delta(int choice, ChatDelta delta);
  void measure(Choice& choice, const ChatDelta& delta);
  bool hold(const ChatDelta& delta);
  // Adds to what is held; the delta to write now, if one is due.
  std::optional<ChatDelta> due(Choice& choice, ChatDelta delta);
  void complete();
  void report(std::string reason);
  AnswerUsage usage() const;
  void end();

  const std::shared_ptr<const ServedModel> model_;
  const GenerateRoute route_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<Mailbox> mailbox_;
  const AnswerObserver& observer_;
  std::function<void(Answer*)> on_end_;
  const Clock::time_point began_ = Clock::now();
  // Set with ended_, for the worker: what it would prepare is wanted no more.
  std::atomic<bool> unwanted_{false};

  // I/O thread only, like all that follows.
  std::optional<ApiCall> call_;  // once the turns run
  std::vector<Turn> turns_;
  std::vector<std::pair<int, ChatDelta>> early_;  // deltas that overtook on_started
  std::vector<Choice> choices_;
  int interval_ = 1;
  int num_started_ = 0;
  int num_finished_ = 0;
  std::ptrdiff_t num_held_ = 0;  // log-probs
  bool reported_ = false;
  bool ended_ = false;
};

}  // namespace glint
