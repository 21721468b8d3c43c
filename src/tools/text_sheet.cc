#include "tools/text_sheet.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace glint {
namespace {

constexpr std::size_t kLabel = 12;
constexpr int kLeastWidth = 40;  // below, lines are broken no more

// Columns of UTF-8 text, near enough: its characters.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

void TextSheet::title(std::string_view text) {
  if (!text_.empty()) text_ += '\n';
  text_ += fmt::format("{}\n", text);
}

void TextSheet::line(std::string_view label, std::string_view text) {
  wrapped(fmt::format("  {:<{}} ", label, kLabel), kLabel + 3, text);
}

void TextSheet::item(std::string_view text) {
  wrapped("    - ", 6, text);
}

void TextSheet::wrapped(std::string_view lead, std::size_t indent, std::string_view text) {
  text_ += lead;
  if (width_ < kLeastWidth) {
    text_ += fmt::format("{}\n", text);
    return;
  }
  std::size_t at = columns(lead);
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!first && at + 1 + columns(word) > static_cast<std::size_t>(width_)) {
      text_ += '\n';
      text_.append(indent, ' ');
      at = indent;
    } else if (!first) {
      text_ += ' ';
      ++at;
    }
    text_ += word;
    at += columns(word);
    first = false;
  }
  text_ += '\n';
}

int terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace glint
