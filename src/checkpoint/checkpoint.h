// A model on disk: a Hugging Face folder, its safetensors (single or sharded) as one map of names
// to bytes and its small JSON files; or GGUF files, in the same terms (checkpoint/gguf_model.h).
// Bytes and names only: knows nothing of models. Everything is validated before any weight is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace glint {

// Borrows its bytes from the mapping it names; valid while `file` lives. The format promises no
// alignment: `bytes` may start at any address.
struct TensorRef {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> file;
};

// Parses one safetensors file: header length, JSON, dtypes, shapes, offsets (in range, exact size,
// no overlap, no holes). Errors: kCorrupt, naming the file and the tensor.
Result<std::vector<TensorRef>> parse_safetensors(std::shared_ptr<const MappedFile> file);
// Parses the bytes of a header alone (what the fuzz target drives); `file_size` is the size of the
// whole file.
struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // offsets from the start of the file
  std::uint64_t end;
};
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::span<const std::byte> head,
                                                               std::uint64_t file_size,
                                                               std::string_view file_name);

class GgufFile;

class Checkpoint {
 public:
  // Opens a folder, or a GGUF file (known by its content; any shard of a set). A folder without
  // safetensors whose GGUF files are of one model is that model. `weights_required` false: a folder
  // (or a bare config.json) without weights is fine, for `inspect`. Errors name the file, the
  // tensor and the remedy: missing folder, no config.json, only pickles (.bin/.pt), several GGUF
  // models, a shard that is missing (all listed, "incomplete download?"), tensors the index
  // promises that its shard lacks, truncated files, one tensor in two files, git-lfs pointers, web
  // pages. Foreign safetensors beside an index are ignored with a debug line, except that MTP
  // tensors of an unlisted mtp.safetensors are taken, with a warning. Nothing is ever unpickled.
  static Result<std::shared_ptr<const Checkpoint>> open(const std::filesystem::path& path,
                                                        bool weights_required = true);
  // A config alone, an object, with no folder and no tensors.
  static std::shared_ptr<const Checkpoint> of_config(Json config);

  // Tensors alone, whose bytes may be anywhere.
  static std::shared_ptr<const Checkpoint> of_tensors(std::vector<TensorRef> tensors);

  // The folder opened, or the one that the GGUF file lies in.
  const std::filesystem::path& folder() const { return folder_; }
  // The GGUF file behind everything else here; null for a Hugging Face folder.
  const GgufFile* gguf() const { return gguf_.get(); }
  // What was assumed where a GGUF file is silent, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  const Json& config() const { return config_; }  // config.json, always an object
  const Json& generation_config() const { return generation_config_; }  // null when absent
  const Json& hf_quant_config() const { return hf_quant_config_; }      // null when absent
  bool has_weights() const { return !tensors_.empty(); }

  // nullptr when absent; the reference stays valid for the checkpoint's life.
  const TensorRef* find(std::string_view name) const;
  const std::map<std::string, TensorRef, std::less<>>& tensors() const { return tensors_; }
  // Why `name` is not here: "not in the index", "its shard ... lacks it", ..., for error messages.
  std::string why_missing(std::string_view name) const;
  std::uint64_t total_bytes() const { return total_bytes_; }
  const std::vector<std::string>& files() const { return files_; }
  // What was read of the files so far stops counting as this process's memory.
  void release() const;

 private:
  Status read_json_files();
  Status read_weights(bool required);
  Status read_gguf(const std::filesystem::path& path);
  Status read_folder(bool weights_required);

  std::filesystem::path folder_;
  std::shared_ptr<const GgufFile> gguf_;
  std::vector<std::string> notes_;
  Json config_;
  Json generation_config_;
  Json hf_quant_config_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
  std::vector<std::string> files_;
  std::vector<std::string> ignored_files_;
  bool has_index_ = false;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace glint
