// `glint chat`: a conversation in the terminal, or line by line from a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "tools/commands.h"
#include "tools/line_editor.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/turn_runner.h"

namespace glint {
namespace {

constexpr const char* kHelp =
    "  /help            this list\n"
    "  /reset           forget the conversation (the system message stays)\n"
    "  /system TEXT     set the system message and start over; without TEXT: remove it\n"
    "  /think on|off    ask for thinking or not; without a word: leave it to the model\n"
    "  /quit            leave (also Ctrl-D)\n"
    "  Ctrl-C           stop the answer; twice at the prompt: leave\n"
    "  A line that ends in \\ goes on in the next one.\n";

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  LogOptions log;
  std::string system;
  bool think = false, no_think = false, hide_thinking = false;
};

class Conversation {
 public:
  Conversation(Session& session, const ChatOptions& options)
      : session_(session),
        options_(options),
        interactive_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0),
        colors_(stdout_wants_colors()),
        editor_(interactive_, history_path()),
        system_(options.system) {
    if (options.think || options.no_think) thinking_ = options.think;
    reset();
  }

  int run();

 private:
  enum class Next { kGoOn, kLeave };
  void greet() const;
  void say(std::string_view text) const;  // a remark of the program, not of the model
  void reset();
  bool read_message(std::string* text);
  Next command(std::string_view line);
  Status answer(const std::string& text);
  void remember(const TurnResult& result);

  Session& session_;
  const ChatOptions& options_;
  bool interactive_;
  bool colors_;
  LineEditor editor_;
  std::string system_;
  std::optional<bool> thinking_;
  Json messages_;
};

Json message(const char* role, const std::string& content) {
  Json json;
  json.set("role", role);
  json.set("content", content);
  return json;
}

void Conversation::say(std::string_view text) const {
  // Into a pipe only answers go to stdout.
  std::FILE* out = interactive_ ? stdout : stderr;
  const bool dim = interactive_ && colors_;
  std::fputs(fmt::format("{}{}{}\n", dim ? "\033[2m" : "", text, dim ? "\033[0m" : "").c_str(),
             out);
  std::fflush(out);
}

void Conversation::greet() const {
  if (!interactive_) return;
  const ModelInfo& info = session_.plan.info;
  const SessionOptions& used = session_.plan.options;
  const bool demo = used.model.empty() || used.model == "demo";
  std::fputs(fmt::format("{}{:.1f} M parameters, {} on {} threads, context {} tokens\n",
                         demo ? "The demo model of glint: " : info.family + ": ",
                         static_cast<double>(info.total_parameters) / 1e6, used.isa, used.threads,
                         used.context)
                 .c_str(),
             stdout);
  if (demo) {
    say("It is tiny and knows only sums, sorting, a few facts and small talk. Try: What is 17 + "
        "25?");
  }
  say("Type a message, or /help.");
}

void Conversation::reset() {
  messages_ = Json(Json::Array());
  if (!system_.empty()) messages_.push_back(message("system", system_));
}

// False at the end of the input.
bool Conversation::read_message(std::string* text) {
  text->clear();
  bool interrupted_before = false;
  for (;;) {
    std::string line;
    const std::string bold = colors_ ? "\1\033[1m\1" : "";
    const std::string plain = colors_ ? "\1\033[0m\1" : "";
    const char* mark = text->empty() ? "> " : ". ";
    switch (editor_.read(bold + mark + plain, &line)) {
      case LineEditor::Outcome::kEnd:
        return !text->empty();
      case LineEditor::Outcome::kInterrupted:
        take_interrupt();
        if (interrupted_before || !interactive_) return false;
        interrupted_before = true;
        text->clear();
        say("(Ctrl-C again, Ctrl-D or /quit leaves)");
        continue;
      case LineEditor::Outcome::kLine:
        break;
    }
    interrupted_before = false;
    if (line.ends_with('\\')) {
      line.back() = '\n';
      *text += line;
      continue;
    }
    *text += line;
    if (text->find_first_not_of(" \t\n") != std::string::npos) return true;
    text->clear();
  }
}

Conversation::Next Conversation::command(std::string_view line) {
  const std::size_t space = line.find(' ');
  const std::string_view name = line.substr(0, space);
  std::string_view rest = space == std::string_view::npos ? "" : line.substr(space);
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  while (rest.ends_with(' ')) rest.remove_suffix(1);
  if (name == "/quit" || name == "/exit") return Next::kLeave;
  if (name == "/help") {
    std::fputs(kHelp, interactive_ ? stdout : stderr);
  } else if (name == "/reset") {
    reset();
    say("(forgotten)");
  } else if (name == "/system") {
    system_ = rest;
    reset();
    say(system_.empty() ? "(no system message; started over)"
                        : "(system message set; started over)");
  } else if (name == "/think") {
    if (rest == "on" || rest == "off") thinking_ = rest == "on";
    if (rest.empty()) thinking_.reset();
    if (rest.empty() || rest == "on" || rest == "off") {
      say(!thinking_   ? "(thinking is left to the model)"
          : *thinking_ ? "(thinking on)"
                       : "(thinking off)");
    } else {
      say("(/think takes on, off or nothing)");
    }
  } else {
    const auto near = did_you_mean(name, {"/help", "/reset", "/system", "/think", "/quit"});
    say(near ? fmt::format("(unknown command {}; did you mean {}?)", name, *near)
             : fmt::format("(unknown command {}; /help lists them)", name));
  }
  return Next::kGoOn;
}

// Thinking is kept: a template that wants the history without it leaves it out itself.
void Conversation::remember(const TurnResult& result) {
  Json answer = message("assistant", result.text);
  if (!result.reasoning.empty()) answer.set("reasoning_content", result.reasoning);
  messages_.push_back(std::move(answer));
}

Status Conversation::answer(const std::string& text) {
  ChatRequest request;
  apply_sampling(options_.sampling, &request);
  request.enable_thinking = thinking_;
  messages_.push_back(message("user", text));
  request.messages = messages_;
  AnswerPrinter printer(colors_, interactive_ && !options_.hide_thinking);
  auto result = run_turn(session_, std::move(request),
                         [&](const OutputEvent& event) { printer.show(event); });
  printer.finish();
  // One that comes after the last token is for the prompt.
  const bool stopped = result && result->finish_reason == "cancelled";
  if (stopped || !result) take_interrupt();
  if (!result) {
    messages_.as_array().pop_back();
    return result.error();
  }
  remember(*result);
  if (stopped) say("(stopped)");
  if (result->finish_reason == "length") say("(cut: the limit of tokens is reached)");
  if (interactive_) say(speed_line(result->usage));
  return {};
}

int Conversation::run() {
  catch_interrupts();
  greet();
  int code = kExitOk;
  std::string text;
  while (read_message(&text)) {
    if (text.starts_with('/')) {
      if (command(text) == Next::kLeave) break;
      continue;
    }
    if (const Status answered = answer(text); !answered) {
      complain(answered.error().message, kExitFailed);
      if (answered.error().code == ErrorCode::kInvalidArgument && interactive_) {
        say("(/reset starts over)");
      }
      if (!interactive_) code = kExitFailed;
    }
  }
  return code;
}

void declare(Flags& flags, ChatOptions* options) {
  declare_model(flags, &options->session.model);
  flags.group("Conversation");
  flags.text("--system", &options->system, "TEXT", "the system message");
  flags.toggle("--think", &options->think, "ask the template for thinking");
  flags.toggle("--no-think", &options->no_think, "ask the template for no thinking");
  flags.toggle("--hide-thinking", &options->hide_thinking, "do not show the thinking");
  flags.text("--chat-template", &options->session.chat_template, "FILE",
             "a Jinja template instead of the checkpoint's");
  declare_sampling(flags, &options->sampling);
  declare_session(flags, &options->session, false);
  declare_mtp(flags, &options->session.mtp);
  declare_vision(flags, &options->session);
  declare_log(flags, &options->log);
}

int run(const ChatOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  if (options.think && options.no_think) {
    return complain("--think and --no-think contradict each other", kExitUsage);
  }
  auto session = open_session(options.session);
  if (!session) return complain(session.error().message, refusal_exit_code(session.error()));
  if (!(*session)->plan.text->has_template()) {
    return complain(
        "this model has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json): give one with --chat-template FILE, or use `glint run --raw`",
        kExitRefused);
  }
  return Conversation(**session, options).run();
}

}  // namespace

Command chat_command() {
  auto options = std::make_shared<ChatOptions>();
  return {
      .name = "chat",
      .summary = "talk to a model in the terminal",
      .usage = "[MODEL] [options]",
      .notes =
          "While chatting:\n" + std::string(kHelp) +
          "Without a terminal, each line of stdin is a message and only the answers are written.",
      .examples = {"glint chat",
                   "glint chat ./GLM-4.7-Flash --ctx 16384 --system \"Answer briefly.\""},
      .declare = [options](Flags& flags) { declare(flags, options.get()); },
      .run = [options] { return run(*options); }};
}

}  // namespace glint
