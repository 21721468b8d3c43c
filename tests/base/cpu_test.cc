#include "base/cpu.h"

#include <gtest/gtest.h>

#include <string>

#include "temp_folder.h"

namespace glint {
namespace {

std::vector<int> first_cpus(int count) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  return cpus;
}

// Sibling pairs as Linux numbers them on Intel servers: CPU i and i + cores share a core.
void write_smt_topology(const TempFolder& root, int cores) {
  for (int cpu = 0; cpu < 2 * cores; ++cpu) {
    const int core = cpu % cores;
    root.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list",
               std::to_string(core) + "," + std::to_string(core + cores) + "\n");
  }
}

TEST(CpuBudget, a_quota_of_2_of_16_gives_2_threads) {
  TempFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  const CpuBudget budget = cpu_budget(first_cpus(16), root.path());
  EXPECT_EQ(budget.threads, 2);
  EXPECT_EQ(budget.quota, 2.0);
  EXPECT_EQ(budget.cores.size(), 16u);
  EXPECT_NE(budget.why.find("quota 2.00"), std::string::npos) << budget.why;
}

TEST(CpuBudget, a_fractional_quota_is_rounded_down_but_never_to_0) {
  TempFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "390000 100000\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 3);
  root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 1);
}

TEST(CpuBudget, without_a_quota_threads_are_the_physical_cores) {
  TempFolder root;
  root.write("proc/self/cgroup", "0::/user.slice\n");
  root.write("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  write_smt_topology(root, 8);
  const CpuBudget budget = cpu_budget(first_cpus(16), root.path());
  EXPECT_EQ(budget.threads, 8);
  EXPECT_EQ(budget.logical, 16);
  EXPECT_EQ(budget.quota, 0.0);
  EXPECT_EQ(budget.cores, first_cpus(8));
}

TEST(CpuBudget, a_cpuset_that_holds_only_second_siblings_counts_each_core_once) {
  TempFolder root;
  write_smt_topology(root, 4);
  EXPECT_EQ(cpu_budget({6, 5, 1, 6}, root.path()).cores, (std::vector<int>{1, 6}));
}

TEST(CpuBudget, older_kernels_name_the_siblings_file_otherwise) {
  TempFolder root;
  for (const char* cpu : {"cpu0", "cpu1"}) {
    root.write(std::string("sys/devices/system/cpu/") + cpu + "/topology/thread_siblings_list",
               "0-1\n");
  }
  EXPECT_EQ(cpu_budget({0, 1}, root.path()).threads, 1);
}

TEST(CpuBudget, the_tightest_limit_up_the_tree_counts) {
  TempFolder root;
  root.write("proc/self/cgroup", "0::/kubepods/pod1/container\n");
  root.write("sys/fs/cgroup/kubepods/cpu.max", "800000 100000\n");
  root.write("sys/fs/cgroup/kubepods/pod1/cpu.max", "300000 100000\n");
  root.write("sys/fs/cgroup/kubepods/pod1/container/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 3);
}

TEST(CpuBudget, version_1_quotas_are_read_too) {
  TempFolder root;
  root.write("proc/self/cgroup",
             "11:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "450000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 4);
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 16);
}

TEST(CpuBudget, a_version_1_container_that_mounts_its_own_group_at_the_root_is_limited) {
  TempFolder root;
  root.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/a/path/of/the/host\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_budget(first_cpus(16), root.path()).threads, 2);
}

TEST(CpuBudget, nonsense_in_system_files_is_no_limit) {
  for (const char* nonsense : {"", "\n", "max", "-5 100000", "0 100000", "200000 0",
                               "99999999999999999999 1", "two cpus"}) {
    TempFolder root;
    root.write("proc/self/cgroup", "0::/../../elsewhere\nbroken\n:\n");
    root.write("sys/fs/cgroup/cpu.max", nonsense);
    root.write("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0-99999999999,,-");
    EXPECT_EQ(cpu_budget(first_cpus(4), root.path()).threads, 4) << nonsense;
  }
}

TEST(CpuBudget, an_empty_file_system_and_an_empty_mask_still_give_one_thread) {
  TempFolder root;
  EXPECT_EQ(cpu_budget({}, root.path()).threads, 1);
}

TEST(CpuBudget, this_machine_has_at_least_one_core_and_says_why) {
  const CpuBudget budget = cpu_budget();
  EXPECT_GE(budget.threads, 1);
  EXPECT_LE(budget.threads, budget.logical);
  EXPECT_FALSE(budget.cores.empty());
  EXPECT_FALSE(budget.why.empty());
}

}  // namespace
}  // namespace glint
