// What the system says about this process, for metrics.
#pragma once

#include <cstdint>

namespace glint {

struct ProcessStats {
  double cpu_seconds = 0;
  double start_time = 0;  // seconds since 1970
  std::uint64_t resident_bytes = 0;
  std::uint64_t virtual_bytes = 0;
  std::uint64_t open_fds = 0;
  std::uint64_t max_fds = 0;
  std::uint64_t threads = 0;
};

// What cannot be read stays 0.
ProcessStats process_stats();

}  // namespace glint
