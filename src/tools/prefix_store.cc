#include "tools/prefix_store.h"

#include <fmt/format.h>

#include <set>
#include <system_error>
#include <utility>

#include "tools/program.h"

namespace glint {

std::string prefix_identity(const Checkpoint& checkpoint, const ModelInfo& info,
                            const LoadOptions& load, const CacheSpec& spec, Isa isa) {
  std::string text =
      fmt::format("glint {} {}\n{} {} {} {} {} {} {} {} {} {} {}\n{} {} {} {} {} {} {}\n",
                  version(), commit(), info.family, isa_name(isa), static_cast<int>(load.compute),
                  static_cast<int>(load.cache_format), static_cast<int>(load.latent_form),
                  static_cast<int>(load.quant), static_cast<int>(load.draft), load.vision,
                  load.sparse_attention, load.repack, info.weight_format, spec.name,
                  spec.num_layers, spec.row_bytes, spec.page_state_bytes, spec.page_model_bytes,
                  spec.state_bytes, spec.snapshot_bytes);
  text += checkpoint.config().dump() + '\n' + checkpoint.hf_quant_config().dump() + '\n';
  std::set<const MappedFile*> files;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    text += fmt::format("{} {} {} ", name, static_cast<int>(tensor.dtype),
                        fmt::join(tensor.shape, ","));
    if (tensor.file == nullptr) continue;
    text += fmt::format("{} {}\n", tensor.file->path().filename().string(),
                        tensor.bytes.data() - tensor.file->bytes().data());
    if (!files.insert(tensor.file.get()).second) continue;
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(tensor.file->path(), ignored);
    text += fmt::format("{} {}\n", tensor.file->bytes().size(), time.time_since_epoch().count());
  }
  return text;
}

Result<std::shared_ptr<PageStore>> open_prefix_store(const PrefixCacheOptions& options,
                                                     std::string identity) {
  if (options.folder.empty()) {
    if (options.disk_bytes > 0)
      return invalid_argument(
          "--prefix-cache-disk: nothing is kept on disk without "
          "--prefix-cache-dir DIR");
    return std::shared_ptr<PageStore>();
  }
  if (!options.enabled) {
    return invalid_argument(
        "--prefix-cache-dir: there is nothing to keep with --prefix-cache off; leave one out");
  }
  StoreOptions store{.folder = options.folder,
                     .max_bytes = options.disk_bytes > 0 ? options.disk_bytes : kDefaultDiskBytes,
                     .identity = std::move(identity),
                     .queue_bytes = kPrefixQueueBytes};
  auto opened = PageStore::open(std::move(store));
  if (!opened) return invalid_argument("--prefix-cache-dir: " + opened.error().message);
  return std::move(*opened);
}

}  // namespace glint
