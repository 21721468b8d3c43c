// Any tokens as an answer in every format. The first byte of the input chooses options; each other
// byte is a marker, a special token or a piece of text. Calls come one after the other and in
// order, characters are whole, and complete calls whose arguments are typed by a schema are JSON.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/output_parser.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

constexpr std::array<const char*, 24> kTokens = {"<|user|>",
                                                 "<think>",
                                                 "</think>",
                                                 "<tool_call>",
                                                 "</tool_call>",
                                                 "<arg_key>",
                                                 "</arg_key>",
                                                 "<arg_value>",
                                                 "</arg_value>",
                                                 "<｜tool▁calls▁begin｜>",
                                                 "<｜tool▁calls▁end｜>",
                                                 "<｜tool▁call▁begin｜>",
                                                 "<｜tool▁call▁end｜>",
                                                 "<｜tool▁sep｜>",
                                                 "｜DSML｜",
                                                 "<|tool_calls_section_begin|>",
                                                 "<|tool_calls_section_end|>",
                                                 "<|tool_call_begin|>",
                                                 "<|tool_call_argument_begin|>",
                                                 "<|tool_call_end|>",
                                                 "function_calls>",
                                                 "invoke name=\"f\">",
                                                 "parameter name=\"n\" string=\"",
                                                 "functions.f:0"};

// A byte-level tokenizer: tokens 0 to 255 are the bytes, then come kTokens, when `with_markers`.
std::string tokenizer_json(bool with_markers) {
  Json vocab(Json::Object{});
  for (int byte = 0; byte < 256; ++byte) {
    // The alphabet of byte-level tokenizers: printable bytes as themselves, others from U+0100 on.
    static int shifted = 0;
    if (byte == 0) shifted = 0;
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = itself ? byte : 256 + shifted++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
    vocab.set(text, byte);
  }
  Json added(Json::Array{});
  for (std::size_t i = 0; with_markers && i < 20; ++i) {
    const std::string text = kTokens[i];
    added.push_back(Json(Json::Object{{"id", Json(static_cast<int>(256 + i))},
                                      {"content", Json(text)},
                                      {"single_word", Json(false)},
                                      {"lstrip", Json(false)},
                                      {"rstrip", Json(false)},
                                      {"normalized", Json(false)},
                                      {"special", Json(text.starts_with("<|"))}}));
  }
  const Json byte_level(Json::Object{{"type", Json("ByteLevel")},
                                     {"add_prefix_space", Json(false)},
                                     {"trim_offsets", Json(true)},
                                     {"use_regex", Json(false)}});
  const Json model(
      Json::Object{{"type", Json("BPE")}, {"vocab", vocab}, {"merges", Json(Json::Array{})}});
  return Json(Json::Object{{"version", Json("1.0")},
                           {"added_tokens", added},
                           {"normalizer", Json()},
                           {"pre_tokenizer", byte_level},
                           {"post_processor", Json()},
                           {"decoder", byte_level},
                           {"model", model}})
      .dump();
}

const Tokenizer& tokenizer(bool with_markers) {
  static const auto load = [](bool markers) {
    auto loaded = Tokenizer::from_json(tokenizer_json(markers), "tokenizer.json");
    GLINT_CHECK(loaded.has_value());
    return std::move(*loaded);
  };
  static const std::unique_ptr<Tokenizer> kWith = load(true);
  static const std::unique_ptr<Tokenizer> kWithout = load(false);
  return with_markers ? *kWith : *kWithout;
}

struct Checker {
  bool json_expected = false;
  int calls = 0;
  bool open = false;
  std::string arguments = {};

  void take(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      GLINT_CHECK(is_utf8(event.text));
      GLINT_CHECK(event.text.empty() == (event.kind == Kind::kToolEnd));
      switch (event.kind) {
        case Kind::kReasoning:
        case Kind::kContent:
          GLINT_CHECK(!open && event.tool_index == -1);
          continue;
        case Kind::kToolBegin:
          GLINT_CHECK(!open && event.tool_index == calls);
          open = true;
          arguments.clear();
          ++calls;
          continue;
        case Kind::kToolArgs:
          GLINT_CHECK(open && event.tool_index == calls - 1);
          arguments += event.text;
          continue;
        case Kind::kToolEnd:
          GLINT_CHECK(open && event.tool_index == calls - 1);
          open = false;
          if (json_expected) GLINT_CHECK(parse_json(arguments).has_value());
      }
    }
  }
};

OutputParser::Options options_of(std::uint8_t byte) {
  static const Json kTools = *parse_json(
      R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"},)"
      R"("o":{"type":"object"},"u":{"type":["string","null"]}}}}])");
  constexpr ToolFormat kFormats[] = {ToolFormat::kGlm47,       ToolFormat::kGlm45,
                                     ToolFormat::kDeepSeekV32, ToolFormat::kDeepSeekV3,
                                     ToolFormat::kDeepSeekV31, ToolFormat::kKimiK2,
                                     ToolFormat::kNone,        ToolFormat::kGlm47};
  OutputParser::Options options;
  options.tool_format = kFormats[byte % 8];
  options.tools = kTools;
  options.starts_in_thinking = (byte & 8) != 0;
  options.keep_special = (byte & 16) != 0;
  if ((byte & 32) != 0) options.stops = {"aa", "nn n"};
  if (byte >= 0xF0) options.reasoning_format = ReasoningFormat::kNone;
  return options;
}

// The token of a byte: bytes from 0xE0 on are kTokens, spelled out where there are no markers.
std::vector<std::int32_t> tokens_of(std::uint8_t byte, bool with_markers) {
  if (byte < 0xE0 || byte - 0xE0u >= kTokens.size()) return {byte};
  const std::size_t index = byte - 0xE0u;
  if (with_markers && index < 20) return {static_cast<std::int32_t>(256 + index)};
  std::vector<std::int32_t> ids;
  for (const char* c = kTokens[index]; *c != '\0'; ++c) {
    ids.push_back(static_cast<unsigned char>(*c));
  }
  return ids;
}

}  // namespace
}  // namespace glint

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  if (size < 2) return 0;
  const bool with_markers = (data[0] & 64) == 0;
  OutputParser::Options options = options_of(data[0]);
  Checker checker;
  checker.json_expected = options.tool_format == ToolFormat::kGlm45 ||
                          options.tool_format == ToolFormat::kGlm47 ||
                          options.tool_format == ToolFormat::kDeepSeekV32;
  OutputParser parser(tokenizer(with_markers), std::move(options));
  for (std::size_t i = 2; i < size; ++i) {
    for (const std::int32_t id : tokens_of(data[i], with_markers)) checker.take(parser.push(id));
  }
  const bool by_stop = data[1] % 2 == 0;
  checker.take(parser.finish(by_stop));
  GLINT_CHECK(checker.calls - (checker.open ? 1 : 0) == parser.complete_tool_calls());
  GLINT_CHECK(!(checker.open && by_stop && !parser.stopped()));
  return 0;
}
