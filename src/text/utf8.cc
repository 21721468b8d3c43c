#include "text/utf8.h"

namespace glint {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  std::size_t length;  // bytes that belong together
  enum { kValid, kInvalid, kCut } kind;
};

// The sequence at the start of `bytes` (not empty), by table 3-7 of the Unicode standard.
Sequence first_sequence(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, Sequence::kValid};
  std::size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, Sequence::kInvalid};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Sequence::kCut};
    if (at(i) < low || at(i) > high) return {i, Sequence::kInvalid};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Sequence::kValid};
}

}  // namespace

std::size_t append_utf8(std::string& out, std::string_view bytes, bool final) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const Sequence sequence = first_sequence(bytes.substr(done));
    if (sequence.kind == Sequence::kCut && !final) break;
    if (sequence.kind == Sequence::kValid) {
      out.append(bytes, done, sequence.length);
    } else {
      out.append(kReplacement);
    }
    done += sequence.length;
  }
  return done;
}

}  // namespace glint
