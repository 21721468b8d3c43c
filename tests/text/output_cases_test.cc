// What the outputs in tests/data/outputs amount to, however they are tokenised and cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "output_fixture.h"
#include "text/tool_call_writer.h"

namespace glint {
namespace {

std::size_t whole() {
  return 1000;
}
std::size_t one_byte() {
  return 1;
}

TEST(OutputCases, are_as_expected) {
  ASSERT_GE(all_output_cases().size(), 170u);
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, whole);
    EXPECT_EQ(run_case(family_tokenizer(), test, ids), test.expected);
  }
}

TEST(OutputCases, spelled_byte_by_byte) {
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, one_byte);
    EXPECT_EQ(run_case(family_tokenizer(), test, ids), test.expected);
  }
}

TEST(OutputCases, in_random_tokenisations) {
  std::mt19937 random(5);
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    for (int round = 0; round < 20; ++round) {
      const Ids ids = case_tokens(family_tokenizer(), test, [&] { return 1 + random() % 3; });
      EXPECT_EQ(run_case(family_tokenizer(), test, ids), test.expected);
    }
  }
}

TEST(OutputCases, with_each_token_cut_at_each_byte) {
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, whole);
    for (std::size_t cut = 0; cut < ids.size(); ++cut) {
      if (family_tokenizer().is_added(ids[cut])) continue;
      const std::string_view bytes = family_tokenizer().token_bytes(ids[cut]);
      for (std::size_t at = 1; at < bytes.size(); ++at) {
        Ids changed(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
        std::ranges::copy(byte_tokens(family_tokenizer(), bytes.substr(0, at)),
                          std::back_inserter(changed));
        std::ranges::copy(byte_tokens(family_tokenizer(), bytes.substr(at)),
                          std::back_inserter(changed));
        changed.insert(changed.end(), ids.begin() + static_cast<std::ptrdiff_t>(cut) + 1,
                       ids.end());
        ASSERT_EQ(run_case(family_tokenizer(), test, changed), test.expected) << cut << ' ' << at;
      }
    }
  }
}

// Where the tokenizer has none of the markers, they are read from the text.
TEST(OutputCases, with_markers_spelled_out) {
  for (const OutputCase& test : all_output_cases()) {
    if (test.tokens_only) continue;
    SCOPED_TRACE(test.name);
    for (const auto& piece : {whole, one_byte}) {
      const Ids ids = case_tokens(bare_tokenizer(), test, piece);
      EXPECT_EQ(run_case(bare_tokenizer(), test, ids), test.expected);
    }
  }
}

// Deltas are groups of tokens whose events were joined; how they are grouped says nothing.
TEST(OutputCases, in_two_and_three_deltas) {
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, whole);
    OutputParser parser(family_tokenizer(), test.options);
    std::vector<std::vector<OutputEvent>> pushed;
    for (const std::int32_t id : ids) pushed.push_back(parser.push(id));
    pushed.push_back(parser.finish(test.by_stop));
    const auto delta = [&](std::size_t first, std::size_t last) {
      std::vector<OutputEvent> joined;
      for (std::size_t i = first; i < last; ++i) {
        for (const OutputEvent& event : pushed[i]) {
          append_event(joined, event.kind, event.text, event.tool_index);
          if (event.kind == OutputEvent::Kind::kToolBegin) joined.back().id = event.id;
        }
      }
      return joined;
    };
    for (std::size_t first = 0; first <= pushed.size(); ++first) {
      for (std::size_t second = first; second <= pushed.size(); ++second) {
        FoldedTurn turn;
        fold(delta(0, first), turn);
        fold(delta(first, second), turn);
        fold(delta(second, pushed.size()), turn);
        turn.stop = parser.stop_string();
        ASSERT_EQ(turn, test.expected) << first << ' ' << second;
      }
    }
  }
}

TEST(OutputCases, what_was_shown_is_always_a_beginning_of_the_whole_answer) {
  for (const OutputCase& test : all_output_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, one_byte);
    OutputParser parser(family_tokenizer(), test.options);
    FoldedTurn shown;
    for (const std::int32_t id : ids) {
      fold(parser.push(id), shown);
      EXPECT_TRUE(test.expected.reasoning.starts_with(shown.reasoning)) << shown.reasoning;
      EXPECT_TRUE(test.expected.content.starts_with(shown.content)) << shown.content;
      ASSERT_LE(shown.calls.size(), test.expected.calls.size());
      for (std::size_t i = 0; i < shown.calls.size(); ++i) {
        EXPECT_EQ(shown.calls[i].name, test.expected.calls[i].name);
        EXPECT_TRUE(test.expected.calls[i].arguments.starts_with(shown.calls[i].arguments));
      }
    }
  }
}

TEST(OutputCases, C13_a_call_cut_by_length_shows_no_markup) {
  static constexpr std::string_view kOpenings[] = {"<tool_call", "<arg_", "<｜tool▁call",
                                                   "function_calls", "<|tool_call"};
  for (const OutputCase& test : all_output_cases()) {
    const auto shows_markup = [](const FoldedTurn& turn) {
      return std::ranges::any_of(kOpenings, [&](std::string_view opening) {
        return turn.content.find(opening) != std::string::npos;
      });
    };
    if (shows_markup(test.expected)) continue;
    SCOPED_TRACE(test.name);
    const Ids ids = case_tokens(family_tokenizer(), test, one_byte);
    for (std::size_t length = 0; length < ids.size(); ++length) {
      const FoldedTurn cut = run_case(family_tokenizer(), test, ids, length);
      EXPECT_FALSE(shows_markup(cut)) << cut.content;
    }
  }
}

}  // namespace
}  // namespace glint
