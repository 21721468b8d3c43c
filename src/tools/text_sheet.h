// Text for people in labelled lines, wrapped to the width of the terminal.
#pragma once

#include <string>
#include <string_view>

namespace glint {

class TextSheet {
 public:
  // `width`: columns; 0: lines are never broken, as for a file or a pipe.
  explicit TextSheet(int width) : width_(width) {}

  void title(std::string_view text);  // a blank line before all but the first
  // "  Label        text": an empty label continues the one above.
  void line(std::string_view label, std::string_view text);
  void item(std::string_view text);  // a point of a list
  const std::string& text() const { return text_; }

 private:
  void wrapped(std::string_view lead, std::size_t indent, std::string_view text);

  int width_;
  std::string text_;
};

// Columns of the terminal that stdout is; 0 where it is none.
int terminal_width();

}  // namespace glint
