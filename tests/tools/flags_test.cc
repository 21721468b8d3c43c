// Options: values, sizes, help and suggestions.
#include "tools/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/program.h"

namespace glint {
namespace {

using testing::HasSubstr;

TEST(ParseBytes, units_are_powers_of_1024_except_those_with_a_bare_b) {
  EXPECT_EQ(*parse_bytes("0"), 0u);
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  EXPECT_EQ(*parse_bytes("20GiB"), 20ull << 30);
  EXPECT_EQ(*parse_bytes("20g"), 20ull << 30);
  EXPECT_EQ(*parse_bytes("512 MiB"), 512ull << 20);
  EXPECT_EQ(*parse_bytes("1.5K"), 1536u);
  EXPECT_EQ(*parse_bytes("2MB"), 2000000u);
  EXPECT_EQ(*parse_bytes("3B"), 3u);
  EXPECT_EQ(*parse_bytes("1TiB"), 1ull << 40);
}

TEST(ParseBytes, other_texts_are_refused_with_an_example) {
  for (const char* text :
       {"", "GiB", "-1", "1X", "1GiBs", "1e400", "nan", "inf", "99999999TiB", "1 2"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_THAT(bytes.error().message, HasSubstr("20GiB")) << text;
  }
}

TEST(ParseInteger, takes_whole_decimal_numbers_only) {
  EXPECT_EQ(parse_integer("-12"), -12);
  for (const char* text : {"", " 1", "1 ", "1.0", "0x10", "99999999999999999999"}) {
    EXPECT_FALSE(parse_integer(text)) << text;
  }
}

TEST(FormatBytes, picks_the_unit) {
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3.0 * (1ull << 30)), "3.00 GiB");
}

TEST(DidYouMean, near_words_are_found_and_far_ones_not) {
  const std::vector<std::string> known = {"--ctx", "--threads", "--temp", "--max-tokens"};
  EXPECT_EQ(did_you_mean("--thread", known), "--threads");
  EXPECT_EQ(did_you_mean("--tmep", known), "--temp");
  EXPECT_EQ(did_you_mean("--ctxt", known), "--ctx");
  EXPECT_EQ(did_you_mean("--max-tok", known), "--max-tokens");
  EXPECT_EQ(did_you_mean("--completely-different", known), std::nullopt);
}

// A command that keeps what it was given.
struct Sample {
  std::string model, mode = "a";
  int count = 1;
  bool flag = false;
  std::vector<std::string> words;
  std::vector<int> numbers;
  std::optional<float> ratio;
  int runs = 0;

  Command command() {
    return {.name = "sample",
            .summary = "a sample",
            .usage = "[MODEL] [options]",
            .notes = "",
            .examples = {"glint sample -c 3"},
            .declare =
                [this](Flags& flags) {
                  flags.positional("MODEL", &model, "the model");
                  flags.group("Things");
                  flags.integer("-c,--count,--number", &count, "N", "how many", 1, 9);
                  flags.toggle("--flag", &flag, "whether");
                  flags.choice("--mode", &mode, {"a", "b"}, "which");
                  flags.list("--word", &words, "W", "words");
                  flags.integers("--parallel", &numbers, "N,...", "numbers", 1);
                  flags.number("--ratio", &ratio, "R", "share", 0, 1);
                },
            .run = [this] { return ++runs, kExitOk; }};
  }

  int call(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "sample");
    return run_program({command()}, arguments);
  }
};

TEST(Program, values_reach_their_targets_under_any_name) {
  Sample sample;
  EXPECT_EQ(sample.call({"folder", "--number", "4", "--flag", "--mode=b", "--word", "x", "--word",
                         "-y", "--parallel", "1,8", "--ratio", "0.5"}),
            kExitOk);
  EXPECT_EQ(sample.model, "folder");
  EXPECT_EQ(sample.count, 4);
  EXPECT_TRUE(sample.flag);
  EXPECT_EQ(sample.mode, "b");
  EXPECT_THAT(sample.words, testing::ElementsAre("x", "-y"));
  EXPECT_THAT(sample.numbers, testing::ElementsAre(1, 8));
  EXPECT_FLOAT_EQ(sample.ratio.value(), 0.5F);
  EXPECT_EQ(sample.runs, 1);
}

TEST(Program, the_last_of_repeated_values_wins) {
  Sample sample;
  EXPECT_EQ(sample.call({"-c", "2", "-c", "3"}), kExitOk);
  EXPECT_EQ(sample.count, 3);
}

TEST(Program, np_is_the_short_name_of_parallel) {
  Sample sample;
  EXPECT_EQ(sample.call({"-np", "4"}), kExitOk);
  EXPECT_THAT(sample.numbers, testing::ElementsAre(4));
}

TEST(Program, the_environment_sets_what_the_line_does_not) {
  ASSERT_EQ(setenv("GLINT_COUNT", "7", 1), 0);
  Sample sample;
  EXPECT_EQ(sample.call({}), kExitOk);
  EXPECT_EQ(sample.count, 7);
  Sample given;
  EXPECT_EQ(given.call({"-c", "2"}), kExitOk);
  EXPECT_EQ(given.count, 2);
  ASSERT_EQ(setenv("GLINT_COUNT", "70", 1), 0);
  Sample wrong;
  EXPECT_EQ(wrong.call({}), kExitUsage);
  unsetenv("GLINT_COUNT");
}

struct Refused {
  std::vector<std::string> arguments;
  std::string message;
};

TEST(Program, mistakes_end_with_2_and_name_what_was_wrong) {
  const std::vector<Refused> cases = {
      {{"--conut", "3"}, "unknown option '--conut'; did you mean --count?"},
      {{"--count", "10"}, "--count: '10' is no whole number between 1 and 9"},
      {{"--count", "two"}, "'two'"},
      {{"--count"}, "--count"},
      {{"--mode", "c"}, "--mode: 'c' is none of a|b"},
      {{"--ratio", "1.5"}, "--ratio"},
      {{"--parallel", "1,,2"}, "--parallel"},
      {{"a", "b"}, "unexpected argument 'b'"},
  };
  for (const Refused& wrong : cases) {
    Sample sample;
    testing::internal::CaptureStderr();
    EXPECT_EQ(sample.call(wrong.arguments), kExitUsage) << wrong.message;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(wrong.message));
    EXPECT_EQ(sample.runs, 0);
  }
}

TEST(Program, unknown_commands_get_a_suggestion) {
  Sample sample;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program({sample.command()}, {"smaple"}), kExitUsage);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("did you mean sample?"));
}

TEST(Program, help_lists_every_option_in_its_group_and_runs_nothing) {
  Sample sample;
  testing::internal::CaptureStdout();
  EXPECT_EQ(sample.call({"--count", "nonsense", "--help"}), kExitOk);
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("Usage: glint sample [MODEL] [options]"));
  EXPECT_THAT(help, HasSubstr("\nThings:\n"));
  EXPECT_THAT(help, HasSubstr("-c, --count, --number N"));
  EXPECT_THAT(help, HasSubstr("--mode a|b"));
  EXPECT_THAT(help, HasSubstr("glint sample -c 3"));
  EXPECT_EQ(sample.runs, 0);
}

}  // namespace
}  // namespace glint
