// How much memory this process may still take, and how much it has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace glint {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string source;  // "MemAvailable", "the cgroup's memory.max", ...
};

// The least of MemAvailable and every cgroup limit up the tree, each less what is in use and cannot
// be dropped. `root` is the root of the file system, for tests.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

// VmHWM of this process, bytes; 0 when unknown.
std::uint64_t peak_resident_bytes();
void reset_peak_resident();  // to what is resident now, where the system can

}  // namespace glint
