#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace glint {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { configure_log(LogLevel::kInfo, LogFormat::kText); }

  static std::string logged(LogLevel level, std::string_view message) {
    testing::internal::CaptureStderr();
    log(level, message);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, text_lines_carry_time_level_and_message) {
  const std::string line = logged(LogLevel::kWarn, "low on pages");
  EXPECT_NE(line.find("Z warn  low on pages\n"), std::string::npos) << line;
}

TEST_F(Log, messages_below_the_level_are_dropped) {
  EXPECT_EQ(logged(LogLevel::kDebug, "x"), "");
  configure_log(LogLevel::kError, LogFormat::kText);
  EXPECT_EQ(logged(LogLevel::kWarn, "x"), "");
  EXPECT_NE(logged(LogLevel::kError, "x"), "");
  configure_log(LogLevel::kOff, LogFormat::kText);
  EXPECT_EQ(logged(LogLevel::kError, "x"), "");
  EXPECT_EQ(logged(LogLevel::kOff, "x"), "");
}

TEST_F(Log, json_lines_parse_whatever_the_message) {
  configure_log(LogLevel::kDebug, LogFormat::kJson);
  const std::string message = "a \"quoted\"\nline {} %v \xff";
  const std::string line = logged(LogLevel::kDebug, message);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  const auto value = parse_json(line);
  ASSERT_TRUE(value.has_value()) << value.error().message;
  EXPECT_EQ(value->find("level")->as_string(), "debug");
  EXPECT_EQ(value->find("message")->as_string(), "a \"quoted\"\nline {} %v \ufffd");
  EXPECT_EQ(value->find("time")->as_string().size(), 24u);
}

TEST_F(Log, text_messages_cannot_forge_a_second_line_or_drive_a_terminal) {
  const std::string line = logged(LogLevel::kInfo, "file\n2020 error fake \x1b[2J");
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST_F(Log, level_names_are_read_and_wrong_ones_refused) {
  EXPECT_EQ(parse_log_level("debug").value(), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("off").value(), LogLevel::kOff);
  const auto refused = parse_log_level("verbose");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("debug, info, warn, error or off"), std::string::npos);
}

}  // namespace
}  // namespace glint
