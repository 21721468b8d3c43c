// HTTP itself: framing, limits, timeouts, keep-alive, pipelining, and the news that a client went
// away.
#include "server/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "http_client.h"

namespace glint {
namespace {

using namespace std::chrono_literals;

struct HttpTest : testing::Test {
  // GET /echo and POST /echo answer with the body; /hold waits for the test; /stream streams three
  // pieces.
  void start(HttpOptions options = {}) {
    options.host = "127.0.0.1";
    options.server_header = "test/1";
    HttpHandlers handlers;
    handlers.check = [](const HttpRequest& request) -> std::optional<HttpResponse> {
      if (request.path == "/refused") return HttpResponse{403, {}, "text/plain", "no"};
      return std::nullopt;
    };
    handlers.handle = [this](std::shared_ptr<HttpExchange> exchange) {
      handle(std::move(exchange));
    };
    handlers.on_stop_signal = [](int) {};
    handlers.error_page = [](const std::string& path, int status, const std::string& message) {
      return HttpResponse{status, {{"X-Of", path}}, "text/plain", message};
    };
    handlers.on_response = [](const HttpRequest& request, HttpResponse& response) {
      response.headers.emplace_back("X-Method", request.method);
    };
    handlers.on_done = [this](const HttpRequest& request, int status, double seconds) {
      const std::lock_guard lock(mutex);
      done.push_back(request.method + " " + request.path + " " + std::to_string(status));
      EXPECT_GE(seconds, 0);
      changed.notify_all();
    };
    auto listening = HttpServer::listen(options, handlers);
    ASSERT_TRUE(listening.has_value()) << listening.error().message;
    server = std::move(*listening);
  }
  void handle(std::shared_ptr<HttpExchange> exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/stream") {
      exchange->start_stream(
          HttpResponse{200, {}, "text/plain", ""}, [] { return std::string("."); }, 0.02);
      for (const char* piece : {"one ", "two ", "three"}) exchange->write(piece);
      return exchange->finish();
    }
    if (request.path == "/hold" || request.path == "/hold-stream") {
      exchange->on_close([this] { ++num_closed; });
      if (request.path == "/hold-stream")
        exchange->start_stream(
            HttpResponse{200, {}, "text/plain", ""}, [] { return std::string("."); }, 0.02);
      const std::lock_guard lock(mutex);
      held = std::move(exchange);
      changed.notify_all();
      return;
    }
    exchange->respond(HttpResponse{
        200, {{"X-Path", request.path + "?" + request.query}}, "text/plain", request.body});
  }
  std::shared_ptr<HttpExchange> wait_for_held() {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, 20s, [this] { return held != nullptr; }));
    return std::exchange(held, nullptr);
  }
  // What ended so far, once `count` did.
  std::vector<std::string> wait_for_done(std::size_t count) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, 20s, [&] { return done.size() >= count; }));
    return done;
  }
  template <typename Fn>
  static bool eventually(Fn condition) {
    for (int tries = 0; tries < 2000; ++tries) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  std::atomic<int> num_closed = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<HttpExchange> held;
  std::vector<std::string> done;
  std::unique_ptr<HttpServer> server;  // last: its thread uses the rest
};

TEST_F(HttpTest, bodies_of_both_framings_arrive) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.post("/echo", "hello").body, "hello");
  client.send(
      "POST /echo/?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n");
  const TestResponse response = client.response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "hello");
  EXPECT_EQ(response.headers.at("X-Path"), "/echo?a=b");
  EXPECT_EQ(response.headers.at("Connection"), "keep-alive");
  EXPECT_EQ(response.headers.at("Server"), "test/1");
  EXPECT_EQ(client.get("http://example.org/echo").headers.at("X-Path"), "/echo?");
}

TEST_F(HttpTest, a_body_may_arrive_byte_by_byte) {
  start();
  TestClient client(server->port());
  for (const char byte :
       std::string("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")) {
    ASSERT_TRUE(client.send(std::string(1, byte)));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(client.response().body, "hello");
}

TEST_F(HttpTest, pipelined_requests_are_answered_in_order) {
  start();
  TestClient client(server->port());
  std::string text;
  for (int count = 0; count < 50; ++count) {
    const std::string body = std::to_string(count);
    text += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body;
  }
  client.send(text);
  for (int count = 0; count < 50; ++count) EXPECT_EQ(client.response().body, std::to_string(count));
}

TEST_F(HttpTest, a_request_sent_ahead_waits_for_its_turn) {
  start();
  TestClient client(server->port());
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  server->mailbox()->post(
      [exchange] { exchange->respond(HttpResponse{200, {}, "text/plain", "held"}); });
  EXPECT_EQ(client.response().body, "held");
  EXPECT_EQ(client.response().headers.at("X-Path"), "/echo?");
}

TEST_F(HttpTest, streams_are_chunked_and_old_clients_get_plain_ones) {
  start();
  TestClient client(server->port());
  const TestResponse response = client.get("/stream");
  EXPECT_EQ(response.headers.at("Transfer-Encoding"), "chunked");
  EXPECT_EQ(response.body, "one two three");
  EXPECT_EQ(client.get("/echo").status, 200);  // the connection goes on
  TestClient old(server->port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const TestResponse plain = old.response();
  EXPECT_FALSE(plain.headers.contains("Transfer-Encoding"));
  EXPECT_EQ(plain.body, "one two three");
}

TEST_F(HttpTest, silent_streams_are_pinged) {
  start();
  TestClient client(server->port());
  client.send("GET /hold-stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  EXPECT_TRUE(client.read_until("1\r\n.\r\n1\r\n.\r\n"));
  server->mailbox()->post([exchange] { exchange->finish(); });
  EXPECT_TRUE(client.read_until("0\r\n\r\n"));
}

TEST_F(HttpTest, head_has_no_body_and_connection_close_is_honoured) {
  start();
  TestClient client(server->port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(client.read_until_closed());
  EXPECT_TRUE(client.buffer().starts_with("HTTP/1.1 200 OK"));
  EXPECT_TRUE(client.buffer().ends_with("Connection: close\r\n\r\n"));
}

TEST_F(HttpTest, expectations_are_answered) {
  start();
  TestClient client(server->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.response().status, 100);
  client.send("hi");
  EXPECT_EQ(client.response().body, "hi");
  // A refused one is told so instead, and its body is never taken for a request.
  client.send(
      "POST /refused HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  const TestResponse refused = client.response();
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.headers.at("Connection"), "close");
  TestClient other(server->port());
  EXPECT_EQ(other.get("/echo", "Expect: tea\r\n").status, 417);
}

TEST_F(HttpTest, request_ids_are_echoed_when_well_formed) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/echo", "x-request-id: a.B_9:-\r\n").headers.at("x-request-id"), "a.B_9:-");
  EXPECT_TRUE(
      client.get("/echo", "x-request-id: a b\r\n").headers.at("x-request-id").starts_with("req-"));
  EXPECT_TRUE(client.get("/echo").headers.at("x-request-id").starts_with("req-"));
}

TEST_F(HttpTest, oversized_headers_are_refused_early) {
  HttpOptions options;
  options.max_header_bytes = 1024;
  start(options);
  TestClient client(server->port());
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nX: ");
  for (int count = 0; count < 200 && client.send(std::string(1024, 'a')); ++count) {
  }
  EXPECT_EQ(client.response().status, 431);
}

TEST_F(HttpTest, oversized_bodies_are_refused_early) {
  HttpOptions options;
  options.max_body_bytes = 1024;
  start(options);
  TestClient client(server->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_EQ(client.response().status, 413);
  TestClient chunked(server->port());
  chunked.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int count = 0; count < 100 && chunked.send("100\r\n" + std::string(256, 'a') + "\r\n");
       ++count) {
  }
  EXPECT_EQ(chunked.response().status, 413);
}

TEST_F(HttpTest, bodies_beyond_what_memory_holds_at_once_are_turned_away) {
  HttpOptions options;
  options.max_body_bytes = 1024;
  options.max_pending_bytes = 1500;
  start(options);
  const auto post = [](const char* path, std::size_t nbytes) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(nbytes) + "\r\n\r\n" +
           std::string(nbytes, 'a');
  };
  TestClient first(server->port()), second(server->port());
  first.send(post("/hold", 1000));
  auto exchange = wait_for_held();
  second.send(post("/echo", 501));
  EXPECT_EQ(second.response().status, 503);
  TestClient chunked(server->port());
  chunked.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.response().status, 503) << "it might become as long as any";
  TestClient third(server->port());
  third.send(post("/echo", 500));
  EXPECT_EQ(third.response().status, 200);
  server->mailbox()->post([exchange = std::move(exchange)] {
    exchange->respond(HttpResponse{200, {}, "text/plain", ""});
  });
  EXPECT_EQ(first.response().status, 200);
  // The server forgets a body a moment after its client has the answer, or is gone.
  const auto is_taken_soon = [&] {
    for (int tries = 0; tries < 200; ++tries) {
      TestClient client(server->port());
      client.send(post("/echo", 1000));
      if (client.response().status == 200) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  };
  EXPECT_TRUE(is_taken_soon()) << "what was answered is counted no more";
  TestClient half(server->port());
  half.send(post("/echo", 1000).substr(0, 600));
  half.close();
  EXPECT_TRUE(is_taken_soon()) << "nor what never came whole";
}

TEST_F(HttpTest, slow_headers_bodies_and_idle_connections_end) {
  HttpOptions options;
  options.header_timeout_s = 0.5;
  options.body_idle_timeout_s = 0.5;
  options.keep_alive_timeout_s = 0.5;
  start(options);
  TestClient header(server->port()), body(server->port()), idle(server->port());
  header.send("GET /echo HTTP/1.1\r\nHos");
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel");
  EXPECT_EQ(idle.get("/echo").status, 200);
  EXPECT_EQ(header.response().status, 408);
  EXPECT_EQ(body.response().status, 408);
  EXPECT_TRUE(idle.read_until_closed());
  EXPECT_EQ(idle.buffer(), "");
  // A trickle of headers does not buy time.
  TestClient trickle(server->port());
  for (int count = 0; count < 100 && trickle.send("X"); ++count) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(trickle.response().status, 408);
}

TEST_F(HttpTest, malformed_requests_are_refused) {
  start();
  for (const char* text :
       {"nonsense\r\n\r\n", "GET /echo HTTP/2.0\r\n\r\n",
        "GET /echo HTTP/1.1\r\nbad header\r\n\r\n", "GET echo HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /echo HTTP/1.1\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: "
        "chunked\r\n\r\n0\r\n\r\n"}) {
    TestClient client(server->port());
    client.send(text);
    EXPECT_EQ(client.response().status, 400) << text;
    EXPECT_TRUE(client.read_until_closed()) << text;
  }
  TestClient compressed(server->port());
  EXPECT_EQ(compressed.post("/echo", "x", "Content-Encoding: gzip\r\n").status, 415);
}

TEST_F(HttpTest, a_closed_client_is_noticed_while_its_request_runs) {
  start();
  for (const char* path : {"/hold", "/hold-stream"}) {
    TestClient client(server->port());
    client.send(std::string("GET ") + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const auto exchange = wait_for_held();
    const int before = num_closed;
    client.close();
    EXPECT_TRUE(eventually([&] { return num_closed == before + 1; })) << path;
    // Answers to nobody are dropped.
    server->mailbox()->post([exchange] {
      exchange->write("x");
      exchange->respond(HttpResponse{});
    });
  }
}

TEST_F(HttpTest, a_half_closed_client_still_gets_a_finished_answer) {
  start();
  TestClient client(server->port());
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  client.shut_down_writing();
  EXPECT_EQ(client.response().status, 200);
}

TEST_F(HttpTest, a_client_that_does_not_read_is_cut_off) {
  HttpOptions options;
  options.write_stall_timeout_s = 0.2;
  start(options);
  TestClient client(server->port());
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  server->mailbox()->post([exchange] {
    exchange->start_stream(HttpResponse{}, nullptr, 0);
    exchange->write(std::string(64u << 20, 'x'));
  });
  EXPECT_TRUE(eventually([&] { return num_closed == 1; }));
}

TEST_F(HttpTest, streams_that_nobody_reads_have_a_bound_together) {
  HttpOptions options;
  options.max_unsent_bytes = 64 << 20;
  start(options);
  TestClient client(server->port());
  client.send("GET /hold-stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  std::atomic<int> written{0};
  const auto write = [&](std::size_t megabytes) {
    const int before = written;
    server->mailbox()->post([&, megabytes] {
      for (std::size_t i = 0; i < megabytes; ++i) exchange->write(std::string(1 << 20, 'a'));
      ++written;
    });
    while (written == before) std::this_thread::sleep_for(1ms);
  };
  write(32);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(num_closed, 0);
  write(64);
  for (int tries = 0; num_closed == 0 && tries < 1000; ++tries) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(num_closed, 1);
  TestClient other(server->port());
  other.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(other.response().body, "one two three") << "what was cut off is counted no more";
}

TEST_F(HttpTest, connections_beyond_the_limit_are_turned_away_while_all_others_work) {
  HttpOptions options;
  options.max_connections = 2;
  start(options);
  TestClient first(server->port()), second(server->port());
  first.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  second.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto other = wait_for_held();
  TestClient third(server->port());
  const TestResponse refused = third.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  // Any number of them, without a place for each.
  for (int count = 0; count < 200; ++count)
    EXPECT_EQ(TestClient(server->port()).response().status, 503);
  first.close();
  EXPECT_TRUE(eventually([&] {
    TestClient next(server->port());
    return next.get("/echo").status == 200;
  }));
  server->mailbox()->post([other] { other->respond(HttpResponse{}); });
  EXPECT_EQ(second.response().status, 200);
}

TEST_F(HttpTest, the_longest_idle_connection_makes_room) {
  HttpOptions options;
  options.max_connections = 3;
  start(options);
  TestClient oldest(server->port()), half_open(server->port()), busy(server->port());
  EXPECT_EQ(busy.get("/echo").status, 200);
  half_open.send("GET /echo HTTP/1.1\r\nHos");
  busy.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  TestClient fourth(server->port());
  EXPECT_EQ(fourth.get("/echo").status, 200);
  EXPECT_TRUE(oldest.read_until_closed());
  TestClient fifth(server->port());
  EXPECT_EQ(fifth.get("/echo").status, 200);
  EXPECT_TRUE(half_open.read_until_closed());
  EXPECT_EQ(fourth.get("/echo").status, 200);
  // The fifth waits longer than the fourth now.
  TestClient sixth(server->port());
  EXPECT_EQ(sixth.get("/echo").status, 200);
  EXPECT_TRUE(fifth.read_until_closed());
  server->mailbox()->post([exchange] { exchange->respond(HttpResponse{}); });
  EXPECT_EQ(busy.response().status, 200);
}

TEST_F(HttpTest, every_exchange_is_reported_once) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/echo").status, 200);
  EXPECT_EQ(client.get("/stream").status, 200);
  EXPECT_EQ(client.get("/refused").status, 403);
  EXPECT_EQ(wait_for_done(3),
            (std::vector<std::string>{"GET /echo 200", "GET /stream 200", "GET /refused 403"}));
  TestClient bad(server->port());
  bad.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n");
  EXPECT_EQ(bad.response().status, 400);
  EXPECT_EQ(wait_for_done(4).back(), " /echo 400");
  TestClient gone(server->port());
  gone.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  gone.close();
  EXPECT_EQ(wait_for_done(5).back(), "GET /hold 499");
  TestClient half(server->port());
  half.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe");
  EXPECT_TRUE(eventually([&] { return server->port() != 0; }));
  half.close();
  EXPECT_EQ(wait_for_done(6).back(), "POST /echo 499");
  // One that never asked for anything did not begin an exchange.
  TestClient(server->port()).send("GET /ec");
  EXPECT_EQ(client.get("/echo").status, 200);
  EXPECT_EQ(wait_for_done(7).size(), 7u);
}

TEST_F(HttpTest, refusals_below_the_api_know_their_path) {
  HttpOptions options;
  options.max_header_bytes = 1024;
  options.max_body_bytes = 1024;
  options.body_idle_timeout_s = 0.3;
  start(options);
  const std::string line = "POST /v1/some%74hing?x=y HTTP/1.1\r\nHost: x\r\n";
  for (const auto& [rest, status] :
       std::vector<std::pair<std::string, int>>{{"Content-Length: 5000\r\n\r\n", 413},
                                                {"Content-Length: 5, 5\r\n\r\n", 400},
                                                {"Content-Encoding: br\r\n\r\n", 415},
                                                {"Content-Length: 5\r\n\r\nhe", 408},
                                                {"X: " + std::string(5000, 'a'), 431},
                                                {"bad header\r\n\r\n", 400}}) {
    TestClient client(server->port());
    client.send(line + rest);
    const TestResponse response = client.response();
    EXPECT_EQ(response.status, status) << rest.substr(0, 40);
    EXPECT_EQ(response.headers.at("X-Of"), "/v1/something") << rest.substr(0, 40);
  }
}

TEST_F(HttpTest, heads_can_be_added_to) {
  start();
  TestClient client(server->port());
  EXPECT_EQ(client.get("/echo").headers.at("X-Method"), "GET");
  EXPECT_EQ(client.get("/stream").headers.at("X-Method"), "GET");
  EXPECT_EQ(client.get("/refused").headers.at("X-Method"), "GET");
}

TEST_F(HttpTest, head_of_a_stream_is_its_head) {
  start();
  TestClient client(server->port());
  client.send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.read_until("X-Path: /echo?\r\n"));
  EXPECT_EQ(client.buffer().find("one"), std::string::npos);
}

TEST_F(HttpTest, a_body_of_many_reads_arrives_whole) {
  start();
  TestClient client(server->port());
  std::string body;
  for (int count = 0; count < 300000; ++count) body += std::to_string(count);
  std::thread sender([&] { client.send_post("/echo", body); });
  const TestResponse response = client.response();
  sender.join();
  EXPECT_TRUE(response.body == body);
}

TEST_F(HttpTest, stopping_closes_the_port_and_finishes_what_runs) {
  start();
  TestClient busy(server->port()), idle(server->port());
  EXPECT_EQ(idle.get("/echo").status, 200);
  busy.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  server->mailbox()->post([this] { server->stop_accepting(); });
  EXPECT_TRUE(idle.read_until_closed());
  server->mailbox()->post(
      [exchange] { exchange->respond(HttpResponse{200, {}, "text/plain", "done"}); });
  const TestResponse response = busy.response();
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(response.headers.at("Connection"), "close");
}

TEST_F(HttpTest, destroying_the_server_drops_everything) {
  start();
  TestClient client(server->port());
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_held();
  const auto mailbox = server->mailbox();
  server.reset();
  EXPECT_EQ(num_closed, 1);
  EXPECT_TRUE(exchange->closed());
  mailbox->post([] { ADD_FAILURE() << "posted work ran after the server's end"; });
  EXPECT_TRUE(client.read_until_closed());
}

TEST_F(HttpTest, a_taken_port_is_an_error) {
  start();
  HttpOptions options;
  options.host = "127.0.0.1";
  options.port = server->port();
  const auto second = HttpServer::listen(options, {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  options.host = "not-an-address";
  EXPECT_EQ(HttpServer::listen(options, {}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace glint
