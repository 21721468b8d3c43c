#include "text/rust_bridge.h"

#include "textcore.h"

namespace glint {
namespace {

const std::uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

std::string take(TcBytes bytes) {
  std::string text;
  if (bytes.data != nullptr) text.assign(reinterpret_cast<const char*>(bytes.data), bytes.len);
  tc_bytes_free(bytes);
  return text;
}

Error error_of(std::int32_t status, TcBytes message) {
  std::string text = take(message);
  switch (status) {
    case TC_INVALID:
      return invalid_argument(std::move(text));
    case TC_CORRUPT:
      return corrupt(std::move(text));
    case TC_UNSUPPORTED:
      return unsupported(std::move(text));
    default:
      return internal_error(std::move(text));
  }
}

// Ids as the crate counts them; negative ones become unknown.
std::vector<std::uint32_t> unsigned_ids(std::span<const std::int32_t> ids) {
  return {ids.begin(), ids.end()};
}

TcMatcher* matcher_of(void* handle) {
  return static_cast<TcMatcher*>(handle);
}

const TcTokenizer* tokenizer_of(const void* handle) {
  return static_cast<const TcTokenizer*>(handle);
}

}  // namespace

Result<RustTokenizer> RustTokenizer::from_json(std::string_view json) {
  TcTokenizer* handle = nullptr;
  TcBytes error{};
  const std::int32_t status = tc_tokenizer_new(bytes_of(json), json.size(), &handle, &error);
  if (status != TC_OK) return error_of(status, error);
  return RustTokenizer(handle);
}

void RustTokenizer::Free::operator()(void* handle) const {
  tc_tokenizer_free(static_cast<TcTokenizer*>(handle));
}

Result<std::vector<std::int32_t>> RustTokenizer::encode(std::string_view text, Mode mode) const {
  const std::int32_t how = mode == Mode::kMarkers ? TC_ENCODE_MARKERS
                           : mode == Mode::kPlain ? TC_ENCODE_PLAIN
                                                  : TC_ENCODE_GUARDED;
  TcIds ids{};
  TcBytes error{};
  const std::int32_t status = tc_tokenizer_encode(tokenizer_of(handle_.get()), bytes_of(text),
                                                  text.size(), how, &ids, &error);
  if (status != TC_OK) return error_of(status, error);
  std::vector<std::int32_t> out(ids.data, ids.data + ids.len);
  tc_ids_free(ids);
  return out;
}

Result<std::string> RustTokenizer::guard(std::string_view text) const {
  TcBytes out{};
  TcBytes error{};
  const std::int32_t status =
      tc_tokenizer_guard(tokenizer_of(handle_.get()), bytes_of(text), text.size(), &out, &error);
  if (status != TC_OK) return error_of(status, error);
  return take(out);
}

RustTokenizer::Token RustTokenizer::token(std::int32_t id) const {
  Token token;
  if (id < 0) return token;
  const std::uint8_t* data = nullptr;
  std::size_t len = 0;
  const std::uint32_t flags =
      tc_tokenizer_token(tokenizer_of(handle_.get()), static_cast<std::uint32_t>(id), &data, &len);
  token.known = (flags & TC_TOKEN_KNOWN) != 0;
  token.added = (flags & TC_TOKEN_ADDED) != 0;
  token.special = (flags & TC_TOKEN_SPECIAL) != 0;
  if (len != 0) token.bytes = {reinterpret_cast<const char*>(data), len};
  return token;
}

std::optional<std::int32_t> RustTokenizer::find(std::string_view content) const {
  const std::int64_t id =
      tc_tokenizer_find(tokenizer_of(handle_.get()), bytes_of(content), content.size());
  if (id < 0) return std::nullopt;
  return static_cast<std::int32_t>(id);
}

int RustTokenizer::size() const {
  return static_cast<int>(tc_tokenizer_size(tokenizer_of(handle_.get())));
}

Result<RustTemplate> RustTemplate::parse(std::string_view source) {
  TcTemplate* handle = nullptr;
  TcBytes error{};
  const std::int32_t status = tc_template_new(bytes_of(source), source.size(), &handle, &error);
  if (status != TC_OK) return error_of(status, error);
  return RustTemplate(handle);
}

void RustTemplate::Free::operator()(void* handle) const {
  tc_template_free(static_cast<TcTemplate*>(handle));
}

Result<std::string> RustTemplate::render(std::string_view variables) const {
  TcBytes out{};
  TcBytes error{};
  const std::int32_t status =
      tc_template_render(static_cast<const TcTemplate*>(handle_.get()), bytes_of(variables),
                         variables.size(), &out, &error);
  if (status != TC_OK) return error_of(status, error);
  return take(out);
}

Result<RustVocabulary> RustVocabulary::make(std::span<const Token> tokens,
                                            std::span<const std::int32_t> end_tokens) {
  std::string bytes;
  std::vector<std::uint32_t> lengths;
  std::vector<std::uint8_t> uses;
  lengths.reserve(tokens.size());
  uses.reserve(tokens.size());
  for (const Token& token : tokens) {
    bytes += token.bytes;
    lengths.push_back(static_cast<std::uint32_t>(token.bytes.size()));
    uses.push_back(token.bytes.empty() ? TC_USE_NEVER : token.marker ? TC_USE_MARKER : TC_USE_TEXT);
  }
  const std::vector<std::uint32_t> ends = unsigned_ids(end_tokens);
  TcVocabulary* handle = nullptr;
  TcBytes error{};
  const std::int32_t status =
      tc_vocabulary_new(bytes_of(bytes), lengths.data(), uses.data(), tokens.size(), ends.data(),
                        ends.size(), &handle, &error);
  if (status != TC_OK) return error_of(status, error);
  return RustVocabulary(handle);
}

void RustVocabulary::Free::operator()(void* handle) const {
  tc_vocabulary_free(static_cast<TcVocabulary*>(handle));
}

Result<RustGrammar> RustVocabulary::compile(RustGrammar::Kind kind, std::string_view text) const {
  const std::int32_t which = kind == RustGrammar::Kind::kJsonSchema ? TC_GRAMMAR_JSON_SCHEMA
                             : kind == RustGrammar::Kind::kRegex    ? TC_GRAMMAR_REGEX
                                                                    : TC_GRAMMAR_LARK;
  TcGrammar* handle = nullptr;
  TcBytes error{};
  const std::int32_t status = tc_grammar_new(static_cast<const TcVocabulary*>(handle_.get()), which,
                                             bytes_of(text), text.size(), &handle, &error);
  if (status != TC_OK) return error_of(status, error);
  return RustGrammar(handle);
}

void RustGrammar::Free::operator()(void* handle) const {
  tc_grammar_free(static_cast<TcGrammar*>(handle));
}

Result<RustMatcher> RustGrammar::start() const {
  TcMatcher* handle = nullptr;
  TcBytes error{};
  const std::int32_t status =
      tc_matcher_new(static_cast<const TcGrammar*>(handle_.get()), &handle, &error);
  if (status != TC_OK) return error_of(status, error);
  return RustMatcher(handle);
}

void RustMatcher::Free::operator()(void* handle) const {
  tc_matcher_free(matcher_of(handle));
}

Status RustMatcher::mask(std::span<std::uint32_t> words) {
  TcBytes error{};
  const std::int32_t status =
      tc_matcher_mask(matcher_of(handle_.get()), words.data(), words.size(), &error);
  if (status != TC_OK) return error_of(status, error);
  return {};
}

Result<bool> RustMatcher::accept(std::int32_t token) {
  bool accepted = false;
  TcBytes error{};
  const std::int32_t status = tc_matcher_accept(
      matcher_of(handle_.get()), static_cast<std::uint32_t>(token), &accepted, &error);
  if (status != TC_OK) return error_of(status, error);
  return accepted;
}

Status RustMatcher::rollback(int count) {
  if (count < 0) return invalid_argument("a grammar cannot take back a negative count");
  TcBytes error{};
  const std::int32_t status =
      tc_matcher_rollback(matcher_of(handle_.get()), static_cast<std::size_t>(count), &error);
  if (status != TC_OK) return error_of(status, error);
  return {};
}

Result<int> RustMatcher::num_allowed(std::span<const std::int32_t> tokens) {
  const std::vector<std::uint32_t> ids = unsigned_ids(tokens);
  std::size_t allowed = 0;
  TcBytes error{};
  const std::int32_t status =
      tc_matcher_num_allowed(matcher_of(handle_.get()), ids.data(), ids.size(), &allowed, &error);
  if (status != TC_OK) return error_of(status, error);
  return static_cast<int>(allowed);
}

Result<RustMatcher::Place> RustMatcher::place() const {
  Place place;
  TcBytes error{};
  const std::int32_t status =
      tc_matcher_state(matcher_of(handle_.get()), &place.complete, &place.stopped, &error);
  if (status != TC_OK) return error_of(status, error);
  return place;
}

}  // namespace glint
