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

}  // namespace glint
