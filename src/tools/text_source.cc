#include "tools/text_source.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/weight_files.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenizerBytes = 256u << 20;

Result<GgufTokenizer> read_tokenizer(const GgufFile& file) {
  GLINT_TRY(GgufTokenizer tokenizer, read_gguf_tokenizer(file.metadata(), file.path().string()));
  for (const std::string& note : tokenizer.notes) log_warn(note);
  return tokenizer;
}

// A GGUF file's generation_config holds its end tokens; without any sampling value of its own it is
// as good as absent, and the family's published values are the defaults. The end tokens are in its
// config too.
Json sampling_config(const Json& generation_config) {
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    if (generation_config.find(key) != nullptr) return generation_config;
  }
  return {};
}

Result<TextDocuments> read_documents(const GgufFile& file) {
  GLINT_TRY(GgufTokenizer tokenizer, read_tokenizer(file));
  const std::string name = file.path().string();
  TextDocuments out;
  out.tokenizer_json = std::move(tokenizer.tokenizer_json);
  out.tokenizer_config = std::move(tokenizer.tokenizer_config);
  out.tokenizer_name = name + " (tokenizer.ggml)";
  out.tokenizer_config_name = name + " (tokenizer)";
  out.config_name = name + " (as config.json)";
  out.generation_config_name = name + " (general.sampling)";
  return out;
}

// The GGUF file that `path` is or, by Checkpoint::open's rule, stands for; empty: neither.
Result<fs::path> find_gguf(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path;
  if (!fs::is_directory(path, error)) return fs::path();
  GLINT_TRY(const std::optional<fs::path> found, find_gguf_model(path));
  return found.value_or(fs::path());
}

}  // namespace

Result<std::shared_ptr<const TextAssets>> load_text_assets(const Checkpoint& checkpoint,
                                                           const TextOptions& options) {
  if (checkpoint.gguf() == nullptr) {
    return TextAssets::load(checkpoint.folder(), checkpoint.config(),
                            checkpoint.generation_config(), options);
  }
  GLINT_TRY(const TextDocuments documents, read_documents(*checkpoint.gguf()));
  return TextAssets::from_documents(documents, checkpoint.config(),
                                    sampling_config(checkpoint.generation_config()), options);
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const fs::path& path) {
  GLINT_TRY(const fs::path gguf, find_gguf(path));
  if (gguf.empty()) {
    const fs::path file = path / "tokenizer.json";
    GLINT_TRY(const std::string text, read_text_file(file, kMaxTokenizerBytes));
    return Tokenizer::from_json(text, file.string());
  }
  GLINT_TRY(const auto file, GgufFile::open(gguf));
  GLINT_TRY(const GgufTokenizer tokenizer, read_tokenizer(*file));
  return Tokenizer::from_json(tokenizer.tokenizer_json, file->path().string());
}

bool has_tokenizer(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf()) {
    return gguf->find("tokenizer.ggml.model") != nullptr;
  }
  std::error_code error;
  return fs::exists(checkpoint.folder() / "tokenizer.json", error);
}

}  // namespace glint
