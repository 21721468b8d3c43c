// How much memory this process may still take, and what a model with its cache would take of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "cache/cache.h"
#include "models/model.h"
#include "tools/state_plan.h"

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
  StatePlan states = {};     // recurrent ones
  std::uint64_t limit = 0;
  std::string limit_source;
  int context = 0;            // tokens of one sequence
  std::size_t num_pages = 0;  // for all sequences at full length
  int chunk = 0;              // most tokens of a step
  // Where experts are streamed, they are not in `weights`; `scratch` is all that the process needs
  // besides.
  bool streams = false;
  std::uint64_t streamed = 0;      // bytes of experts, in the form that kernels read
  std::uint64_t num_experts = 0;   // those
  std::uint64_t expert_cache = 0;  // memory for some of them, and for reading
  std::uint64_t num_slots = 0;     // how many it holds, about
  std::uint64_t scratch = 0;
  std::uint64_t total() const {
    return weights + cache + logits + states.total() + expert_cache + scratch;
  }
};

// Whether experts are read from disk as they are needed. kAuto: where the weights do not fit.
enum class ExpertStreaming { kAuto, kOn, kOff };

struct MemoryRequest {
  int context = 0;  // 0: the largest that fits, at most the model's and 32768
  int num_sequences = 1;
  int num_snapshots = -1;  // of recurrent states; -1: see plan_states()
  // Decides the form of the weights, of which only those in memory count, and of the cache: rows of
  // f32 compute take twice their bf16 bytes.
  LoadOptions load = {};
  std::uint64_t limit = 0;  // 0: what is available
  ExpertStreaming streaming = ExpertStreaming::kAuto;
  int chunk = 2048;  // most tokens of a step, or, unless it is fixed, less
  bool fixed_chunk = false;
};

// Errors: kInvalidArgument (context beyond the model's), kExhausted naming the sums and the largest
// context that fits, or how many sequences whose recurrent states do.
Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available);

// Pages that hold `sequences` sequences of `context` tokens.
std::size_t pages_for(int context, int sequences);

// VmHWM of this process, bytes; 0 when unknown.
std::uint64_t peak_resident_bytes();
void reset_peak_resident();  // to what is resident now, where the system can

}  // namespace glint
