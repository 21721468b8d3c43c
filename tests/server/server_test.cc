// The endpoints over real sockets and the real engine, with a model that answers by rote.
#include "server/server.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "../chat/script_model.h"
#include "http_client.h"

namespace glint {
namespace {

using namespace std::chrono_literals;

constexpr const char* kCall =
    "I "
    "call.</think><tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></"
    "tool_call>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";

// The first chunk of "Loop" with text in it.
constexpr const char* kFirstText = R"("reasoning_content":")";

struct ServerTest : testing::Test {
  void SetUp() override {
    rig.model.add("Hi", "Well, hello!</think>Good day \xE4\xBD\xA0.");
    rig.model.add("Call", kCall);
    rig.model.add("Loop", "round and ", true);
    options.port = 0;
    options.served_names = {"script", "org/alias"};
    options.version = "1.2.3";
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
    ASSERT_TRUE(
        eventually([&] { return TestClient(server->port()).get("/health").status == 200; }));
  }
  template <typename Fn>
  static bool eventually(Fn condition) {
    for (int tries = 0; tries < 4000; ++tries) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  static std::string ask(const std::string& user, const std::string& fields = "") {
    return R"({"messages":[{"role":"user","content":")" + user + "\"}]" +
           (fields.empty() ? "" : "," + fields) + "}";
  }
  TestResponse chat(const std::string& user, const std::string& fields = "",
                    const std::string& headers = "") {
    TestClient client(server->port());
    return client.post("/v1/chat/completions", ask(user, fields), headers);
  }
  static Json parsed(const TestResponse& response) {
    auto json = parse_json(response.body);
    EXPECT_TRUE(json.has_value()) << response.status << " " << response.body;
    return json ? *json : Json();
  }
  // Follows keys and indices: at(json, "choices", 0, "message").
  static const Json& at(const Json& json) { return json; }
  template <typename... Rest>
  static const Json& at(const Json& json, const char* key, Rest... rest) {
    static const Json kNothing;
    const Json* found = json.find(key);
    EXPECT_NE(found, nullptr) << key << " in " << json.dump();
    return found == nullptr ? kNothing : at(*found, rest...);
  }
  template <typename... Rest>
  static const Json& at(const Json& json, int index, Rest... rest) {
    return at(json.as_array().at(static_cast<std::size_t>(index)), rest...);
  }
  static std::vector<Json> events(const std::string& body) {
    std::vector<Json> out;
    for (std::size_t begin = 0; begin < body.size();) {
      const std::size_t end = body.find("\n\n", begin);
      EXPECT_NE(end, std::string::npos);
      if (end == std::string::npos) break;
      const std::string event = body.substr(begin, end - begin);
      begin = end + 2;
      if (event.starts_with(":")) continue;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      if (event == "data: [DONE]") {
        EXPECT_EQ(begin, body.size());
        out.push_back(Json("[DONE]"));
      } else {
        auto json = parse_json(event.substr(6));
        EXPECT_TRUE(json.has_value()) << event;
        out.push_back(json ? *json : Json());
      }
    }
    return out;
  }
  static std::string joined(const std::vector<Json>& chunks, const char* key) {
    std::string out;
    for (const Json& chunk : chunks) {
      const Json* choices = chunk.find("choices");
      if (choices == nullptr || choices->as_array().empty()) continue;
      if (const Json* text = at(*choices, 0, "delta").find(key)) out += text->as_string();
    }
    return out;
  }
  bool engine_is_idle() {
    const EngineStats stats = rig.engine->stats();
    return stats.running == 0 && stats.waiting == 0;
  }

  ScriptRig rig;
  ServerOptions options;
  std::unique_ptr<Server> server;
};

TEST_F(ServerTest, is_alive_before_it_is_ready) {
  listen();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/live").status, 200);
  const TestResponse health = client.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, R"({"status":"loading"})");
  const TestResponse refused = client.post("/v1/chat/completions", ask("Hi"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("Retry-After"), "5");
  EXPECT_EQ(at(parsed(refused), "error", "code"), Json("loading"));
  server->attach(rig.start(), rig.text, {rig.model.info(), Json()});
  EXPECT_TRUE(
      eventually([&] { return TestClient(server->port()).get("/v1/health/").status == 200; }));
}

TEST_F(ServerTest, models_are_listed_by_every_name) {
  start();
  TestClient client(server->port());
  const Json list = parsed(client.get("/v1/models"));
  EXPECT_EQ(at(list, "data").as_array().size(), 2u);
  EXPECT_EQ(at(list, "data", 0, "id"), Json("script"));
  EXPECT_EQ(at(list, "data", 0, "max_model_len"), Json(512));
  EXPECT_EQ(at(parsed(client.get("/v1/models/org/alias")), "id"), Json("org/alias"));
  EXPECT_EQ(at(parsed(client.get("/models/org%2Falias")), "id"), Json("org/alias"));
  EXPECT_EQ(client.get("/v1/models/other").status, 404);
  EXPECT_EQ(at(parsed(client.get("/version")), "version"), Json("1.2.3"));
  EXPECT_EQ(client.get("/").status, 200);
}

TEST_F(ServerTest, paths_and_methods_that_are_not_there) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/nothing").status, 404);
  EXPECT_EQ(client.get("/V1/models").status, 404);
  const TestResponse wrong = client.get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("Allow"), "POST, OPTIONS");
  EXPECT_EQ(client.post("/v1/embeddings", "{}").status, 501);
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: "
      "http://evil.example\r\n\r\n");
  const TestResponse preflight = client.response();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_FALSE(preflight.headers.contains("Access-Control-Allow-Origin"));
}

TEST_F(ServerTest, a_whole_answer_has_its_parts_apart) {
  start();
  const TestResponse response = chat("Hi");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = parsed(response);
  EXPECT_EQ(at(answer, "object"), Json("chat.completion"));
  EXPECT_EQ(at(answer, "model"), Json("script"));
  const Json& message = at(answer, "choices", 0, "message");
  EXPECT_EQ(at(message, "content"), Json("Good day \xE4\xBD\xA0."));
  EXPECT_EQ(at(message, "reasoning"), Json("Well, hello!"));
  EXPECT_EQ(at(message, "reasoning_content"), Json("Well, hello!"));
  EXPECT_EQ(message.find("tool_calls"), nullptr);
  EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("stop"));
  EXPECT_EQ(at(answer, "choices", 0, "stop_reason"), Json());
  const Json& usage = at(answer, "usage");
  EXPECT_EQ(at(usage, "total_tokens").as_int(),
            at(usage, "prompt_tokens").as_int() + at(usage, "completion_tokens").as_int());
  EXPECT_GT(at(usage, "completion_tokens_details", "reasoning_tokens").as_int(), 0);
  EXPECT_EQ(at(answer, "timings", "predicted_n"), at(usage, "completion_tokens"));
}

TEST_F(ServerTest, a_stream_says_what_the_whole_answer_says) {
  start();
  for (const char* user : {"Hi", "Call"}) {
    const std::string fields = std::string(kTools) + R"(,"logprobs":true,"top_logprobs":1)";
    const Json whole = parsed(chat(user, fields));
    const TestResponse response =
        chat(user, fields + R"(,"stream":true,"stream_options":{"include_usage":true})");
    EXPECT_EQ(response.headers.at("Content-Type"), "text/event-stream; charset=utf-8");
    std::vector<Json> chunks = events(response.body);
    ASSERT_GE(chunks.size(), 4u);
    EXPECT_EQ(chunks.back(), Json("[DONE]"));
    chunks.pop_back();
    EXPECT_EQ(at(chunks.front(), "choices", 0, "delta").dump(),
              R"({"role":"assistant","content":""})");
    const Json& message = at(whole, "choices", 0, "message");
    const Json* content = message.find("content");
    EXPECT_EQ(Json(joined(chunks, "content")), content->is_null() ? Json("") : *content);
    EXPECT_EQ(Json(joined(chunks, "reasoning_content")), at(message, "reasoning_content"));
    const Json& usage_chunk = chunks.back();
    EXPECT_TRUE(at(usage_chunk, "choices").as_array().empty());
    EXPECT_EQ(at(usage_chunk, "usage", "completion_tokens"),
              at(whole, "usage", "completion_tokens"));
    EXPECT_EQ(at(usage_chunk, "usage", "prompt_tokens"), at(whole, "usage", "prompt_tokens"));
    const Json& finish = chunks[chunks.size() - 2];
    EXPECT_EQ(at(finish, "choices", 0, "finish_reason"), at(whole, "choices", 0, "finish_reason"));
    EXPECT_EQ(at(finish, "choices", 0, "delta").dump(), "{}");
    Json logprobs(Json::Array{});
    for (std::size_t index = 0; index + 1 < chunks.size(); ++index) {
      EXPECT_EQ(at(chunks[index], "usage"), Json());
      EXPECT_EQ(at(chunks[index], "id"), at(chunks[0], "id"));
      const Json& piece = at(chunks[index], "choices", 0, "logprobs");
      if (piece.is_null()) continue;
      for (const Json& entry : at(piece, "content").as_array()) logprobs.push_back(entry);
    }
    EXPECT_EQ(logprobs, at(whole, "choices", 0, "logprobs", "content"));
    EXPECT_EQ(static_cast<std::int64_t>(logprobs.as_array().size()),
              at(whole, "usage", "completion_tokens").as_int());
  }
}

TEST_F(ServerTest, calls_have_ids_and_whole_arguments) {
  start();
  const Json answer = parsed(chat("Call", kTools));
  const Json& message = at(answer, "choices", 0, "message");
  EXPECT_EQ(at(message, "content"), Json());
  EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("tool_calls"));
  EXPECT_EQ(at(message, "tool_calls", 0, "function").dump(),
            R"({"name":"weather","arguments":"{\"city\": \"Paris\"}"})");
  EXPECT_TRUE(at(message, "tool_calls", 0, "id").as_string().starts_with("call_"));
  // Without tools markup is text.
  const Json plain = parsed(chat("Call"));
  EXPECT_NE(at(plain, "choices", 0, "message", "content").as_string().find("<tool_call>weather"),
            std::string::npos);
}

TEST_F(ServerTest, stop_strings_and_lengths_end_answers) {
  start();
  const Json stopped = parsed(chat("Hi", R"("stop":["day"])"));
  EXPECT_EQ(at(stopped, "choices", 0, "message", "content"), Json("Good "));
  EXPECT_EQ(at(stopped, "choices", 0, "stop_reason"), Json("day"));
  const Json included = parsed(chat("Hi", R"("stop":"day","include_stop_str_in_output":true)"));
  EXPECT_EQ(at(included, "choices", 0, "message", "content"), Json("Good day"));
  const Json cut = parsed(chat("Loop", R"("max_tokens":3)"));
  EXPECT_EQ(at(cut, "choices", 0, "finish_reason"), Json("length"));
  EXPECT_EQ(at(cut, "usage", "completion_tokens"), Json(3));
  const Json by_id = parsed(chat("Hi", R"("stop_token_ids":[1527])"));
  EXPECT_EQ(at(by_id, "choices", 0, "stop_reason"), Json(1527));
  EXPECT_EQ(at(parsed(chat("Hi", R"("include_reasoning":false)")), "choices", 0, "message")
                .find("reasoning"),
            nullptr);
}

TEST_F(ServerTest, choices_are_numbered_and_their_prompt_counts_once) {
  start();
  const Json one = parsed(chat("Hi"));
  const Json two = parsed(chat("Hi", R"("n":2,"temperature":0)"));
  ASSERT_EQ(at(two, "choices").as_array().size(), 2u);
  EXPECT_EQ(at(two, "choices", 1, "index"), Json(1));
  EXPECT_EQ(at(two, "choices", 0, "message"), at(two, "choices", 1, "message"));
  EXPECT_EQ(at(two, "usage", "prompt_tokens"), at(one, "usage", "prompt_tokens"));
  EXPECT_EQ(at(two, "usage", "completion_tokens").as_int(),
            2 * at(one, "usage", "completion_tokens").as_int());
}

TEST_F(ServerTest, errors_have_the_openai_shape) {
  start();
  const auto error = [&](const std::string& user, const std::string& fields, int status,
                         const char* code, const char* param) {
    const TestResponse response = chat(user, fields);
    EXPECT_EQ(response.status, status) << response.body;
    const Json body = parsed(response);
    EXPECT_EQ(at(body, "error", "code"), Json(code));
    EXPECT_EQ(at(body, "error", "param"), param[0] == '\0' ? Json() : Json(param));
    return at(body, "error", "message").as_string();
  };
  error("Hi", R"("model":"other")", 404, "model_not_found", "model");
  error("Hi", R"("temperature":-1)", 400, "invalid_value", "temperature");
  error("Hi", R"("stream":true,"top_p":2)", 400, "invalid_value", "top_p");
  error("Hi", R"("chat_template_kwargs":{"tokenize":true})", 400, "invalid_value",
        "chat_template_kwargs");
  error("Hi", R"("tools":[{"name":"f","parameters":{"type":"foo"}}])", 400, "invalid_schema",
        "tools[0].function.parameters.type");
  std::string words;
  for (int word = 0; word < 600; ++word) words += "word ";
  const std::string text = error(words, "", 400, "context_length_exceeded", "messages");
  EXPECT_NE(text.find("maximum context length is 512 tokens"), std::string::npos);
  EXPECT_EQ(chat("Hi", R"("model":"org/alias")").status, 200);
}

TEST_F(ServerTest, a_client_that_leaves_frees_its_slot) {
  rig.model.step_ms = 2;
  start();
  for (const char* fields : {R"("stream":true)", R"("stream":false)"}) {
    const auto cancelled_before = rig.engine->stats().cancelled;
    TestClient client(server->port());
    client.send_post("/v1/chat/completions", ask("Loop", fields));
    EXPECT_TRUE(eventually([&] { return rig.engine->stats().running == 1; }));
    client.close();
    EXPECT_TRUE(eventually([&] { return engine_is_idle(); }));
    EXPECT_EQ(rig.engine->stats().cancelled, cancelled_before + 1);
  }
}

TEST_F(ServerTest, a_client_that_leaves_in_the_queue_or_in_prefill_is_forgotten) {
  rig.model.step_ms = 10;
  rig.engine_options.max_sequences = 1;
  rig.engine_options.max_batch_tokens = 4;  // a prompt takes many steps
  start();
  std::string words;
  for (int word = 0; word < 150; ++word) words += "word ";
  for (const char* fields : {R"("stream":true)", R"("stream":false)"}) {
    const auto generated_before = rig.engine->stats().generated_tokens;
    TestClient prefilling(server->port()), queued(server->port());
    prefilling.send_post("/v1/chat/completions", ask(words, fields));
    EXPECT_TRUE(eventually([&] { return rig.engine->stats().running == 1; }));
    queued.send_post("/v1/chat/completions", ask("Loop", fields));
    EXPECT_TRUE(eventually([&] { return rig.engine->stats().waiting == 1; }));
    queued.close();
    EXPECT_TRUE(eventually([&] { return rig.engine->stats().waiting == 0; }));
    EXPECT_EQ(rig.engine->stats().running, 1);
    prefilling.close();
    EXPECT_TRUE(eventually([&] { return engine_is_idle(); }));
    EXPECT_EQ(rig.engine->stats().generated_tokens, generated_before);
  }
}

TEST_F(ServerTest, streamed_choices_interleave_and_each_ends_once) {
  start();
  const std::vector<Json> chunks =
      events(chat("Hi", R"("n":3,"stream":true,"stream_options":{"include_usage":true})").body);
  ASSERT_GE(chunks.size(), 3u);
  std::map<std::int64_t, std::string> content;
  std::map<std::int64_t, int> finishes, roles;
  for (const Json& chunk : chunks) {
    const Json* choices = chunk.find("choices");
    if (choices == nullptr || choices->as_array().empty()) continue;
    const Json& choice = at(*choices, 0);
    const std::int64_t index = at(choice, "index").as_int();
    if (const Json* text = at(choice, "delta").find("content")) content[index] += text->as_string();
    if (at(choice, "delta").find("role") != nullptr) ++roles[index];
    if (!at(choice, "finish_reason").is_null()) ++finishes[index];
  }
  for (std::int64_t index = 0; index < 3; ++index) {
    EXPECT_EQ(content[index], "Good day \xE4\xBD\xA0.");
    EXPECT_EQ(finishes[index], 1);
    EXPECT_EQ(roles[index], 1);
  }
  EXPECT_EQ(content.size(), 3u);
}

TEST_F(ServerTest, a_full_queue_is_429) {
  rig.model.step_ms = 10;
  rig.engine_options.max_sequences = 1;
  rig.engine_options.max_queue = 1;
  start();
  TestClient first(server->port()), second(server->port());
  first.send_post("/v1/chat/completions", ask("Loop", R"("stream":true)"));
  EXPECT_TRUE(first.read_until(kFirstText));
  second.send_post("/v1/chat/completions", ask("Loop", R"("stream":true)"));
  // Its head comes at once, long before its turn.
  EXPECT_TRUE(second.read_until("\r\n\r\n"));
  const TestResponse third = chat("Hi");
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(third.headers.at("Retry-After"), "1");
  EXPECT_EQ(at(parsed(third), "error", "code"), Json("queue_full"));
  // A request that asks for more choices than fit leaves nothing behind.
  EXPECT_EQ(chat("Hi", R"("n":3)").status, 429);
  first.close();
  second.close();
  EXPECT_TRUE(eventually([&] { return engine_is_idle(); }));
}

TEST_F(ServerTest, keys_guard_the_api_but_not_health) {
  options.api_keys = {"secret"};
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/health").status, 200);
  const TestResponse refused = client.get("/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(chat("Hi", "", "x-api-key: secret\r\n").status, 200);
}

TEST_F(ServerTest, other_sites_are_kept_out_when_there_is_no_key) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/v1/models", "Origin: http://evil.example\r\n").status, 403);
  client.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(client.response().status, 403);
}

TEST_F(ServerTest, options_that_would_expose_it_are_refused) {
  options.host = "0.0.0.0";
  auto open = Server::listen(options);
  ASSERT_FALSE(open.has_value());
  EXPECT_EQ(open.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(open.error().message.find("--api-key"), std::string::npos);
  options.insecure_no_auth = true;
  EXPECT_TRUE(Server::listen(options).has_value());
  options.served_names.clear();
  EXPECT_FALSE(Server::listen(options).has_value());
}

TEST_F(ServerTest, draining_finishes_what_runs_and_refuses_what_waits) {
  rig.model.step_ms = 2;
  rig.engine_options.max_sequences = 1;
  start();
  TestClient running(server->port()), waiting(server->port());
  running.send_post("/v1/chat/completions", ask("Loop", R"("max_tokens":100)"));
  EXPECT_TRUE(eventually([&] { return rig.engine->stats().running == 1; }));
  waiting.send_post("/v1/chat/completions", ask("Loop"));
  EXPECT_TRUE(eventually([&] { return rig.engine->stats().waiting == 1; }));
  server->request_stop();
  EXPECT_TRUE(server->run());
  const TestResponse refused = waiting.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(at(parsed(refused), "error", "code"), Json("draining"));
  EXPECT_EQ(at(parsed(running.response()), "usage", "completion_tokens"), Json(100));
}

TEST_F(ServerTest, a_drain_has_an_end) {
  rig.model.step_ms = 10;
  options.drain_timeout_s = 0.05;
  start();
  TestClient streaming(server->port());
  streaming.send_post("/v1/chat/completions", ask("Loop", R"("stream":true)"));
  EXPECT_TRUE(streaming.read_until(kFirstText));
  server->request_stop();
  EXPECT_FALSE(server->run());
  EXPECT_TRUE(streaming.read_until(R"("code":"draining")"));
  EXPECT_TRUE(streaming.read_until("data: [DONE]"));
}

TEST_F(ServerTest, a_second_stop_does_not_wait) {
  rig.model.step_ms = 10;
  start();
  TestClient streaming(server->port());
  streaming.send_post("/v1/chat/completions", ask("Loop", R"("stream":true)"));
  EXPECT_TRUE(streaming.read_until(kFirstText));
  server->request_stop();
  server->request_stop();
  EXPECT_FALSE(server->run());
}

TEST_F(ServerTest, slow_answers_are_pinged_and_cut_off_at_the_limit) {
  rig.model.step_ms = 100;
  options.sse_ping_s = 0.02;
  options.request_timeout_s = 0.5;
  start();
  TestClient client(server->port());
  client.send_post("/v1/chat/completions", ask("Loop", R"("stream":true)"));
  EXPECT_TRUE(client.read_until(": ping\n\n"));
  EXPECT_TRUE(client.read_until(R"("finish_reason":"length")"));
  EXPECT_TRUE(client.read_until("data: [DONE]"));
}

TEST_F(ServerTest, many_clients_at_once_all_get_their_answer) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> num_good = 0;
  for (int client = 0; client < 16; ++client) {
    threads.emplace_back([&, client] {
      const TestResponse response = chat("Hi", client % 2 == 0 ? R"("stream":true)" : R"("n":2)");
      if (response.status == 200 && response.body.find("Good day") != std::string::npos) ++num_good;
      if (client % 2 == 0 && response.body.find("[DONE]") != std::string::npos) ++num_good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(num_good, 8);
  EXPECT_TRUE(eventually([&] { return engine_is_idle(); }));
}

}  // namespace
}  // namespace glint
