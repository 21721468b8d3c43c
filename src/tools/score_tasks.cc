// `glint score --tasks`: exact-match accuracy, all items in parallel through the engine.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "tools/score.h"
#include "tools/task_judge.h"

namespace glint {
namespace {

struct Outcome {
  std::vector<std::int32_t> ids;  // with the stop token
  bool stopped = false;
  bool correct = false;
  Error error;
  bool failed = false;
  std::string output;
};

struct Tally {
  int n = 0, correct = 0;
  void add(bool right) {
    ++n;
    correct += right ? 1 : 0;
  }
  Json json() const {
    Json json;
    json.set("n", n);
    json.set("correct", correct);
    json.set("accuracy", n == 0 ? 0.0 : static_cast<double>(correct) / n);
    return json;
  }
};

// Counts the requests that ended; shared with the engine thread.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t finished = 0;
};

Result<GenerateRequest> prepare_item(const TextAssets& text, const TaskItem& item, int max_tokens,
                                     int context) {
  ChatRequest chat;
  chat.messages = item.messages;
  chat.tools = item.tools;
  chat.enable_thinking = item.enable_thinking;
  chat.temperature = 0.0F;
  chat.repetition_penalty = 1.0F;
  chat.presence_penalty = 0.0F;
  chat.frequency_penalty = 0.0F;
  chat.max_tokens = max_tokens;
  GLINT_TRY(PreparedPrompt prompt, text.prepare(chat));
  return text.to_generate_request(chat, prompt, context);
}

Result<std::vector<GenerateRequest>> prepare_items(const TextAssets& text,
                                                   const std::vector<TaskItem>& items,
                                                   int max_tokens, int context) {
  std::vector<GenerateRequest> requests;
  for (const TaskItem& item : items) {
    auto request = prepare_item(text, item, max_tokens, context);
    if (!request) return Error{request.error().code, item.id + ": " + request.error().message};
    requests.push_back(std::move(*request));
  }
  return requests;
}

EventSink collect(Outcome& outcome, Progress& progress) {
  return [&outcome, &progress](TokenEvent event) {
    if (event.kind == TokenEvent::Kind::kToken) {
      outcome.ids.push_back(event.token);
      outcome.stopped = outcome.stopped || event.is_stop;
    }
    if (event.kind != TokenEvent::Kind::kFinished) return;
    outcome.failed =
        event.reason == FinishReason::kError || event.reason == FinishReason::kCancelled;
    outcome.error = std::move(event.error);
    const std::lock_guard lock(progress.mutex);
    ++progress.finished;
    progress.changed.notify_one();
  };
}

void wait_for_all(Progress& progress, std::size_t count, bool show) {
  std::unique_lock lock(progress.mutex);
  std::size_t shown = 0;
  while (progress.finished < count) {
    progress.changed.wait(lock, [&] { return progress.finished > shown; });
    shown = progress.finished;
    if (show) std::fputs(fmt::format("\r\033[Kitem {} of {}", shown, count).c_str(), stderr);
  }
  if (show) std::fputs("\r\033[K", stderr);
}

Result<std::vector<Outcome>> generate(Engine& engine, std::vector<GenerateRequest> requests,
                                      bool show) {
  std::vector<Outcome> outcomes(requests.size());
  Progress progress;
  std::vector<Ticket> tickets;
  Status submitted;
  for (std::size_t i = 0; i < requests.size() && submitted; ++i) {
    auto ticket = engine.submit(std::move(requests[i]), collect(outcomes[i], progress));
    if (ticket) {
      tickets.push_back(std::move(*ticket));
    } else {
      submitted = ticket.error();
    }
  }
  // What was submitted writes into `outcomes` until it ends.
  const std::size_t running = tickets.size();
  if (!submitted) tickets.clear();
  wait_for_all(progress, running, show);
  if (!submitted) return submitted.error();
  for (const Outcome& outcome : outcomes) {
    if (outcome.failed) return outcome.error;
  }
  return outcomes;
}

void judge(const TaskItem& item, const Tokenizer& tokenizer, Outcome& outcome) {
  std::vector<std::int32_t> visible = outcome.ids;
  if (outcome.stopped) visible.pop_back();
  outcome.output = tokenizer.decode(visible);
  outcome.correct = outcome.stopped && same_json(parse_answer(outcome.output, item), item.expected);
}

Status write_outcomes(const std::string& path, const std::vector<TaskItem>& items,
                      const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Json ids(Json::Array{});
    for (const std::int32_t id : outcomes[i].ids) ids.push_back(id);
    Json line;
    line.set("id", items[i].id);
    line.set("correct", outcomes[i].correct);
    line.set("output", outcomes[i].output);
    line.set("output_ids", std::move(ids));
    text += line.dump() + "\n";
  }
  return write_file_atomically(path, text);
}

Json summarize(const std::vector<TaskItem>& items, const std::vector<Outcome>& outcomes) {
  Tally overall, thinking_on, thinking_off;
  std::vector<std::pair<std::string, Tally>> tasks;  // in order of appearance
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].task == kUnjudgedTask) continue;
    auto task = std::ranges::find(tasks, items[i].task, &std::pair<std::string, Tally>::first);
    if (task == tasks.end()) task = tasks.insert(tasks.end(), {items[i].task, Tally()});
    task->second.add(outcomes[i].correct);
    overall.add(outcomes[i].correct);
    (items[i].enable_thinking ? thinking_on : thinking_off).add(outcomes[i].correct);
  }
  Json by_task{Json::Object{}};
  for (const auto& [name, tally] : tasks) by_task.set(name, tally.json());
  Json report;
  report.set("overall", overall.json());
  report.set("thinking_on", thinking_on.json());
  report.set("thinking_off", thinking_off.json());
  report.set("tasks", std::move(by_task));
  return report;
}

Json drafts_json(const DraftStats& drafts) {
  Json json;
  json.set("drafted", drafts.drafted);
  json.set("accepted", drafts.accepted);
  json.set("rate", static_cast<double>(drafts.accepted) / static_cast<double>(drafts.drafted));
  return json;
}

}  // namespace

Result<Json> score_tasks(ScoreRequest request) {
  GLINT_TRY(const std::string text, read_score_input(request.input));
  GLINT_TRY(const std::vector<TaskItem> items, parse_task_items(text, request.input));
  SessionOptions options = request.session;
  options.max_queue = std::max(options.max_queue, static_cast<int>(items.size()));
  GLINT_TRY(SessionPlan plan, plan_session(options));
  GLINT_TRY(std::vector<GenerateRequest> requests,
            prepare_items(*plan.text, items, request.max_tokens, plan.options.context));
  if (options.context == 0) {  // no more than the items need
    std::size_t longest = 0;
    for (const GenerateRequest& each : requests) longest = std::max(longest, each.prompt.size());
    const auto needed = longest + static_cast<std::size_t>(request.max_tokens) + 1;
    options.context =
        static_cast<int>(std::min(needed, static_cast<std::size_t>(plan.options.context)));
  }
  GLINT_TRY(const auto session, open_session(options));
  GLINT_TRY(std::vector<Outcome> outcomes,
            generate(*session->engine, std::move(requests), request.progress));
  for (std::size_t i = 0; i < items.size(); ++i) {
    judge(items[i], session->plan.text->tokenizer(), outcomes[i]);
  }
  if (!request.output.empty()) GLINT_TRY_VOID(write_outcomes(request.output, items, outcomes));
  Json report = summarize(items, outcomes);
  if (const DraftStats drafts = session->engine->stats().drafts; drafts.drafted > 0) {
    report.set("drafts", drafts_json(drafts));
  }
  return report;
}

}  // namespace glint
