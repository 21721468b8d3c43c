#include "server/http_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

namespace glint {

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

namespace {

// IMF-fixdate of RFC 9110, whatever the locale.
std::string date_header() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("Date: {}, {:02} {} {} {:02}:{:02}:{:02} GMT\r\n", kDays[utc.tm_wday],
                     utc.tm_mday, kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min,
                     utc.tm_sec);
}

}  // namespace

std::string response_head(const HttpResponse& response, std::string_view framing,
                          const HttpOptions& options, std::string_view request_id,
                          bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: {}\r\n", response.status,
                                 status_text(response.status), options.server_header);
  head += date_header();
  if (!request_id.empty()) head += fmt::format("x-request-id: {}\r\n", request_id);
  if (!response.content_type.empty() && response.status != 204) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += framing;
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_unreserved(char c) {
  return is_alnum(c) || c == '-' || c == '.' || c == '_' || c == '~';
}

// The character of an escape at the front, or -1.
int escaped(std::string_view text) {
  if (text.size() < 3 || text[0] != '%') return -1;
  const int high = hex_digit(text[1]), low = hex_digit(text[2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// RFC 3986, 6.2.2.2: these escapes never change what a path means.
std::string decode_unreserved(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (std::size_t index = 0; index < path.size(); ++index) {
    const int c = escaped(path.substr(index));
    if (c >= 0 && c < 128 && is_unreserved(static_cast<char>(c))) {
      out.push_back(static_cast<char>(c));
      index += 2;
    } else {
      out.push_back(path[index]);
    }
  }
  return out;
}

bool is_authority(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_alnum(c) || std::string_view("-._~:[]").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::optional<HttpTarget> parse_target(std::string_view target) {
  HttpTarget out;
  if (!std::ranges::all_of(target, [](char c) { return c > ' ' && c <= '~'; })) return {};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lower_case(target.substr(0, scheme.size())) != scheme) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    out.authority = std::string(target.substr(0, end));
    if (!is_authority(out.authority)) return {};
    target.remove_prefix(end);
  }
  const std::size_t question = std::min(target.find('?'), target.size());
  std::string_view path = target.substr(0, question);
  if (question < target.size()) out.query = std::string(target.substr(question + 1));
  if (path.empty() && !out.authority.empty()) path = "/";
  if (path != "*" && !path.starts_with('/')) return {};
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  out.path = decode_unreserved(path);
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t index = 0; index < text.size(); ++index) {
    const int c = escaped(text.substr(index));
    out.push_back(c < 0 ? text[index] : static_cast<char>(c));
    if (c >= 0) index += 2;
  }
  return out;
}

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](char c) {
    return is_alnum(c) || c == '.' || c == '_' || c == ':' || c == '-';
  });
}

std::string random_name(int length) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::random_device device;
  std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
  std::string name;
  for (int count = 0; count < length; ++count) name.push_back(kLetters[pick(device)]);
  return name;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace glint
