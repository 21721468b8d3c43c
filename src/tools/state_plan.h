// How much memory recurrent states take, and how many snapshots of them are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cache/cache.h"

namespace glint {

struct StatePlan {
  std::uint64_t states = 0;     // bytes, of all sequences
  std::uint64_t snapshots = 0;  // bytes, of all that may be kept
  std::size_t num_snapshots = 0;
  std::uint64_t total() const { return states + snapshots; }
};

// num_snapshots -1: so many that they take an eighth of what the states leave of `room`, at most 8
// and 8 for each sequence; one if that fits and an eighth does not hold it.
StatePlan plan_states(const CacheSpec& cache, int num_sequences, int num_snapshots,
                      std::uint64_t room);
// Gives up as many snapshots as that many bytes need, or all.
void give_up_snapshots(const CacheSpec& cache, std::uint64_t bytes, StatePlan& plan);

// "4 recurrent states 593.7 MB + 12 snapshots of them 1.8 GB"; empty for a model without.
std::string describe_states(const CacheSpec& cache, int num_sequences, const StatePlan& plan);

}  // namespace glint
