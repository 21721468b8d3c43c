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

TEST(http_text, targets_are_split) {
  HttpRequest request;
  EXPECT_TRUE(split_target("/v1/models/?a=b?c", request));
  EXPECT_EQ(request.path, "/v1/models");
  EXPECT_EQ(request.query, "a=b?c");
  EXPECT_TRUE(split_target("/", request));
  EXPECT_EQ(request.path, "/");
  EXPECT_TRUE(split_target("http://host", request));
  EXPECT_EQ(request.path, "/");
  EXPECT_FALSE(split_target("models", request));
  EXPECT_FALSE(split_target("", request));
  EXPECT_EQ(percent_decode("a%2Fb%zz%2"), "a/b%zz%2");
}

}  // namespace
}  // namespace glint
