#include "checkpoint/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "checkpoint/file_kind.h"

namespace glint {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr std::size_t kMaxTokens = 1u << 24;
constexpr std::size_t kMaxTemplateBytes = 4u << 20;

// How text is cut into words before merging, as the tokenizer.json of each family has it.
constexpr std::string_view kGlmPattern =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

struct PreTokenizer {
  std::string_view name;  // as tokenizer.ggml.pre has it
  std::string_view pattern;
};
constexpr PreTokenizer kPreTokenizers[] = {{"glm4", kGlmPattern}, {"chatglm-bpe", kGlmPattern}};

// Control tokens that every byte-level vocabulary of the GLM family has, and no other.
constexpr std::string_view kGlmMarks[] = {"[gMASK]", "<sop>", "<|user|>", "<|assistant|>",
                                          "<|observation|>"};

// tokenizer.ggml.token_type, by the numbers of the format.
enum class TokenType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct NamedToken {
  std::string_view key;  // in tokenizer.ggml
  const char* name;      // in tokenizer_config.json
  bool ends_answer = false;
};
constexpr NamedToken kNamedTokens[] = {
    {"bos_token_id", "bos_token"},       {"eos_token_id", "eos_token", true},
    {"eot_token_id", nullptr, true},     {"eom_token_id", nullptr, true},
    {"unknown_token_id", "unk_token"},   {"padding_token_id", "pad_token"},
    {"seperator_token_id", "sep_token"}, {"cls_token_id", "cls_token"},
    {"mask_token_id", "mask_token"},
};

// Keys of tokenizer.ggml that change nothing here: scores and types of other kinds of vocabulary,
// tokens for filling in the middle.
constexpr std::string_view kIdleKeys[] = {
    "add_sep_token",    "add_space_prefix", "fim_mid_token_id",         "fim_pad_token_id",
    "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id",         "fim_suf_token_id",
    "middle_token_id",  "prefix_token_id",  "remove_extra_whitespaces", "scores",
    "suffix_token_id",  "token_type_count"};

std::string ggml_key(std::string_view name) {
  return "tokenizer.ggml." + std::string(name);
}

// Typed access that tells a key of another type from an absent one.
class Reader {
 public:
  Reader(const GgufMetadata& metadata, std::string_view file_name)
      : metadata_(metadata), file_name_(file_name) {}

  std::string place(std::string_view key) const {
    constexpr std::size_t kLongest = 200;  // a template's name may be any text
    return fmt::format("{}: {}", file_name_, key.substr(0, kLongest));
  }
  const GgufMetadata& metadata() const { return metadata_; }

  Result<std::optional<std::string_view>> string(std::string_view key) const {
    return scalar<std::string_view>(key, "a string");
  }
  Result<std::optional<std::int64_t>> integer(std::string_view key) const {
    return scalar<std::int64_t>(key, "an integer");
  }
  Result<std::optional<bool>> boolean(std::string_view key) const {
    return scalar<bool>(key, "true or false");
  }
  // An array that the file must have.
  template <typename T>
  Result<const std::vector<T>*> array(std::string_view key, std::string_view wanted,
                                      std::string_view remedy) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end())
      return corrupt(fmt::format("{} is missing; {}", place(key), remedy));
    const auto* values = std::get_if<std::vector<T>>(&found->second.value);
    if (values == nullptr) return corrupt(fmt::format("{} must be {}", place(key), wanted));
    return values;
  }

 private:
  template <typename T>
  Result<std::optional<T>> scalar(std::string_view key, std::string_view wanted) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return std::optional<T>();
    const auto* value = std::get_if<GgufScalar>(&found->second.value);
    if (value == nullptr || !std::holds_alternative<T>(*value)) {
      return corrupt(fmt::format("{} must be {}", place(key), wanted));
    }
    return std::optional<T>(std::get<T>(*value));
  }

  const GgufMetadata& metadata_;
  std::string_view file_name_;
};

// Tokens with their types, checked; an id is a position in `tokens`.
struct Vocabulary {
  const std::vector<std::string_view>* tokens = nullptr;
  const std::vector<std::int64_t>* types = nullptr;
  std::unordered_map<std::string_view, std::size_t> ids;  // all but the unused ones

  std::string_view text(std::size_t id) const { return (*tokens)[id]; }
  TokenType type(std::size_t id) const { return static_cast<TokenType>((*types)[id]); }
  // An unknown-token entry is found in text like a control token.
  bool is_special(std::size_t id) const {
    return type(id) == TokenType::kControl || type(id) == TokenType::kUnknown;
  }
  bool is_added(std::size_t id) const {
    return is_special(id) || type(id) == TokenType::kUserDefined;
  }
};

Status check_token(const Reader& reader, const Vocabulary& vocabulary, std::size_t id) {
  const std::int64_t type = (*vocabulary.types)[id];
  const auto where = [&](std::string_view key) {
    return fmt::format("{}[{}]", reader.place(key), id);
  };
  if (type < static_cast<int>(TokenType::kNormal) || type > static_cast<int>(TokenType::kByte)) {
    return corrupt(fmt::format("{} is {}; token types are 1 to 6", where(kTypesKey), type));
  }
  if (vocabulary.type(id) == TokenType::kByte) {
    return unsupported(where(kTypesKey) +
                       " is 6 (byte), which a byte-level BPE vocabulary (gpt2) does not have");
  }
  if (vocabulary.type(id) == TokenType::kUnused) return {};
  if (!is_utf8(vocabulary.text(id))) return corrupt(where(kTokensKey) + " is not valid UTF-8");
  if (vocabulary.text(id).empty() && vocabulary.is_added(id)) {
    return corrupt(where(kTokensKey) + " is a control or user-defined token without text");
  }
  return {};
}

Result<Vocabulary> read_vocabulary(const Reader& reader) {
  Vocabulary out;
  GLINT_TRY(out.tokens, reader.array<std::string_view>(
                            kTokensKey, "a list of strings",
                            "the file has no vocabulary; convert the model again with it"));
  GLINT_TRY(out.types, reader.array<std::int64_t>(
                           kTypesKey, "a list of integers",
                           "which tokens are control tokens is not known without it, and chats "
                           "would spell them out; convert the model again with a newer converter"));
  const std::size_t count = out.tokens->size();
  if (count == 0 || count > kMaxTokens) {
    return corrupt(fmt::format("{} has {} entries; 1 to {} are possible", reader.place(kTokensKey),
                               count, kMaxTokens));
  }
  if (out.types->size() != count) {
    return corrupt(fmt::format("{} has {} entries, but there are {} tokens",
                               reader.place(kTypesKey), out.types->size(), count));
  }
  out.ids.reserve(count);
  for (std::size_t id = 0; id < count; ++id) {
    GLINT_TRY_VOID(check_token(reader, out, id));
    if (out.type(id) == TokenType::kUnused) continue;
    const auto [entry, is_new] = out.ids.emplace(out.text(id), id);
    if (is_new) continue;
    return corrupt(fmt::format("{}: tokens {} and {} are both {}", reader.place(kTokensKey),
                               entry->second, id, quote_name(out.text(id))));
  }
  return out;
}

bool is_glm(const Vocabulary& vocabulary) {
  return std::ranges::all_of(kGlmMarks, [&](std::string_view mark) {
    const auto found = vocabulary.ids.find(mark);
    return found != vocabulary.ids.end() && vocabulary.is_special(found->second);
  });
}

Result<std::string_view> find_pattern(const Reader& reader, const Vocabulary& vocabulary,
                                      std::vector<std::string>& notes) {
  GLINT_TRY(const std::optional<std::string_view> name, reader.string(kPreKey));
  if (name) {
    const auto* known = std::ranges::find(kPreTokenizers, *name, &PreTokenizer::name);
    if (known != std::end(kPreTokenizers)) return known->pattern;
    return unsupported(
        fmt::format("{} is {}, a way to cut text that this version does not know; "
                    "it knows {}",
                    reader.place(kPreKey), quote_name(*name),
                    fmt::join(supported_gguf_pre_tokenizers(), ", ")));
  }
  if (is_glm(vocabulary)) {
    notes.push_back(reader.place(kPreKey) +
                    " is missing; the vocabulary has GLM's control tokens, so text is cut as GLM "
                    "does (glm4)");
    return kGlmPattern;
  }
  return unsupported(reader.place(kPreKey) +
                     " is missing, so how text is cut before merging is not known, and guessing "
                     "would give wrong tokens; add the key (gguf-new-metadata --pre-tokenizer) or "
                     "convert the model again with a newer converter");
}

void append_added_tokens(const Vocabulary& vocabulary, std::string& out) {
  const char* comma = "";
  for (std::size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    if (!vocabulary.is_added(id)) continue;
    fmt::format_to(std::back_inserter(out), R"({}{{"id":{},"content":)", std::exchange(comma, ","),
                   id);
    append_json_string(out, vocabulary.text(id));
    fmt::format_to(std::back_inserter(out),
                   R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)"
                   R"("special":{}}})",
                   vocabulary.is_special(id));
  }
}

// Added tokens are listed here too: the parser numbers those that it does not find in the
// vocabulary, whatever their `id` says. Only a merge could lead to them here, and it would in the
// original too.
void append_vocabulary(const Vocabulary& vocabulary, std::string& out) {
  const char* comma = "";
  for (std::size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    if (vocabulary.type(id) == TokenType::kUnused) continue;
    out += std::exchange(comma, ",");
    append_json_string(out, vocabulary.text(id));
    fmt::format_to(std::back_inserter(out), ":{}", id);
  }
}

struct Merge {
  std::string_view left, right;
};

// "LEFT RIGHT"; tokens hold no space, since byte-level text writes it as another character.
Result<Merge> parse_merge(const Reader& reader, std::string_view text, std::size_t index,
                          const Vocabulary& vocabulary, std::string& joined) {
  const auto fail = [&](std::string_view what) {
    return corrupt(
        fmt::format("{}[{}] {}: {}", reader.place(kMergesKey), index, quote_name(text), what));
  };
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos) {
    return fail("a merge is two tokens with one space between them");
  }
  const Merge merge{text.substr(0, space), text.substr(space + 1)};
  joined.assign(merge.left).append(merge.right);
  for (const std::string_view part : {merge.left, merge.right, std::string_view(joined)}) {
    const auto found = vocabulary.ids.find(part);
    if (found == vocabulary.ids.end()) return fail(quote_name(part) + " is not in the vocabulary");
  }
  return merge;
}

Status append_merges(const Reader& reader, const Vocabulary& vocabulary, std::string& out) {
  GLINT_TRY(const auto* merges,
            reader.array<std::string_view>(kMergesKey, "a list of strings",
                                           "a BPE vocabulary needs it; convert the model again"));
  const char* comma = "";
  std::string joined;
  for (std::size_t index = 0; index < merges->size(); ++index) {
    GLINT_TRY(const Merge merge, parse_merge(reader, (*merges)[index], index, vocabulary, joined));
    out += std::exchange(comma, ",");
    out += '[';
    append_json_string(out, merge.left);
    out += ',';
    append_json_string(out, merge.right);
    out += ']';
  }
  return {};
}

Result<std::string> make_tokenizer_json(const Reader& reader, const Vocabulary& vocabulary,
                                        std::string_view pattern) {
  std::string out = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
  append_added_tokens(vocabulary, out);
  out += R"(],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
         R"({"type":"Split","pattern":{"Regex":)";
  append_json_string(out, pattern);
  out += R"(},"behavior":"Isolated","invert":false},)"
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)"
         R"("post_processor":null,)"
         R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,)"
         R"("use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
         R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
         R"("byte_fallback":false,"ignore_merges":false,"vocab":{)";
  append_vocabulary(vocabulary, out);
  out += R"(},"merges":[)";
  GLINT_TRY_VOID(append_merges(reader, vocabulary, out));
  out += "]}}";
  return out;
}

Status check_end_token(const Reader& reader, const Vocabulary& vocabulary, std::string_view key,
                       std::size_t id, std::vector<std::string>& notes) {
  if (vocabulary.type(id) == TokenType::kUnused) {
    return corrupt(
        fmt::format("{} {} is padding of the vocabulary (type unused), so answers would "
                    "never end; correct the key",
                    reader.place(key), id));
  }
  if (!vocabulary.is_added(id)) {
    notes.push_back(fmt::format("{} {} is ordinary text ({}): answers end wherever it appears",
                                reader.place(key), id, quote_name(vocabulary.text(id))));
  }
  return {};
}

Status add_named_tokens(const Reader& reader, const Vocabulary& vocabulary, GgufTokenizer& out) {
  for (const NamedToken& token : kNamedTokens) {
    const std::string key = ggml_key(token.key);
    GLINT_TRY(const std::optional<std::int64_t> value, reader.integer(key));
    if (!value) continue;
    if (*value < 0 || static_cast<std::uint64_t>(*value) >= vocabulary.tokens->size()) {
      return corrupt(fmt::format("{} {} is not in the vocabulary of {} tokens", reader.place(key),
                                 *value, vocabulary.tokens->size()));
    }
    const auto id = static_cast<std::size_t>(*value);
    if (token.ends_answer) GLINT_TRY_VOID(check_end_token(reader, vocabulary, key, id, out.notes));
    if (token.name != nullptr && vocabulary.type(id) != TokenType::kUnused) {
      out.tokenizer_config.set(token.name, Json(vocabulary.text(id)));
    }
  }
  for (const char* name : {"add_bos_token", "add_eos_token"}) {
    GLINT_TRY(const std::optional<bool> value, reader.boolean(ggml_key(name)));
    if (value) out.tokenizer_config.set(name, Json(*value));
  }
  return {};
}

Result<std::optional<std::string_view>> read_template(const Reader& reader, std::string_view key) {
  GLINT_TRY(const std::optional<std::string_view> text, reader.string(key));
  if (text && text->size() > kMaxTemplateBytes) {
    return corrupt(fmt::format("{} has {} bytes; at most {} are read", reader.place(key),
                               text->size(), kMaxTemplateBytes));
  }
  return text;
}

// One text, or with further `tokenizer.chat_template.NAME` the list that tokenizer_config.json has
// in its place.
Status add_templates(const Reader& reader, GgufTokenizer& out) {
  Json list(Json::Array{});
  const auto add = [&](std::string_view name, std::string_view text) {
    list.push_back(Json(Json::Object{{"name", Json(name)}, {"template", Json(text)}}));
  };
  GLINT_TRY(const std::optional<std::string_view> plain, read_template(reader, kTemplateKey));
  if (plain) add("default", *plain);
  const std::string prefix = std::string(kTemplateKey) + '.';
  for (auto it = reader.metadata().lower_bound(prefix);
       it != reader.metadata().end() && it->first.starts_with(prefix); ++it) {
    GLINT_TRY(const std::optional<std::string_view> text, read_template(reader, it->first));
    const std::string_view name = std::string_view(it->first).substr(prefix.size());
    if (!(plain && name == "default")) add(name, *text);
  }
  const std::size_t count = list.as_array().size();
  if (count == 1 && plain) {
    out.tokenizer_config.set("chat_template", Json(*plain));
  } else if (count > 0) {
    out.tokenizer_config.set("chat_template", std::move(list));
  }
  return {};
}

bool is_known_key(std::string_view key) {
  if (std::ranges::find(kIdleKeys, key) != std::end(kIdleKeys)) return true;
  if (std::ranges::find(kNamedTokens, key, &NamedToken::key) != std::end(kNamedTokens)) return true;
  for (const std::string_view known :
       {"model", "pre", "tokens", "token_type", "merges", "add_bos_token", "add_eos_token"}) {
    if (key == known) return true;
  }
  return false;
}

void note_unknown_keys(const Reader& reader, std::vector<std::string>& notes) {
  const std::string prefix = ggml_key("");
  for (auto it = reader.metadata().lower_bound(prefix);
       it != reader.metadata().end() && it->first.starts_with(prefix); ++it) {
    if (is_known_key(std::string_view(it->first).substr(prefix.size()))) continue;
    notes.push_back(reader.place(quote_name(it->first)) + " is not known and has no effect");
  }
}

Status check_model(const Reader& reader) {
  GLINT_TRY(const std::optional<std::string_view> model, reader.string(kModelKey));
  if (!model) {
    return corrupt(reader.place(kModelKey) +
                   " is missing: the file has no tokenizer; convert the model again with it");
  }
  if (*model == "gpt2") return {};
  return unsupported(
      fmt::format("{} is {}; this version reads byte-level BPE vocabularies (gpt2) "
                  "only",
                  reader.place(kModelKey), quote_name(*model)));
}

}  // namespace

std::vector<std::string_view> supported_gguf_pre_tokenizers() {
  std::vector<std::string_view> names;
  for (const PreTokenizer& known : kPreTokenizers) names.push_back(known.name);
  return names;
}

Result<GgufTokenizer> read_gguf_tokenizer(const GgufMetadata& metadata,
                                          std::string_view file_name) {
  const Reader reader(metadata, file_name);
  GLINT_TRY_VOID(check_model(reader));
  GLINT_TRY(const Vocabulary vocabulary, read_vocabulary(reader));
  GgufTokenizer out;
  out.tokenizer_config = Json(Json::Object{});
  GLINT_TRY(const std::string_view pattern, find_pattern(reader, vocabulary, out.notes));
  GLINT_TRY(out.tokenizer_json, make_tokenizer_json(reader, vocabulary, pattern));
  GLINT_TRY_VOID(add_named_tokens(reader, vocabulary, out));
  GLINT_TRY_VOID(add_templates(reader, out));
  note_unknown_keys(reader, out.notes);
  return out;
}

}  // namespace glint
