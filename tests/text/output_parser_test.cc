#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"
#include "text_fixture.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

struct Call {
  std::string name;
  std::string arguments;
  bool open = true;
  bool operator==(const Call&) const = default;
};

// Everything an answer amounts to.
struct Turn {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::string stop;
  bool operator==(const Turn&) const = default;
};

void PrintTo(const Turn& turn, std::ostream* out) {
  *out << "\n  reasoning: " << Json(turn.reasoning).dump()
       << "\n  content:   " << Json(turn.content).dump() << "\n  stop:      " << turn.stop;
  for (const Call& call : turn.calls) {
    *out << "\n  call:      " << call.name << " " << call.arguments << (call.open ? " (open)" : "");
  }
}

bool is_whole_utf8(std::string_view text) {
  std::string out;
  return append_utf8(out, text, false) == text.size() && out == text;
}

// Adds events to the turn, checking that calls come one after the other, in order.
void fold(const std::vector<OutputEvent>& events, Turn& turn) {
  for (const OutputEvent& event : events) {
    EXPECT_TRUE(is_whole_utf8(event.text)) << event.text;
    EXPECT_EQ(event.text.empty(), event.kind == Kind::kToolEnd);
    const bool call_open = !turn.calls.empty() && turn.calls.back().open;
    if (event.kind == Kind::kToolBegin) {
      EXPECT_FALSE(call_open);
      turn.calls.push_back({event.text, "", true});
    } else if (event.kind == Kind::kReasoning || event.kind == Kind::kContent) {
      EXPECT_FALSE(call_open);
      EXPECT_EQ(event.tool_index, -1);
      (event.kind == Kind::kReasoning ? turn.reasoning : turn.content) += event.text;
      continue;
    } else {
      ASSERT_TRUE(call_open);
      if (event.kind == Kind::kToolArgs) turn.calls.back().arguments += event.text;
      if (event.kind == Kind::kToolEnd) turn.calls.back().open = false;
    }
    EXPECT_EQ(event.tool_index, static_cast<int>(turn.calls.size()) - 1);
  }
}

using Ids = std::vector<std::int32_t>;

struct Case {
  std::string name;
  OutputParser::Options options;
  std::vector<std::pair<std::string, bool>> parts;  // text, are markers tokens
  bool by_stop = true;
  Turn expected;
};

Turn run(const Case& test, const Ids& ids, std::size_t limit = SIZE_MAX) {
  OutputParser parser(demo_tokenizer(), test.options);
  Turn turn;
  for (std::size_t i = 0; i < std::min(limit, ids.size()) && !parser.stopped(); ++i) {
    fold(parser.push(ids[i]), turn);
  }
  fold(parser.finish(limit < ids.size() ? parser.stopped() : test.by_stop), turn);
  turn.stop = parser.stop_string();
  int complete = 0;
  for (const Call& call : turn.calls) {
    complete += call.open ? 0 : 1;
    if (!call.open) {
      EXPECT_TRUE(parse_json(call.arguments).has_value()) << call.arguments;
    }
  }
  EXPECT_EQ(parser.complete_tool_calls(), complete);
  return turn;
}

// The tokens of the parts; ordinary text is cut into pieces of `piece()` characters that are
// encoded apart.
template <typename Piece>
Ids tokens(const Case& test, Piece piece) {
  Ids ids;
  for (const auto& [text, with_markers] : test.parts) {
    for (const std::int32_t id : demo_tokenizer().encode(text, with_markers)) {
      if (demo_tokenizer().is_added(id)) {
        ids.push_back(id);
        continue;
      }
      const std::string_view bytes = demo_tokenizer().token_bytes(id);
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t size = std::min<std::size_t>(piece(), bytes.size() - at);
        const auto found = demo_tokenizer().token_id(std::string(bytes.substr(at, size)));
        if (size == bytes.size()) {
          ids.push_back(id);
        } else if (found && size > 1 && !demo_tokenizer().is_added(*found)) {
          ids.push_back(*found);
        } else {
          for (const char c : bytes.substr(at, size)) {
            static const Ids table = [] {
              Ids all(256, -1);
              for (std::int32_t t = 0; t < demo_tokenizer().vocab_size(); ++t) {
                const std::string_view b = demo_tokenizer().token_bytes(t);
                if (b.size() == 1) all[static_cast<unsigned char>(b[0])] = t;
              }
              return all;
            }();
            ids.push_back(table[static_cast<unsigned char>(c)]);
          }
        }
        at += size;
      }
    }
  }
  return ids;
}

std::string text_or_empty(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? "" : value->as_string();
}

bool flag(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->as_bool();
}

std::vector<Case> load_cases() {
  const Json file = read_test_json("output_cases.json");
  std::vector<Case> cases;
  for (const Json& entry : file.find("cases")->as_array()) {
    Case test;
    test.name = entry.find("name")->as_string();
    test.options.starts_in_thinking = flag(entry, "thinking");
    if (!flag(entry, "no_tools")) test.options.tools = *file.find("tools");
    if (const Json* stops = entry.find("stops")) {
      for (const Json& stop : stops->as_array()) test.options.stops.push_back(stop.as_string());
    }
    const auto add = [&](const std::string& text) {
      const bool plain = text.starts_with("plain:");
      test.parts.emplace_back(plain ? text.substr(6) : text, !plain);
    };
    const Json* text = entry.find("text");
    if (text->is_string()) {
      add(text->as_string());
    } else {
      for (const Json& part : text->as_array()) add(part.as_string());
    }
    test.by_stop = text_or_empty(entry, "end") != "length";
    test.expected.reasoning = text_or_empty(entry, "reasoning");
    test.expected.content = text_or_empty(entry, "content");
    test.expected.stop = text_or_empty(entry, "stop");
    if (const Json* calls = entry.find("calls")) {
      for (const Json& call : calls->as_array()) {
        test.expected.calls.push_back({call.find("name")->as_string(),
                                       call.find("arguments")->as_string(), flag(call, "open")});
      }
    }
    cases.push_back(std::move(test));
  }
  return cases;
}

constexpr auto kWhole = [] { return 1000; };
constexpr auto kBytes = [] { return 1; };

TEST(OutputParser, cases) {
  const std::vector<Case> cases = load_cases();
  ASSERT_GE(cases.size(), 70u);
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    EXPECT_EQ(run(test, tokens(test, kWhole)), test.expected);
  }
}

TEST(OutputParser, cases_spelled_byte_by_byte) {
  for (const Case& test : load_cases()) {
    SCOPED_TRACE(test.name);
    EXPECT_EQ(run(test, tokens(test, kBytes)), test.expected);
  }
}

TEST(OutputParser, cases_in_random_tokenisations) {
  std::mt19937 random(5);
  for (const Case& test : load_cases()) {
    SCOPED_TRACE(test.name);
    for (int round = 0; round < 20; ++round) {
      const Ids ids = tokens(test, [&] { return 1 + random() % 3; });
      EXPECT_EQ(run(test, ids), test.expected);
    }
  }
}

TEST(OutputParser, what_was_shown_is_always_a_beginning_of_the_whole_answer) {
  for (const Case& test : load_cases()) {
    SCOPED_TRACE(test.name);
    const Ids ids = tokens(test, kBytes);
    const Turn whole = run(test, ids);
    OutputParser parser(demo_tokenizer(), test.options);
    Turn shown;
    for (const std::int32_t id : ids) {
      fold(parser.push(id), shown);
      EXPECT_TRUE(whole.reasoning.starts_with(shown.reasoning)) << shown.reasoning;
      EXPECT_TRUE(whole.content.starts_with(shown.content)) << shown.content;
      ASSERT_LE(shown.calls.size(), whole.calls.size());
      for (std::size_t i = 0; i < shown.calls.size(); ++i) {
        EXPECT_EQ(shown.calls[i].name, whole.calls[i].name);
        EXPECT_TRUE(whole.calls[i].arguments.starts_with(shown.calls[i].arguments));
      }
    }
  }
}

TEST(OutputParser, an_answer_cut_by_length_never_shows_markup_of_a_call) {
  for (const Case& test : load_cases()) {
    if (test.expected.content.find("<tool_call>") != std::string::npos) continue;
    SCOPED_TRACE(test.name);
    const Ids ids = tokens(test, kBytes);
    for (std::size_t length = 0; length < ids.size(); ++length) {
      const Turn cut = run(test, ids, length);
      EXPECT_EQ(cut.content.find("<tool_call"), std::string::npos) << cut.content;
      EXPECT_EQ(cut.content.find("<arg_"), std::string::npos) << cut.content;
    }
  }
}

TEST(OutputParser, text_arguments_stream_as_they_grow) {
  OutputParser::Options options;
  options.tools = *parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}}}])");
  OutputParser parser(demo_tokenizer(), options);
  const auto push = [&](std::string_view text) {
    std::string arguments;
    for (const std::int32_t id : demo_tokenizer().encode(text)) {
      for (const OutputEvent& event : parser.push(id)) {
        if (event.kind == Kind::kToolArgs) arguments += event.text;
      }
    }
    return arguments;
  };
  EXPECT_EQ(push("<tool_call>f<arg_key>s</arg_key><arg_value>"), R"({"s": ")");
  EXPECT_EQ(push("one\n"), "one\\n");
  EXPECT_EQ(push("two"), "two");
  EXPECT_EQ(push("</arg_value><arg_key>n</arg_key><arg_value>"), "\"");
  EXPECT_EQ(push("12"), "");
  EXPECT_EQ(push("</arg_value>"), R"(, "n": 12)");
  EXPECT_EQ(push("</tool_call>"), "}");
}

TEST(OutputParser, reasoning_and_content_stream_as_they_come) {
  OutputParser::Options options;
  options.starts_in_thinking = true;
  OutputParser parser(demo_tokenizer(), options);
  std::size_t events = 0;
  for (const std::int32_t id : demo_tokenizer().encode("one two three</think>four five six")) {
    events += parser.push(id).size();
  }
  EXPECT_GE(events, 8u);
}

TEST(OutputParser, reasoning_tokens_are_counted) {
  OutputParser::Options options;
  options.starts_in_thinking = true;
  OutputParser parser(demo_tokenizer(), options);
  EXPECT_TRUE(parser.in_reasoning());
  const Ids thought = demo_tokenizer().encode("some thought here");
  for (const std::int32_t id : thought) parser.push(id);
  parser.push(*demo_tokenizer().token_id("</think>"));
  EXPECT_FALSE(parser.in_reasoning());
  for (const std::int32_t id : demo_tokenizer().encode("an answer")) parser.push(id);
  EXPECT_EQ(parser.reasoning_tokens(), static_cast<int>(thought.size()));
}

TEST(OutputParser, nothing_comes_after_a_stop_string) {
  OutputParser::Options options;
  options.stops = {"stop"};
  OutputParser parser(demo_tokenizer(), options);
  for (const std::int32_t id : demo_tokenizer().encode("a stop")) parser.push(id);
  EXPECT_TRUE(parser.stopped());
  EXPECT_EQ(parser.stop_string(), "stop");
  for (const std::int32_t id : demo_tokenizer().encode(" b c"))
    EXPECT_TRUE(parser.push(id).empty());
  EXPECT_TRUE(parser.finish(true).empty());
}

TEST(OutputParser, a_dangling_character_is_flushed_at_the_end) {
  OutputParser parser(demo_tokenizer(), {});
  Turn turn;
  std::int32_t lead = -1;
  for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
    if (demo_tokenizer().token_bytes(id) == "\xE4") lead = id;
  }
  ASSERT_GE(lead, 0);
  EXPECT_TRUE(parser.push(lead).empty());
  fold(parser.finish(true), turn);
  EXPECT_EQ(turn.content, "\uFFFD");
}

TEST(OutputParser, a_tokenizer_without_markers_gives_plain_content) {
  auto json = parse_json(read_source_file("models/demo/tokenizer.json"));
  ASSERT_TRUE(json.has_value());
  json->set("added_tokens", Json(Json::Array{}));
  const auto bare = Tokenizer::from_json(json->dump(), "bare");
  ASSERT_TRUE(bare.has_value()) << bare.error().message;
  OutputParser::Options options;
  options.tools = *parse_json(R"([{"name": "f"}])");
  OutputParser parser(**bare, options);
  Turn turn;
  const std::string text = "<think>a</think><tool_call>f</tool_call>";
  for (const std::int32_t id : (*bare)->encode(text)) fold(parser.push(id), turn);
  fold(parser.finish(true), turn);
  EXPECT_EQ(turn.content, text);
}

TEST(OutputParser, a_long_argument_takes_time_in_proportion) {
  OutputParser::Options options;
  options.tools = *parse_json(
      R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"o":{"type":"object"}}}}])");
  for (const char* key : {"s", "o"}) {
    OutputParser parser(demo_tokenizer(), options);
    Turn turn;
    const auto push = [&](std::string_view text) {
      for (const std::int32_t id : demo_tokenizer().encode(text)) fold(parser.push(id), turn);
    };
    push("<tool_call>f<arg_key>" + std::string(key) + "</arg_key><arg_value>");
    for (int i = 0; i < 1000; ++i) push("[a \"quoted\" line of text]\n");
    push("</arg_value></tool_call>");
    ASSERT_EQ(turn.calls.size(), 1u);
    EXPECT_GT(turn.calls[0].arguments.size(), 26'000u);
  }
}

TEST(OutputParser, any_tokens_are_survived) {
  std::mt19937 random(23);
  for (int round = 0; round < 400; ++round) {
    Case test;
    test.options.starts_in_thinking = random() % 2 == 0;
    test.options.tools = *parse_json(
        R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}}])");
    if (random() % 2 == 0) test.options.stops = {"f s", "n"};
    Ids ids;
    for (int i = 0; i < 60; ++i) {
      const bool marker = random() % 2 == 0;
      ids.push_back(static_cast<std::int32_t>(marker ? 1526 + random() % 10 : random() % 1526));
      if (random() % 4 == 0) {
        for (const std::int32_t id : demo_tokenizer().encode("f\ns n")) ids.push_back(id);
      }
    }
    test.by_stop = random() % 2 == 0;
    run(test, ids);
  }
}

}  // namespace
}  // namespace glint
