// Processor time of the calling thread, for tests that bound the cost of something: the clock on
// the wall also counts what the machine does for others.
#pragma once

#include <time.h>

namespace glint {

inline double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace glint
