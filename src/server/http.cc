// The only file that sees Boost, which is why connections and the listener share it.
#include "server/http.h"

// One thread runs every handler and posts pass a mutex, so asio's fences between handlers do
// nothing here; and ThreadSanitizer does not understand them.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "base/log.h"
#include "server/http_text.h"

namespace glint {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 16u << 10;
// What a client may send ahead while its request runs. Beyond it reading stops, and with it the
// news of a closed client.
constexpr std::size_t kMaxAheadBytes = 64u << 10;
constexpr double kLingerSeconds = 2;
constexpr std::size_t kMaxLingerBytes = 16u << 20;

std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9));
}

class IoMailbox : public Mailbox {
 public:
  explicit IoMailbox(asio::io_context& io) : io_(&io) {}
  void post(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    if (io_ != nullptr) asio::post(*io_, std::move(work));
  }
  void close() {
    const std::lock_guard lock(mutex_);
    io_ = nullptr;
  }

 private:
  std::mutex mutex_;
  asio::io_context* io_;
};

class Connection;

// What connections share.
struct Hub {
  HttpOptions options;
  HttpHandlers handlers;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool stopping = false;
};

class Exchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Hub& hub)
      : socket_(std::move(socket)),
        hub_(hub),
        read_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()),
        ping_timer_(socket_.get_executor()) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    arm_read_timer(hub_.options.header_timeout_s);
    read();
  }
  void refuse(HttpResponse response) {
    keep_alive_ = false;
    state_ = State::kBusy;
    send_whole(response, "");
  }
  void close();
  void close_if_idle() {
    if (state_ == State::kIdle && buffer_.size() == 0) close();
  }

  // The answer, from the exchange.
  void respond(const HttpResponse& response, const std::string& id) { send_whole(response, id); }
  void start_stream(const HttpResponse& head, const std::string& id,
                    std::function<std::string()> ping, double ping_s);
  void write_stream(std::string_view text);
  void finish_stream();

 private:
  // kIdle: between requests. kBusy: a request waits for its answer, or its answer for the socket.
  // kLinger: the last answer is out, and what still comes in is thrown away so that the client can
  // read it before the connection resets.
  enum class State { kIdle, kHeader, kBody, kBusy, kLinger, kClosed };
  using Parser = http::request_parser<http::string_body>;

  void read();
  void on_read(error_code error, std::size_t nbytes);
  void parse();
  bool on_header();
  void dispatch();
  void fail(int status, const std::string& message);
  void fail_parse(error_code error);
  void send_whole(const HttpResponse& response, const std::string& id);
  void send(std::string_view text);
  void write();
  void on_write(error_code error, std::size_t nbytes);
  void on_answered();
  void report(int status);
  void linger();
  void arm_read_timer(double seconds);
  void on_read_timer();
  void arm_ping_timer();

  tcp::socket socket_;
  Hub& hub_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;  // being read
  State state_ = State::kIdle;
  bool reading_ = false;
  bool keep_alive_ = true;
  bool is_head_ = false;
  bool is_http10_ = false;
  bool answered_ = false;  // the whole answer is queued
  bool is_first_ = true;   // no request came yet
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Exchange> answered_exchange_;  // its answer is on the way out
  int status_ = 0;                               // of the answer
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

  asio::steady_timer read_timer_, write_timer_, ping_timer_;
  std::string sending_, queued_;
  std::size_t num_sent_ = 0;  // of sending_
  std::size_t num_lingered_ = 0;
  bool writing_ = false;
  std::function<std::string()> ping_;
  double ping_s_ = 0;
  std::chrono::steady_clock::time_point last_write_;
};

class Exchange : public HttpExchange {
 public:
  Exchange(std::weak_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    if (const auto connection = end()) connection->respond(response, request_.id);
  }
  void start_stream(HttpResponse head, std::function<std::string()> ping, double ping_s) override {
    if (const auto connection = connection_.lock(); connection && !closed_) {
      connection->start_stream(head, request_.id, std::move(ping), ping_s);
    }
  }
  void write(std::string_view text) override {
    if (const auto connection = connection_.lock(); connection && !closed_)
      connection->write_stream(text);
  }
  void finish() override {
    if (const auto connection = end()) connection->finish_stream();
  }
  bool closed() const override { return closed_; }
  void on_close(std::function<void()> callback) override { on_close_ = std::move(callback); }

  // The connection is gone.
  void abandon() {
    closed_ = true;
    connection_.reset();
    if (const auto callback = std::exchange(on_close_, nullptr)) callback();
  }

 private:
  // The connection, if it is still waiting for the end of this answer; nobody gets it twice.
  std::shared_ptr<Connection> end() {
    auto connection = connection_.lock();
    connection_.reset();
    on_close_ = nullptr;
    return closed_ ? nullptr : connection;
  }

  std::weak_ptr<Connection> connection_;
  const HttpRequest request_;
  std::function<void()> on_close_;
  bool closed_ = false;
};

void Connection::close() {
  if (state_ == State::kClosed) return;
  const State was = std::exchange(state_, State::kClosed);
  error_code ignored;
  socket_.close(ignored);
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  constexpr int kClientWentAway = 499;
  if (was == State::kBody || was == State::kBusy) report(kClientWentAway);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->abandon();
  hub_.connections.erase(shared_from_this());
}

// One read is always pending, also while a request runs: that is how a client that goes away is
// noticed.
void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kBusy && buffer_.size() >= kMaxAheadBytes) return;
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](error_code error, std::size_t nbytes) {
                            self->reading_ = false;
                            self->on_read(error, nbytes);
                          });
}

void Connection::on_read(error_code error, std::size_t nbytes) {
  if (state_ == State::kClosed) return;
  if (error) {
    // A client that closed only its own direction still gets an answer that is complete.
    if (error == asio::error::eof && state_ == State::kBusy && answered_) {
      keep_alive_ = false;
      return;
    }
    return close();
  }
  buffer_.commit(nbytes);
  switch (state_) {
    case State::kLinger:
      num_lingered_ += nbytes;
      buffer_.consume(buffer_.size());
      return num_lingered_ > kMaxLingerBytes ? close() : read();
    case State::kBusy:
      return read();
    default:
      return parse();
  }
}

void Connection::parse() {
  while (state_ == State::kIdle || state_ == State::kHeader || state_ == State::kBody) {
    if (buffer_.size() == 0) return read();
    if (state_ == State::kIdle) {
      parser_.emplace();
      parser_->header_limit(static_cast<std::uint32_t>(hub_.options.max_header_bytes));
      parser_->body_limit(hub_.options.max_body_bytes);
      parser_->eager(false);
      state_ = State::kHeader;
      request_ = HttpRequest();
      is_first_ = false;
      is_head_ = false;
      started_ = std::chrono::steady_clock::now();
      arm_read_timer(hub_.options.header_timeout_s);
    }
    error_code error;
    const std::size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error && error != http::error::need_more) return fail_parse(error);
    if (state_ == State::kHeader && parser_->is_header_done()) {
      if (!on_header()) return;
    }
    if (state_ == State::kBody) {
      if (parser_->is_done()) return dispatch();
      if (used > 0) arm_read_timer(hub_.options.body_idle_timeout_s);
    }
    if (error == http::error::need_more) return read();
  }
}

// False when the request was refused.
bool Connection::on_header() {
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive() && !hub_.stopping;
  is_http10_ = message.version() < 11;
  is_head_ = message.method() == http::verb::head;
  request_.method = std::string(message.method_string());
  for (const auto& field : message) {
    request_.headers.emplace_back(
        lower_case({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
  const std::string_view id = request_.header("x-request-id");
  request_.id = is_request_id(id) ? std::string(id) : "req-" + random_name(24);
  const auto target = message.target();
  if (!split_target({target.data(), target.size()}, request_)) {
    fail(400, "The request target must be a path.");
    return false;
  }
  if (message.version() != 10 && message.version() != 11) {
    fail(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
    return false;
  }
  const std::string encoding = lower_case(request_.header("content-encoding"));
  if (!encoding.empty() && encoding != "identity") {
    fail(415, "Compressed request bodies are not supported; send the body as it is.");
    return false;
  }
  if (std::optional<HttpResponse> refusal = hub_.handlers.check(request_)) {
    // An unread body would be taken for the next request.
    if (!parser_->is_done()) keep_alive_ = false;
    state_ = State::kBusy;
    send_whole(*refusal, request_.id);
    read();
    return false;
  }
  const std::string expect = lower_case(request_.header("expect"));
  if (!expect.empty() && expect != "100-continue") {
    fail(417, "The only expectation understood is 100-continue.");
    return false;
  }
  state_ = State::kBody;
  parser_->eager(true);
  arm_read_timer(hub_.options.body_idle_timeout_s);
  if (!expect.empty() && !is_http10_ && !parser_->is_done() && buffer_.size() == 0) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void Connection::dispatch() {
  read_timer_.cancel();
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::kBusy;
  exchange_ = std::make_shared<Exchange>(weak_from_this(), std::move(request_));
  read();
  hub_.handlers.handle(exchange_);
}

void Connection::fail(int status, const std::string& message) {
  keep_alive_ = false;
  state_ = State::kBusy;
  send_whole(hub_.handlers.error_page(request_.path, status, message), request_.id);
  read();
}

void Connection::fail_parse(error_code error) {
  if (error == http::error::header_limit) {
    return fail(431,
                fmt::format("The request headers exceed {} bytes.", hub_.options.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return fail(413, fmt::format("The request body exceeds {} bytes; see --max-body-mib.",
                                 hub_.options.max_body_bytes));
  }
  fail(400, "The request is not well-formed HTTP: " + error.message() + ".");
}

void Connection::send_whole(const HttpResponse& response, const std::string& id) {
  if (state_ == State::kClosed) return;
  keep_alive_ = keep_alive_ && !hub_.stopping;
  const bool has_body = response.status != 204 && response.status != 304;
  const std::string framing =
      has_body ? fmt::format("Content-Length: {}\r\n", response.body.size()) : "";
  answered_exchange_ = std::exchange(exchange_, nullptr);
  status_ = response.status;
  read_timer_.cancel();
  answered_ = true;
  std::string text = response_head(response, framing, hub_.options, id, keep_alive_);
  if (!is_head_ && has_body) text += response.body;
  send(text);
}

void Connection::start_stream(const HttpResponse& head, const std::string& id,
                              std::function<std::string()> ping, double ping_s) {
  keep_alive_ = keep_alive_ && !hub_.stopping && !is_http10_;
  status_ = head.status;
  ping_ = std::move(ping);
  ping_s_ = ping_s;
  send(response_head(head, is_http10_ ? "" : "Transfer-Encoding: chunked\r\n", hub_.options, id,
                     keep_alive_));
  if (ping_ && ping_s_ > 0) arm_ping_timer();
}

void Connection::write_stream(std::string_view text) {
  if (text.empty()) return;  // an empty chunk would end the answer
  if (is_http10_) return send(text);
  send(fmt::format("{:x}\r\n{}\r\n", text.size(), text));
}

void Connection::finish_stream() {
  answered_exchange_ = std::exchange(exchange_, nullptr);
  ping_timer_.cancel();
  ping_s_ = 0;
  ping_ = nullptr;
  answered_ = true;
  if (is_http10_) return on_answered();
  keep_alive_ = keep_alive_ && !hub_.stopping;
  send("0\r\n\r\n");
}

void Connection::send(std::string_view text) {
  if (state_ == State::kClosed) return;
  last_write_ = std::chrono::steady_clock::now();
  queued_ += text;
  if (!writing_) write();
}

void Connection::write() {
  if (num_sent_ == sending_.size()) {
    sending_.clear();
    sending_.swap(queued_);
    num_sent_ = 0;
  }
  writing_ = true;
  const auto self = shared_from_this();
  write_timer_.expires_after(duration(hub_.options.write_stall_timeout_s));
  write_timer_.async_wait([self](error_code error) {
    if (!error && self->writing_ &&
        self->write_timer_.expiry() <= std::chrono::steady_clock::now()) {
      self->close();
    }
  });
  socket_.async_write_some(
      asio::buffer(sending_.data() + num_sent_, sending_.size() - num_sent_),
      [self](error_code error, std::size_t nbytes) { self->on_write(error, nbytes); });
}

void Connection::on_write(error_code error, std::size_t nbytes) {
  writing_ = false;
  if (state_ == State::kClosed) return;
  if (error) return close();
  num_sent_ += nbytes;
  if (num_sent_ < sending_.size() || !queued_.empty()) return write();
  write_timer_.cancel();
  on_answered();
}

// Goes on to the next request once this one's answer has left, so that a client that never reads
// cannot pile answers up.
void Connection::on_answered() {
  if (!answered_ || writing_) return;
  answered_ = false;
  report(status_);
  if (!keep_alive_ || hub_.stopping) return linger();
  state_ = State::kIdle;
  arm_read_timer(hub_.options.keep_alive_timeout_s);
  parse();
}

void Connection::report(int status) {
  const auto exchange = exchange_ ? exchange_ : std::exchange(answered_exchange_, nullptr);
  if (!hub_.handlers.on_done) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started_;
  hub_.handlers.on_done(exchange ? exchange->request() : request_, status, seconds.count());
}

void Connection::linger() {
  state_ = State::kLinger;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.consume(buffer_.size());
  arm_read_timer(kLingerSeconds);
  read();
}

void Connection::arm_read_timer(double seconds) {
  read_timer_.expires_after(duration(seconds));
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->read_timer_.expiry() <= std::chrono::steady_clock::now())
      self->on_read_timer();
  });
}

void Connection::on_read_timer() {
  switch (state_) {
    case State::kIdle:
      if (is_first_) return fail(408, "No request came in time.");
      return close();
    case State::kLinger:
      return close();
    case State::kHeader:
      return fail(408, "The request headers took too long.");
    case State::kBody:
      return fail(408, "The request body stopped coming.");
    case State::kBusy:
    case State::kClosed:
      return;
  }
}

void Connection::arm_ping_timer() {
  ping_timer_.expires_at(last_write_ + duration(ping_s_));
  ping_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->state_ == State::kClosed || self->ping_s_ <= 0) return;
    if (std::chrono::steady_clock::now() >= self->last_write_ + duration(self->ping_s_)) {
      self->write_stream(self->ping_());
      self->last_write_ = std::chrono::steady_clock::now();
    }
    self->arm_ping_timer();
  });
}

}  // namespace

struct HttpServer::State {
  explicit State(HttpOptions options, HttpHandlers handlers)
      : hub{std::move(options), std::move(handlers), {}, false},
        acceptor(io),
        stop_event(io),
        accept_retry(io),
        mailbox(std::make_shared<IoMailbox>(io)) {}

  asio::io_context io{1};
  Hub hub;
  tcp::acceptor acceptor;
  asio::posix::stream_descriptor stop_event;
  asio::steady_timer accept_retry;
  std::shared_ptr<IoMailbox> mailbox;
  std::uint64_t num_signals = 0, read_signals = 0;
  int event_fd = -1;
  int port = 0;
  std::thread thread;

  Status open();
  void accept();
  void on_accept(error_code error, tcp::socket socket);
  void wait_for_stop();
};

Status HttpServer::State::open() {
  const HttpOptions& options = hub.options;
  error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    return invalid_argument(
        fmt::format("--host {}: must be an IP address or 'localhost'", options.host));
  }
  if (options.port < 0 || options.port > 65535) {
    return invalid_argument(fmt::format("--port {}: must be from 0 to 65535", options.port));
  }
  const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return io_error(fmt::format("cannot listen on {} port {}: {}; choose another --port or --host",
                                options.host, options.port, error.message()));
  }
  port = acceptor.local_endpoint(error).port();
  event_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd < 0) return io_error("eventfd: the system has no file descriptor left");
  stop_event.assign(event_fd);
  return {};
}

void HttpServer::State::accept() {
  acceptor.async_accept(
      [this](error_code error, tcp::socket socket) { on_accept(error, std::move(socket)); });
}

void HttpServer::State::on_accept(error_code error, tcp::socket socket) {
  if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
  if (error) {
    // Out of descriptors or memory: the connection stays in the backlog until there are some.
    accept_retry.expires_after(std::chrono::milliseconds(100));
    accept_retry.async_wait([this](error_code timer_error) {
      if (!timer_error && acceptor.is_open()) accept();
    });
    return;
  }
  const bool full = hub.connections.size() >= static_cast<std::size_t>(hub.options.max_connections);
  auto connection = std::make_shared<Connection>(std::move(socket), hub);
  hub.connections.insert(connection);
  if (full) {
    connection->refuse(hub.handlers.error_page("", 503, "Too many connections; try again soon."));
  } else {
    connection->start();
  }
  accept();
}

void HttpServer::State::wait_for_stop() {
  stop_event.async_read_some(
      asio::buffer(&read_signals, sizeof(read_signals)), [this](error_code error, std::size_t) {
        if (error) return;
        num_signals += read_signals;
        hub.handlers.on_stop_signal(static_cast<int>(std::min<std::uint64_t>(num_signals, 1000)));
        wait_for_stop();
      });
}

HttpServer::HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::listen(HttpOptions options, HttpHandlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  server->state_ = std::make_unique<State>(std::move(options), std::move(handlers));
  State& state = *server->state_;
  GLINT_TRY_VOID(state.open());
  state.accept();
  state.wait_for_stop();
  state.thread = std::thread([&state] { state.io.run(); });
  return server;
}

HttpServer::~HttpServer() {
  if (state_ == nullptr) return;
  state_->mailbox->close();
  state_->io.stop();
  if (state_->thread.joinable()) state_->thread.join();
  close_connections();
}

int HttpServer::port() const {
  return state_->port;
}
std::shared_ptr<Mailbox> HttpServer::mailbox() const {
  return state_->mailbox;
}

void HttpServer::signal_stop() noexcept {
  const std::uint64_t one = 1;
  // The counter cannot overflow, so this cannot fail.
  [[maybe_unused]] const auto written = ::write(state_->event_fd, &one, sizeof(one));
}

void HttpServer::after(double seconds, std::function<void()> work) {
  auto timer = std::make_shared<asio::steady_timer>(state_->io, duration(seconds));
  timer->async_wait([timer, work = std::move(work)](error_code error) {
    if (!error) work();
  });
}

void HttpServer::stop_accepting() {
  Hub& hub = state_->hub;
  hub.stopping = true;
  error_code ignored;
  state_->acceptor.close(ignored);
  const auto connections = hub.connections;
  for (const auto& connection : connections) connection->close_if_idle();
}

void HttpServer::close_connections() {
  const auto connections = state_->hub.connections;
  for (const auto& connection : connections) connection->close();
}

int HttpServer::num_connections() const {
  return static_cast<int>(state_->hub.connections.size());
}

}  // namespace glint
