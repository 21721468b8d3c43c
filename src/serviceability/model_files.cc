#include "serviceability/model_files.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "checkpoint/weight_files.h"
#include "serviceability/gguf_config.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kMtpName = "mtp.safetensors";

// Whether mtp.safetensors lies beside an index that does not name it.
bool mtp_unlisted(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kMtpName, error) || !fs::exists(folder / kIndexName, error))
    return false;
  const auto index = MappedFile::open(folder / kIndexName);
  if (!index) return false;
  const auto bytes = (*index)->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.find(std::string("\"") + kMtpName + "\"") == std::string_view::npos;
}

// An FP8 matrix has its scale beside it: X.weight_scale_inv, X.weight_scale, or X.scale.
void count_fp8(const Checkpoint& checkpoint, CheckpointFacts& facts) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.dtype != DType::kF8E4M3 || tensor.shape.size() < 2 || !name.ends_with(".weight"))
      continue;
    ++facts.fp8_matrices;
    const std::string stem = name.substr(0, name.size() - std::string_view("weight").size());
    const auto has = [&](const char* word) { return checkpoint.find(stem + word) != nullptr; };
    if (has("weight_scale_inv") || has("weight_scale") || has("scale")) continue;
    if (facts.fp8_unpaired++ == 0) facts.fp8_example = name;
  }
}

bool declares_mtp(const Json& config) {
  const Json* inner = config.find("text_config");
  for (const Json* json : {&config, inner}) {
    const Json* count = json != nullptr ? json->find("num_nextn_predict_layers") : nullptr;
    if (count != nullptr && count->is_int() && count->as_int() > 0) return true;
  }
  return false;
}

void describe_gguf(const GgufFile& file, CheckpointFacts& facts) {
  facts.container = "gguf";
  facts.gguf_architecture = std::string(file.string("general.architecture").value_or(""));
  facts.gguf_lacks_gating = gguf_lacks_gating(file);
}

bool starts_as_gguf(std::span<const std::byte> bytes) {
  constexpr std::string_view kMagic = "GGUF";
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<ModelFiles> read_gguf_files(const fs::path& path) {
  GLINT_TRY(const auto file, GgufFile::open(path));
  ModelFiles files;
  GLINT_TRY(files.config, config_of_gguf(*file));
  describe_gguf(*file, files.facts);
  return files;
}

}  // namespace

ModelFiles model_files_of(const Checkpoint& checkpoint) {
  ModelFiles files;
  files.config = checkpoint.config();
  files.hf_quant_config = checkpoint.hf_quant_config();
  CheckpointFacts& facts = files.facts;
  facts.container = checkpoint.has_weights() ? "safetensors" : "config";
  if (checkpoint.gguf() != nullptr) describe_gguf(*checkpoint.gguf(), facts);
  if (!checkpoint.has_weights()) return files;
  const auto is_mtp = [](const auto& tensor) {
    return tensor.first.find(".eh_proj.") != std::string::npos || tensor.first.starts_with("mtp.");
  };
  facts.mtp_missing =
      declares_mtp(checkpoint.config()) && std::ranges::none_of(checkpoint.tensors(), is_mtp);
  if (checkpoint.gguf() != nullptr) return files;
  facts.mtp_unlisted = mtp_unlisted(checkpoint.folder());
  count_fp8(checkpoint, facts);
  return files;
}

Result<ModelFiles> read_model_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    GLINT_TRY(const auto file, MappedFile::open(path));
    if (starts_as_gguf(file->bytes())) return read_gguf_files(path);
    ModelFiles files;
    GLINT_TRY(files.config, read_json_object(path));
    files.facts.container = "config";
    return files;
  }
  ModelFiles files;
  auto config = read_json_object(path / "config.json");
  if (!config) {
    GLINT_TRY(const auto gguf, find_gguf_model(path));
    if (gguf) return read_gguf_files(*gguf);
    return config.error();
  }
  files.config = std::move(*config);
  if (auto quant = read_json_object(path / "hf_quant_config.json"))
    files.hf_quant_config = std::move(*quant);
  files.facts.container = "config";
  files.facts.mtp_unlisted = mtp_unlisted(path);
  return files;
}

}  // namespace glint
