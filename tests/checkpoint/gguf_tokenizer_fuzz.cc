// The vocabulary in a GGUF header on any bytes: what is accepted becomes a tokenizer.json that
// parses and holds what the lists hold; what is not is refused in one line.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"

namespace {

using namespace glint;

void check_error(const Error& error) {
  GLINT_CHECK(!error.message.empty() && error.message.size() < 4000);
}

std::size_t num_used(const std::vector<std::int64_t>& types) {
  std::size_t count = 0;
  for (const std::int64_t type : types) count += type != 5 ? 1 : 0;
  return count;
}

void check_tokenizer(const GgufMetadata& metadata, const GgufTokenizer& tokenizer) {
  const auto json = parse_json(tokenizer.tokenizer_json, {.refuse_duplicate_keys = true});
  GLINT_CHECK(json.has_value());
  const auto& types =
      std::get<std::vector<std::int64_t>>(metadata.at("tokenizer.ggml.token_type").value);
  const auto& merges =
      std::get<std::vector<std::string_view>>(metadata.at("tokenizer.ggml.merges").value);
  const Json* model = json->find("model");
  GLINT_CHECK(model != nullptr);
  GLINT_CHECK(model->find("vocab")->as_object().size() == num_used(types));
  GLINT_CHECK(model->find("merges")->as_array().size() == merges.size());
  for (const Json& added : json->find("added_tokens")->as_array()) {
    const Json* id = model->find("vocab")->find(added.find("content")->as_string());
    GLINT_CHECK(id != nullptr && *id == *added.find("id"));
  }
  GLINT_CHECK(tokenizer.tokenizer_config.is_object());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = GgufFile::parse(std::as_bytes(std::span(data, size)), size, "fuzz");
  if (!header) {
    check_error(header.error());
    return 0;
  }
  const auto tokenizer = read_gguf_tokenizer(header->metadata, "fuzz");
  if (!tokenizer) {
    check_error(tokenizer.error());
  } else {
    check_tokenizer(header->metadata, *tokenizer);
  }
  return 0;
}
