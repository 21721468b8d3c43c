#include "base/cpu.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/file.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSystemFile = 4u << 20;
constexpr int kMaxCpu = 1 << 20;

std::string_view next_word(std::string_view& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = std::min(text.find_first_not_of(kSpace), text.size());
  const auto end = std::min(text.find_first_of(kSpace, begin), text.size());
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

std::string_view next_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::optional<long long> to_integer(std::string_view word) {
  long long value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return std::nullopt;
  return value;
}

// "0-3,8,10-11" as in cpuset files; nullopt when malformed.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  std::string_view list = next_word(text);
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string_view range = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto dash = range.find('-');
    const auto first = to_integer(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_integer(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMaxCpu) return std::nullopt;
    for (long long cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  if (cpus.empty()) return std::nullopt;
  return cpus;
}

// One logical CPU per physical core: the first allowed of each set of SMT siblings.
std::vector<int> one_per_core(const std::vector<int>& allowed, const fs::path& root) {
  std::vector<int> cores;
  std::set<int> taken;
  for (const int cpu : allowed) {
    if (taken.contains(cpu)) continue;
    cores.push_back(cpu);
    const fs::path topology =
        root / "sys/devices/system/cpu" / fmt::format("cpu{}", cpu) / "topology";
    for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
      const auto text = read_text_file(topology / name, kMaxSystemFile);
      const auto siblings = text ? parse_cpu_list(*text) : std::nullopt;
      if (!siblings) continue;
      taken.insert(siblings->begin(), siblings->end());
      break;
    }
  }
  return cores;
}

struct Quota {
  double cpus = 0;  // 0: no limit
  std::string file;
};

void lower(Quota& quota, long long limit, long long period, const fs::path& file) {
  if (limit <= 0 || period <= 0) return;
  const double cpus = static_cast<double>(limit) / static_cast<double>(period);
  if (quota.cpus == 0 || cpus < quota.cpus) quota = {cpus, file.string()};
}

// "LIMIT PERIOD" or "max PERIOD".
void read_cpu_max(Quota& quota, const fs::path& folder) {
  const auto text = read_text_file(folder / "cpu.max", kMaxSystemFile);
  if (!text) return;
  std::string_view rest = *text;
  const auto limit = to_integer(next_word(rest));
  const auto period = to_integer(next_word(rest));
  if (limit) lower(quota, *limit, period.value_or(100000), folder / "cpu.max");
}

void read_cfs_quota(Quota& quota, const fs::path& folder) {
  const auto limit_text = read_text_file(folder / "cpu.cfs_quota_us", kMaxSystemFile);
  const auto period_text = read_text_file(folder / "cpu.cfs_period_us", kMaxSystemFile);
  if (!limit_text || !period_text) return;
  std::string_view limit_rest = *limit_text;
  std::string_view period_rest = *period_text;
  const auto limit = to_integer(next_word(limit_rest));
  const auto period = to_integer(next_word(period_rest));
  if (limit && period) lower(quota, *limit, *period, folder / "cpu.cfs_quota_us");
}

// Applies `read` to mount/group and to every folder above it down to the mount: any of them may
// hold the limit.
template <typename Read>
void walk_up(const fs::path& mount, const fs::path& group, Quota& quota, Read read) {
  fs::path inside;
  std::vector<fs::path> folders = {mount};
  for (const fs::path& part : group.relative_path()) {
    // A process outside its cgroup namespace's root sees "/../..": nothing there can be read
    // through this mount.
    if (part == "..") break;
    if (part == "." || part.empty()) continue;
    inside /= part;
    folders.push_back(mount / inside);
  }
  for (const fs::path& folder : folders) read(quota, folder);
}

// Lines of /proc/self/cgroup: "0::/path" for v2, "ID:controller,controller:/path" for v1.
Quota cgroup_quota(const fs::path& root) {
  Quota quota;
  const fs::path mount = root / "sys/fs/cgroup";
  // Also without /proc/self/cgroup, and in containers that mount their own group at the root.
  read_cpu_max(quota, mount);
  const auto text = read_text_file(root / "proc/self/cgroup", kMaxSystemFile);
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line.substr(first + 1, second - first - 1)).push_back(',');
    const fs::path group = std::string(line.substr(second + 1));
    if (controllers == ",,") {
      walk_up(mount, group, quota, read_cpu_max);
      walk_up(mount / "unified", group, quota, read_cpu_max);
    } else if (controllers.find(",cpu,") != std::string::npos) {
      for (const char* name : {"cpu", "cpu,cpuacct", "cpuacct,cpu"})
        walk_up(mount / name, group, quota, read_cfs_quota);
    }
  }
  return quota;
}

std::vector<int> affinity_mask() {
  // The static set covers 1024 CPUs; larger machines need a larger one, which the kernel asks for
  // with EINVAL.
  for (int capacity = CPU_SETSIZE; capacity <= kMaxCpu; capacity *= 4) {
    const std::size_t nbytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    std::vector<unsigned long> storage(nbytes / sizeof(unsigned long));
    auto* set = reinterpret_cast<cpu_set_t*>(storage.data());
    if (sched_getaffinity(getpid(), nbytes, set) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), nbytes, set)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

}  // namespace

CpuBudget cpu_budget() {
  std::vector<int> allowed = affinity_mask();
  if (allowed.empty()) {
    const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) allowed.push_back(cpu);
  }
  return cpu_budget(allowed, "/");
}

CpuBudget cpu_budget(const std::vector<int>& allowed, const fs::path& root) {
  std::vector<int> sorted = allowed;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const Quota quota = cgroup_quota(root);
  CpuBudget budget;
  budget.logical = static_cast<int>(sorted.size());
  budget.cores = one_per_core(sorted, root);
  budget.quota = quota.cpus;
  const int cores = std::max(1, static_cast<int>(budget.cores.size()));
  budget.threads = cores;
  // Rounded down: a team larger than the quota is stopped mid-loop each period, and all wait for
  // the stopped one.
  if (quota.cpus > 0)
    budget.threads = std::max(1, static_cast<int>(std::min<double>(cores, std::floor(quota.cpus))));
  budget.why = fmt::format("{} thread{}: {} physical core{} of {} logical CPU{} allowed",
                           budget.threads, budget.threads == 1 ? "" : "s", cores,
                           cores == 1 ? "" : "s", budget.logical, budget.logical == 1 ? "" : "s");
  if (quota.cpus > 0)
    budget.why += fmt::format(", cgroup quota {:.2f} CPUs ({})", quota.cpus, quota.file);
  return budget;
}

}  // namespace glint
