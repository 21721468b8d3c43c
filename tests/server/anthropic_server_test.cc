// /v1/messages over real sockets and the real engine, with a model that answers by rote.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "../chat/script_model.h"
#include "http_client.h"
#include "server/server.h"

namespace glint {
namespace {

using namespace std::chrono_literals;

constexpr const char* kWeather =
    R"("tools":[{"name":"weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}])";

struct AnthropicServerTest : testing::Test {
  void SetUp() override {
    rig.model.add("Hi", "Well, hello!</think>Good day \xE4\xBD\xA0.");
    rig.model.add("Call",
                  "I call.</think><tool_call>weather<arg_key>city</arg_key><arg_value>Paris"
                  "</arg_value></tool_call><tool_call>weather</tool_call>");
    rig.model.add("Loop", "round and ", true);
    options.port = 0;
    options.served_names = {"script"};
  }
  void TearDown() override {
    server.reset();
    if (rig.engine) {
      EXPECT_TRUE(rig.engine->drain(60));
      rig.engine.reset();
    }
    rig.cache.check_integrity();
  }
  void listen() {
    auto listening = Server::listen(options);
    ASSERT_TRUE(listening.has_value()) << listening.error().message;
    server = std::move(*listening);
  }
  void start() {
    listen();
    server->attach(rig.start(), rig.text, {rig.model.info(), Json()});
    for (int tries = 0; tries < 4000; ++tries) {
      if (TestClient(server->port()).get("/health").status == 200) return;
      std::this_thread::sleep_for(5ms);
    }
    FAIL() << "the server was not ready in time";
  }
  static std::string body(const std::string& user, const std::string& fields = "") {
    return R"({"model":"claude-any","max_tokens":100,"messages":[{"role":"user","content":")" +
           user + "\"}]" + (fields.empty() ? "" : "," + fields) + "}";
  }
  TestResponse post(const std::string& path, const std::string& text,
                    const std::string& headers = "") const {
    TestClient client(server->port());
    return client.post("/v1/messages" + path, text, headers);
  }
  static Json parsed(const std::string& text) {
    auto json = parse_json(text);
    EXPECT_TRUE(json.has_value()) << text;
    return json ? std::move(*json) : Json();
  }
  Json ask(const std::string& user, const std::string& fields = "") const {
    const TestResponse response = post("?beta=true", body(user, fields));
    EXPECT_EQ(response.status, 200) << response.body;
    return parsed(response.body);
  }
  // "status type: message"
  static std::string refusal(const TestResponse& response) {
    const Json told = parsed(response.body);
    EXPECT_EQ(*told.find("type"), Json("error"));
    const Json& error = *told.find("error");
    return fmt::format("{} {}: {}", response.status, error.find("type")->as_string(),
                       error.find("message")->as_string());
  }
  static std::int64_t prompt_tokens(const Json& usage) {
    return usage.find("input_tokens")->as_int() + usage.find("cache_read_input_tokens")->as_int();
  }
  // The texts of a message's or a stream's blocks, in order: "type=text|".
  static std::string blocks_of(const Json& message) {
    std::string out;
    for (const Json& block : message.find("content")->as_array()) {
      const std::string& type = block.find("type")->as_string();
      const Json* text = block.find(type == "tool_use" ? "input" : type);
      out += type + "=" + (text->is_string() ? text->as_string() : text->dump()) + "|";
    }
    return out;
  }
  static std::vector<Json> events_of(const std::string& text) {
    std::vector<Json> events;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find("\n\n", begin);
      const std::size_t data = text.find("\ndata: ", begin);
      EXPECT_TRUE(text.compare(begin, 7, "event: ") == 0 && data < end) << text.substr(begin);
      if (end == std::string::npos || data >= end) break;
      events.push_back(parsed(text.substr(data + 7, end - data - 7)));
      EXPECT_EQ(text.substr(begin + 7, data - begin - 7), events.back().find("type")->as_string());
      begin = end + 2;
    }
    return events;
  }
  static std::string blocks_of(const std::vector<Json>& events) {
    std::string out;
    for (const Json& event : events) {
      const std::string& type = event.find("type")->as_string();
      if (type == "content_block_start")
        out += event.find("content_block")->find("type")->as_string() + "=";
      if (type == "content_block_stop") out += "|";
      if (type != "content_block_delta") continue;
      for (const char* name : {"text", "thinking", "partial_json"}) {
        if (const Json* piece = event.find("delta")->find(name)) out += piece->as_string();
      }
    }
    return out;
  }

  ScriptRig rig;
  ServerOptions options;
  std::unique_ptr<Server> server;
};

TEST_F(AnthropicServerTest, a_whole_message_has_its_blocks_apart) {
  start();
  const Json message = ask("Hi");
  EXPECT_EQ(*message.find("type"), Json("message"));
  EXPECT_EQ(*message.find("model"), Json("claude-any"));
  EXPECT_EQ(blocks_of(message), "thinking=Well, hello!|text=Good day \xE4\xBD\xA0.|");
  EXPECT_EQ(*message.find("stop_reason"), Json("end_turn"));
  EXPECT_GT(message.find("usage")->find("output_tokens")->as_int(), 3);
}

TEST_F(AnthropicServerTest, a_stream_says_what_the_whole_message_says) {
  start();
  for (const char* user : {"Hi", "Call"}) {
    const Json whole = ask(user, kWeather);
    const TestResponse response = post("", body(user, std::string(kWeather) + R"(,"stream":true)"));
    EXPECT_EQ(response.headers.at("Content-Type"), "text/event-stream; charset=utf-8");
    const std::vector<Json> events = events_of(response.body);
    ASSERT_GT(events.size(), 6u);
    EXPECT_EQ(*events[0].find("type"), Json("message_start"));
    EXPECT_EQ(events[1].dump(), R"({"type":"ping"})");
    EXPECT_EQ(events.back().dump(), R"({"type":"message_stop"})");
    std::string streamed = blocks_of(events);
    std::erase(streamed, ' ');
    std::string complete = blocks_of(whole);
    std::erase(complete, ' ');
    EXPECT_EQ(streamed, complete);
    const Json& ending = events[events.size() - 2];
    EXPECT_EQ(*ending.find("delta")->find("stop_reason"), *whole.find("stop_reason"));
    const Json& streamed_usage = *ending.find("usage");
    const Json& usage = *whole.find("usage");
    EXPECT_EQ(*streamed_usage.find("output_tokens"), *usage.find("output_tokens"));
    EXPECT_EQ(streamed_usage.find("output_tokens_details")->dump(),
              usage.find("output_tokens_details")->dump());
    EXPECT_EQ(prompt_tokens(streamed_usage), prompt_tokens(usage));
  }
}

TEST_F(AnthropicServerTest, calls_are_blocks_with_ids_of_their_own) {
  start();
  const Json message = ask("Call", kWeather);
  EXPECT_EQ(blocks_of(message), R"(thinking=I call.|tool_use={"city":"Paris"}|tool_use={}|)");
  EXPECT_EQ(*message.find("stop_reason"), Json("tool_use"));
  const Json::Array& blocks = message.find("content")->as_array();
  EXPECT_NE(*blocks[1].find("id"), *blocks[2].find("id"));
  const Json single =
      ask("Call", std::string(kWeather) +
                      R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})");
  EXPECT_EQ(blocks_of(single), R"(thinking=I call.|tool_use={"city":"Paris"}|)");
  // Without tools the same text is text.
  EXPECT_TRUE(blocks_of(ask("Call")).starts_with("thinking=I call.|text=<tool_call>"));
}

TEST_F(AnthropicServerTest, answers_end_for_reasons_of_their_own) {
  start();
  const Json stopped = ask("Hi", R"("stop_sequences":["day","hello"])");
  EXPECT_EQ(blocks_of(stopped), "thinking=Well, hello!|text=Good |");
  EXPECT_EQ(*stopped.find("stop_reason"), Json("stop_sequence"));
  EXPECT_EQ(*stopped.find("stop_sequence"), Json("day"));
  const TestResponse response =
      post("", R"({"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})");
  const Json cut = parsed(response.body);
  EXPECT_EQ(*cut.find("stop_reason"), Json("max_tokens"));
  EXPECT_EQ(*cut.find("usage")->find("output_tokens"), Json(2));
  EXPECT_EQ(*cut.find("model"), Json("script"));
  EXPECT_TRUE(blocks_of(cut).starts_with("thinking="));
}

TEST_F(AnthropicServerTest, counts_are_those_of_the_answer) {
  start();
  const auto count = [&](const std::string& fields) {
    const TestResponse response =
        post("/count_tokens",
             R"({"model":"m","messages":[{"role":"user","content":"Hi"}])" + fields + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return parsed(response.body).find("input_tokens")->as_int();
  };
  const auto used = [&](const std::string& fields) {
    return prompt_tokens(*ask("Hi", fields).find("usage"));
  };
  EXPECT_EQ(count(""), used(""));
  EXPECT_EQ(count(std::string(",") + kWeather), used(kWeather));
  EXPECT_GT(count(std::string(",") + kWeather), count(""));
  const Json rendered = parsed(post("/render", body("Hi")).body);
  EXPECT_EQ(static_cast<std::int64_t>(rendered.find("token_ids")->as_array().size()), count(""));
  EXPECT_EQ(refusal(post("/count_tokens", "{}")),
            "400 invalid_request_error: messages: is required");
}

TEST_F(AnthropicServerTest, a_repeated_prompt_is_read_from_the_cache) {
  start();
  std::string words;
  for (int index = 0; index < 150; ++index) words += "river ";
  const Json first = *ask(words).find("usage");
  const Json second = *ask(words).find("usage");
  const std::int64_t cached = second.find("cache_read_input_tokens")->as_int();
  EXPECT_EQ(*first.find("cache_read_input_tokens"), Json(0));
  EXPECT_GE(cached, 64);
  EXPECT_EQ(second.find("input_tokens")->as_int() + cached, first.find("input_tokens")->as_int());
  EXPECT_EQ(*second.find("cache_creation_input_tokens"), Json(0));
}

TEST_F(AnthropicServerTest, control_tokens_in_messages_stay_text) {
  start();
  const auto count = [&](const std::string& user) {
    return parsed(post("/count_tokens", body(user)).body).find("input_tokens")->as_int();
  };
  const std::int64_t marks = count("say </think><|user|><|system|>") - count("say ");
  EXPECT_GT(marks, 6);  // three, were they tokens of control
}

TEST_F(AnthropicServerTest, refusals_have_the_shape_of_the_api) {
  start();
  const TestResponse missing = post("", R"({"messages":[]})", "x-request-id: mine-1\r\n");
  EXPECT_EQ(refusal(missing), "400 invalid_request_error: max_tokens: is required");
  EXPECT_EQ(*parsed(missing.body).find("request_id"), Json("mine-1"));
  EXPECT_TRUE(refusal(post("", "{")).starts_with("400 invalid_request_error: The body"));
  EXPECT_TRUE(refusal(post("/batches", "{}")).starts_with("404 not_found_error: "));
  TestClient client(server->port());
  EXPECT_TRUE(refusal(client.get("/v1/messages")).starts_with("405 invalid_request_error: "));
  for (const char* fields : {R"("top_p":2)", R"("chat_template_kwargs":{"messages":[]})"}) {
    EXPECT_TRUE(refusal(post("", body("Hi", fields))).starts_with("400 invalid_request_error: "));
  }
}

TEST_F(AnthropicServerTest, prompts_beyond_the_context_are_refused_with_both_numbers) {
  start();
  const auto count = [&](const std::string& user) {
    return parsed(post("/count_tokens", body(user)).body).find("input_tokens")->as_int();
  };
  // The longest prompt that leaves room for one token, by adding words of one token each.
  std::string words = "Hi";
  for (std::int64_t more = 511 - count(words); more > 0; more = 511 - count(words)) {
    for (std::int64_t index = 0; index < std::max<std::int64_t>(more / 2, 1); ++index)
      words += " a";
  }
  ASSERT_EQ(count(words), 511);
  const Json last = ask(words);
  EXPECT_EQ(*last.find("usage")->find("output_tokens"), Json(1));
  EXPECT_EQ(refusal(post("", body(words + " a"))),
            "400 invalid_request_error: prompt is too long: 512 tokens > 511 maximum");
  EXPECT_EQ(refusal(post("", body(words + " a a", R"("stream":true)"))),
            "400 invalid_request_error: prompt is too long: 513 tokens > 512 maximum");
}

TEST_F(AnthropicServerTest, keys_come_in_either_header) {
  options.api_keys = {"k1"};
  start();
  EXPECT_TRUE(refusal(post("", body("Hi"))).starts_with("401 authentication_error: "));
  EXPECT_TRUE(refusal(post("/count_tokens", body("Hi"), "x-api-key: k2\r\n")).starts_with("401 "));
  EXPECT_EQ(post("", body("Hi"), "x-api-key: k1\r\n").status, 200);
  EXPECT_EQ(post("", body("Hi"), "Authorization: Bearer k1\r\n").status, 200);
}

TEST_F(AnthropicServerTest, a_server_that_is_not_ready_says_overloaded) {
  listen();
  const TestResponse loading = post("", body("Hi"));
  EXPECT_EQ(refusal(loading), "529 overloaded_error: Loading model");
  EXPECT_EQ(loading.headers.at("Retry-After"), "5");
}

TEST_F(AnthropicServerTest, a_failure_after_the_first_event_is_an_event) {
  options.drain_timeout_s = 0.05;
  rig.model.step_ms = 5;
  start();
  TestClient client(server->port());
  client.send_post("/v1/messages", body("Loop", R"("stream":true)"));
  ASSERT_TRUE(client.read_until("thinking_delta"));
  server->request_stop();
  EXPECT_TRUE(
      client.read_until("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                        "\"overloaded_error\""));
  server->run();
}

TEST_F(AnthropicServerTest, models_are_listed_in_the_words_of_the_asker) {
  start();
  TestClient client(server->port());
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const Json list = parsed(client.get("/v1/models", version).body);
  EXPECT_EQ(*list.find("first_id"), Json("script"));
  EXPECT_EQ(*list.find("data")->as_array()[0].find("type"), Json("model"));
  EXPECT_EQ(*parsed(client.get("/v1/models/script", version).body).find("display_name"),
            Json("script"));
  EXPECT_TRUE(
      refusal(client.get("/v1/models/other", version)).starts_with("404 not_found_error: "));
  EXPECT_EQ(*parsed(client.get("/v1/models").body).find("object"), Json("list"));
}

}  // namespace
}  // namespace glint
