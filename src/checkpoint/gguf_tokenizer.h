// The text side of a GGUF file's metadata, written as the documents that a Hugging Face folder has:
// tokenizer.json and tokenizer_config.json. Knows byte-level BPE vocabularies only, the one kind
// that the supported models use; does no tokenizing.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"

namespace glint {

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufTokenizer {
  std::string tokenizer_json;  // the text of the file
  // chat_template (text, or a list of named ones), bos_token, eos_token, unk_token, ... as text.
  Json tokenizer_config;
  std::vector<std::string> notes;  // what was assumed or left out, one line each
};

// `file_name` is for messages. Errors: kUnsupported (a vocabulary that is no byte-level BPE, a
// pre-tokenizer that is not known, each by its name), kCorrupt (naming the key, and the token or
// merge).
//
// Without `tokenizer.ggml.pre` nothing says how text is cut before merging. GLM's control tokens
// answer it, since all of GLM's vocabularies of this kind are cut alike: taken so, with a note. Any
// other vocabulary is refused. Entries of type "unused" are padding: they get no text.
Result<GgufTokenizer> read_gguf_tokenizer(const GgufMetadata& metadata, std::string_view file_name);
std::vector<std::string_view> supported_gguf_pre_tokenizers();

}  // namespace glint
