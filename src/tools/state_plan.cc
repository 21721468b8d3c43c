#include "tools/state_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/flags.h"

namespace glint {

StatePlan plan_states(const CacheSpec& cache, int num_sequences, int num_snapshots,
                      std::uint64_t room) {
  const auto sequences = static_cast<std::uint64_t>(num_sequences);
  StatePlan plan;
  plan.states = sequences * cache.state_stride();
  const std::uint64_t each = cache.snapshot_stride();
  if (each == 0) return plan;
  std::uint64_t count = static_cast<std::uint64_t>(std::max(0, num_snapshots));
  if (num_snapshots < 0) {
    const std::uint64_t left = room - std::min(room, plan.states);
    count = std::clamp<std::uint64_t>(left / 8 / each, left >= each ? 1 : 0, 8 + 8 * sequences);
  }
  plan.num_snapshots = count;
  plan.snapshots = count * each;
  return plan;
}

void give_up_snapshots(const CacheSpec& cache, std::uint64_t bytes, StatePlan& plan) {
  const std::uint64_t each = cache.snapshot_stride();
  if (each == 0) return;
  plan.num_snapshots -= std::min<std::uint64_t>(plan.num_snapshots, (bytes + each - 1) / each);
  plan.snapshots = plan.num_snapshots * each;
}

std::string describe_states(const CacheSpec& cache, int num_sequences, const StatePlan& plan) {
  if (cache.state_bytes == 0) return "";
  std::string text =
      fmt::format("{} recurrent state{} {}", num_sequences, num_sequences == 1 ? "" : "s",
                  format_bytes(static_cast<double>(plan.states)));
  if (cache.snapshot_bytes == 0) return text;
  return text + fmt::format(" + {} snapshot{} {}", plan.num_snapshots,
                            plan.num_snapshots == 1 ? "" : "s",
                            format_bytes(static_cast<double>(plan.snapshots)));
}

}  // namespace glint
