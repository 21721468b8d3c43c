// What a model with its cache, its steps and its requests would take of memory, down to the
// program: what --memory promises not to exceed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "cache/cache.h"
#include "models/model.h"
#include "tools/available_memory.h"
#include "tools/prefix_plan.h"
#include "tools/state_plan.h"

namespace glint {

// Bytes of weights that are in memory, by what they are for.
struct WeightBytes {
  std::uint64_t embedding = 0;  // and head
  std::uint64_t attention = 0;
  std::uint64_t dense = 0;    // dense layers and shared experts
  std::uint64_t experts = 0;  // routed ones
  std::uint64_t small = 0;    // norms, biases, routers
  std::uint64_t draft = 0;
  std::uint64_t vision = 0;
  std::uint64_t total() const {
    return embedding + attention + dense + experts + small + draft + vision;
  }
};

// What decided the context.
enum class ContextReason { kAsked, kModel, kDefault, kMemory };

struct MemoryPlan {
  WeightBytes parts;
  std::uint64_t weights = 0;  // parts.total()
  std::uint64_t cache = 0;
  PrefixPlan prefix = {};      // beyond that: pages that nobody uses
  StatePlan states = {};       // recurrent ones
  std::uint64_t logits = 0;    // and what samples them
  std::uint64_t scratch = 0;   // of a step
  std::uint64_t images = 0;    // one on its way into the model
  std::uint64_t requests = 0;  // bodies, prompts, grammars and answers
  std::uint64_t program = 0;   // code, libraries, tokenizer, threads
  std::uint64_t limit = 0;
  std::string limit_source;
  int context = 0;  // tokens of one sequence
  int sequences = 1;
  ContextReason context_reason = ContextReason::kAsked;
  std::size_t num_pages = 0;  // for all sequences at full length
  int chunk = 0;              // most tokens of a step
  // What else would fit: the longest context for these sequences, at most the model's, and how many
  // sequences of this context, at most kMostSequences. 0: none.
  int largest_context = 0;
  int most_sequences = 0;
  std::uint64_t bytes_per_token = 0;     // of the cache
  std::uint64_t bytes_per_sequence = 0;  // a recurrent state
  // Where experts are streamed, they are not in `weights`.
  bool streams = false;
  std::uint64_t streamed = 0;      // bytes of experts, in the form that kernels read
  std::uint64_t num_experts = 0;   // those
  std::uint64_t expert_cache = 0;  // memory for some of them, and for reading
  std::uint64_t num_slots = 0;     // how many it holds, about
  std::uint64_t total() const {
    return weights + cache + prefix.bytes + logits + states.total() + expert_cache + scratch +
           images + requests + program;
  }
};

// Bytes of MemoryPlan::requests for a byte of a body that is being read into values, of bodies that
// wait for their answers, and of text that is being encoded: more than was measured (up to 36, 12
// and 175), so that all three find room together.
inline constexpr std::uint64_t kBytesOfBody = 80, kBytesOfPendingBody = 40, kBytesOfPrompt = 320;
inline constexpr int kMostSequences = 4096;
inline constexpr int kDefaultContext = 32768;  // where nobody says how much

// Whether experts are read from disk as they are needed. kAuto: where the weights do not fit.
enum class ExpertStreaming { kAuto, kOn, kOff };

struct MemoryRequest {
  // 0: the largest that fits, at most the model's and 32768; kLargest: at most the model's.
  static constexpr int kLargest = -1;
  int context = 0;
  int num_sequences = 1;
  PrefixCacheOptions prefix = {.enabled = false};
  int num_snapshots = -1;  // of recurrent states; -1: see plan_states()
  // Decides the form of the weights, of which only those in memory count, and of the cache: rows of
  // f32 compute take twice their bf16 bytes.
  LoadOptions load = {};
  std::uint64_t limit = 0;  // 0: what is available
  ExpertStreaming streaming = ExpertStreaming::kAuto;
  int chunk = 2048;  // most tokens of a step, or, unless it is fixed, less
  bool fixed_chunk = false;
  int threads = 1;
  std::uint64_t resident = 0;    // bytes that this process has already
  bool serves = false;           // requests come from outside: a share of the memory is theirs
  std::uint64_t body_bytes = 0;  // a body that there must be room for; 0: none in particular
  int image_tokens = 8000;       // most of an image
};

// Errors: kInvalidArgument (context beyond the model's), kExhausted naming the sums and the largest
// context that fits, and how many sequences or snapshots.
Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available);

// Pages that hold `sequences` sequences of `context` tokens.
std::size_t pages_for(int context, int sequences);

}  // namespace glint
