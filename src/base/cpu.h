// Which processors this process may really use: affinity mask, SMT siblings and the cgroup's quota.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace glint {

struct CpuBudget {
  std::vector<int>
      cores;         // one logical CPU per physical core that the affinity mask allows, ascending
  int logical = 0;   // logical CPUs allowed
  double quota = 0;  // cgroup limit in CPUs, 0 when there is none
  int threads = 1;   // min(cores, floor(quota)), at least 1: the default for --threads
  std::string why;   // one line for logs and `inspect`
};

// Reads the affinity mask of this process, /sys topology and the cgroup files (v2 cpu.max up the
// tree, v1 cfs_quota).
CpuBudget cpu_budget();
// The same with the mask and the file system's root given, for tests.
CpuBudget cpu_budget(const std::vector<int>& allowed, const std::filesystem::path& root);

}  // namespace glint
