#include "output_fixture.h"

#include <algorithm>

#include "text/utf8.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

bool is_whole_utf8(std::string_view text) {
  std::string out;
  return append_utf8(out, text, false) == text.size() && out == text;
}

std::string text_or_empty(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? "" : value->as_string();
}

bool flag(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->as_bool();
}

OutputParser::Options options_of(const Json& entry) {
  OutputParser::Options options;
  options.starts_in_thinking = flag(entry, "thinking");
  options.keep_special = flag(entry, "keep_special");
  if (!flag(entry, "no_tools")) options.tools = output_tools();
  if (const Json* stops = entry.find("stops")) {
    for (const Json& stop : stops->as_array()) options.stops.push_back(stop.as_string());
  }
  if (const Json* name = entry.find("format")) {
    options.tool_format = *tool_format_named(name->as_string());
  }
  if (const Json* name = entry.find("reasoning_format")) {
    options.reasoning_format = *reasoning_format_named(name->as_string());
  }
  return options;
}

OutputCase case_of(const Json& entry) {
  OutputCase test;
  test.name = entry.find("name")->as_string();
  test.options = options_of(entry);
  test.tokens_only = flag(entry, "tokens_only");
  const auto add = [&](const std::string& text) {
    const bool plain = text.starts_with("plain:");
    test.tokens_only = test.tokens_only || plain;
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
                                     call.find("arguments")->as_string(), flag(call, "open"),
                                     text_or_empty(call, "id")});
      if (flag(call, "invalid")) test.json_arguments = false;
    }
  }
  return test;
}

std::unique_ptr<Tokenizer> tokenizer_with(const std::function<void(Json&)>& change) {
  Json json = *parse_json(read_source_file("models/demo/tokenizer.json"));
  change(json);
  auto loaded = Tokenizer::from_json(json.dump(), "tokenizer.json");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return std::move(*loaded);
}

}  // namespace

void PrintTo(const FoldedTurn& turn, std::ostream* out) {
  *out << "\n  reasoning: " << Json(turn.reasoning).dump()
       << "\n  content:   " << Json(turn.content).dump() << "\n  stop:      " << turn.stop;
  for (const FoldedCall& call : turn.calls) {
    *out << "\n  call:      " << call.name << " " << call.arguments << " " << call.id
         << (call.open ? " (open)" : "");
  }
}

void fold(const std::vector<OutputEvent>& events, FoldedTurn& turn) {
  for (const OutputEvent& event : events) {
    EXPECT_TRUE(is_whole_utf8(event.text)) << event.text;
    EXPECT_EQ(event.text.empty(), event.kind == Kind::kToolEnd);
    const bool call_open = !turn.calls.empty() && turn.calls.back().open;
    if (event.kind == Kind::kToolBegin) {
      EXPECT_FALSE(call_open);
      turn.calls.push_back({event.text, "", true, event.id});
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

std::vector<OutputCase> load_output_cases(const std::string& file) {
  const Json json = read_test_json("outputs/" + file);
  std::vector<OutputCase> cases;
  for (const Json& entry : json.find("cases")->as_array()) cases.push_back(case_of(entry));
  return cases;
}

const std::vector<OutputCase>& all_output_cases() {
  static const std::vector<OutputCase> all = [] {
    std::vector<OutputCase> cases;
    for (const char* file : {"glm.json", "deepseek.json", "kimi.json", "formats.json"}) {
      std::ranges::move(load_output_cases(file), std::back_inserter(cases));
    }
    return cases;
  }();
  return all;
}

const Json& output_tools() {
  static const Json tools = *read_test_json("outputs/glm.json").find("tools");
  return tools;
}

const Tokenizer& family_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = tokenizer_with([](Json& json) {
    Json& added = *json.find("added_tokens");
    std::int64_t id = demo_tokenizer().vocab_size();
    for (const char* text :
         {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
          "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "｜DSML｜", "<|tool_calls_section_begin|>",
          "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
          "<|tool_call_end|>"}) {
      Json token = added.as_array().back();
      token.set("id", id++);
      token.set("content", text);
      token.set("special", std::string_view(text).starts_with("<|"));
      added.push_back(std::move(token));
    }
  });
  return *tokenizer;
}

const Tokenizer& bare_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      tokenizer_with([](Json& json) { json.set("added_tokens", Json(Json::Array{})); });
  return *tokenizer;
}

Ids byte_tokens(const Tokenizer& tokenizer, std::string_view bytes) {
  // The same in all tokenizers here.
  static const Ids table = [] {
    Ids all(256, -1);
    for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
      const std::string_view text = demo_tokenizer().token_bytes(id);
      if (text.size() == 1) all[static_cast<unsigned char>(text[0])] = id;
    }
    return all;
  }();
  const auto whole = tokenizer.token_id(bytes);
  if (whole && bytes.size() > 1 && !tokenizer.is_added(*whole)) return {*whole};
  Ids ids;
  for (const char c : bytes) ids.push_back(table[static_cast<unsigned char>(c)]);
  return ids;
}

Ids case_tokens(const Tokenizer& tokenizer, const OutputCase& test,
                const std::function<std::size_t()>& piece) {
  Ids ids;
  for (const auto& [text, with_markers] : test.parts) {
    for (const std::int32_t id : tokenizer.encode(text, with_markers)) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t size =
            tokenizer.is_added(id) ? bytes.size() : std::min(piece(), bytes.size() - at);
        if (size == bytes.size()) {
          ids.push_back(id);
        } else {
          std::ranges::copy(byte_tokens(tokenizer, bytes.substr(at, size)),
                            std::back_inserter(ids));
        }
        at += size;
      }
    }
  }
  return ids;
}

FoldedTurn run_case(const Tokenizer& tokenizer, const OutputCase& test, const Ids& ids,
                    std::size_t limit) {
  OutputParser parser(tokenizer, test.options);
  FoldedTurn turn;
  for (std::size_t i = 0; i < std::min(limit, ids.size()) && !parser.stopped(); ++i) {
    fold(parser.push(ids[i]), turn);
  }
  fold(parser.finish(limit < ids.size() ? parser.stopped() : test.by_stop), turn);
  turn.stop = parser.stop_string();
  int complete = 0;
  for (const FoldedCall& call : turn.calls) {
    complete += call.open ? 0 : 1;
    if (!call.open && test.json_arguments) {
      EXPECT_TRUE(parse_json(call.arguments).has_value()) << call.arguments;
    }
  }
  EXPECT_EQ(parser.complete_tool_calls(), complete);
  return turn;
}

}  // namespace glint
