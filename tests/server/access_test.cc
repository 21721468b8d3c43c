#include "server/access.h"

#include <gtest/gtest.h>

#include "server/http_text.h"

namespace glint {
namespace {

int check(const Access& access, HttpHeaders headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  const auto refusal = access.check(request);
  return refusal ? refusal->status : 200;
}

TEST(access, keys_are_taken_from_three_headers) {
  const Access access({"first", "second"}, "0.0.0.0");
  EXPECT_EQ(check(access, {{"authorization", "Bearer first"}}), 200);
  EXPECT_EQ(check(access, {{"authorization", "bearer second"}}), 200);
  EXPECT_EQ(check(access, {{"x-api-key", "second"}}), 200);
  EXPECT_EQ(check(access, {{"api-key", "first"}}), 200);
  EXPECT_EQ(check(access, {}), 401);
  EXPECT_EQ(check(access, {{"authorization", "Bearer firs"}}), 401);
  EXPECT_EQ(check(access, {{"authorization", "Bearer firstfirst"}}), 401);
  EXPECT_EQ(check(access, {{"authorization", "Bearer "}}), 401);
  EXPECT_EQ(check(access, {{"authorization", "Basic first"}}), 401);
  EXPECT_EQ(check(access, {{"authorization", "Bearer first"}, {"host", "evil.example"}}), 200);
}

TEST(access, without_keys_foreign_hosts_and_origins_are_refused) {
  const Access access({}, "127.0.0.1");
  for (const char* host : {"localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LocalHost",
                           "app.localhost", "10.0.0.5:80", ""}) {
    EXPECT_EQ(check(access, {{"host", host}}), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"}) {
    EXPECT_EQ(check(access, {{"host", host}}), 403) << host;
  }
  EXPECT_EQ(check(access, {{"host", "localhost:8080"}, {"origin", "http://localhost:8080"}}), 200);
  EXPECT_EQ(check(access, {{"host", "localhost:8080"}, {"origin", "http://evil.example"}}), 403);
  EXPECT_EQ(check(access, {{"host", "localhost:8080"}, {"origin", "null"}}), 403);
  EXPECT_EQ(check(Access({}, "my-box"), {{"host", "My-Box:80"}}), 200);
  EXPECT_EQ(check(access, {{"host", "localhost.:8080"}}), 200);
  EXPECT_EQ(check(access, {{"host", "localhost:8080"}, {"origin", "http://LOCALHOST:8080"}}), 200);
  EXPECT_EQ(check(access, {{"host", "localhost:8080"}, {"origin", "http://localhost:3000"}}), 403);
}

TEST(access, loopback_is_recognised) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "::2", "example.org", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(access, secrets_compare_whole) {
  EXPECT_TRUE(equals_secret("abc", "abc"));
  EXPECT_FALSE(equals_secret("ab", "abc"));
  EXPECT_FALSE(equals_secret("abcabc", "abc"));
  EXPECT_FALSE(equals_secret("", "abc"));
  EXPECT_FALSE(equals_secret("", ""));
  EXPECT_FALSE(equals_secret("abd", "abc"));
}

std::string header_of(const HttpResponse& response, const std::string& name) {
  std::string found;
  for (const auto& [key, value] : response.headers) {
    if (key == name) found += value;
  }
  return found;
}

HttpResponse with_cors(const Access& access, HttpHeaders headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  HttpResponse response;
  access.add_cors(request, response);
  return response;
}

TEST(access, pages_of_allowed_origins_may_read) {
  const Access closed({}, "127.0.0.1");
  EXPECT_TRUE(with_cors(closed, {{"origin", "https://a.example"}}).headers.empty());
  const Access open({}, "127.0.0.1", {"https://a.example", "http://localhost:3000"});
  for (const char* origin : {"https://a.example", "http://localhost:3000"}) {
    const HttpResponse response = with_cors(open, {{"origin", origin}});
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), origin);
    EXPECT_EQ(header_of(response, "Access-Control-Expose-Headers"), "x-request-id");
    EXPECT_EQ(header_of(response, "Vary"), "Origin");
    EXPECT_EQ(check(open, {{"host", "127.0.0.1:80"}, {"origin", origin}}), 200);
  }
  for (const char* origin : {"https://b.example", "http://a.example", "https://a.example:444",
                             "https://a.example.evil.example", "null", ""}) {
    const HttpResponse response = with_cors(open, {{"origin", origin}});
    EXPECT_EQ(header_of(response, "Access-Control-Allow-Origin"), "") << origin;
    EXPECT_EQ(header_of(response, "Vary"), "Origin");
  }
  EXPECT_EQ(check(open, {{"host", "127.0.0.1:80"}, {"origin", "https://b.example"}}), 403);
  const Access any({"key"}, "0.0.0.0", {"*"});
  EXPECT_EQ(
      header_of(with_cors(any, {{"origin", "https://b.example"}}), "Access-Control-Allow-Origin"),
      "https://b.example");
  for (const auto& [name, value] : with_cors(any, {{"origin", "https://b.example"}}).headers) {
    EXPECT_NE(name, "Access-Control-Allow-Credentials");
  }
}

TEST(access, preflights_say_what_may_be_sent) {
  const Access access({"key"}, "0.0.0.0", {"https://a.example"});
  HttpRequest request;
  request.method = "OPTIONS";
  request.headers = {{"origin", "https://a.example"},
                     {"access-control-request-method", "POST"},
                     {"access-control-request-headers", "authorization,content-type"}};
  const HttpResponse allowed = access.preflight(request);
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(header_of(allowed, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  EXPECT_EQ(header_of(allowed, "Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_EQ(header_of(allowed, "Access-Control-Max-Age"), "600");
  request.headers[0].second = "https://b.example";
  EXPECT_EQ(header_of(access.preflight(request), "Access-Control-Allow-Methods"), "");
  EXPECT_EQ(header_of(access.preflight(request), "Allow"), "GET, HEAD, POST, OPTIONS");
  request.headers = {{"origin", "https://a.example"}};
  EXPECT_EQ(header_of(access.preflight(request), "Access-Control-Allow-Methods"), "");
}

TEST(access, lists_of_origins_are_checked) {
  EXPECT_EQ(parse_origins("https://a.example,http://localhost:3000").value(),
            (std::vector<std::string>{"https://a.example", "http://localhost:3000"}));
  EXPECT_EQ(parse_origins("*").value(), std::vector<std::string>{"*"});
  EXPECT_TRUE(parse_origins("").value().empty());
  for (const char* bad :
       {"a.example", "https://", "https://a.example/", "https://*.example", "ftp://a.example",
        "https://A.example", "https://a.example,,", "https://a.example, https://b.example"}) {
    const auto parsed = parse_origins(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("--cors-origins"), std::string::npos);
  }
}

TEST(http_text, targets_are_split) {
  const auto split = [](std::string_view text) {
    const auto target = parse_target(text);
    return target ? target->authority + "|" + target->path + "|" + target->query : "none";
  };
  EXPECT_EQ(split("/v1/models/?a=b?c"), "|/v1/models|a=b?c");
  EXPECT_EQ(split("/"), "|/|");
  EXPECT_EQ(split("//"), "|/|");
  EXPECT_EQ(split("*"), "|*|");
  EXPECT_EQ(split("http://host"), "host|/|");
  EXPECT_EQ(split("HTTP://host:80/a"), "host:80|/a|");
  EXPECT_EQ(split("https://[::1]:8080?x"), "[::1]:8080|/|x");
  EXPECT_EQ(split("/v1/%63h%41t%2dx%2fy%7e%zz%"), "|/v1/chAt-x%2fy~%zz%|");
  for (const char* bad : {"models", "", "http://", "http:///a", "http://u@host/", "/a b",
                          "/\xc3\xa4", "/a\x7f", "host:443", "?x"}) {
    EXPECT_EQ(split(bad), "none") << bad;
  }
  EXPECT_EQ(percent_decode("a%2Fb%zz%2"), "a/b%zz%2");
  EXPECT_EQ(percent_decode("%41%"), "A%");
}

}  // namespace
}  // namespace glint
