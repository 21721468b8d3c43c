// `glint tokenize`: text to token ids and back.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "tools/commands.h"
#include "tools/options.h"
#include "tools/program.h"

namespace glint {
namespace {

struct TokenizeOptions {
  std::string model, text, ids_to_decode;
  bool ids = false, decode = false, plain = false;
  LogOptions log;
};

void declare(Flags& flags, TokenizeOptions* options) {
  flags.positional("MODEL", &options->model, "a Hugging Face folder, a GGUF file, or demo");
  flags.positional("TEXT", &options->text, "what to split; absent or -: all of stdin");
  flags.toggle("--ids", &options->ids, "one JSON list of ids instead of one token per line");
  flags.toggle("--decode", &options->decode, "TEXT is a list of ids; print their text");
  flags.toggle("--no-special", &options->plain, "read <|user|> and its like as ordinary text");
  declare_log(flags, &options->log);
}

Result<std::vector<std::int32_t>> parse_ids(std::string_view text, int vocab_size) {
  std::vector<std::int32_t> ids;
  std::size_t at = 0;
  for (;;) {
    at = text.find_first_not_of("[], \t\r\n", at);
    if (at == std::string_view::npos) return ids;
    const std::size_t end = std::min(text.find_first_of("[], \t\r\n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const auto id = parse_integer(word);
    if (!id || *id < 0 || *id >= vocab_size) {
      return invalid_argument(fmt::format("'{}' is no token id below {}", word, vocab_size));
    }
    ids.push_back(static_cast<std::int32_t>(*id));
    at = end;
  }
}

void print_pieces(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) {
    std::string piece;
    append_json_string(piece, tokenizer.token_bytes(id));
    std::puts(
        fmt::format("{:>8}  {}{}", id, piece, tokenizer.is_added(id) ? "  (special)" : "").c_str());
  }
}

int run(const TokenizeOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  if (options.model.empty())
    return complain("which model's tokenizer? give MODEL, or demo", kExitUsage);
  auto tokenizer = open_tokenizer(options.model);
  if (!tokenizer) return complain(tokenizer.error().message, kExitRefused);

  std::string text = options.text;
  if (text.empty() || text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (options.decode) {
    const auto ids = parse_ids(text, (*tokenizer)->vocab_size());
    if (!ids) return complain(ids.error().message, kExitUsage);
    const std::string decoded = (*tokenizer)->decode(*ids);
    std::fwrite(decoded.data(), 1, decoded.size(), stdout);
    std::fputs("\n", stdout);
    return kExitOk;
  }
  const std::vector<std::int32_t> ids = (*tokenizer)->encode(text, !options.plain);
  if (options.ids) {
    std::puts(fmt::format("[{}]", fmt::join(ids, ", ")).c_str());
  } else {
    print_pieces(**tokenizer, ids);
  }
  return kExitOk;
}

}  // namespace

Command tokenize_command() {
  auto options = std::make_shared<TokenizeOptions>();
  return {.name = "tokenize",
          .summary = "text to token ids and back",
          .usage = "MODEL [TEXT] [--ids]",
          .notes = "",
          .examples = {"glint tokenize demo \"Hello, world\"",
                       "glint tokenize demo --ids \"<|user|>Hello\"",
                       "glint tokenize demo --decode \"[1522, 43, 75]\""},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
