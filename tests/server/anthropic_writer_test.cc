// Answers of /v1/messages: the exact events, and that the whole message is their fold.
#include "server/anthropic_writer.h"

#include <gtest/gtest.h>

#include <random>

#include "chat/messages.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;

OutputEvent reasoning(std::string text) {
  return {Kind::kReasoning, std::move(text)};
}
OutputEvent content(std::string text) {
  return {Kind::kContent, std::move(text)};
}
OutputEvent begin_call(int index, std::string name, std::string id = "") {
  return {Kind::kToolBegin, std::move(name), index, std::move(id)};
}
OutputEvent arguments(int index, std::string text) {
  return {Kind::kToolArgs, std::move(text), index};
}
OutputEvent end_call(int index) {
  return {Kind::kToolEnd, "", index};
}

ChatDelta output(std::vector<OutputEvent> events) {
  ChatDelta delta;
  delta.events = std::move(events);
  delta.tokens = {1};
  return delta;
}

ChatDelta finished(std::string reason, std::string stop_string = "") {
  ChatDelta delta;
  delta.kind = ChatDelta::Kind::kFinished;
  delta.finish_reason = std::move(reason);
  delta.stop_string = std::move(stop_string);
  delta.usage.prompt_tokens = 3;
  delta.usage.cached_tokens = 2;
  delta.usage.completion_tokens = 7;
  delta.reasoning_tokens = 4;
  return delta;
}

std::string begin(AnswerWriter& writer) {
  AnswerStart start;
  start.model = "claude-x";
  PreparedPrompt prompt;
  prompt.ids = {1, 2, 3};
  start.prompts.push_back(std::make_shared<const PreparedPrompt>(std::move(prompt)));
  return writer.begin(start);
}

std::string stream(const std::vector<ChatDelta>& deltas) {
  const auto writer = make_messages_writer(true);
  std::string text = begin(*writer);
  ChatDelta started;
  started.kind = ChatDelta::Kind::kStarted;
  started.usage.prompt_tokens = 3;
  started.usage.cached_tokens = 2;
  text += writer->take(0, started);
  for (const ChatDelta& delta : deltas) text += writer->take(0, delta);
  return text + writer->end();
}

Json whole(const std::vector<ChatDelta>& deltas) {
  const auto writer = make_messages_writer(false);
  std::string text = begin(*writer);
  for (const ChatDelta& delta : deltas) text += writer->take(0, delta);
  text += writer->end();
  EXPECT_EQ(text, "");
  return writer->whole();
}

// The events' data, with the ids that are random left out; checks that names are types.
std::vector<Json> events_of(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find("\n\n", begin);
    const std::size_t line = text.find("\ndata: ", begin);
    EXPECT_TRUE(end != std::string::npos && line < end) << text.substr(begin);
    if (end == std::string::npos || line >= end) break;
    auto data = parse_json(text.substr(line + 7, end - line - 7));
    EXPECT_TRUE(data.has_value());
    if (!data) break;
    EXPECT_EQ(text.substr(begin, line - begin), "event: " + data->find("type")->as_string());
    events.push_back(std::move(*data));
    begin = end + 2;
  }
  return events;
}

// A client that puts events together, written apart from the server's own fold.
Json put_together(const std::vector<Json>& events) {
  Json message;
  std::string text;
  int open = -1;
  for (const Json& event : events) {
    const std::string& type = event.find("type")->as_string();
    if (type == "message_start") {
      message = *event.find("message");
    } else if (type == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = static_cast<int>(event.find("index")->as_int());
      EXPECT_EQ(static_cast<std::size_t>(open), message.find("content")->as_array().size());
      message.find("content")->push_back(*event.find("content_block"));
      text.clear();
    } else if (type == "content_block_delta") {
      EXPECT_EQ(event.find("index")->as_int(), open);
      const Json& delta = *event.find("delta");
      Json& block = message.find("content")->as_array().back();
      const std::string& kind = delta.find("type")->as_string();
      if (kind == "text_delta") block.set("text", text += delta.find("text")->as_string());
      if (kind == "thinking_delta")
        block.set("thinking", text += delta.find("thinking")->as_string());
      if (kind == "signature_delta") block.set("signature", *delta.find("signature"));
      if (kind == "input_json_delta") text += delta.find("partial_json")->as_string();
    } else if (type == "content_block_stop") {
      EXPECT_EQ(event.find("index")->as_int(), open);
      Json& block = message.find("content")->as_array().back();
      if (*block.find("type") == Json("tool_use")) block.set("input", arguments_object(text));
      open = -1;
    } else if (type == "message_delta") {
      message.set("stop_reason", *event.find("delta")->find("stop_reason"));
      message.set("stop_sequence", *event.find("delta")->find("stop_sequence"));
      message.set("usage", *event.find("usage"));
    }
  }
  EXPECT_EQ(open, -1);
  return message;
}

// Ids are random, so they are told apart by their form only.
Json without_ids(Json message) {
  EXPECT_TRUE(message.find("id")->as_string().starts_with("msg_"));
  message.set("id", Json("msg"));
  for (Json& block : message.find("content")->as_array()) {
    if (*block.find("type") != Json("tool_use")) continue;
    EXPECT_TRUE(block.find("id")->as_string().starts_with("toolu_"));
    EXPECT_EQ(block.find("id")->as_string().size(), 30u);
    block.set("id", Json("toolu"));
  }
  return message;
}

std::vector<ChatDelta> full_answer() {
  return {output({reasoning("I ")}),
          output({reasoning("see.")}),
          output({content("Hello "), content("you")}),
          output({begin_call(0, "now"), end_call(0)}),
          output({begin_call(1, "weather"), arguments(1, "{\"city\": \"Pa")}),
          output({arguments(1, "ris\"}"), end_call(1)}),
          finished("tool_calls")};
}

TEST(anthropic_writer, events_come_in_the_order_of_the_api) {
  std::string text = stream(full_answer());
  std::vector<Json> events = events_of(text);
  ASSERT_EQ(events.size(), 20u);
  Json& message = *events[0].find("message");
  const std::string id = message.find("id")->as_string();
  EXPECT_TRUE(id.starts_with("msg_"));
  EXPECT_EQ(events[0].dump(),
            R"({"type":"message_start","message":{"id":")" + id +
                R"(","type":"message","role":"assistant","model":"claude-x","content":[],)"
                R"("stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,)"
                R"("cache_creation_input_tokens":0,"cache_read_input_tokens":0,)"
                R"("output_tokens":0,"output_tokens_details":{"thinking_tokens":0}}}})");
  const std::string signature = events[5].find("delta")->find("signature")->as_string();
  EXPECT_GE(signature.size(), 20u);
  const std::string now_id = events[11].find("content_block")->find("id")->as_string();
  const std::string weather_id = events[14].find("content_block")->find("id")->as_string();
  EXPECT_NE(now_id, weather_id);
  const std::vector<std::string> expected = {
      R"({"type":"ping"})",
      R"({"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})",
      R"({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"I "}})",
      R"({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"see."}})",
      R"({"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":")" +
          signature + R"("}})",
      R"({"type":"content_block_stop","index":0})",
      R"({"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})",
      R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hello "}})",
      R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"you"}})",
      R"({"type":"content_block_stop","index":1})",
      R"({"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":")" +
          now_id + R"(","name":"now","input":{}}})",
      R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}})",
      R"({"type":"content_block_stop","index":2})",
      R"({"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":")" +
          weather_id + R"(","name":"weather","input":{}}})",
      R"({"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"city\": \"Pa"}})",
      R"({"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"ris\"}"}})",
      R"({"type":"content_block_stop","index":3})",
      R"({"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":7,"output_tokens_details":{"thinking_tokens":4}}})",
      R"({"type":"message_stop"})"};
  for (std::size_t index = 0; index < expected.size(); ++index) {
    EXPECT_EQ(events[index + 1].dump(), expected[index]);
  }
}

TEST(anthropic_writer, a_whole_message_has_the_same_parts) {
  const Json message = without_ids(whole(full_answer()));
  const std::string signature =
      message.find("content")->as_array()[0].find("signature")->as_string();
  EXPECT_EQ(
      message.dump(),
      R"({"id":"msg","type":"message","role":"assistant","model":"claude-x","content":[)"
      R"({"type":"thinking","thinking":"I see.","signature":")" +
          signature +
          R"("},{"type":"text","text":"Hello you"},)"
          R"({"type":"tool_use","id":"toolu","name":"now","input":{}},)"
          R"({"type":"tool_use","id":"toolu","name":"weather","input":{"city":"Paris"}}],)"
          R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":1,)"
          R"("cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":7,"output_tokens_details":{"thinking_tokens":4}}})");
}

TEST(anthropic_writer, events_and_whole_message_never_disagree) {
  std::mt19937 random(7);
  const auto roll = [&random](unsigned sides) { return random() % sides; };
  for (int round = 0; round < 300; ++round) {
    std::vector<OutputEvent> events;
    for (unsigned i = roll(4); i > 0; --i) events.push_back(reasoning(roll(4) ? "hm " : ""));
    for (unsigned i = roll(4); i > 0; --i) events.push_back(content(roll(4) ? "\xE4\xBD\xA0" : ""));
    const int num_calls = static_cast<int>(roll(3));
    for (int call = 0; call < num_calls; ++call) {
      events.push_back(begin_call(call, "f"));
      const std::string text = R"({"a": "1", "b": [2, {"c": null}]})";
      const std::size_t cut = roll(static_cast<unsigned>(text.size()));
      if (roll(3)) {
        events.push_back(arguments(call, text.substr(0, cut)));
        if (call + 1 == num_calls && roll(3) == 0) break;  // cut off in the middle
        events.push_back(arguments(call, text.substr(cut)));
      }
      events.push_back(end_call(call));
    }
    std::vector<ChatDelta> deltas;
    for (std::size_t begin = 0; begin < events.size();) {
      const std::size_t end = std::min(events.size(), begin + 1 + roll(3));
      deltas.push_back(output({events.begin() + static_cast<std::ptrdiff_t>(begin),
                               events.begin() + static_cast<std::ptrdiff_t>(end)}));
      begin = end;
    }
    const char* reasons[] = {"stop", "length", "tool_calls"};
    deltas.push_back(finished(reasons[roll(3)], roll(2) ? "END" : ""));
    const Json streamed = put_together(events_of(stream(deltas)));
    const Json complete = whole(deltas);
    EXPECT_EQ(without_ids(streamed).dump(), without_ids(complete).dump());
    EXPECT_FALSE(complete.find("content")->as_array().empty());
  }
}

TEST(anthropic_writer, reasons_to_stop_are_told_in_its_words) {
  const auto ending = [](const ChatDelta& last) {
    const Json message = whole({output({content("a")}), last});
    return message.find("stop_reason")->as_string() + " " + message.find("stop_sequence")->dump();
  };
  EXPECT_EQ(ending(finished("stop")), "end_turn null");
  EXPECT_EQ(ending(finished("stop", "END")), "stop_sequence \"END\"");
  EXPECT_EQ(ending(finished("length")), "max_tokens null");
  EXPECT_EQ(ending(finished("tool_calls")), "tool_use null");
}

TEST(anthropic_writer, there_is_always_a_block_and_never_an_empty_one_beside_others) {
  const auto blocks = [](std::vector<OutputEvent> events) {
    std::vector<ChatDelta> deltas;
    if (!events.empty()) deltas.push_back(output(std::move(events)));
    deltas.push_back(finished("stop"));
    const Json message = whole(deltas);
    std::string types;
    for (const Json& block : message.find("content")->as_array())
      types += block.find("type")->as_string() + " ";
    return types;
  };
  EXPECT_EQ(blocks({}), "text ");
  EXPECT_EQ(blocks({content("")}), "text ");
  EXPECT_EQ(blocks({reasoning("cut off")}), "thinking ");
  EXPECT_EQ(blocks({reasoning("a"), content(""), begin_call(0, "f"), end_call(0)}),
            "thinking tool_use ");
  // An answer that stayed a thought is repeated as text.
  EXPECT_EQ(blocks({reasoning("a"), content("a")}), "thinking text ");
}

TEST(anthropic_writer, a_call_that_was_cut_off_keeps_what_there_is) {
  const Json message =
      whole({output({begin_call(0, "f"), arguments(0, R"({"a": "b)")}), finished("length")});
  EXPECT_EQ(message.find("content")->as_array()[0].find("input")->dump(), R"({"a":"b"})");
  EXPECT_EQ(*message.find("stop_reason"), Json("max_tokens"));
}

TEST(anthropic_writer, a_models_own_names_for_calls_are_kept) {
  const Json message =
      whole({output({begin_call(0, "fs.read", "functions.fs.read:0"), end_call(0)}),
             finished("tool_calls")});
  EXPECT_EQ(*message.find("content")->as_array()[0].find("id"), Json("functions.fs.read:0"));
}

TEST(anthropic_writer, signatures_belong_to_their_thought) {
  const auto signature = [](const std::string& thought) {
    const Json message = whole({output({reasoning(thought)}), finished("stop")});
    return message.find("content")->as_array()[0].find("signature")->as_string();
  };
  EXPECT_EQ(signature("a thought"), signature("a thought"));
  EXPECT_NE(signature("a thought"), signature("another"));
  EXPECT_NE(signature("a"), signature(std::string("a\0", 2)));
  EXPECT_EQ(signature("a thought").size(), 24u);
}

TEST(anthropic_writer, pings_and_errors_are_events) {
  const auto writer = make_messages_writer(true);
  EXPECT_EQ(writer->ping(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  EXPECT_EQ(writer->fail(error_of_status(503, "busy")),
            "event: error\ndata: "
            R"({"type":"error","error":{"type":"overloaded_error","message":"busy"}})"
            "\n\n");
}

}  // namespace
}  // namespace glint
