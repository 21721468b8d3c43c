#include "server/access.h"

#include <arpa/inet.h>

#include "server/http_text.h"

namespace glint {
namespace {

bool is_ip_literal(const std::string& text) {
  unsigned char address[16];
  return inet_pton(AF_INET, text.c_str(), address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address) == 1;
}

// "localhost:8080" -> "localhost", "[::1]:8080" -> "::1"
std::string host_without_port(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  return lower_case(host.substr(0, host.rfind(':')));
}

// The scheme's end stays: "https://example.org" -> "example.org"
std::string_view origin_host(std::string_view origin) {
  const std::size_t slashes = origin.find("://");
  return slashes == std::string_view::npos ? origin : origin.substr(slashes + 3);
}

}  // namespace

bool is_loopback(const std::string& host) {
  unsigned char v4[4], v6[16];
  if (host == "localhost") return true;
  if (inet_pton(AF_INET, host.c_str(), v4) == 1) return v4[0] == 127;
  if (inet_pton(AF_INET6, host.c_str(), v6) != 1) return false;
  for (int index = 0; index < 15; ++index) {
    if (v6[index] != 0) return false;
  }
  return v6[15] == 1;
}

bool equals_secret(std::string_view given, std::string_view secret) {
  if (secret.empty()) return false;
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t index = 0; index < given.size(); ++index) {
    difference |= static_cast<unsigned char>(given[index]) ^
                  static_cast<unsigned char>(secret[index % secret.size()]);
  }
  return difference == 0;
}

bool Access::has_key(const HttpRequest& request) const {
  std::vector<std::string_view> given;
  const std::string_view authorization = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (lower_case(authorization.substr(0, kBearer.size())) == kBearer) {
    given.push_back(authorization.substr(kBearer.size()));
  }
  for (const char* name : {"x-api-key", "api-key"}) {
    if (const std::string_view value = request.header(name); !value.empty()) given.push_back(value);
  }
  bool found = false;
  for (const std::string_view one : given) {
    for (const std::string& key : keys_) found |= equals_secret(one, key);
  }
  return found;
}

// A page that rebinds its own name to this address still sends that name; addresses cannot be
// rebound.
bool Access::host_is_ours(std::string_view host) const {
  const std::string name = host_without_port(host);
  return name.empty() || name == "localhost" || name.ends_with(".localhost") ||
         name == lower_case(host_) || is_ip_literal(name);
}

std::optional<ApiError> Access::check(const HttpRequest& request) const {
  if (!keys_.empty()) {
    if (has_key(request)) return std::nullopt;
    return ApiError{401, "authentication_error", "invalid_api_key", "",
                    "A valid API key is needed: send it as 'Authorization: Bearer KEY'."};
  }
  const std::string_view host = request.header("host");
  if (!host_is_ours(host)) {
    return error_of_status(
        403, "The Host header names another server; use its address, or serve with --api-key.");
  }
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && origin_host(origin) != host) {
    return error_of_status(
        403, "Web pages of other origins may not use this server without an API key.");
  }
  return std::nullopt;
}

}  // namespace glint
