// What `glint inspect` finds out about a model, before anything is printed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/json.h"
#include "models/model.h"
#include "models/weight_form.h"
#include "serviceability/engine_table.h"
#include "serviceability/profile.h"
#include "tools/session.h"
#include "tools/streaming_forecast.h"

namespace glint {

struct InspectOptions {
  std::string model;
  bool diff = false;
  std::string other;  // with --diff, the second model
  bool json = false;
  int context = 0;
  int parallel = 1;
  std::string engine;      // --engine: one of the table's; empty: all
  std::optional<int> gpu;  // --gpu: compute capability, 90 for SM90
  SessionOptions session;  // for --isa, --threads and what --weights would cost
};

// How the model would lie in memory, and what streaming would make of its speed.
struct PlanReport {
  MemoryPlan memory;
  ExpectedHits hits;
  StreamingForecast forecast;
  double memory_bytes_per_s = 0, disk_bytes_per_s = 0;  // 0: not measured

  double tokens_per_s() const {
    return forecast.tokens_per_s(memory_bytes_per_s, disk_bytes_per_s);
  }
};

struct InspectReport {
  std::string model_type = "unknown";
  std::optional<ModelInfo> info;        // of models that glint runs
  std::optional<ModelProfile> profile;  // of every model whose config can be read
  std::vector<PlacedGroup> weights;     // empty unless they are all there and right
  std::vector<std::string> notes;
  std::string refusal;   // empty: it runs
  std::string shortage;  // of memory for the plan asked for; empty: there is none
  std::string isa;
  int threads = 0;
  CpuBudget cpus;
  AvailableMemory memory;
  int context = 0;
  int parallel = 1;
  bool has_weights = false;
  std::optional<PlanReport> plan;

  std::shared_ptr<const EngineTable> table;  // which the answers point into
  Facts facts;
  std::vector<EngineAnswer> engines;  // glint's own first
  std::vector<DecidedRule> traps;

  CacheFormat format = CacheFormat::kBf16;  // of the cache, as --kv-cache asks
  const CacheSpec& cache() const { return *info->cache.find(format); }
  const CacheLayout* layout() const;      // of the profile in that format; null: there is none
  double weight_bytes_per_token() const;  // read by a token at batch 1; about, without weights
  std::uint64_t bytes_per_token() const;
  std::uint64_t bytes_per_sequence() const;
  std::uint64_t state_bytes() const;                    // of all sequences
  std::uint64_t cache_bytes() const;                    // of all sequences
  std::uint64_t tokens(std::uint64_t per_token) const;  // times context and sequences
  bool can_guess() const { return info->mtp_present && info->draft.cache.bf16.num_layers > 0; }
};

// Reads headers only. The report says itself where the model is refused. Errors: the table of
// engines does not know --engine.
Result<InspectReport> inspect(const std::filesystem::path& path, const InspectOptions& options,
                              Isa isa);

// What one part of the network is stored as, in the checkpoint and in memory.
struct PartUse {
  WeightPart part;
  DType stored;
  std::string storage;
  WeightForm form;
  std::uint64_t parameters = 0, stored_bytes = 0, bytes = 0;
};
std::vector<PartUse> parts_of(const std::vector<PlacedGroup>& weights);

// "sm120", "120", "12.0", or the name of a GPU ("h100"): 120, 90.
Result<int> parse_gpu(std::string_view text);

// How they are shown.
Json report_json(const InspectReport& report);
std::string report_text(const InspectReport& report, bool with_sources, int width);
Json diff_json(const InspectReport& a, const InspectReport& b);
std::string diff_text(const InspectReport& a, const InspectReport& b, int width);

}  // namespace glint
