// Thousands of connections at once: who is kept, what they cost, and what happens when descriptors
// run out.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <future>

#include "http_client.h"
#include "server/http.h"

namespace glint {
namespace {

using Clients = std::vector<std::unique_ptr<TestClient>>;

rlim_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

struct HttpManyTest : testing::Test {
  void start(int max_connections) {
    HttpOptions options;
    options.host = "127.0.0.1";
    options.max_connections = max_connections;
    // Nothing here waits for these.
    options.header_timeout_s = options.keep_alive_timeout_s = 1000;
    HttpHandlers handlers;
    handlers.check = [](const HttpRequest&) { return std::nullopt; };
    handlers.handle = [](std::shared_ptr<HttpExchange> exchange) {
      exchange->respond(HttpResponse{200, {}, "text/plain", "here"});
    };
    handlers.on_stop_signal = [](int) {};
    handlers.error_page = [](const std::string&, int status, const std::string& message) {
      return HttpResponse{status, {}, "text/plain", message};
    };
    auto listening = HttpServer::listen(options, handlers);
    ASSERT_TRUE(listening.has_value()) << listening.error().message;
    server = std::move(*listening);
  }
  int num_connections() {
    std::promise<int> count;
    server->mailbox()->post([&] { count.set_value(server->num_connections()); });
    return count.get_future().get();
  }
  void wait_for_connections(int count) {
    for (int tries = 0; tries < 4000 && num_connections() != count; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(num_connections(), count);
  }
  Clients connect(int count, const std::string& first_bytes) {
    Clients clients;
    for (int index = 0; index < count; ++index) {
      clients.push_back(std::make_unique<TestClient>(server->port()));
      if (!first_bytes.empty()) clients.back()->send(first_bytes);
    }
    return clients;
  }

  std::unique_ptr<HttpServer> server;
};

TEST_F(HttpManyTest, idle_and_half_open_connections_leave_room_for_a_request) {
  constexpr int kCount = 3000, kLimit = 1000;
  if (descriptor_limit() < kCount + kLimit + 200) {
    GTEST_SKIP() << "needs " << kCount + kLimit + 200 << " open files, and " << descriptor_limit()
                 << " are allowed";
  }
  start(kLimit);
  for (const char* first_bytes : {"", "GET / HTTP/1.1\r\nHos"}) {
    const Clients clients = connect(kCount, first_bytes);
    TestClient client(server->port());
    EXPECT_EQ(client.get("/").body, "here");
    EXPECT_LE(num_connections(), kLimit);
    // The newest are those that were kept.
    EXPECT_FALSE(clients.back()->read_until_closed(0));
    EXPECT_TRUE(clients.front()->read_until_closed());
  }
}

TEST_F(HttpManyTest, an_idle_connection_costs_little) {
  constexpr int kCount = 2000;
  constexpr std::size_t kMostBytes = 4096;
  if (descriptor_limit() < 2 * kCount + 200) {
    GTEST_SKIP() << "needs " << 2 * kCount + 200 << " open files, and " << descriptor_limit()
                 << " are allowed";
  }
  start(kCount + 10);
  // Each asks once, so that what a request needed is there to be given back.
  const auto in_use = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
  Clients clients = connect(10, "");
  EXPECT_EQ(clients.front()->get("/").body, "here");
  wait_for_connections(10);
  const std::size_t before = in_use();
  Clients more = connect(kCount - 10, "");
  for (const auto& client : more) {
    ASSERT_EQ(client->post("/", std::string(50000, 'x')).body, "here");
  }
  wait_for_connections(kCount);
  const std::size_t used = (in_use() - before) / (kCount - 10);
  RecordProperty("bytes_per_idle_connection", static_cast<int>(used));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(used, kMostBytes);
#endif
  more.clear();
  wait_for_connections(10);
}

TEST_F(HttpManyTest, connections_are_fitted_to_the_open_files_allowed) {
  // Lowering the hard limit cannot be undone, so a child does it.
  const auto serve_with_few = [this] {
    const rlimit low{50, 200};
    ::setrlimit(RLIMIT_NOFILE, &low);
    start(100000);
    if (descriptor_limit() != 200) return 2;
    // Some dozens fit; then each new one pushes an idle one out.
    Clients clients;
    for (int count = 0; count < 300; ++count) {
      if (clients.size() == 50) clients.erase(clients.begin());
      clients.push_back(std::make_unique<TestClient>(server->port()));
      if (clients.back()->get("/").status != 200) return 3;
    }
    return 0;
  };
  EXPECT_EXIT(std::_Exit(serve_with_few()), testing::ExitedWithCode(0), "");
}

TEST_F(HttpManyTest, running_out_of_descriptors_is_survived) {
  const auto serve_with_none = [this] {
    const rlimit low{400, 400};
    ::setrlimit(RLIMIT_NOFILE, &low);
    start(100000);
    TestClient idle(server->port());
    if (idle.get("/").status != 200) return 2;
    // Somebody else takes all descriptors there are, but for the client's own.
    std::vector<int> taken;
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
    ::close(taken.back());
    TestClient next(server->port());
    if (next.get("/").status != 200) return 3;
    return idle.read_until_closed() ? 0 : 4;
  };
  EXPECT_EXIT(std::_Exit(serve_with_none()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace glint
