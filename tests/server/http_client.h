// A raw-socket HTTP client for tests: sends any bytes, reads what comes back until a response is
// whole or the peer closes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"

namespace glint {

struct TestResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names as sent
  std::string body;                            // de-chunked
};

class TestClient {
 public:
  explicit TestClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    GLINT_CHECK(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void shut_down_writing() { ::shutdown(socket_, SHUT_WR); }

  // False once the peer closed.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Reads until `text` arrived; false when the peer closed or the time is over.
  bool read_until(std::string_view text, int timeout_ms = 20000) {
    while (buffer_.find(text) == std::string::npos) {
      if (!read_some(timeout_ms)) return false;
    }
    return true;
  }
  bool read_until_closed(int timeout_ms = 20000) {
    while (read_some(timeout_ms)) {
    }
    return closed_;
  }
  const std::string& buffer() const { return buffer_; }

  // The next response; status 0 when none came whole.
  TestResponse response(int timeout_ms = 20000) {
    TestResponse out;
    if (!read_until("\r\n\r\n", timeout_ms)) return out;
    const std::size_t head_end = buffer_.find("\r\n\r\n");
    const std::string head = buffer_.substr(0, head_end + 2);
    buffer_.erase(0, head_end + 4);
    parse_head(head, out);
    if (out.status == 100 || out.status == 204) return out;
    if (out.headers.contains("Transfer-Encoding")) {
      if (!read_chunks(out.body, timeout_ms)) out.status = 0;
    } else if (out.headers.contains("Content-Length")) {
      const auto length = std::stoul(out.headers["Content-Length"]);
      while (buffer_.size() < length && read_some(timeout_ms)) {
      }
      if (buffer_.size() < length) out.status = 0;
      out.body = buffer_.substr(0, length);
      buffer_.erase(0, length);
    } else {
      read_until_closed(timeout_ms);
      out.body = std::move(buffer_);
      buffer_.clear();
    }
    return out;
  }

  TestResponse get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return response();
  }
  TestResponse post(const std::string& path, const std::string& body,
                    const std::string& headers = "") {
    send_post(path, body, headers);
    return response();
  }
  void send_post(const std::string& path, const std::string& body,
                 const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
  }

 private:
  bool read_some(int timeout_ms) {
    pollfd poll_fd{socket_, POLLIN, 0};
    if (closed_ || ::poll(&poll_fd, 1, timeout_ms) <= 0) return false;
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (got <= 0) {
      closed_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }
  static void parse_head(const std::string& head, TestResponse& out) {
    out.status = std::stoi(head.substr(head.find(' ') + 1));
    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
      const std::size_t end = head.find("\r\n", at);
      const std::size_t colon = head.find(": ", at);
      out.headers[head.substr(at, colon - at)] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  }
  bool read_chunks(std::string& body, int timeout_ms) {
    while (true) {
      if (!read_until("\r\n", timeout_ms)) return false;
      const std::size_t line_end = buffer_.find("\r\n");
      const std::size_t length = std::stoul(buffer_.substr(0, line_end), nullptr, 16);
      buffer_.erase(0, line_end + 2);
      while (buffer_.size() < length + 2) {
        if (!read_some(timeout_ms)) return false;
      }
      body += buffer_.substr(0, length);
      buffer_.erase(0, length + 2);
      if (length == 0) return true;
    }
  }

  int socket_;
  bool closed_ = false;
  std::string buffer_;
};

}  // namespace glint
