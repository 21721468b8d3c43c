// What a model whose experts stay on disk is to be expected to do: bytes of a token from memory and
// from disk, and how long they take where both were measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "models/weight_form.h"
#include "tools/memory_plan.h"

namespace glint {

// How often an expert is in memory that a token needs, and why that is to be believed.
struct ExpectedHits {
  double rate = 0;
  std::string source;
};
// Where all experts are chosen alike: the share of them that fits. With a history (models/
// expert_usage.h) of this model at `history`: what its experts of most use would have been.
ExpectedHits expected_hits(const Checkpoint& checkpoint, const ModelInfo& info,
                           const MemoryPlan& plan, const std::filesystem::path& history);

struct StreamingForecast {
  double memory_bytes = 0;  // of weights, read by a token of one sequence
  double disk_bytes = 0;
  double disk_burst = 0;  // bytes that a layer waits for at a time
  // Without anything done at once; 0 unless both rates are known.
  double tokens_per_s(double memory_bytes_per_s, double disk_bytes_per_s) const;
};
StreamingForecast forecast_streaming(const ModelInfo& info, const std::vector<PlacedGroup>& weights,
                                     double hit_rate);

// Bytes per second of the disk that holds the checkpoint, past the system's cache: random places of
// its files, `burst` bytes at a time as models/expert_store.h reads them. Takes about half a
// second. Errors: as of DirectFile.
Result<double> disk_bandwidth(const Checkpoint& checkpoint, double burst);

}  // namespace glint
