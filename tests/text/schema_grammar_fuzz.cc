// JSON schemas from a request: compiled or refused; and what compiles gives masks or an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace {

// A tokenizer of single bytes and an end token.
std::string byte_tokenizer_json() {
  using glint::Json;
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
  const std::string level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  return R"({"version":"1.0","truncation":null,"padding":null,"normalizer":null,"added_tokens":[)"
         R"({"id":256,"content":"<end>","single_word":false,"lstrip":false,"rstrip":false,)"
         R"("normalized":false,"special":true}],"pre_tokenizer":)" +
         level + R"(,"post_processor":null,"decoder":)" + level +
         R"(,"model":{"type":"BPE","merges":[],"vocab":)" + vocab.dump() + "}}";
}

glint::GrammarCompiler& compiler() {
  static const std::unique_ptr<glint::Tokenizer> tokenizer =
      std::move(*glint::Tokenizer::from_json(byte_tokenizer_json(), "tokenizer"));
  static const std::unique_ptr<glint::GrammarCompiler> made =
      std::move(*glint::GrammarCompiler::make(*tokenizer, std::vector<std::int32_t>{256}));
  return *made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto grammar =
      compiler().compile({.kind = glint::GrammarSource::Kind::kJsonSchema, .text = text});
  if (!grammar.has_value()) return 0;
  glint::GrammarMatcher matcher = (*grammar)->start();
  for (int step = 0; step < 8; ++step) {
    const auto mask = matcher.mask();
    if (!mask.has_value()) return 0;
    std::int32_t token = 0;
    while (token < 257 &&
           ((*mask)[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) == 0) {
      ++token;
    }
    // A mask without a token would leave the model nothing to say; what it allows is accepted.
    if (token == 257 || !matcher.accept(token).has_value()) std::abort();
  }
  return 0;
}
