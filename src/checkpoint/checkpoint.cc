#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/json_file.h"
#include "checkpoint/weight_files.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

using TensorMap = std::map<std::string, TensorRef, std::less<>>;

bool is_gguf(const fs::path& path) {
  const auto file = MappedFile::open(path);
  return path.extension() == ".gguf" ||
         (file && foreign_kind((*file)->bytes()) == ForeignKind::kGguf);
}

// A path that is a file, and no GGUF, where a folder is wanted.
Error file_instead_of_folder(const fs::path& path) {
  const std::string name = path.string();
  const auto file = MappedFile::open(path);
  const auto kind = file ? foreign_kind((*file)->bytes()) : std::nullopt;
  if (kind) return wrong_kind(name, *kind);
  for (const char* pickle : {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) {
    if (path.extension() == pickle) return wrong_kind(name, ForeignKind::kPickle);
  }
  return invalid_argument(name +
                          " is a file; give the model's folder, which holds config.json and "
                          "*.safetensors, or a .gguf file");
}

Error no_config(const fs::path& folder) {
  const auto files = list_files(folder);
  if (!files) return files.error();
  const auto has = [&](std::string_view suffix) {
    return std::any_of(files->begin(), files->end(),
                       [&](const std::string& n) { return n.ends_with(suffix); });
  };
  if (has("adapter_config.json")) {
    return unsupported(folder.string() +
                       " is an adapter, not a model; merge it into its model first");
  }
  if (files->empty())
    return not_found(folder.string() + " holds no files; fetch the model into it");
  return not_found(folder.string() +
                   " holds no config.json; is it a model's folder? If so, fetch the model again");
}

// The layer number of "...layers.N....", if the name has one.
std::optional<std::int64_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const auto at = name.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kLayers.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return std::nullopt;
  return number;
}

// Tensors of a multi-token-prediction layer: named so, or numbered past the layers that config.json
// counts.
bool belongs_to_mtp(std::string_view name, const Json& config) {
  if (name.starts_with("mtp.") || name.find(".mtp.") != std::string_view::npos) return true;
  const Json* layers = config.find("num_hidden_layers");
  if (const Json* text = config.find("text_config"); layers == nullptr && text != nullptr)
    layers = text->find("num_hidden_layers");
  const auto layer = layer_of(name);
  return layer && layers != nullptr && layers->is_int() && *layer >= layers->as_int();
}

std::string file_of(const TensorRef& tensor) {
  return tensor.file->path().filename().string();
}

// What a file will be read for: kHeaders, its header and a few tensors here and there, for which
// systems must not read megabytes ahead; kWeights, all of it.
enum class Reading { kHeaders, kWeights };

void advise(const MappedFile& file, std::size_t bytes, int advice) {
  ::madvise(const_cast<std::byte*>(file.bytes().data()), std::min(bytes, file.bytes().size()),
            advice);  // a hint: failing changes nothing
}

Result<std::vector<TensorRef>> open_shard(const fs::path& folder, const std::string& name,
                                          Reading reading) {
  GLINT_TRY(auto file, MappedFile::open(folder / name));
  const std::size_t size = file->bytes().size();
  advise(*file, size, MADV_RANDOM);
  std::uint64_t header = 0;  // little-endian, in front of it
  if (size >= sizeof(header)) {
    std::memcpy(&header, file->bytes().data(), sizeof(header));
    advise(*file, static_cast<std::size_t>(std::min<std::uint64_t>(header, size)), MADV_WILLNEED);
  }
  GLINT_TRY(std::vector<TensorRef> tensors, parse_safetensors(file));
  if (reading == Reading::kWeights) advise(*file, size, MADV_NORMAL);
  return tensors;
}

Status add_shard(const fs::path& folder, const std::string& name, Reading reading,
                 TensorMap& tensors) {
  GLINT_TRY(std::vector<TensorRef> shard, open_shard(folder, name, reading));
  for (TensorRef& tensor : shard) {
    std::string key = tensor.name;
    const auto [place, inserted] = tensors.try_emplace(std::move(key), std::move(tensor));
    if (inserted) continue;
    return corrupt(
        fmt::format("tensor {} is both in {} and in {} of {}; remove the file that does not belong "
                    "to the model",
                    quote_name(place->first), file_of(place->second), name, folder.string()));
  }
  return {};
}

// Every tensor the index promises must be where it says; all that are not are listed.
Status check_promises(const fs::path& folder, const WeightFiles& weights,
                      const TensorMap& tensors) {
  constexpr std::size_t kMaxListed = 20;
  std::size_t count = 0;
  std::string list;
  for (const auto& [name, file] : weights.promised) {
    const auto found = tensors.find(name);
    std::string fault;
    if (found == tensors.end()) {
      fault = fmt::format("{} in {}, which lacks it", quote_name(name), file);
    } else if (const fs::path actual = found->second.file->path(); actual != folder / file) {
      fault = fmt::format("{} in {}, but it is in {}", quote_name(name), file,
                          actual.filename().string());
    } else {
      continue;
    }
    if (++count <= kMaxListed) list += "\n  " + fault;
  }
  if (count == 0) return {};
  if (count > kMaxListed) list += fmt::format("\n  ... and {} more", count - kMaxListed);
  return corrupt(
      fmt::format("{} promises {} tensor{} where {} not:{}\nIndex and weights are not of one "
                  "download: fetch both again, or delete the index to have the files scanned.",
                  (folder / kIndexName).string(), count, count == 1 ? "" : "s",
                  count == 1 ? "it is" : "they are", list));
}

// Some checkpoints keep their MTP layer in a file that their index forgets. Returns whether any of
// it was taken.
bool add_forgotten_mtp(const fs::path& folder, const Json& config, TensorMap& tensors) {
  auto shard = open_shard(folder, kMtpName, Reading::kWeights);
  if (!shard) {
    log_warn(fmt::format("{} is ignored: {}", kMtpName, shard.error().message));
    return false;
  }
  std::size_t taken = 0;
  std::set<std::int64_t> layers;
  for (TensorRef& tensor : *shard) {
    if (!belongs_to_mtp(tensor.name, config)) continue;
    const auto layer = layer_of(tensor.name);
    std::string key = tensor.name;
    if (!tensors.try_emplace(std::move(key), std::move(tensor)).second) continue;
    ++taken;
    if (layer) layers.insert(*layer);
  }
  if (taken == 0) {
    log_debug(
        fmt::format("{} in {} is ignored: the index does not name it and it adds no MTP tensor",
                    kMtpName, folder.string()));
    return false;
  }
  log_warn(fmt::format(
      "{} does not name {}, which holds {} tensors of {}: they are used all the same, but other "
      "programs will miss them; whoever published the checkpoint should list them in the index",
      (folder / kIndexName).string(), kMtpName, taken,
      layers.empty() ? std::string("the MTP layer")
                     : fmt::format("MTP layer {}", fmt::join(layers, ", "))));
  return true;
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open(const fs::path& path,
                                                           bool weights_required) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return not_found(
        fmt::format("{} does not exist; give the folder of a model (config.json and *.safetensors) "
                    "or a .gguf file",
                    path.string()));
  }
  auto checkpoint = std::make_shared<Checkpoint>();
  const bool is_folder = fs::is_directory(status);
  checkpoint->folder_ = is_folder                ? path
                        : path.has_parent_path() ? path.parent_path()
                                                 : fs::path(".");
  if (is_folder) {
    GLINT_TRY_VOID(checkpoint->read_folder(weights_required));
  } else if (is_gguf(path)) {
    GLINT_TRY_VOID(checkpoint->read_gguf(path));
  } else if (weights_required || path.extension() != ".json") {
    return file_instead_of_folder(path);
  } else {
    GLINT_TRY(checkpoint->config_, read_json_object(path));
  }
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

Status Checkpoint::read_folder(bool weights_required) {
  GLINT_TRY(const auto gguf, find_gguf_model(folder_));
  if (gguf) return read_gguf(*gguf);
  GLINT_TRY_VOID(read_json_files());
  return read_weights(weights_required);
}

Status Checkpoint::read_gguf(const fs::path& path) {
  GLINT_TRY(gguf_, GgufFile::open(path));
  GLINT_TRY(GgufModel model, translate_gguf(*gguf_));
  config_ = std::move(model.config);
  generation_config_ = std::move(model.generation_config);
  notes_ = std::move(model.notes);
  files_ = gguf_->files();
  for (TensorRef& tensor : model.tensors) {
    total_bytes_ += tensor.bytes.size();
    std::string name = tensor.name;
    tensors_.try_emplace(std::move(name), std::move(tensor));
  }
  return {};
}

Status Checkpoint::read_json_files() {
  auto config = read_json_object(folder_ / "config.json");
  if (!config && config.error().code == ErrorCode::kNotFound) return no_config(folder_);
  if (!config) return config.error();
  config_ = std::move(*config);
  const std::pair<const char*, Json*> others[] = {{"generation_config.json", &generation_config_},
                                                  {"hf_quant_config.json", &hf_quant_config_}};
  for (const auto& [name, to] : others) {
    auto read = read_json_object(folder_ / name);
    if (read) {
      *to = std::move(*read);
    } else if (read.error().code != ErrorCode::kNotFound) {
      return read.error();
    }
  }
  return {};
}

Status Checkpoint::read_weights(bool required) {
  GLINT_TRY(WeightFiles weights, find_weight_files(folder_));
  has_index_ = weights.has_index;
  if (weights.names.empty()) {
    if (!required) return {};
    GLINT_TRY(const auto files, list_files(folder_));
    return no_weights(folder_, files);
  }
  const Reading reading = required ? Reading::kWeights : Reading::kHeaders;
  for (const std::string& name : weights.names)
    GLINT_TRY_VOID(add_shard(folder_, name, reading, tensors_));
  GLINT_TRY_VOID(check_promises(folder_, weights, tensors_));
  if (has_index_ && std::erase(weights.unlisted, kMtpName) != 0 &&
      add_forgotten_mtp(folder_, config_, tensors_)) {
    weights.names.push_back(kMtpName);
  }
  for (const std::string& name : weights.unlisted) {
    log_debug(
        fmt::format("{} in {} is ignored: {}", name, folder_.string(),
                    has_index_ ? "the index does not name it" : "its name is not that of a model"));
  }
  files_ = std::move(weights.names);
  ignored_files_ = std::move(weights.unlisted);
  for (const auto& [name, tensor] : tensors_) total_bytes_ += tensor.bytes.size();
  if (tensors_.empty() && required) {
    return corrupt(fmt::format("{} of {} holds no tensor; fetch the model again",
                               fmt::join(files_, ", "), folder_.string()));
  }
  return {};
}

std::shared_ptr<const Checkpoint> Checkpoint::of_config(Json config) {
  GLINT_CHECK(config.is_object());
  auto checkpoint = std::make_shared<Checkpoint>();
  checkpoint->config_ = std::move(config);
  return checkpoint;
}

std::shared_ptr<const Checkpoint> Checkpoint::of_tensors(std::vector<TensorRef> tensors) {
  auto checkpoint = std::make_shared<Checkpoint>();
  for (TensorRef& tensor : tensors) {
    std::string name = tensor.name;
    checkpoint->tensors_.emplace(std::move(name), std::move(tensor));
  }
  return checkpoint;
}

void Checkpoint::release() const {
  const MappedFile* last = nullptr;  // neighbours by name mostly lie in one file
  std::set<const MappedFile*> files;
  for (const auto& [name, tensor] : tensors_) {
    const MappedFile* file = tensor.file.get();
    if (file != nullptr && std::exchange(last, file) != file) files.insert(file);
  }
  for (const MappedFile* file : files) file->release(0, file->bytes().size());
}

const TensorRef* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string Checkpoint::why_missing(std::string_view name) const {
  if (find(name) != nullptr) return "it is there";
  if (files_.empty()) return fmt::format("{} holds no weights", folder_.string());
  if (gguf_) return fmt::format("no tensor of {} stands for it", gguf_->path().string());
  std::string why;
  if (has_index_) {
    why = fmt::format("{} does not name it, and none of the files it names holds it", kIndexName);
  } else if (files_.size() == 1) {
    why = fmt::format("{} lacks it", files_.front());
  } else {
    why = fmt::format("none of the {} weight files ({} to {}) holds it", files_.size(),
                      files_.front(), files_.back());
  }
  if (!ignored_files_.empty()) {
    why += fmt::format(" ({} beside {} ignored)", ignored_files_.front(),
                       ignored_files_.size() == 1
                           ? "it was"
                           : fmt::format("it and {} more were", ignored_files_.size() - 1));
  }
  return why;
}

}  // namespace glint
