// How much memory this process may still take, and what a model with its cache would take of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "cache/cache.h"
#include "models/model.h"

namespace glint {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string source;  // "MemAvailable", "the cgroup's memory.max", ...
};

// The least of MemAvailable and every cgroup limit up the tree, each less what is in use and cannot
// be dropped. `root` is the root of the file system, for tests.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

struct MemoryPlan {
  std::uint64_t weights = 0;
  std::uint64_t cache = 0;
  std::uint64_t logits = 0;  // and other scratch that grows with the sequences
  std::uint64_t limit = 0;
  std::string limit_source;
  int context = 0;            // tokens of one sequence
  std::size_t num_pages = 0;  // for all sequences at full length
  std::uint64_t total() const { return weights + cache + logits; }
};

struct MemoryRequest {
  int context = 0;  // 0: the largest that fits, at most the model's and 32768
  int num_sequences = 1;
  // Decides the form of the weights, of which only those in memory count, and of the cache: rows of
  // f32 compute take twice their bf16 bytes.
  LoadOptions load = {};
  std::uint64_t limit = 0;  // 0: what is available
};

// Errors: kInvalidArgument (context beyond the model's), kExhausted naming the sums and the largest
// context that fits.
Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available);

// Pages that hold `sequences` sequences of `context` tokens.
std::size_t pages_for(int context, int sequences);

// VmHWM of this process, bytes; 0 when unknown.
std::uint64_t peak_resident_bytes();
void reset_peak_resident();  // to what is resident now, where the system can

}  // namespace glint
