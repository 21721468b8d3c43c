// Memory plans in words and as JSON: for inspect, for the log, and for refusals.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tools/memory_plan.h"

namespace glint {

// "weights 8.9 GiB + cache 412.00 MiB (8 x 8192 tokens) + ... + the program 90.00 MiB"
std::string plan_sum(const MemoryPlan& plan);

// A name and what it says, for a table: the total first, then every class, then what else fits.
struct PlanLine {
  std::string name, value;
};
std::vector<PlanLine> plan_lines(const MemoryPlan& plan);

// {"limit", "total_bytes", "weights": {"embedding_and_head", "attention", ...}, "kv_cache_bytes",
// ..., "largest_context", "most_sequences"}; bytes unless a name says otherwise.
Json plan_json(const MemoryPlan& plan);

// One line for the start of a program: what of the limit is planned, and why the context is what it
// is.
std::string plan_summary(const MemoryPlan& plan);

}  // namespace glint
