#include "tools/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "models/weight_form.h"
#include "tools/flags.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultContext = 32768;
constexpr int kLeastContext = 256;  // below this a model is refused rather than started

// The number behind `key` in a file of "key value" or "key: value kB" lines.
std::optional<std::uint64_t> keyed_number(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, unit;
    std::uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    if (name.ends_with(':')) name.pop_back();
    if (name != key) continue;
    return words >> unit && unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> lone_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  const auto value = parse_integer(word);  // "max" is none
  if (!value || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

struct CgroupNames {
  const char* limit;
  const char* usage;
  const char* droppable[2];  // page cache, in memory.stat
};
constexpr CgroupNames kVersion2 = {
    "memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr CgroupNames kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

void lower_by_cgroup(const fs::path& folder, const CgroupNames& names, AvailableMemory& memory) {
  const auto limit = lone_number(folder / names.limit);
  const auto usage = lone_number(folder / names.usage);
  if (!limit || !usage) return;
  std::uint64_t droppable = 0;
  for (const char* name : names.droppable) {
    droppable += keyed_number(folder / "memory.stat", name).value_or(0);
  }
  const std::uint64_t pinned = *usage - std::min(*usage, droppable);
  const std::uint64_t left = *limit - std::min(*limit, pinned);
  if (left >= memory.bytes) return;
  memory = {left, fmt::format("the cgroup's {}", names.limit)};
}

// Every folder from `base`/`path` up to `base`.
void lower_by_tree(const fs::path& base, const fs::path& path, const CgroupNames& names,
                   AvailableMemory& memory) {
  for (fs::path at = path.relative_path();; at = at.parent_path()) {
    lower_by_cgroup(base / at, names, memory);
    if (at.empty()) return;
  }
}

std::string largest_that_fits(std::uint64_t room, std::uint64_t page_bytes, int sequences,
                              int most) {
  const std::uint64_t pages = room / page_bytes / static_cast<std::uint64_t>(sequences);
  const std::uint64_t tokens =
      std::min<std::uint64_t>(pages * kPageSize, static_cast<std::uint64_t>(most));
  if (tokens < kPageSize) return "";
  return sequences == 1 ? fmt::format("; the largest that fits is --ctx {}", tokens)
                        : fmt::format(
                              "; the largest that fits is --ctx {} with {} sequences, and fewer "
                              "sequences (--parallel) leave room for longer ones",
                              tokens, sequences);
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
  AvailableMemory memory{std::numeric_limits<std::uint64_t>::max(), "no limit known"};
  if (const auto free = keyed_number(root / "proc/meminfo", "MemAvailable")) {
    memory = {*free, "MemAvailable"};
  }
  std::ifstream membership(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(membership, line)) {  // "0::/path" or "7:memory:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) lower_by_tree(root / "sys/fs/cgroup", path, kVersion2, memory);
    if (controllers == "memory")
      lower_by_tree(root / "sys/fs/cgroup/memory", path, kVersion1, memory);
  }
  return memory;
}

std::size_t pages_for(int context, int sequences) {
  const auto pages = (static_cast<std::size_t>(context) + kPageSize - 1) / kPageSize;
  return pages * static_cast<std::size_t>(sequences);
}

Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available) {
  const std::uint64_t page_bytes = std::max<std::uint64_t>(
      1, cache.bytes_per_page() * (request.load.compute == Compute::kF32 ? 2 : 1));
  const int longest = info.max_position_embeddings;
  if (request.context > longest) {
    return invalid_argument(
        fmt::format("--ctx {} is more than the {} positions this model was made for "
                    "(max_position_embeddings in config.json)",
                    request.context, longest));
  }
  MemoryPlan plan;
  plan.limit = request.limit > 0 ? request.limit : available.bytes;
  plan.limit_source = request.limit > 0 ? "--memory" : available.source;
  plan.weights = resident_bytes(place_weights(info, request.load));
  if (request.load.draft != DraftLayer::kOff && info.weight_bytes > 0) {
    // Becomes what the others become.
    const double change =
        static_cast<double>(plan.weights) / static_cast<double>(info.weight_bytes);
    const std::uint64_t stored = info.draft.weight_bytes + info.draft.copy_bytes;
    plan.weights += static_cast<std::uint64_t>(change * static_cast<double>(stored));
  }
  plan.logits = static_cast<std::uint64_t>(request.num_sequences) *
                static_cast<std::uint64_t>(info.vocab_size) * sizeof(float);
  const std::uint64_t fixed = plan.weights + plan.logits;
  const std::uint64_t room = plan.limit - std::min(plan.limit, fixed);

  plan.context = request.context;
  if (plan.context == 0) {
    const std::uint64_t fits =
        room / page_bytes / static_cast<std::uint64_t>(request.num_sequences) * kPageSize;
    plan.context = static_cast<int>(std::min<std::uint64_t>(
        fits, static_cast<std::uint64_t>(std::min(longest, kDefaultContext))));
    if (plan.context < std::min(longest, kLeastContext))
      plan.context = std::min(longest, kLeastContext);
  }
  plan.num_pages = pages_for(plan.context, request.num_sequences);
  plan.cache = plan.num_pages * page_bytes;
  if (plan.total() <= plan.limit) return plan;
  return exhausted(
      fmt::format("not enough memory: weights {} + cache {} ({} x {} tokens) + logits {} = {}, but "
                  "{} gives {}{}{}",
                  format_bytes(static_cast<double>(plan.weights)),
                  format_bytes(static_cast<double>(plan.cache)), request.num_sequences,
                  plan.context, format_bytes(static_cast<double>(plan.logits)),
                  format_bytes(static_cast<double>(plan.total())), plan.limit_source,
                  format_bytes(static_cast<double>(plan.limit)),
                  largest_that_fits(room, page_bytes, request.num_sequences, longest),
                  request.limit > 0 ? "" : "; --memory SIZE overrides the measurement"));
}

std::uint64_t peak_resident_bytes() {
  return keyed_number("/proc/self/status", "VmHWM").value_or(0);
}

void reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

}  // namespace glint
