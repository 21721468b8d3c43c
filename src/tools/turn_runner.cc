#include "tools/turn_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "tools/program.h"

namespace glint {
namespace {

constexpr auto kInterruptPoll = std::chrono::milliseconds(50);

volatile std::sig_atomic_t g_interrupted = 0;  // a signal handler can reach nothing else
// A pipe, since any thread may get the signal, and a flag that is set between somebody's look at it
// and his read() would not wake him.
int g_interrupt_pipe[2] = {-1, -1};

void on_interrupt(int) {
  const int error = errno;
  g_interrupted = 1;
  // Full: it is readable already.
  [[maybe_unused]] const ssize_t written = ::write(g_interrupt_pipe[1], "", 1);
  errno = error;
}

// Shared with the sink, which may outlive an early return.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<ChatDelta> deltas;
};

struct Collector {
  TurnResult result;
  Json::Array calls;

  void add(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        result.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        result.text += event.text;
        break;
      case OutputEvent::Kind::kToolBegin: {
        Json function;
        function.set("name", event.text);
        function.set("arguments", "");
        Json call;
        call.set("id", fmt::format("call_{}", calls.size()));
        call.set("type", "function");
        call.set("function", std::move(function));
        calls.push_back(std::move(call));
        break;
      }
      case OutputEvent::Kind::kToolArgs:
        if (!calls.empty()) {
          Json* function = calls.back().find("function");
          function->set("arguments", function->find("arguments")->as_string() + event.text);
        }
        break;
      case OutputEvent::Kind::kToolEnd:
        break;
    }
  }
};

}  // namespace

void catch_interrupts() {
  if (g_interrupt_pipe[0] < 0) GLINT_CHECK(::pipe2(g_interrupt_pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a blocked read returns
  sigaction(SIGINT, &action, nullptr);
}

bool interrupt_pending() {
  return g_interrupted != 0;
}

int interrupt_fd() {
  return g_interrupt_pipe[0];
}

bool take_interrupt() {
  char drained[64];  // before the flag is looked at: what comes between the two counts twice, not
                     // never
  while (::read(g_interrupt_pipe[0], drained, sizeof(drained)) > 0) {
  }
  const bool was = g_interrupted != 0;
  g_interrupted = 0;
  return was;
}

Result<TurnResult> run_turn(Session& session, ChatRequest request,
                            const std::function<void(const OutputEvent&)>& show) {
  auto mailbox = std::make_shared<Mailbox>();
  GLINT_TRY(Turn turn, start_turn(*session.engine, session.plan.text, std::move(request),
                                  [mailbox](ChatDelta delta) {
                                    const std::lock_guard lock(mailbox->mutex);
                                    mailbox->deltas.push_back(std::move(delta));
                                    mailbox->arrived.notify_one();
                                  }));
  Collector collector;
  for (;;) {
    std::deque<ChatDelta> deltas;
    {
      std::unique_lock lock(mailbox->mutex);
      mailbox->arrived.wait_for(lock, kInterruptPoll, [&] { return !mailbox->deltas.empty(); });
      deltas.swap(mailbox->deltas);
    }
    if (interrupt_pending()) turn.cancel();
    for (const ChatDelta& delta : deltas) {
      for (const OutputEvent& event : delta.events) {
        collector.add(event);
        show(event);
      }
      if (delta.kind != ChatDelta::Kind::kFinished) continue;
      if (delta.finish_reason == "error") return delta.error;
      TurnResult result = std::move(collector.result);
      if (!collector.calls.empty()) result.tool_calls = std::move(collector.calls);
      result.finish_reason = delta.finish_reason;
      result.usage = delta.usage;
      result.reasoning_tokens = delta.reasoning_tokens;
      return result;
    }
  }
}

int turn_exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    case ErrorCode::kUnsupported:
    case ErrorCode::kNotFound:
      return kExitRefused;
    default:
      return kExitFailed;
  }
}

void AnswerPrinter::write(std::string_view text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::set_dim(bool dim) {
  if (!colors_ || dim == dim_) return;
  std::fputs(dim ? "\033[2m" : "\033[0m", stdout);
  dim_ = dim;
}

void AnswerPrinter::show(const OutputEvent& event) {
  const bool reasoning = event.kind == OutputEvent::Kind::kReasoning;
  if (reasoning) {
    if (!show_thinking_ || event.text.empty()) return;
    set_dim(true);
    thought_ = true;
    write(event.text);
    return;
  }
  set_dim(false);
  if (thought_ && !at_line_start_) write("\n");
  thought_ = false;
  switch (event.kind) {
    case OutputEvent::Kind::kToolBegin:
      if (!at_line_start_) write("\n");
      write("[call " + event.text + " ");
      break;
    case OutputEvent::Kind::kToolEnd:
      write("]\n");
      break;
    default:
      write(event.text);
  }
}

void AnswerPrinter::finish() {
  set_dim(false);
  if (!at_line_start_) write("\n");
}

std::string speed_line(const Usage& usage) {
  const auto rate = [](double tokens, double seconds) {
    return seconds > 0 ? tokens / seconds : 0;
  };
  const int computed = usage.prompt_tokens - usage.cached_tokens;
  // The first token comes with the prompt's own pass.
  const int decoded = usage.completion_tokens > 1 ? usage.completion_tokens - 1 : 0;
  std::string line =
      fmt::format("{} tokens, {:.1f} tok/s; prompt {} tokens ({} cached), {:.1f} tok/s",
                  usage.completion_tokens, rate(decoded, usage.decode_s), usage.prompt_tokens,
                  usage.cached_tokens, rate(computed, usage.prefill_s));
  if (usage.drafted_tokens > 0) {
    line += fmt::format(
        "; {} of {} guesses right ({:.0f} %), {:.2f} tokens a step", usage.accepted_tokens,
        usage.drafted_tokens, 100.0 * usage.accepted_tokens / usage.drafted_tokens,
        static_cast<double>(decoded) / std::max(1, decoded - usage.accepted_tokens));
  }
  return line;
}

bool stdout_wants_colors() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace glint
