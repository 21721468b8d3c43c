// Logging behind one small door. The library never prints; it calls these, and a program decides
// where they go (stderr by default, text or JSON lines). Thread-safe.
#pragma once

#include <string_view>

#include "base/result.h"

namespace glint {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };
enum class LogFormat { kText, kJson };

void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view m) {
  log(LogLevel::kDebug, m);
}
inline void log_info(std::string_view m) {
  log(LogLevel::kInfo, m);
}
inline void log_warn(std::string_view m) {
  log(LogLevel::kWarn, m);
}
inline void log_error(std::string_view m) {
  log(LogLevel::kError, m);
}

// Called once by a program, before threads start. Default: kInfo, kText.
void configure_log(LogLevel level, LogFormat format);
Result<LogLevel> parse_log_level(std::string_view text);  // "debug|info|warn|error|off"

}  // namespace glint
