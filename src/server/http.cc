// The only file that sees asio, which is why connections and the listener share it.
#include "server/http.h"

// One thread runs every handler and posts pass a mutex, so asio's fences between handlers do
// nothing here; and ThreadSanitizer does not understand them.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "base/log.h"
#include "server/http_reader.h"
#include "server/http_text.h"
#include "server/pending_body.h"

namespace glint {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 64u << 10;
// What a client may send ahead while its request runs. Beyond it reading stops, and with it the
// news of a closed client.
constexpr std::size_t kMaxAheadBytes = 64u << 10;
constexpr double kLingerSeconds = 2;
constexpr std::size_t kMaxLingerBytes = 16u << 20;
// Connections that were turned away and may still read why.
constexpr std::size_t kMaxRefused = 64;
// Descriptors for everything that is not a connection: checkpoint files, logs, the listener.
constexpr rlim_t kOtherDescriptors = 64;
constexpr int kClientWentAway = 499;

std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9));
}

// Assigning an empty string would keep the memory.
void give_back(std::string& text) {
  std::string().swap(text);
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

using Connections = std::list<Connection*>;

// What connections share.
struct Hub {
  HttpOptions options;
  HttpHandlers handlers;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  // Those nobody waits for, the longest idle first: between requests, before the end of a header,
  // or only open so that the client can read the last answer.
  Connections spare;
  Connections refused;  // over the limit, oldest first
  bool stopping = false;
  std::shared_ptr<std::atomic<std::size_t>> pending_bytes;
  std::size_t unsent_bytes = 0;          // of all connections
  std::array<char, kReadBytes> scratch;  // a connection that does not read now keeps no buffer
};

class Exchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Hub& hub)
      : socket_(std::move(socket)),
        hub_(hub),
        read_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()),
        ping_timer_(socket_.get_executor()) {
    error_code ignored;
    socket_.non_blocking(true, ignored);
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void start() {
    enter(hub_.spare);
    arm_read_timer(hub_.options.header_timeout_s);
    read();
  }
  void refuse(HttpResponse response) {
    enter(hub_.refused);
    keep_alive_ = false;
    state_ = State::kBusy;
    response.headers.emplace_back("Retry-After", "1");
    send_whole(response, HttpRequest());
  }
  void close();
  void close_if_idle() {
    if (state_ == State::kIdle && received_.empty()) close();
  }

  // The answer, from the exchange.
  void respond(HttpResponse response, const HttpRequest& request) {
    send_whole(std::move(response), request);
  }
  void start_stream(HttpResponse head, const HttpRequest& request,
                    std::function<std::string()> ping, double ping_s);
  void write_stream(std::string_view text);
  void finish_stream();

 private:
  // kIdle: between requests. kBusy: a request waits for its answer, or its answer for the socket.
  // kLinger: the last answer is out, and what still comes in is thrown away so that the client can
  // read it before the connection resets.
  enum class State { kIdle, kHeader, kBody, kBusy, kLinger, kClosed };

  void enter(Connections& place);
  void leave();
  void read();
  void on_readable(error_code error);
  void on_read(error_code error, std::size_t nbytes);
  void parse();
  void start_request();
  bool on_header();
  bool take_body();
  void dispatch();
  void fail(int status, const std::string& message);
  void send_whole(HttpResponse response, const HttpRequest& request);
  void decorate(HttpResponse& response, const HttpRequest& request);
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
  Connections* place_ = nullptr;
  Connections::iterator spot_;             // in *place_
  std::string received_;                   // and not used yet
  std::unique_ptr<RequestReader> reader_;  // while a request is being read
  PendingBody body_;                       // of it
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
  Exchange(std::weak_ptr<Connection> connection, HttpRequest request, PendingBody body)
      : connection_(std::move(connection)), request_(std::move(request)), body_(std::move(body)) {}

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    if (const auto connection = end()) connection->respond(std::move(response), request_);
  }
  void start_stream(HttpResponse head, std::function<std::string()> ping, double ping_s) override {
    if (const auto connection = connection_.lock(); connection && !closed_) {
      connection->start_stream(std::move(head), request_, std::move(ping), ping_s);
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
  const PendingBody body_;
  std::function<void()> on_close_;
  bool closed_ = false;
};

void Connection::close() {
  if (state_ == State::kClosed) return;
  const State was = std::exchange(state_, State::kClosed);
  leave();
  error_code ignored;
  socket_.close(ignored);
  hub_.unsent_bytes -= sending_.size() - num_sent_ + queued_.size();
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  if (was == State::kBody || was == State::kBusy) report(kClientWentAway);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->abandon();
  hub_.connections.erase(shared_from_this());
}

void Connection::enter(Connections& place) {
  leave();
  place_ = &place;
  spot_ = place.insert(place.end(), this);
}

void Connection::leave() {
  if (place_ != nullptr) place_->erase(spot_);
  place_ = nullptr;
}

// The socket is always watched, also while a request runs: that is how a client that goes away is
// noticed.
void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kBusy && received_.size() >= kMaxAheadBytes) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->reading_ = false;
    self->on_readable(error);
  });
}

void Connection::on_readable(error_code error) {
  if (state_ == State::kClosed) return;
  std::size_t nbytes = 0;
  if (!error) nbytes = socket_.read_some(asio::buffer(hub_.scratch), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return read();
  on_read(error, nbytes);
}

void Connection::on_read(error_code error, std::size_t nbytes) {
  if (error) {
    // A client that closed only its own direction still gets an answer that is complete.
    if (error == asio::error::eof && state_ == State::kBusy && answered_) {
      keep_alive_ = false;
      return;
    }
    return close();
  }
  if (state_ == State::kLinger) {
    num_lingered_ += nbytes;
    return num_lingered_ > kMaxLingerBytes ? close() : read();
  }
  received_.append(hub_.scratch.data(), nbytes);
  return state_ == State::kBusy ? read() : parse();
}

void Connection::parse() {
  while (state_ == State::kIdle || state_ == State::kHeader || state_ == State::kBody) {
    if (received_.empty()) {
      give_back(received_);
      return read();
    }
    if (state_ == State::kIdle) start_request();
    const std::size_t used = reader_->put(received_);
    received_.erase(0, used);
    if (reader_->state() == RequestReader::State::kFailed) {
      return fail(reader_->failed_status(), reader_->failed_message());
    }
    if (reader_->state() == RequestReader::State::kHeader) return read();
    if (state_ == State::kHeader && !on_header()) return;
    if (reader_->state() == RequestReader::State::kDone) return dispatch();
    if (used == 0) return read();
    arm_read_timer(hub_.options.body_idle_timeout_s);
  }
}

void Connection::start_request() {
  reader_ = std::make_unique<RequestReader>(hub_.options);
  state_ = State::kHeader;
  is_first_ = false;
  is_head_ = false;
  started_ = std::chrono::steady_clock::now();
  arm_read_timer(hub_.options.header_timeout_s);
}

// False when the request was refused.
bool Connection::on_header() {
  leave();
  const HttpRequest& request = reader_->request();
  keep_alive_ = reader_->keep_alive() && !hub_.stopping;
  is_http10_ = reader_->is_http10();
  is_head_ = request.method == "HEAD";
  if (std::optional<HttpResponse> refusal = hub_.handlers.check(request)) {
    // An unread body would be taken for the next request.
    if (reader_->state() != RequestReader::State::kDone) keep_alive_ = false;
    state_ = State::kBusy;
    send_whole(std::move(*refusal), request);
    read();
    return false;
  }
  if (!take_body()) {
    fail(503, "The server has no memory for more requests now; try again.");
    return false;
  }
  state_ = State::kBody;
  arm_read_timer(hub_.options.body_idle_timeout_s);
  if (reader_->wants_continue() && received_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

// Whether there is memory for the body, which may be as long as any where its length is not told.
bool Connection::take_body() {
  const std::size_t most = hub_.options.max_pending_bytes;
  if (most == 0) return true;
  const HttpRequest& request = reader_->request();
  std::size_t nbytes = 0;
  const std::string_view length = request.header("content-length");
  if (!length.empty()) {
    std::from_chars(length.data(), length.data() + length.size(), nbytes);
  } else if (!request.header("transfer-encoding").empty()) {
    nbytes = hub_.options.max_body_bytes;
  }
  if (nbytes == 0) return true;
  if (nbytes > most - std::min(most, hub_.pending_bytes->load())) return false;
  body_ = PendingBody(hub_.pending_bytes, nbytes);
  return true;
}

void Connection::dispatch() {
  read_timer_.cancel();
  state_ = State::kBusy;
  exchange_ = std::make_shared<Exchange>(weak_from_this(), reader_->take(), std::move(body_));
  reader_.reset();
  read();
  // The handler may answer at once, and the answer end exchange_.
  hub_.handlers.handle(std::shared_ptr<HttpExchange>(exchange_));
}

void Connection::fail(int status, const std::string& message) {
  leave();
  {
    const PendingBody given_back = std::move(body_);
  }
  keep_alive_ = false;
  state_ = State::kBusy;
  static const HttpRequest kNone;
  const HttpRequest& request = reader_ ? reader_->request() : kNone;
  is_head_ = request.method == "HEAD";
  send_whole(hub_.handlers.error_page(request.path, status, message), request);
  read();
}

void Connection::decorate(HttpResponse& response, const HttpRequest& request) {
  if (hub_.handlers.on_response) hub_.handlers.on_response(request, response);
}

void Connection::send_whole(HttpResponse response, const HttpRequest& request) {
  if (state_ == State::kClosed) return;
  keep_alive_ = keep_alive_ && !hub_.stopping;
  decorate(response, request);
  const bool has_body = response.status != 204 && response.status != 304;
  const std::string framing =
      has_body ? fmt::format("Content-Length: {}\r\n", response.body.size()) : "";
  std::string text = response_head(response, framing, hub_.options, request.id, keep_alive_);
  if (!is_head_ && has_body) text += response.body;
  answered_exchange_ = std::exchange(exchange_, nullptr);
  status_ = response.status;
  read_timer_.cancel();
  answered_ = true;
  send(text);
}

void Connection::start_stream(HttpResponse head, const HttpRequest& request,
                              std::function<std::string()> ping, double ping_s) {
  keep_alive_ = keep_alive_ && !hub_.stopping && !is_http10_;
  status_ = head.status;
  ping_ = std::move(ping);
  ping_s_ = ping_s;
  decorate(head, request);
  send(response_head(head, is_http10_ ? "" : "Transfer-Encoding: chunked\r\n", hub_.options,
                     request.id, keep_alive_));
  if (ping_ && ping_s_ > 0) arm_ping_timer();
}

void Connection::write_stream(std::string_view text) {
  if (text.empty() || is_head_) return;  // an empty chunk would end the answer
  const std::size_t most = hub_.options.max_unsent_bytes;
  if (most > 0 && text.size() > most - std::min(most, hub_.unsent_bytes)) {
    // Later, since whoever writes is told of the close.
    return asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
  }
  if (is_http10_) return send(text);
  send(fmt::format("{:x}\r\n{}\r\n", text.size(), text));
}

void Connection::finish_stream() {
  answered_exchange_ = std::exchange(exchange_, nullptr);
  ping_timer_.cancel();
  ping_s_ = 0;
  ping_ = nullptr;
  answered_ = true;
  if (is_http10_ || is_head_) return on_answered();
  send("0\r\n\r\n");
}

void Connection::send(std::string_view text) {
  if (state_ == State::kClosed) return;
  last_write_ = std::chrono::steady_clock::now();
  queued_ += text;
  hub_.unsent_bytes += text.size();
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
  hub_.unsent_bytes -= nbytes;
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
  reader_.reset();
  give_back(sending_);
  give_back(queued_);
  num_sent_ = 0;
  if (!keep_alive_ || hub_.stopping) return linger();
  state_ = State::kIdle;
  enter(hub_.spare);
  arm_read_timer(hub_.options.keep_alive_timeout_s);
  parse();
}

void Connection::report(int status) {
  const auto exchange = exchange_ ? exchange_ : std::exchange(answered_exchange_, nullptr);
  if (!hub_.handlers.on_done) return;
  static const HttpRequest kNone;
  const HttpRequest& request = exchange  ? exchange->request()
                               : reader_ ? reader_->request()
                                         : kNone;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started_;
  hub_.handlers.on_done(request, status, seconds.count());
}

void Connection::linger() {
  state_ = State::kLinger;
  if (place_ == nullptr) enter(hub_.spare);
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  give_back(received_);
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
      : hub{std::move(options),
            std::move(handlers),
            {},
            {},
            {},
            false,
            std::make_shared<std::atomic<std::size_t>>(0),
            0,
            {}},
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
  void retry_accept();
  bool has_room();
  void wait_for_stop();
};

// The most connections that the process's limit on descriptors leaves room for. The limit is raised
// as far as this user may.
int descriptors_for_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const rlim_t reserved = kOtherDescriptors + kMaxRefused;
  const rlim_t left = limit.rlim_cur > reserved ? limit.rlim_cur - reserved : 1;
  return static_cast<int>(std::min<rlim_t>(left, std::numeric_limits<int>::max()));
}

Status HttpServer::State::open() {
  const int most = descriptors_for_connections();
  if (hub.options.max_connections > most) {
    log_warn(fmt::format("at most {} connections, not {}: the limit on open files (ulimit -n)",
                         most, hub.options.max_connections));
    hub.options.max_connections = most;
  }
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
  if (!error) acceptor.non_blocking(true, error);
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

// Waits first: without a connection to accept, an attempt would still fail for want of a
// descriptor.
void HttpServer::State::accept() {
  acceptor.async_wait(tcp::acceptor::wait_read, [this](error_code error) {
    if (error || !acceptor.is_open()) return;
    tcp::socket socket(io);
    acceptor.accept(socket, error);
    on_accept(error, std::move(socket));
  });
}

void HttpServer::State::on_accept(error_code error, tcp::socket socket) {
  if (error == asio::error::would_block || error == asio::error::connection_aborted) {
    return accept();
  }
  if (error) return retry_accept();
  if (has_room()) {
    auto connection = std::make_shared<Connection>(std::move(socket), hub);
    hub.connections.insert(connection);
    connection->start();
  } else {
    if (hub.refused.size() >= kMaxRefused) hub.refused.front()->close();
    auto connection = std::make_shared<Connection>(std::move(socket), hub);
    hub.connections.insert(connection);
    connection->refuse(hub.handlers.error_page("", 503, "Too many connections; try again soon."));
  }
  accept();
}

// Out of descriptors or memory: the one idle longest makes room, and the new one stays in the
// backlog for a moment.
void HttpServer::State::retry_accept() {
  if (!hub.spare.empty()) hub.spare.front()->close();
  accept_retry.expires_after(std::chrono::milliseconds(100));
  accept_retry.async_wait([this](error_code error) {
    if (!error && acceptor.is_open()) accept();
  });
}

// Whether one more connection may be served, if need be in place of the one idle longest.
bool HttpServer::State::has_room() {
  const auto limit = static_cast<std::size_t>(hub.options.max_connections);
  const auto num_served = [this] { return hub.connections.size() - hub.refused.size(); };
  while (num_served() >= limit && !hub.spare.empty()) hub.spare.front()->close();
  return num_served() < limit;
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
