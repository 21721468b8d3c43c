// One turn from the command line: deltas come from the engine thread and are handed to the calling
// thread, which may be interrupted.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "chat/chat.h"
#include "tools/session.h"

namespace glint {

struct TurnResult {
  std::string text;
  std::string reasoning;
  Json tool_calls;            // null, or an OpenAI-shaped array
  std::string finish_reason;  // "stop", "length", "tool_calls", "cancelled"
  Usage usage;
  int reasoning_tokens = 0;
};

// Runs the turn to its end; `show` gets each event in order. Errors: what prepare and submit
// refuse, and what failed on the way.
Result<TurnResult> run_turn(Session& session, ChatRequest request,
                            const std::function<void(const OutputEvent&)>& show);

// The exit code of a turn's error: the request was wrong (2), the model cannot do it (3), or it
// failed.
int turn_exit_code(const Error& error);

// From the first call on, SIGINT sets a flag instead of ending the program; run_turn cancels its
// turn when it sees it. Returns and clears the flag.
void catch_interrupts();
bool take_interrupt();
bool interrupt_pending();
// Readable while one is pending: for whoever waits for something else too. -1 before
// catch_interrupts().
int interrupt_fd();

// Writes answers as they come: thinking dimmed on a terminal, left out elsewhere.
class AnswerPrinter {
 public:
  // `colors` when stdout is a terminal that wants them; `show_thinking` false drops thinking.
  AnswerPrinter(bool colors, bool show_thinking) : colors_(colors), show_thinking_(show_thinking) {}
  void show(const OutputEvent& event);
  // Ends the colour and the line.
  void finish();

 private:
  void write(std::string_view text);
  void set_dim(bool dim);
  bool colors_;
  bool show_thinking_;
  bool dim_ = false;
  bool thought_ = false;
  bool at_line_start_ = true;
};

// "34 tokens, 120.5 tok/s; prompt 12 tokens (8 cached), 900 tok/s"
std::string speed_line(const Usage& usage);
// stdout is a terminal, TERM is not dumb and NO_COLOR is unset.
bool stdout_wants_colors();

}  // namespace glint
