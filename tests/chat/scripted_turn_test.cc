// Turns under the real engine whose tokens the script device picks: what finish reasons, formats,
// budgets and log-probs are made of, end to end.
#include <gtest/gtest.h>

#include <random>

#include "fixture_text.h"
#include "inbox.h"

namespace glint {
namespace {

constexpr const char* kScript = R"(
{"when": "<|user|>skips", "say": "Paris."}
{"when": "<|user|>thinks", "say": "The Question is hard.</think>Questions have answers."}
{"when": "<|user|>calls", "say": "Wait. <tool_call>now</tool_call><tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"}
{"when": "<|user|>shouts", "say": "one <sop> two"}
{"when": "<|user|>breaks", "say": "it was going well until it did not", "nan_at": 3}
{"when": "<|user|>rambles", "say": "on and on and on and on and on and on and on and on and on"}
)";

struct ScriptedTurn : testing::Test {
  void SetUp() override {
    TextOptions options;
    options.script = kScript;
    auto loaded = TextAssets::load(demo_folder(), demo_json("config.json"),
                                   demo_json("generation_config.json"), options);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    text = *loaded;
    rig.start();
  }
  void TearDown() override {
    rig.engine.reset();
    rig.cache.check_integrity();
  }
  static ChatRequest ask(const std::string& user, bool thinking) {
    ChatRequest request = chat_of(R"([{"role":"user","content":")" + user + "\"}]");
    request.enable_thinking = thinking;
    return request;
  }
  static ChatRequest ask_with_tools(const std::string& user, bool thinking) {
    ChatRequest request = ask(user, thinking);
    request.tools = as_json(R"([{"type":"function","function":{"name":"now"}},
      {"type":"function","function":{"name":"weather","parameters":{"type":"object",
        "properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}])");
    return request;
  }
  ChatDelta run(const ChatRequest& request, Inbox& inbox) {
    const auto turn = start_turn(*rig.engine, text, request, inbox.sink());
    EXPECT_TRUE(turn.has_value()) << turn.error().message;
    return turn ? inbox.wait() : ChatDelta();
  }
  std::int32_t token(const char* name) { return rig.model.token(name); }

  ScriptRig rig;
  std::shared_ptr<const TextAssets> text;
};

using Kind = OutputEvent::Kind;

TEST_F(ScriptedTurn, an_answer_inside_an_open_thought_is_not_lost) {  // R01
  Inbox inbox;
  const ChatDelta last = run(ask("skips", true), inbox);
  EXPECT_EQ(last.finish_reason, "stop");
  EXPECT_EQ(inbox.content(), "Paris.");
}

TEST_F(ScriptedTurn, a_thought_cut_by_length_stays_a_thought) {  // R08
  Inbox inbox;
  ChatRequest request = ask("thinks", true);
  request.max_tokens = 3;
  const ChatDelta last = run(request, inbox);
  EXPECT_EQ(last.finish_reason, "length");
  EXPECT_EQ(inbox.content(), "");
  EXPECT_FALSE(inbox.text(Kind::kReasoning).empty());
  EXPECT_EQ(last.usage.completion_tokens, 3);
  EXPECT_EQ(last.reasoning_tokens, 3);
}

TEST_F(ScriptedTurn, a_stop_string_waits_for_the_end_of_the_thought) {  // R07
  Inbox inbox;
  ChatRequest request = ask("thinks", true);
  request.stop = {"Question"};
  const ChatDelta last = run(request, inbox);
  EXPECT_EQ(inbox.text(Kind::kReasoning), "The Question is hard.");
  EXPECT_EQ(inbox.content(), "");
  EXPECT_EQ(last.stop_string, "Question");
  EXPECT_EQ(last.finish_reason, "stop");
}

TEST_F(ScriptedTurn, a_call_without_arguments_does_not_spoil_the_next) {  // C01, C15, C21
  Inbox inbox;
  const ChatDelta last = run(ask_with_tools("calls", false), inbox);
  EXPECT_EQ(last.finish_reason, "tool_calls");
  EXPECT_EQ(inbox.text(Kind::kToolBegin), "nowweather");
  EXPECT_EQ(inbox.text(Kind::kToolArgs), R"({}{"city": "Paris", "days": 3})");
  std::vector<int> indexes;
  for (const ChatDelta& delta : inbox.deltas()) {
    for (const OutputEvent& event : delta.events) {
      if (event.kind == Kind::kToolBegin) indexes.push_back(event.tool_index);
    }
  }
  EXPECT_EQ(indexes, (std::vector<int>{0, 1}));
}

TEST_F(ScriptedTurn, a_call_cut_by_length_says_so_and_leaks_no_markup) {  // C13
  Inbox whole;
  run(ask_with_tools("calls", false), whole);
  const int num_tokens = static_cast<int>(whole.tokens().size());
  for (int most = 1; most < num_tokens; ++most) {
    Inbox inbox;
    ChatRequest request = ask_with_tools("calls", false);
    request.max_tokens = most;
    const ChatDelta last = run(request, inbox);
    EXPECT_EQ(last.finish_reason, "length") << most;
    EXPECT_EQ(last.usage.completion_tokens, most);
    EXPECT_EQ(inbox.content().find('<'), std::string::npos) << inbox.content();
    EXPECT_TRUE(whole.text(Kind::kToolArgs).starts_with(inbox.text(Kind::kToolArgs))) << most;
  }
}

TEST_F(ScriptedTurn, special_tokens_are_hidden_unless_wanted) {
  Inbox hidden, shown;
  ChatRequest request = ask("shouts", false);
  run(request, hidden);
  EXPECT_EQ(hidden.content(), "one  two");
  request.keep_special = true;
  run(request, shown);
  EXPECT_EQ(shown.content(), "one <sop> two");
  for (const bool keep : {false, true}) {
    Inbox raw;
    ChatRequest plain;
    plain.raw = true;
    plain.raw_prompt = "[gMASK]<sop><|user|>shouts<|assistant|></think>";
    plain.keep_special = keep;
    run(plain, raw);
    EXPECT_EQ(raw.content(), keep ? "one <sop> two" : "one  two");
  }
}

TEST_F(ScriptedTurn, a_broken_step_ends_its_own_turn_with_an_error) {
  Inbox broken, fine;
  const auto other = start_turn(*rig.engine, text, ask("rambles", false), fine.sink());
  const ChatDelta last = run(ask("breaks", false), broken);
  EXPECT_EQ(last.finish_reason, "error");
  EXPECT_FALSE(last.error.message.empty());
  EXPECT_EQ(fine.wait().finish_reason, "stop");
}

TEST_F(ScriptedTurn, a_budget_closes_the_thought_and_the_script_goes_on) {  // R05, R06
  Inbox inbox;
  ChatRequest request = ask("rambles", true);
  request.thinking_budget = 4;
  const ChatDelta last = run(request, inbox);
  EXPECT_EQ(last.reasoning_tokens, 4);
  EXPECT_EQ(inbox.tokens().at(4), token("</think>"));
  EXPECT_FALSE(inbox.content().empty());
  EXPECT_EQ(last.finish_reason, "stop");
}

TEST_F(ScriptedTurn, a_format_holds_under_the_engine_for_every_choice) {
  for (const bool thinking : {false, true}) {
    ChatRequest request = ask("thinks", thinking);
    request.format.kind = AnswerFormat::Kind::kJsonSchema;
    request.format.schema =
        as_json(R"({"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],
                    "additionalProperties":false})");
    request.format.any_whitespace = false;
    request.max_tokens = 200;
    request.min_tokens = 2;
    request.stop = {"never said"};
    const auto prompt = text->prepare(request);
    const auto shared = std::make_shared<const PreparedPrompt>(*prompt);
    Inbox inboxes[3];
    std::vector<Turn> turns;
    for (Inbox& inbox : inboxes) {
      request.seed = turns.size();
      auto turn = start_prepared_turn(*rig.engine, text, request, shared, inbox.sink());
      ASSERT_TRUE(turn.has_value()) << turn.error().message;
      turns.push_back(std::move(*turn));
    }
    for (Inbox& inbox : inboxes) {
      EXPECT_EQ(inbox.wait().finish_reason, "stop");
      const auto json = parse_json(inbox.content());
      ASSERT_TRUE(json.has_value()) << inbox.content();
      EXPECT_TRUE(json->find("ok")->is_bool());
      EXPECT_EQ(inbox.text(Kind::kReasoning).empty(), !thinking);
    }
  }
}

TEST_F(ScriptedTurn, forced_and_forbidden_calls_hold_under_the_engine) {
  ChatRequest request = ask_with_tools("skips", false);
  request.tool_choice.kind = ToolChoice::Kind::kNamed;
  request.tool_choice.names = {"now"};
  Inbox named;
  EXPECT_EQ(run(request, named).finish_reason, "tool_calls");
  EXPECT_EQ(named.text(Kind::kToolBegin), "now");
  EXPECT_EQ(named.content(), "");
  request = ask_with_tools("calls", false);
  request.tool_choice.kind = ToolChoice::Kind::kNone;
  request.max_tokens = 40;
  Inbox none;
  run(request, none);
  EXPECT_EQ(std::ranges::count(none.tokens(), token("<tool_call>")), 0);
}

TEST_F(ScriptedTurn, progress_and_what_the_prompt_was_worth_are_told) {
  Inbox inbox;
  ChatRequest request = ask("skips", false);
  request.progress = true;
  request.prompt_logprobs = 2;
  const auto turn = start_turn(*rig.engine, text, request, inbox.sink());
  ASSERT_TRUE(turn.has_value()) << turn.error().message;
  inbox.wait();
  int computed = 0;
  std::vector<std::int32_t> prompt;
  for (const ChatDelta& delta : inbox.deltas()) {
    if (delta.kind == ChatDelta::Kind::kProgress) {
      EXPECT_GT(delta.prompt_computed, computed);
      computed = delta.prompt_computed;
    }
    for (const PromptLogprob& one : delta.prompt_logprobs) prompt.push_back(one.token);
  }
  EXPECT_EQ(computed, static_cast<int>(turn->prompt().ids.size()));
  EXPECT_EQ(prompt, turn->prompt().ids);
}

// One answer as a client that gathers a stream sees it.
struct Folded {
  std::vector<std::pair<Kind, std::string>> parts;
  std::vector<std::int32_t> tokens, scored;
  std::string finish_reason;
  bool operator==(const Folded&) const = default;
};

void fold(const ChatDelta& delta, Folded& out) {
  for (const OutputEvent& event : delta.events) {
    const bool joins = !out.parts.empty() && out.parts.back().first == event.kind &&
                       event.kind != Kind::kToolBegin && event.kind != Kind::kToolEnd;
    if (joins) {
      out.parts.back().second += event.text;
    } else {
      out.parts.emplace_back(event.kind, event.text);
    }
  }
  out.tokens.insert(out.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  for (const TokenEvent& one : delta.logprobs) out.scored.push_back(one.token);
  if (!delta.finish_reason.empty()) out.finish_reason = delta.finish_reason;
}

// Several deltas as one, as a server that sends every Nth would join them.
ChatDelta joined(const std::vector<ChatDelta>& deltas, std::size_t begin, std::size_t end) {
  ChatDelta out = deltas[begin];
  for (std::size_t index = begin + 1; index < end; ++index) {
    const ChatDelta& more = deltas[index];
    out.events.insert(out.events.end(), more.events.begin(), more.events.end());
    out.tokens.insert(out.tokens.end(), more.tokens.begin(), more.tokens.end());
    out.logprobs.insert(out.logprobs.end(), more.logprobs.begin(), more.logprobs.end());
    if (!more.finish_reason.empty()) out.finish_reason = more.finish_reason;
  }
  return out;
}

TEST_F(ScriptedTurn, a_stream_folds_to_the_same_answer_however_it_is_grouped) {
  std::mt19937 random(3);
  for (const char* user : {"skips", "thinks", "calls", "rambles"}) {
    Inbox inbox;
    ChatRequest request = ask_with_tools(user, std::string(user) != "calls");
    request.top_logprobs = 1;
    run(request, inbox);
    const std::vector<ChatDelta> deltas = inbox.deltas();
    Folded whole;
    fold(joined(deltas, 0, deltas.size()), whole);
    EXPECT_EQ(whole.tokens, whole.scored);
    for (const ChatDelta& delta : deltas) EXPECT_EQ(delta.tokens.size(), delta.logprobs.size());
    for (int trial = 0; trial < 20; ++trial) {
      Folded grouped;
      for (std::size_t begin = 0; begin < deltas.size();) {
        const std::size_t end = std::min(deltas.size(), begin + 1 + random() % 4);
        fold(joined(deltas, begin, end), grouped);
        begin = end;
      }
      EXPECT_EQ(grouped, whole) << user;
    }
  }
}

}  // namespace
}  // namespace glint
