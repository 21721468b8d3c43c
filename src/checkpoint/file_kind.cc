#include "checkpoint/file_kind.h"

#include <algorithm>
#include <cctype>

#include "base/json.h"

namespace glint {
namespace {

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  return std::equal(lower.begin(), lower.end(), text.begin(), [](char l, char t) {
    return l == static_cast<char>(std::tolower(static_cast<unsigned char>(t)));
  });
}

}  // namespace

std::optional<ForeignKind> foreign_kind(std::string_view head) {
  if (head.starts_with("version https://git-lfs")) return ForeignKind::kGitLfsPointer;
  if (head.starts_with("GGUF")) return ForeignKind::kGguf;
  // torch.save writes a zip archive, older versions a bare pickle (protocol 2 and later).
  if (head.starts_with("PK\x03\x04")) return ForeignKind::kPickle;
  if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
    return ForeignKind::kPickle;
  const auto text = head.substr(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  for (const std::string_view start : {"<!doctype", "<html", "<?xml", "<head"}) {
    if (starts_with_ignoring_case(text, start)) return ForeignKind::kWebPage;
  }
  return std::nullopt;
}

std::optional<ForeignKind> foreign_kind(std::span<const std::byte> head) {
  constexpr std::size_t kEnough = 512;
  return foreign_kind(
      std::string_view(reinterpret_cast<const char*>(head.data()), std::min(head.size(), kEnough)));
}

Error wrong_kind(std::string_view file, ForeignKind kind) {
  const std::string name(file);
  switch (kind) {
    case ForeignKind::kGitLfsPointer:
      return corrupt(
          name + " is a git-lfs pointer, not the file itself; run \"git lfs pull\" in its folder");
    case ForeignKind::kWebPage:
      return corrupt(name +
                     " is a web page, not a model file; the download failed (login or licence "
                     "page?), fetch it again");
    case ForeignKind::kGguf:
      return unsupported(
          name +
          " is a GGUF file under another format's name; rename it to *.gguf and give "
          "the file itself as the model");
    case ForeignKind::kPickle:
      break;
  }
  return unsupported(name +
                     " is a pickle, which can run code when opened, so glint never reads one; "
                     "convert the model to safetensors");
}

std::string quote_name(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  std::string out;
  append_json_string(out, name.substr(0, kLongest));
  if (name.size() > kLongest) out += "...";
  return out;
}

}  // namespace glint
