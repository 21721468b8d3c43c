// Requests out of bytes: every split reads the same, and what two parsers could read differently is
// refused.
#include "server/http_reader.h"

#include <gtest/gtest.h>

namespace glint {
namespace {

struct Read {
  int status = 0;  // 0: whole; -1: more is needed; else of the refusal
  HttpRequest request;
  std::string rest;
};

// Feeds `text` in pieces of `step` bytes, as a connection does.
Read read(const std::string& text, std::size_t step, const HttpOptions& options = {}) {
  RequestReader reader(options);
  Read out;
  std::string pending;
  for (std::size_t at = 0; at < text.size();) {
    pending += text.substr(at, step);
    at += step;
    for (std::size_t used = 1; used > 0 && !pending.empty();) {
      used = reader.put(pending);
      pending.erase(0, used);
      if (reader.state() == RequestReader::State::kFailed) {
        out.status = reader.failed_status();
        out.request = reader.request();
        return out;
      }
      if (reader.state() == RequestReader::State::kDone) {
        out.request = reader.take();
        out.rest = pending + (at < text.size() ? text.substr(at) : "");
        return out;
      }
    }
  }
  out.status = -1;
  return out;
}

int status_of(const std::string& text, const HttpOptions& options = {}) {
  return read(text, text.size(), options).status;
}

TEST(http_reader, every_split_reads_the_same) {
  const std::string next = "GET /next HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const std::string text :
       {"POST /v1/a/?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello world",
        "POST /v1/a/?b=c HTTP/1.1\r\nHOST: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
        "5;name=\"value\"\r\nhello\r\n1\r\n \r\n005\r\nworld\r\n0\r\nTrailer: x\r\n\r\n"}) {
    for (std::size_t step = 1; step <= text.size(); ++step) {
      const Read got = read(text + next, step);
      ASSERT_EQ(got.status, 0) << step;
      EXPECT_EQ(got.request.method, "POST");
      EXPECT_EQ(got.request.path, "/v1/a");
      EXPECT_EQ(got.request.query, "b=c");
      EXPECT_EQ(got.request.body, "hello world");
      EXPECT_EQ(got.request.header("host"), "x");
      EXPECT_EQ(got.rest, next);
    }
  }
}

TEST(http_reader, framings_that_others_could_read_differently_are_refused) {
  const std::string start = "POST /a HTTP/1.1\r\nHost: x\r\n";
  for (const char* headers : {"Content-Length: 5\r\nContent-Length: 5\r\n",
                              "Content-Length: 5\r\nContent-Length: 6\r\n",
                              "Content-Length: 5, 5\r\n",
                              "Content-Length: 5,6\r\n",
                              "Content-Length: +5\r\n",
                              "Content-Length: -5\r\n",
                              "Content-Length: 0x5\r\n",
                              "Content-Length: \r\n",
                              "Content-Length: 5 5\r\n",
                              "Content-Length: 99999999999999999999999\r\n",
                              "Content-Length : 5\r\n",
                              "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                              "Transfer-Encoding: identity\r\n",
                              "Transfer-Encoding: gzip, chunked\r\n",
                              "Transfer-Encoding: chunked, identity\r\n",
                              "Transfer-Encoding: xchunked\r\n",
                              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: \"chunked\"\r\n",
                              "Transfer-Encoding: chunked;q=1\r\n",
                              "Transfer-Encoding : chunked\r\n",
                              "Transfer-Encoding:\r\n"}) {
    EXPECT_EQ(status_of(start + headers + "\r\n0\r\n\r\n"), 400) << headers;
  }
  EXPECT_EQ(status_of("POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  for (const char* body :
       {"5\nhello\r\n0\r\n\r\n", "-1\r\n\r\n", "5 \r\nhello0\r\n\r\n", "zz\r\n",
        "ffffffffffffffffff\r\n", "5\r\nhelloX0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n"}) {
    const int status = status_of(start + "Transfer-Encoding: chunked\r\n\r\n" + body);
    EXPECT_TRUE(status == 400 || status == 413) << body << ": " << status;
  }
}

TEST(http_reader, malformed_heads_are_refused) {
  for (const std::string head :
       {"GET /a HTTP/1.1\nHost: x\n\n", "GET /a HTTP/1.1\r\nHost: x\r\n bad\x01: y\r\n\r\n",
        "GET  /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a\r\n\r\n",
        "GET /a HTTP/2.0\r\nHost: x\r\n\r\n", "GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n",
        "G\x01T /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a HTTP/1.1\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", "GET a HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    EXPECT_EQ(status_of(head + std::string(100, '\r')), 400) << head;
  }
  using namespace std::string_literals;
  EXPECT_EQ(status_of("GET /a HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"s), 400);
  EXPECT_EQ(status_of("GET /a HTTP/1.0\r\n\r\n"), 0);
}

TEST(http_reader, the_host_of_an_absolute_target_counts) {
  const std::string head = "GET http://real:80/a HTTP/1.1\r\nHost: other\r\n\r\n";
  const Read got = read(head, head.size());
  EXPECT_EQ(got.request.path, "/a");
  EXPECT_EQ(got.request.header("host"), "real:80");
}

TEST(http_reader, limits_have_their_statuses) {
  HttpOptions options;
  options.max_header_bytes = 1000;
  options.max_body_bytes = 1000;
  const std::string start = "POST /v1/messages HTTP/1.1\r\nHost: x\r\n";
  const Read header = read(start + "A: " + std::string(5000, 'a'), 10, options);
  EXPECT_EQ(header.status, 431);
  EXPECT_EQ(header.request.path, "/v1/messages");
  EXPECT_EQ(status_of(start + "Content-Length: 1001\r\n\r\n", options), 413);
  const std::string chunked = start + "Transfer-Encoding: chunked\r\n\r\n";
  std::string chunks;
  for (int count = 0; count < 6; ++count) chunks += "c8\r\n" + std::string(200, 'a') + "\r\n";
  EXPECT_EQ(read(chunked + chunks, 7, options).status, 413);
  EXPECT_EQ(status_of(chunked + "7fffffffffffffff\r\n", options), 413);
  // Lines of the framing have no limit of their own in Beast.
  EXPECT_EQ(read(chunked + "5;" + std::string(5000, 'x'), 10, options).status, 400);
  EXPECT_EQ(read(chunked + "0\r\nA: " + std::string(5000, 'x'), 10, options).status, 400);
}

TEST(http_reader, promised_bodies_take_no_memory) {
  HttpOptions options;
  options.max_body_bytes = std::size_t{1} << 50;
  RequestReader reader(options);
  const std::string head =
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000000\r\n\r\nhello";
  std::string_view rest = head;
  while (!rest.empty()) rest.remove_prefix(reader.put(rest));
  EXPECT_EQ(reader.state(), RequestReader::State::kBody);
  EXPECT_LT(reader.take().body.capacity(), 1000u);
}

TEST(http_reader, encodings_and_expectations) {
  const std::string start = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n";
  EXPECT_EQ(status_of(start + "Content-Encoding: Identity\r\n\r\nhi"), 0);
  EXPECT_EQ(status_of(start + "Content-Encoding: gzip\r\n\r\nhi"), 415);
  EXPECT_EQ(status_of(start + "Expect: tea\r\n\r\nhi"), 417);
  const HttpOptions options;
  RequestReader reader(options);
  reader.put(start + "Expect: 100-Continue\r\n\r\n");
  EXPECT_EQ(reader.state(), RequestReader::State::kBody);
  EXPECT_TRUE(reader.wants_continue());
  EXPECT_TRUE(reader.keep_alive());
}

}  // namespace
}  // namespace glint
