#include "tools/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <iostream>
#include <system_error>
#include <utility>

#include "tools/turn_runner.h"

namespace glint {
namespace {

constexpr int kHistoryLines = 1000;

// The editor decodes what is typed by the locale: without UTF-8 every other letter is lost.
void use_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::State {
  bool interactive = false;
  std::filesystem::path history_file;
  std::string prompt;
  EditLine* editor = nullptr;
  History* history = nullptr;
  bool interrupted = false;  // while the present line was read

  ~State() {
    if (history != nullptr) history_end(history);
    if (editor != nullptr) el_end(editor);
  }

  static char* show_prompt(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<State*>(self)->prompt.data();
  }

  // The editor's own would sit in read() through an interrupt that came just before. -1: no
  // character; 0: the input has ended.
  static int read_character(EditLine* editor, wchar_t* character) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    std::mbstate_t decoding = {};
    for (;;) {
      pollfd waited[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_fd(), POLLIN, 0}};
      if (::poll(waited, 2, -1) < 0 && errno != EINTR) return -1;
      if (waited[1].revents != 0) {
        static_cast<State*>(self)->interrupted = true;
        return -1;
      }
      if (waited[0].revents == 0) continue;
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return static_cast<int>(count);
      const std::size_t used = std::mbrtowc(character, &byte, 1, &decoding);
      if (used == static_cast<std::size_t>(-1)) {
        decoding = {};  // no letter of this encoding: left out
      } else if (used != static_cast<std::size_t>(-2)) {
        return 1;
      }
    }
  }

  void start() {
    use_utf8_locale();
    editor = el_init("glint", stdin, stdout, stderr);
    history = history_init();
    if (editor == nullptr || history == nullptr) {
      interactive = false;
      return;
    }
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT_ESC, &State::show_prompt, '\1');
    el_set(editor, EL_GETCFN, &State::read_character);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_BIND, "\033[3~", "ed-delete-next-char", nullptr);
    el_set(editor, EL_HIST, ::history, history);
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!history_file.empty()) ::history(history, &event, H_LOAD, history_file.c_str());
  }

  void remember(const char* line) {
    HistEvent event;
    ::history(history, &event, H_ENTER, line);
    if (history_file.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(history_file.parent_path(), ignored);
    ::history(history, &event, H_SAVE, history_file.c_str());
    std::filesystem::permissions(
        history_file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write,
        ignored);
  }

  Outcome read_edited(std::string* line) {
    int length = 0;
    interrupted = false;
    // Before the prompt is shown: by itself the editor would do it after, and a key pressed between
    // the two would go to the terminal's own line discipline.
    el_set(editor, EL_PREP_TERM, 1);
    const char* text = el_gets(editor, &length);
    if (text == nullptr || length <= 0) {
      if (interrupted) el_reset(editor);
      std::fputs("\n", stdout);
      return interrupted ? Outcome::kInterrupted : Outcome::kEnd;
    }
    line->assign(text, static_cast<std::size_t>(length));
    while (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
    if (line->find_first_not_of(" \t") != std::string::npos) remember(text);
    return Outcome::kLine;
  }
};

LineEditor::LineEditor(bool interactive, std::filesystem::path history_file)
    : state_(std::make_unique<State>()) {
  state_->interactive = interactive;
  state_->history_file = std::move(history_file);
  if (interactive) state_->start();
}

LineEditor::~LineEditor() = default;

LineEditor::Outcome LineEditor::read(const std::string& prompt, std::string* line) {
  if (state_->interactive) {
    state_->prompt = prompt;
    return state_->read_edited(line);
  }
  if (std::getline(std::cin, *line)) {
    if (line->ends_with('\r')) line->pop_back();
    return Outcome::kLine;
  }
  return interrupt_pending() ? Outcome::kInterrupted : Outcome::kEnd;
}

std::filesystem::path history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && std::filesystem::path(state).is_absolute()) {
    return std::filesystem::path(state) / "glint" / "history";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || !std::filesystem::path(home).is_absolute()) return {};
  return std::filesystem::path(home) / ".local" / "state" / "glint" / "history";
}

}  // namespace glint
