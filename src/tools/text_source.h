// Where a model's tokenizer and templates come from: the files of a Hugging Face folder, or the
// metadata of a GGUF file. What a GGUF file left to assume goes to the log as warnings.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "chat/chat.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace glint {

// Errors as those of TextAssets::load() and
// read_gguf_tokenizer().
Result<std::shared_ptr<const TextAssets>> load_text_assets(const Checkpoint& checkpoint,
                                                           const TextOptions& options = {});

// The tokenizer alone, of a folder or a GGUF file; the rest of the model may be anything.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path);

// Whether a folder or file has a tokenizer at all.
bool has_tokenizer(const Checkpoint& checkpoint);

}  // namespace glint
