// Lines from a terminal with editing and history, or from a pipe. The editing library stays in
// line_editor.cc. One at a time: it owns the terminal.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace glint {

class LineEditor {
 public:
  enum class Outcome { kLine, kInterrupted, kEnd };

  // `history_file` may be empty; it is read now and rewritten after each line.
  LineEditor(bool interactive, std::filesystem::path history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // One line without its newline. kInterrupted: a signal arrived, the line is dropped.
  Outcome read(const std::string& prompt, std::string* line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ~/.local/state/glint/history, or where XDG_STATE_HOME says; empty when there is no home.
std::filesystem::path history_path();

}  // namespace glint
