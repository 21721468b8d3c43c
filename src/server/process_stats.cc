#include "server/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace glint {
namespace {

// proc(5): the fields of /proc/self/stat behind the program's name, which may hold anything.
void read_stat(ProcessStats& stats, double boot_time) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kThreads = 20, kStartTime = 22, kVirtual = 23, kResident = 24;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::string field;
  for (int number = 3; number <= kResident && fields >> field; ++number) {
    const double value = std::strtod(field.c_str(), nullptr);
    if (number == kThreads) stats.threads = static_cast<std::uint64_t>(value);
    if (number == kStartTime) stats.start_time = boot_time + value / ticks;
    if (number == kVirtual) stats.virtual_bytes = static_cast<std::uint64_t>(value);
    if (number == kResident) {
      stats.resident_bytes =
          static_cast<std::uint64_t>(value) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    }
  }
}

double boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

std::uint64_t count_fds() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') ++count;
  }
  ::closedir(folder);
  return count - 1;  // the folder itself
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ProcessStats process_stats() {
  ProcessStats stats;
  static const double booted = boot_time();
  read_stat(stats, booted);
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    stats.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  stats.open_fds = count_fds();
  return stats;
}

}  // namespace glint
