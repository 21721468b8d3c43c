// What the grammar tests share: the demo tokenizer's compiler, and sentences walked token by token.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text_fixture.h"

namespace glint {

inline std::vector<std::int32_t> demo_ends() {
  const Tokenizer& tokenizer = demo_tokenizer();
  return {*tokenizer.token_id("<|endoftext|>"), *tokenizer.token_id("<|user|>"),
          *tokenizer.token_id("<|observation|>")};
}

inline GrammarCompiler& demo_compiler() {
  static const std::unique_ptr<GrammarCompiler> compiler = [] {
    auto made = GrammarCompiler::make(demo_tokenizer(), demo_ends());
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return std::move(*made);
  }();
  return *compiler;
}

inline std::shared_ptr<const Grammar> compile_demo(GrammarSource::Kind kind, std::string text) {
  auto grammar = demo_compiler().compile({.kind = kind, .text = std::move(text)});
  EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
  return grammar.has_value() ? *grammar : nullptr;
}

// A tokenizer of single bytes (ids 0 to 255), `words` after them, then `added` tokens.
inline std::unique_ptr<Tokenizer> byte_tokenizer(std::span<const std::string> words,
                                                 std::span<const std::string> added) {
  Json vocab;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool stands = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    const unsigned code = stands ? byte : next++;
    std::string letter;
    if (code >= 0x80) letter += static_cast<char>(0xC0 | code >> 6);
    letter += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3F) : code);
    vocab.set(letter, static_cast<std::int64_t>(byte));
  }
  std::string text = vocab.dump();
  text.pop_back();
  std::int64_t id = 256;
  for (const std::string& word : words) {
    text += "," + Json(word).dump() + ":" + std::to_string(id++);
  }
  Json list = Json(Json::Array());
  for (const std::string& content : added) {
    Json token;
    token.set("id", id++);
    token.set("content", content);
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
      token.set(key, false);
    }
    list.push_back(std::move(token));
  }
  const std::string level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  auto made = Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"normalizer":null,"added_tokens":)" +
          list.dump() + R"(,"pre_tokenizer":)" + level + R"(,"post_processor":null,"decoder":)" +
          level + R"(,"model":{"type":"BPE","merges":[],"vocab":)" + text + "}}}",
      "tokenizer.json");
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(*made);
}

inline bool has_bit(std::span<const std::uint32_t> mask, std::int32_t token) {
  const auto id = static_cast<std::size_t>(token);
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

inline std::vector<std::int32_t> tokens_in(std::span<const std::uint32_t> mask) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(mask.size() * 32); ++id) {
    if (has_bit(mask, id)) tokens.push_back(id);
  }
  return tokens;
}

// How far a sentence gets: "complete", "open" (all allowed, and not a whole one), or the token that
// its mask forbids. Accepting must agree with the mask.
inline std::string walk(const Grammar& grammar, std::span<const std::int32_t> tokens) {
  GrammarMatcher matcher = grammar.start();
  for (const std::int32_t token : tokens) {
    const auto mask = matcher.mask();
    if (!mask.has_value()) return "error: " + mask.error().message;
    const bool allowed = has_bit(*mask, token);
    const bool accepted = matcher.accept(token).has_value();
    EXPECT_EQ(allowed, accepted) << token;
    if (!allowed) return "forbidden: " + std::string(demo_tokenizer().token_bytes(token));
  }
  return matcher.is_complete() ? "complete" : "open";
}

inline std::string walk(const Grammar& grammar, std::string_view text) {
  return walk(grammar, demo_tokenizer().encode(text));
}

inline bool fits(const Grammar& grammar, std::string_view text) {
  return walk(grammar, text) == "complete";
}

}  // namespace glint
