// Packed weights of one checkpoint on disk, so that the next start need not pack them again. Knows
// chunks of memory and a key for what they hold, nothing of tensors. A cache is never needed: what
// goes wrong here is logged, and the weights are packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "models/model.h"

namespace glint {

// Memory of weights, of 2 MiB or more, and how much of it is used.
struct PackedChunk {
  std::shared_ptr<AlignedBuffer> buffer;
  std::size_t used = 0;
};

// 128 bits: enough to tell contents apart, no defence against somebody who forges them.
struct PackedKey {
  std::uint64_t first = 0, second = 0;
  bool operator==(const PackedKey&) const = default;
};

// Two hashes of 64 bits over all that is added, in order.
class PackedKeyBuilder {
 public:
  void add(std::uint64_t value);
  void add(std::span<const std::byte> bytes);  // and their number
  void add(std::string_view text);
  void add(const PackedKey& key);
  PackedKey key() const;

 private:
  PackedKey state_{0x243f6a8885a308d3, 0x13198a2e03707344};
};

class PackedCache {
 public:
  // One file in `folder` for a checkpoint called `name`; whatever else it held is replaced.
  PackedCache(std::filesystem::path folder, std::string_view name, PackedKey key);

  const std::filesystem::path& path() const { return path_; }
  // Fills the chunks with what save() wrote under the same key: options.placement kMapped maps the
  // file over them, kResident reads it into them, where they keep their huge pages and NUMA nodes.
  // False: there is no such file, and what the chunks hold is undefined.
  bool fill(std::span<const PackedChunk> chunks, const LoadOptions& options) const;
  // Writes the chunks, straight from where they are, to a temporary sibling that is then renamed.
  void save(std::span<const PackedChunk> chunks) const;

 private:
  struct Layout;
  Layout layout_of(std::span<const PackedChunk> chunks) const;
  Status write(std::span<const PackedChunk> chunks) const;

  std::filesystem::path folder_, path_;
  PackedKey key_;
};

}  // namespace glint
