#include "text/tokenizer.h"

#include "base/log.h"
#include "text/rust_bridge.h"
#include "text/utf8.h"

namespace glint {

struct Tokenizer::State {
  RustTokenizer rust;
};

namespace {

// Encoding valid text cannot fail; if the crate ever does, the answer is no tokens and a line in
// the log.
template <typename T>
T value_or_log(Result<T> result) {
  if (result.has_value()) return std::move(*result);
  log_error("tokenizer: " + result.error().message);
  return T();
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view json,
                                                        std::string_view file_name) {
  Result<RustTokenizer> rust = RustTokenizer::from_json(json);
  if (!rust.has_value()) {
    Error error = std::move(rust).error();
    error.message = std::string(file_name) + ": " + error.message;
    return error;
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  tokenizer->state_ = std::make_unique<State>(State{std::move(*rust)});
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  return value_or_log(state_->rust.encode(
      text, parse_special ? RustTokenizer::Mode::kMarkers : RustTokenizer::Mode::kPlain));
}

std::vector<std::int32_t> Tokenizer::encode_guarded(std::string_view rendered) const {
  return value_or_log(state_->rust.encode(rendered, RustTokenizer::Mode::kGuarded));
}

std::string Tokenizer::guard(std::string_view text) const {
  return value_or_log(state_->rust.guard(text));
}

std::string Tokenizer::remove_guards(std::string_view rendered) {
  std::string out;
  out.reserve(rendered.size());
  std::size_t done = 0;
  for (std::size_t at; (at = rendered.find(kGuard, done)) != std::string_view::npos;) {
    out.append(rendered, done, at - done);
    done = at + kGuard.size();
  }
  out.append(rendered, done);
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    const RustTokenizer::Token token = state_->rust.token(id);
    if (!(skip_special && token.special)) bytes += token.bytes;
  }
  std::string text;
  append_utf8(text, bytes, true);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return state_->rust.token(id).bytes;
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view content) const {
  return state_->rust.find(content);
}

bool Tokenizer::is_special(std::int32_t id) const {
  return state_->rust.token(id).special;
}
bool Tokenizer::is_added(std::int32_t id) const {
  return state_->rust.token(id).added;
}
int Tokenizer::vocab_size() const {
  return state_->rust.size();
}

}  // namespace glint
