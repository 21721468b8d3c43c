#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text_fixture.h"

namespace glint {
namespace {

std::int32_t byte_token(unsigned char byte) {
  static const std::vector<std::int32_t> table = [] {
    std::vector<std::int32_t> ids(256, -1);
    for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
      const std::string_view bytes = demo_tokenizer().token_bytes(id);
      if (bytes.size() == 1) ids[static_cast<unsigned char>(bytes[0])] = id;
    }
    return ids;
  }();
  return table[byte];
}

std::vector<std::string> detokenize(std::string_view bytes) {
  Detokenizer detokenizer(demo_tokenizer());
  std::vector<std::string> pieces;
  for (const char c : bytes)
    pieces.push_back(detokenizer.push(byte_token(static_cast<unsigned char>(c))));
  pieces.push_back(detokenizer.finish());
  return pieces;
}

std::string join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

std::string run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                std::optional<std::string>* matched = nullptr) {
  StopMatcher matcher(stops);
  std::string shown;
  for (const std::string& piece : pieces) shown += matcher.push(piece);
  shown += matcher.finish();
  if (matched != nullptr) *matched = matcher.matched();
  return shown;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (const char c : text) out.emplace_back(1, c);
  return out;
}

TEST(Utf8, sequences_are_replaced_by_maximal_subparts) {
  const auto lossy = [](std::string_view bytes) {
    std::string out;
    EXPECT_EQ(append_utf8(out, bytes, true), bytes.size());
    return out;
  };
  EXPECT_EQ(lossy("plain"), "plain");
  EXPECT_EQ(lossy("\xE4\xBD\xA0"), "你");
  EXPECT_EQ(lossy("\x80"), "\uFFFD");
  EXPECT_EQ(lossy("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xF0\x9F\x98"
                  "a"),
            "\uFFFDa");
  EXPECT_EQ(lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
}

TEST(Detokenizer, characters_that_span_tokens_arrive_whole) {
  for (const std::string text : {"👩‍👩‍👧", "你好", "é", "a你b👍🏽c", "नमस्ते"}) {
    const std::vector<std::string> pieces = detokenize(text);
    EXPECT_EQ(join(pieces), text);
    for (const std::string& piece : pieces) {
      std::string checked;
      EXPECT_EQ(append_utf8(checked, piece, false), piece.size());
      EXPECT_EQ(checked, piece) << "part of a character was shown";
      EXPECT_EQ(piece.find("\uFFFD"), std::string::npos);
    }
  }
}

TEST(Detokenizer, invalid_bytes_become_replacement_characters) {
  EXPECT_EQ(join(detokenize("a\xFF"
                            "b")),
            "a\uFFFDb");
  EXPECT_EQ(join(detokenize("a\xE4\xBD"
                            "b")),
            "a\uFFFDb");
  std::vector<std::string> cut = detokenize("ok \xF0\x9F\x91");
  EXPECT_EQ(cut.back(), "\uFFFD");
  EXPECT_EQ(join(cut), "ok \uFFFD");
}

TEST(Detokenizer, any_bytes_give_the_same_text_as_decoding_at_once) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 24; ++i) {
      bytes += static_cast<char>(random() % 3 ? 0x80 + random() % 0x80 : random() % 0x80);
      ids.push_back(byte_token(static_cast<unsigned char>(bytes.back())));
    }
    EXPECT_EQ(join(detokenize(bytes)), demo_tokenizer().decode(ids));
  }
}

TEST(StopMatcher, text_before_the_stop_is_shown_and_nothing_of_the_stop) {
  std::optional<std::string> matched;
  EXPECT_EQ(run({"own fox"}, characters("The quick brown fox"), &matched), "The quick br");
  EXPECT_EQ(matched, "own fox");
  EXPECT_EQ(run({"own fox"}, {"The quick brown fox jumps"}, &matched), "The quick br");
  EXPECT_EQ(matched, "own fox");
}

TEST(StopMatcher, what_could_become_a_stop_is_held_back) {
  StopMatcher matcher({"</end>"});
  EXPECT_EQ(matcher.push("text</en"), "text");
  EXPECT_EQ(matcher.push("<"), "</en");
  EXPECT_EQ(matcher.push("/"), "");
  EXPECT_EQ(matcher.finish(), "</");
  EXPECT_FALSE(matcher.matched().has_value());
}

TEST(StopMatcher, nothing_is_shown_after_a_match) {
  StopMatcher matcher({"X"});
  EXPECT_EQ(matcher.push("aXb"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, self_overlapping_stops_are_found) {
  EXPECT_EQ(run({"aab"}, characters("xaaab")), "xa");
  EXPECT_EQ(run({"abab"}, characters("ababab")), "");
  EXPECT_EQ(run({"abcabd"}, characters("abcabcabd!")), "abc");
}

TEST(StopMatcher, empty_stops_never_match) {
  EXPECT_EQ(run({""}, {"abc"}), "abc");
  EXPECT_EQ(run({}, {"abc"}), "abc");
}

TEST(StopMatcher, the_result_does_not_depend_on_how_text_is_cut) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&](std::size_t most) {
      std::string text;
      for (std::size_t n = 1 + random() % most; n > 0; --n) text += "ab<"[random() % 3];
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(4));
    const std::string text = word(24);
    std::vector<std::string> cut;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 5;
      cut.push_back(text.substr(at, size));
      at += size;
    }
    std::optional<std::string> whole_stop;
    std::optional<std::string> cut_stop;
    const std::string whole = run(stops, {text}, &whole_stop);
    EXPECT_EQ(run(stops, cut, &cut_stop), whole);
    EXPECT_EQ(cut_stop, whole_stop);
    EXPECT_EQ(text.compare(0, whole.size(), whole), 0);
    if (whole_stop) {
      EXPECT_EQ(text.compare(whole.size(), whole_stop->size(), *whole_stop), 0);
    } else {
      EXPECT_EQ(whole, text);
    }
  }
}

}  // namespace
}  // namespace glint
