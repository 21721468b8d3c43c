#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/json.h"

namespace glint {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

std::string_view level_word(LogLevel level) {
  static constexpr std::string_view kWords[] = {"debug", "info", "warn", "error", "off"};
  return kWords[static_cast<int>(level)];
}

// The one process-wide object of the library: messages must work before main() configures anything.
// Never destroyed, so that threads may still log while the process exits.
struct Door {
  Door() : logger("glint", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_level(spdlog::level::info);
    logger.set_pattern("%v");
    logger.flush_on(spdlog::level::trace);
  }
  spdlog::logger logger;
  std::atomic<LogFormat> format{LogFormat::kText};
};

Door& door() {
  static Door* const instance = new Door;
  return *instance;
}

// Messages quote file names and client input: a control character must not start a forged line or
// drive a terminal.
std::string one_line(std::string_view message) {
  std::string out;
  out.reserve(message.size());
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

// UTC with milliseconds, as RFC 3339 writes it.
std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     ms % 1000);
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  Door& d = door();
  const auto spd_level = to_spdlog(level);
  if (level == LogLevel::kOff || !d.logger.should_log(spd_level)) return;
  std::string line;
  if (d.format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    line = fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",\"message\":", timestamp(),
                       level_word(level));
    append_json_string(line, message);
    line += '}';
  } else {
    line = fmt::format("{} {:<5} {}", timestamp(), level_word(level), one_line(message));
  }
  d.logger.log(spd_level, spdlog::string_view_t(line.data(), line.size()));
}

void configure_log(LogLevel level, LogFormat format) {
  door().logger.set_level(to_spdlog(level));
  door().format.store(format, std::memory_order_relaxed);
}

Result<LogLevel> parse_log_level(std::string_view text) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff}) {
    if (text == level_word(level)) return level;
  }
  return invalid_argument(
      fmt::format("unknown log level \"{}\": use debug, info, warn, error or off", text));
}

}  // namespace glint
