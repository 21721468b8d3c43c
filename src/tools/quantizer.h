// Writes a smaller copy of a checkpoint in the compressed-tensors form, which vLLM and other
// engines read too, one matrix at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"

namespace glint {

enum class QuantizeType {
  kW8A16,      // 8-bit integers, a scale a row
  kW4A16G32,   // 4-bit integers, a scale for 32 values of a row
  kW4A16G128,  // the same for 128
  kFp8Block    // e4m3, a scale for a block of 128 x 128
};

// "w8a16", ...; "q8" and "q4" are short for the two that fit any shape.
std::optional<QuantizeType> quantize_type_from_name(std::string_view name);
const std::vector<std::string>& quantize_type_names();

struct QuantizeOptions {
  QuantizeType type = QuantizeType::kW8A16;
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;
  ThreadPool* pool = nullptr;  // rounds in parallel; not null
  // Bytes of the source that are done, and in all; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

// What became of the matrices of one kind ("o_proj", "experts.down_proj").
struct QuantizedKind {
  std::string name;
  std::uint64_t matrices = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double error = 0;  // root of squares lost / root of squares, over all of them
};

struct QuantizeReport {
  std::vector<QuantizedKind> kinds;  // quantised ones
  std::vector<std::string>
      kept_matrices;  // that the type would take, but whose shape it does not fit
  std::uint64_t bytes_before = 0, bytes_after = 0;
  int shards = 0;
};

// `folder` is made, or empty. What is not a projection of attention or of a feed-forward block is
// copied as it is: embeddings, heads, norms, routers, the projection that draft layers start with,
// and kv_b_proj, which every engine widens. The config comes last, so that a copy that was cut
// short is no model. Then everything is read back and compared. Errors: kUnsupported (a source that
// is a GGUF file or quantised already), kInvalidArgument (the folder), kCorrupt (weights that are
// not finite), kIo, kInternal (what was read back is not what was written).
Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                           const std::filesystem::path& folder,
                                           const QuantizeOptions& options);

}  // namespace glint
