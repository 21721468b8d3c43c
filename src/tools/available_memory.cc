#include "tools/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "tools/flags.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

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

std::uint64_t peak_resident_bytes() {
  return keyed_number("/proc/self/status", "VmHWM").value_or(0);
}

void reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

}  // namespace glint
