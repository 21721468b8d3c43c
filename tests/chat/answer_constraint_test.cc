// Constraints of answers, asked by a stand-in for a model that would rather say something else.
#include "chat/answer_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fixture_text.h"

namespace glint {
namespace {

struct Said {
  std::vector<std::int32_t> ids;
  std::string reasoning, content, calls;  // calls: name(arguments) one after the other
  int num_calls = 0;
  int reasoning_tokens = 0;
  bool ended = false;
  std::string error;
};

bool allows(const NextTokens& next, std::int32_t id) {
  if (next.forced >= 0) return id == next.forced;
  if (next.allowed.empty()) return true;
  const auto word = static_cast<std::size_t>(id) / 32;
  return word < next.allowed.size() && ((next.allowed[word] >> (id % 32)) & 1u) != 0;
}

class Speaker {
 public:
  explicit Speaker(std::shared_ptr<const TextAssets> text, bool gives_in = false)
      : text_(std::move(text)) {
    // What it says when it may not say what it wants: ends, then what closes things.
    fallbacks_ = text_->end_tokens();
    if (gives_in) fallbacks_.push_back(*tokenizer().token_id("<tool_call>"));
    for (const char* piece : {"\"", "}", "]", "</tool_call>", "</arg_value>", ":", "1"}) {
      for (const std::int32_t id : text_->tokenizer().encode(piece)) fallbacks_.push_back(id);
    }
  }

  const Tokenizer& tokenizer() const { return text_->tokenizer(); }

  // `wanted` is said token by token where it may be, then the end.
  Said say(const ChatRequest& request, std::vector<std::int32_t> wanted, int most = 200) const {
    Said said;
    const auto prompt = text_->prepare(request);
    auto generate = prompt ? text_->to_generate_request(request, *prompt, 4096)
                           : Result<GenerateRequest>(prompt.error());
    if (!generate) {
      said.error = generate.error().message;
      return said;
    }
    OutputParser parser(tokenizer(), parser_options(request, *prompt));
    for (int step = 0; step < most && !said.ended; ++step) {
      const std::int32_t wish = static_cast<std::size_t>(step) < wanted.size()
                                    ? wanted[static_cast<std::size_t>(step)]
                                    : text_->end_tokens().front();
      const std::int32_t token = pick(generate->constraint.get(), wish, said);
      if (token < 0) return said;
      said.ids.push_back(token);
      said.ended = std::ranges::find(text_->end_tokens(), token) != text_->end_tokens().end();
      if (!said.ended) collect(parser.push(token), said);
    }
    collect(parser.finish(said.ended), said);
    said.reasoning_tokens = parser.reasoning_tokens();
    return said;
  }
  Said say(const ChatRequest& request, std::string_view wanted, int most = 200) const {
    return say(request, tokenizer().encode(wanted), most);
  }

 private:
  OutputParser::Options parser_options(const ChatRequest& request,
                                       const PreparedPrompt& prompt) const {
    OutputParser::Options options;
    options.tool_format = text_->tool_format();
    options.reasoning_format = text_->reasoning_format();
    options.starts_in_thinking = prompt.ends_in_thinking;
    if (request.tool_choice.kind != ToolChoice::Kind::kNone) options.tools = request.tools;
    return options;
  }

  std::int32_t pick(TokenConstraint* constraint, std::int32_t wish, Said& said) const {
    if (constraint == nullptr) return wish;
    const auto next = constraint->next();
    if (!next) {
      said.error = next.error().message;
      return -1;
    }
    std::int32_t token = next->forced >= 0 ? next->forced : wish;
    for (std::size_t index = 0; !allows(*next, token) && index < fallbacks_.size(); ++index) {
      token = fallbacks_[index];
    }
    for (std::int32_t id = 0; !allows(*next, token) && id < tokenizer().vocab_size(); ++id)
      token = id;
    EXPECT_TRUE(allows(*next, token)) << "nothing may be said";
    if (const auto accepted = constraint->accept(token); !accepted) {
      said.error = accepted.error().message;
      return -1;
    }
    return token;
  }

  static void collect(const std::vector<OutputEvent>& events, Said& said) {
    for (const OutputEvent& event : events) {
      switch (event.kind) {
        case OutputEvent::Kind::kReasoning:
          said.reasoning += event.text;
          break;
        case OutputEvent::Kind::kContent:
          said.content += event.text;
          break;
        case OutputEvent::Kind::kToolBegin:
          said.calls += event.text + "(";
          break;
        case OutputEvent::Kind::kToolArgs:
          said.calls += event.text;
          break;
        case OutputEvent::Kind::kToolEnd:
          said.calls += ")";
          ++said.num_calls;
          break;
      }
    }
  }

  std::shared_ptr<const TextAssets> text_;
  std::vector<std::int32_t> fallbacks_;
};

ChatRequest ask() {
  return chat_of(R"([{"role":"user","content":"q"}])");
}

ChatRequest ask_for_city(bool thinking) {
  ChatRequest request = ask();
  request.enable_thinking = thinking;
  request.format.kind = AnswerFormat::Kind::kJsonSchema;
  request.format.schema = as_json(
      R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"integer"}},
          "required":["city","n"],"additionalProperties":false})");
  return request;
}

void expect_city(const Said& said, const std::string& about) {
  EXPECT_EQ(said.error, "") << about;
  EXPECT_TRUE(said.ended) << about << ": " << said.content;
  const auto json = parse_json(said.content);
  ASSERT_TRUE(json.has_value()) << about << ": " << said.content;
  ASSERT_NE(json->find("city"), nullptr) << about << ": " << said.content;
  EXPECT_TRUE(json->find("city")->is_string() && json->find("n")->is_int()) << said.content;
}

ChatRequest ask_with_tools(ToolChoice::Kind choice) {
  ChatRequest request = ask();
  request.enable_thinking = false;
  request.tools = as_json(R"([
    {"type":"function","function":{"name":"weather","parameters":{"type":"object",
      "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city","days"]}}},
    {"type":"function","function":{"name":"time","parameters":{"type":"object","properties":{}}}}])");
  request.tool_choice.kind = choice;
  return request;
}

constexpr const char* kWeather =
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
    "<arg_value>3</arg_value></tool_call>";

TEST(answer_format, holds_with_thinking_off) {  // O02
  for (const char* name : {"glm45", "glm47", "glm53"}) {
    const Speaker speaker(fixture_text(name));
    expect_city(speaker.say(ask_for_city(false), "Sure! The answer is 42"), name);
    expect_city(speaker.say(ask_for_city(false), R"({"city":"Paris","n":"many"})"), name);
    expect_city(speaker.say(ask_for_city(false), "\n\n{\"city\": \"Rome\", \"n\": 7}"), name);
  }
}

TEST(answer_format, begins_behind_the_thought) {
  for (const char* name : {"glm47", "glm53"}) {
    const Said said =
        Speaker(fixture_text(name))
            .say(ask_for_city(true), "I think {\"x\": 1}, maybe.</think>\nThe answer is 42");
    EXPECT_EQ(said.reasoning, "I think {\"x\": 1}, maybe.") << name;
    expect_city(said, name);
  }
}

TEST(answer_format, leaves_room_for_a_thought_that_the_model_opens) {
  const Speaker speaker(fixture_text("glm45"));
  const Said thought = speaker.say(ask_for_city(true), "\n<think>hm</think>\nThe answer is 42");
  EXPECT_EQ(thought.reasoning, "hm");
  expect_city(thought, "thought");
  const Said none = speaker.say(ask_for_city(true), "The answer is 42");
  EXPECT_EQ(none.reasoning, "");
  expect_city(none, "no thought");
  // One thought only.
  const Said twice = speaker.say(ask_for_city(true), "<think>a</think><think>b</think>no");
  EXPECT_EQ(twice.reasoning, "a");
  expect_city(twice, "two thoughts");
}

TEST(answer_format, a_thought_cannot_end_the_answer) {
  const Speaker speaker(fixture_text("glm47"));
  const Said said = speaker.say(ask_for_city(true), "hm<|user|><|endoftext|> so</think>42");
  EXPECT_TRUE(said.reasoning.starts_with("hm")) << said.reasoning;
  expect_city(said, "ends");
}

TEST(answer_format, begins_behind_a_thought_whose_end_is_spelled) {
  const Speaker speaker(fixture_text("glm47"));
  std::vector<std::int32_t> wanted = speaker.tokenizer().encode("hm ");
  for (const char* piece : {"</think>", "\nThe answer is 42"}) {
    for (const std::int32_t id : speaker.tokenizer().encode(piece, false)) wanted.push_back(id);
  }
  const Said said = speaker.say(ask_for_city(true), wanted);
  EXPECT_EQ(said.reasoning, "hm ");
  expect_city(said, "spelled");
}

TEST(answer_format, every_kind_is_held) {
  const Speaker speaker(fixture_text("glm47"));
  ChatRequest request = ask();
  request.enable_thinking = false;
  AnswerFormat& format = request.format;
  const auto content = [&](const char* wanted) {
    const Said said = speaker.say(request, wanted);
    EXPECT_EQ(said.error, "");
    EXPECT_TRUE(said.ended) << said.content;
    return said.content;
  };
  format.kind = AnswerFormat::Kind::kJsonObject;
  EXPECT_TRUE(parse_json(content("[1, 2]"))->is_object());
  EXPECT_EQ(content(R"({"a": [1, 2]})"), R"({"a": [1, 2]})");
  format.schema =
      as_json(R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"]})");
  EXPECT_TRUE(parse_json(content("{\"b\": 1}"))->find("a")->is_null());
  format.kind = AnswerFormat::Kind::kRegex;
  format.text = "[0-9]{3}-[a-c]";
  EXPECT_EQ(content("123-b"), "123-b");
  EXPECT_EQ(content("x").size(), 5u);
  format.kind = AnswerFormat::Kind::kChoice;
  format.choices = {"yes \"or\" so", "no\n"};
  EXPECT_EQ(content("no\n way"), "no\n");
  EXPECT_EQ(content("yes \"or\" so"), format.choices[0]);
  format.kind = AnswerFormat::Kind::kLark;
  format.text = "start: \"a\" b\nb: \"b\" | \"c\"\n";
  EXPECT_EQ(content("acb"), "ac");
  format.kind = AnswerFormat::Kind::kGbnf;
  format.text = "root ::= \"x\" [0-9]\n";
  EXPECT_EQ(content("x7 and more"), "x7");
}

TEST(answer_format, any_value_can_end) {  // O04
  ChatRequest request = ask();
  request.enable_thinking = false;
  request.format.kind = AnswerFormat::Kind::kJsonSchema;
  request.format.schema = as_json("{}");
  const Said said = Speaker(fixture_text("glm47")).say(request, "12345678901234567890");
  EXPECT_TRUE(said.ended);
  EXPECT_TRUE(parse_json(said.content).has_value()) << said.content;
}

TEST(answer_format, what_cannot_be_held_is_refused_by_name) {  // O05
  const auto text = fixture_text("glm47");
  ChatRequest request = ask();
  request.format.field = "text.format";
  const auto refused = [&] {
    const auto out = text->to_generate_request(request, *text->prepare(request), 100);
    EXPECT_FALSE(out.has_value());
    if (out) return std::string();
    EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument);
    return out.error().message;
  };
  request.format.kind = AnswerFormat::Kind::kJsonSchema;
  for (const char* schema :
       {R"({"type":"string","pattern":"("})", R"({"type":"thing"})",
        R"({"type":"array","items":{},"uniqueItems":true})", R"({"$ref":"#/nowhere"})"}) {
    request.format.schema = as_json(schema);
    EXPECT_TRUE(refused().starts_with("text.format: ")) << schema << ": " << refused();
  }
  request.format.kind = AnswerFormat::Kind::kRegex;
  request.format.text = "[";
  EXPECT_TRUE(refused().starts_with("text.format: ")) << refused();
  request.format.kind = AnswerFormat::Kind::kLark;
  request.format.text = "start: nothing";
  EXPECT_TRUE(refused().starts_with("text.format: ")) << refused();
  request.format.kind = AnswerFormat::Kind::kChoice;
  EXPECT_EQ(refused(), "text.format: needs at least one choice");
  request.format.choices = {"a", ""};
  EXPECT_EQ(refused(), "text.format[1]: must not be empty");
}

TEST(thinking_budget, closes_a_thought_with_its_token) {  // R05, R06
  struct Case {
    const char *name, *wanted;
  };
  for (const Case& one : {Case{"glm47", "I go on and on and on and on and on"},
                          Case{"glm45", "\n<think>I go on and on and on and on and on"}}) {
    for (const int budget : {0, 1, 5}) {
      const auto text = fixture_text(one.name);
      ChatRequest request = ask();
      request.thinking_budget = budget;
      const Said said = Speaker(text).say(request, one.wanted);
      EXPECT_EQ(said.reasoning_tokens, budget) << one.name;
      EXPECT_EQ(std::ranges::count(said.ids, *text->tokenizer().token_id("</think>")), 1);
      EXPECT_FALSE(said.content.empty());
      EXPECT_TRUE(said.ended);
    }
  }
}

TEST(thinking_budget, leaves_a_shorter_thought_alone) {
  ChatRequest request = ask();
  request.thinking_budget = 50;
  const Said said = Speaker(fixture_text("glm47")).say(request, "Hm.</think>Paris");
  EXPECT_EQ(said.reasoning, "Hm.");
  EXPECT_EQ(said.content, "Paris");
}

TEST(thinking_budget, comes_before_a_format) {
  ChatRequest request = ask_for_city(true);
  request.thinking_budget = 3;
  const Said said =
      Speaker(fixture_text("glm47")).say(request, "I go on and on and on and on and on and on");
  EXPECT_EQ(said.reasoning_tokens, 3);
  expect_city(said, "budget");
}

TEST(thinking_budget, means_nothing_where_there_are_no_thoughts) {
  TextOptions options;
  options.reasoning_format = ReasoningFormat::kNone;
  ChatRequest request = ask();
  request.thinking_budget = 0;
  const Said said = Speaker(fixture_text("glm47", options)).say(request, "Paris");
  EXPECT_EQ(said.content, "Paris");
}

TEST(forced_calls, are_made_by_a_model_that_would_not) {
  for (const char* name : {"glm45", "glm47"}) {
    const Speaker speaker(fixture_text(name), true);
    const ChatRequest required = ask_with_tools(ToolChoice::Kind::kRequired);
    const Said said = speaker.say(required, "I would rather not.");
    EXPECT_EQ(said.error, "") << name;
    EXPECT_GE(said.num_calls, 1) << name << ": " << said.content;
    EXPECT_TRUE(said.ended) << name;
    ChatRequest named = ask_with_tools(ToolChoice::Kind::kNamed);
    named.tool_choice.names = {"time"};
    const Said time = speaker.say(named, "I would rather not.");
    EXPECT_EQ(time.calls, "time({})") << name;
    EXPECT_EQ(time.content, "") << name;
    EXPECT_TRUE(time.ended) << name;
  }
}

TEST(forced_calls, follow_text_and_thought) {
  const Speaker speaker(fixture_text("glm47"));
  ChatRequest request = ask_with_tools(ToolChoice::Kind::kRequired);
  const std::string weather = R"(weather({"city": "Paris", "days": 3}))";
  Said said = speaker.say(request, std::string("Let me look. ") + kWeather);
  EXPECT_EQ(said.calls, weather);
  EXPECT_EQ(said.content.substr(0, 12), "Let me look.");
  request.enable_thinking = true;
  said = speaker.say(request, std::string("hm</think>") + kWeather + kWeather);
  EXPECT_EQ(said.calls, weather + weather);
  EXPECT_EQ(said.reasoning, "hm");
  said = speaker.say(request, std::string("hm") + kWeather);  // a call ends the thought
  EXPECT_EQ(said.calls, weather);
  EXPECT_EQ(said.reasoning, "hm");
  request.parallel_tool_calls = false;
  said = speaker.say(request, std::string("hm</think>") + kWeather + kWeather);
  EXPECT_EQ(said.calls, weather);
}

TEST(forced_calls, need_tools_and_a_known_markup) {
  const auto text = fixture_text("glm47");
  const auto error = [](const std::shared_ptr<const TextAssets>& assets,
                        const ChatRequest& request) {
    const auto out = assets->to_generate_request(request, *assets->prepare(request), 1000);
    EXPECT_FALSE(out.has_value());
    return out ? "" : out.error().message;
  };
  ChatRequest request = ask();
  request.tool_choice.kind = ToolChoice::Kind::kRequired;
  EXPECT_TRUE(error(text, request).starts_with("tool_choice: "));
  request = ask_with_tools(ToolChoice::Kind::kNamed);
  request.tool_choice.names = {"nothing"};
  EXPECT_EQ(error(text, request), "tool_choice: no tool is called 'nothing'");
  TextOptions options;
  options.tool_format = ToolFormat::kNone;
  request = ask_with_tools(ToolChoice::Kind::kRequired);
  EXPECT_TRUE(error(fixture_text("glm47", options), request).starts_with("tool_choice: "));
}

TEST(free_calls, are_held_where_they_promise_or_are_told_to_be) {
  const std::string wrong =
      "<tool_call>snow<arg_key>depth</arg_key><arg_value>x</arg_value></tool_call>";
  ChatRequest request = ask_with_tools(ToolChoice::Kind::kAuto);
  const auto said = [&](TextOptions::ToolGrammar held, const std::string& wanted) {
    TextOptions options;
    options.tool_grammar = held;
    return Speaker(fixture_text("glm47", options)).say(request, wanted);
  };
  using Held = TextOptions::ToolGrammar;
  EXPECT_EQ(said(Held::kOff, wrong).calls, R"(snow({"depth": "x"}))");
  EXPECT_EQ(said(Held::kStrict, wrong).calls, R"(snow({"depth": "x"}))");
  for (const Held held : {Held::kNames, Held::kAlways}) {
    const Said named = said(held, wrong);
    EXPECT_TRUE(named.calls.starts_with("weather(") || named.calls.starts_with("time("))
        << named.calls;
    EXPECT_EQ(said(held, "No call.").content, "No call.");
    EXPECT_EQ(said(held, kWeather).calls, R"(weather({"city": "Paris", "days": 3}))");
  }
  // A value of the wrong type gives way to one of the right type.
  const std::string text_days =
      "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
      "<arg_value>many</arg_value></tool_call>";
  EXPECT_EQ(said(Held::kAlways, text_days).calls.find("many"), std::string::npos);
  request.tools.as_array()[0].find("function")->set("strict", Json(true));
  EXPECT_EQ(said(Held::kStrict, text_days).calls.find("many"), std::string::npos);
  EXPECT_NE(said(Held::kOff, text_days).calls.find("many"), std::string::npos);
  request.tool_choice.names = {"time"};
  EXPECT_EQ(said(Held::kOff, wrong).calls, "time({})");
}

TEST(free_calls, end_the_thought_they_are_made_in) {
  TextOptions options;
  options.tool_grammar = TextOptions::ToolGrammar::kAlways;
  ChatRequest request = ask_with_tools(ToolChoice::Kind::kAuto);
  request.enable_thinking = true;
  request.thinking_budget = 50;
  const Said said = Speaker(fixture_text("glm47", options))
                        .say(request, std::string("hm") + kWeather + "and text");
  EXPECT_EQ(said.reasoning, "hm");
  EXPECT_EQ(said.calls, R"(weather({"city": "Paris", "days": 3}))");
  EXPECT_EQ(said.content, "");
  EXPECT_TRUE(said.ended);
}

TEST(free_calls, that_are_forbidden_are_never_begun) {
  const auto text = fixture_text("glm47");
  const ChatRequest request = ask_with_tools(ToolChoice::Kind::kNone);
  const Said said = Speaker(text).say(request, kWeather);
  EXPECT_EQ(std::ranges::count(said.ids, *text->tokenizer().token_id("<tool_call>")), 0);
  EXPECT_EQ(said.num_calls, 0);
}

TEST(calls_and_format, are_alternatives) {
  const Speaker speaker(fixture_text("glm47"));
  ChatRequest request = ask_for_city(true);
  request.tools = ask_with_tools(ToolChoice::Kind::kAuto).tools;
  for (const char* before : {"hm</think>", "hm</think>\n", "hm"}) {
    const Said call = speaker.say(request, std::string(before) + kWeather);
    EXPECT_EQ(call.calls, R"(weather({"city": "Paris", "days": 3}))") << before << call.error;
    EXPECT_EQ(call.content, "");
    EXPECT_TRUE(call.ended);
  }
  const Said content = speaker.say(request, "hm</think>The answer is 42" + std::string(kWeather));
  EXPECT_EQ(content.num_calls, 0);
  expect_city(content, "content");
  request.tool_choice.kind = ToolChoice::Kind::kNone;
  expect_city(speaker.say(request, "hm</think>" + std::string(kWeather)), "none");
}

// The bits of a mask, or what is forced.
std::vector<std::uint32_t> copy_of(const NextTokens& next) {
  if (next.forced >= 0) return {static_cast<std::uint32_t>(next.forced)};
  return {next.allowed.begin(), next.allowed.end()};
}

TEST(rollback, brings_every_place_back) {
  const auto text = fixture_text("glm45");
  ChatRequest request = ask_for_city(true);
  request.thinking_budget = 6;
  request.tools = ask_with_tools(ToolChoice::Kind::kAuto).tools;
  const Speaker speaker(text);
  std::mt19937 random(5);
  for (const char* wanted :
       {"\n<think>so it goes on and on</think>\n\n{\"city\": \"Paris\", \"n\": 12}",
        "\n<think>hm<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>",
        "{\"n\": 1}"}) {
    const std::vector<std::int32_t> ids = speaker.say(request, wanted).ids;
    const auto prompt = text->prepare(request);
    const auto constraint = text->to_generate_request(request, *prompt, 4096)->constraint;
    std::vector<std::vector<std::uint32_t>> masks;
    for (std::size_t at = 0; at < ids.size();) {
      const auto next = constraint->next();
      ASSERT_TRUE(next.has_value()) << next.error().message;
      if (at == masks.size()) masks.push_back(copy_of(*next));
      EXPECT_EQ(masks[at], copy_of(*next)) << at;
      ASSERT_TRUE(constraint->accept(ids[at]).has_value());
      ++at;
      // Short ways back, or the walk takes for ever to reach the end.
      const auto back = random() % std::min<std::size_t>(at + 1, 6);
      if (random() % 3 != 0) continue;
      ASSERT_TRUE(constraint->rollback(static_cast<int>(back)).has_value());
      at -= back;
      if (masks.size() == ids.size() && random() % 4 == 0) break;
    }
    ASSERT_GE(masks.size(), 1u);
    EXPECT_FALSE(constraint->rollback(AnswerConstraint::kMaxRollback + 1).has_value());
  }
}

TEST(rollback, choices_do_not_share_places) {
  const auto text = fixture_text("glm47");
  const ChatRequest request = ask_for_city(false);
  const auto prompt = text->prepare(request);
  const auto one = text->to_generate_request(request, *prompt, 4096)->constraint;
  const auto other = text->to_generate_request(request, *prompt, 4096)->constraint;
  const auto start = copy_of(*other->next());
  for (const std::int32_t id : text->tokenizer().encode("{\"city\": \"")) {
    EXPECT_TRUE(one->accept(id).has_value());
  }
  EXPECT_EQ(copy_of(*other->next()), start);
  EXPECT_NE(copy_of(*one->next()), start);
}

}  // namespace
}  // namespace glint
