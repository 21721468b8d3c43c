#include "server/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace glint {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::filesystem::path kFolder = std::filesystem::path(GLINT_SOURCE_DIR) / "src/server/page";

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

HttpRequest get(std::string path, HttpHeaders headers = {}) {
  HttpRequest request;
  request.method = "GET";
  request.path = std::move(path);
  request.headers = std::move(headers);
  return request;
}

std::string header_of(const HttpResponse& response, std::string_view wanted) {
  for (const auto& [name, value] : response.headers) {
    if (name == wanted) return value;
  }
  return "";
}

TEST(page, every_file_of_the_folder_is_in_the_program) {
  std::size_t total = 0;
  std::set<std::string> etags;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename();
    const PageFile* file = find_page_file(name == "index.html" ? "/" : "/page/" + name);
    ASSERT_NE(file, nullptr) << name;
    EXPECT_EQ(file->body, content_of(entry.path())) << name;
    EXPECT_TRUE(etags.insert(file->etag).second) << name;
    total += file->body.size();
  }
  EXPECT_LT(total, 120'000u);
}

TEST(page, there_is_nothing_else) {
  for (const char* path :
       {"", "/page", "/page/", "/page/index.html", "/page/../page.h", "/index.html",
        "/page/app.js/", "/page/%61pp.js", "//", "/page/nothing.js"}) {
    EXPECT_EQ(find_page_file(path), nullptr) << path;
    EXPECT_FALSE(page_response(get(path)).has_value()) << path;
  }
}

TEST(page, files_go_out_with_their_type_and_policy) {
  const auto response = page_response(get("/"));
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(header_of(*response, "Content-Security-Policy"), kPageContentSecurityPolicy);
  EXPECT_EQ(header_of(*response, "X-Content-Type-Options"), "nosniff");
  EXPECT_THAT(response->body, HasSubstr("<!doctype html>"));
  EXPECT_EQ(page_response(get("/page/app.js"))->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(page_response(get("/page/page.css"))->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(page_response(get("/page/icon.svg"))->content_type, "image/svg+xml");
}

TEST(page, a_browser_that_has_a_file_is_not_sent_it_again) {
  const std::string etag = find_page_file("/page/app.js")->etag;
  for (const std::string& given : {etag, "W/" + etag, "\"other\", " + etag, std::string("*")}) {
    const auto response = page_response(get("/page/app.js", {{"if-none-match", given}}));
    EXPECT_EQ(response->status, 304) << given;
    EXPECT_EQ(response->body, "");
    EXPECT_EQ(header_of(*response, "ETag"), etag);
  }
  EXPECT_EQ(page_response(get("/page/app.js", {{"if-none-match", "\"other\""}}))->status, 200);
}

// The policy forbids all of these; a page that had them would be broken, not unsafe.
TEST(page, nothing_in_it_needs_more_than_its_policy_allows) {
  const std::string_view html = find_page_file("/")->body;
  EXPECT_THAT(html, Not(HasSubstr(" style=")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick=")));
  EXPECT_THAT(html, Not(HasSubstr("://")));
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string text = content_of(entry.path());
    for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "@import", "url("}) {
      EXPECT_THAT(text, Not(HasSubstr(word))) << entry.path();
    }
  }
}

}  // namespace
}  // namespace glint
