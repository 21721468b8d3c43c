// A small HTTP/1.1 server: connections, limits, timeouts, streaming answers and the news that a
// client went away. It knows no API. One I/O thread runs everything here, and every callback below
// is called on it; only HttpServer::mailbox() and signal_stop() may be used from elsewhere.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace glint {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;  // without query and one trailing slash, not percent-decoded
  std::string query;
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;  // the client's x-request-id when it is well-formed, else a fresh one
  std::string_view header(std::string_view lower_case_name) const;  // empty when absent
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string content_type = "application/json";
  std::string body;
};

struct HttpOptions {
  std::string host;
  int port = 0;
  std::string server_header;
  std::size_t max_header_bytes = 64u << 10;
  std::size_t max_body_bytes = 64u << 20;
  // Bodies that are being read or whose requests are not answered yet; a request that would make
  // them more gets 503. 0: any number.
  std::size_t max_pending_bytes = 0;
  // Of streams that wait for their clients to read; a stream that would make them more is cut off.
  // 0: any number.
  std::size_t max_unsent_bytes = 0;
  double header_timeout_s = 10;
  double body_idle_timeout_s = 60;
  double write_stall_timeout_s = 60;
  double keep_alive_timeout_s = 75;
  // Beyond it the connection that is idle longest makes room, and if none is, the new one gets 503.
  // Lowered to what the limit on open files allows; that limit is raised as far as it goes.
  int max_connections = 4096;
};

// One request that waits for its answer. Answer it exactly once: respond(), or start_stream()
// write()* finish(). All do nothing once the client is gone. The answer may come at any later time;
// whoever holds this keeps only it alive.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void respond(HttpResponse response) = 0;
  // Sends status and headers now. While nothing is written for `ping_s`, what `ping` gives is.
  virtual void start_stream(HttpResponse head, std::function<std::string()> ping,
                            double ping_s) = 0;
  virtual void write(std::string_view text) = 0;
  virtual void finish() = 0;
  virtual bool closed() const = 0;
  // Called once if the connection ends before the answer does; dropped when it is answered.
  virtual void on_close(std::function<void()> callback) = 0;
};

// Turns a failure below the API (malformed, too large, too slow) into a response. The path is empty
// when the request did not get that far.
using HttpErrorPage =
    std::function<HttpResponse(const std::string& path, int status, const std::string& message)>;

struct HttpHandlers {
  // Headers are here, the body is not: a response refuses the request without reading it.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check;
  std::function<void(std::shared_ptr<HttpExchange>)> handle;
  std::function<void(int count)> on_stop_signal;  // the calls of signal_stop() so far
  HttpErrorPage error_page;
  // May be empty. The head of each response before it is sent, to add headers to.
  std::function<void(const HttpRequest&, HttpResponse&)> on_response;
  // May be empty. Each exchange whose headers came, and each refusal below the API, once, when its
  // last byte left or its connection ended before that (status 499). The request may lack what was
  // never read; `seconds` count from its first byte.
  std::function<void(const HttpRequest&, int status, double seconds)> on_done;
};

// Work for the I/O thread, from any thread. Outlives the server; afterwards posts are dropped.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  virtual void post(std::function<void()> work) = 0;
};

class HttpServer {
 public:
  // Listens and starts the thread. Errors: kInvalidArgument (host), kIo (address in use).
  static Result<std::unique_ptr<HttpServer>> listen(HttpOptions options, HttpHandlers handlers);
  // Closes every connection and joins the thread.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  std::shared_ptr<Mailbox> mailbox() const;
  void signal_stop() noexcept;  // async-signal-safe

  // I/O thread only.
  void after(double seconds, std::function<void()> work);
  // Closes the port and idle connections; answers in progress go on, their connections close behind
  // them.
  void stop_accepting();
  void close_connections();
  int num_connections() const;

 private:
  HttpServer();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
