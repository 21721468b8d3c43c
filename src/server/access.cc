#include "server/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "server/http_text.h"

namespace glint {
namespace {

bool is_ip_literal(const std::string& text) {
  unsigned char address[16];
  return inet_pton(AF_INET, text.c_str(), address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address) == 1;
}

// "Localhost:8080" -> "localhost", "[::1]:8080" -> "::1", "my-box." -> "my-box"
std::string host_without_port(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  host = host.substr(0, host.rfind(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower_case(host);
}

// What this machine calls itself. A page of somebody else's cannot have that name.
std::string machine_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return {};
  return lower_case(name);
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

// No digest is taken first: it would need a cryptographic library for nothing else, and what it
// would hide, the length of a key, is not what keeps a key safe.
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

Access::Access(std::vector<std::string> api_keys, std::string host,
               std::vector<std::string> cors_origins)
    : keys_(std::move(api_keys)), names_{lower_case(host)}, origins_(std::move(cors_origins)) {
  if (const std::string name = machine_name(); !name.empty()) {
    names_.push_back(name);
    names_.push_back(name + ".local");
  }
}

// A page that rebinds its own name to this address still sends that name; addresses cannot be
// rebound.
bool Access::host_is_ours(std::string_view host) const {
  const std::string name = host_without_port(host);
  return name.empty() || name == "localhost" || name.ends_with(".localhost") ||
         std::ranges::count(names_, name) > 0 || is_ip_literal(name);
}

bool Access::allows(std::string_view origin) const {
  if (origin.empty()) return false;
  return std::ranges::any_of(
      origins_, [origin](const std::string& one) { return one == "*" || one == origin; });
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
  if (!origin.empty() && lower_case(origin_host(origin)) != lower_case(host) && !allows(origin)) {
    return error_of_status(403,
                           "Web pages of other origins may not use this server without an API "
                           "key; see --cors-origins.");
  }
  return std::nullopt;
}

void Access::add_cors(const HttpRequest& request, HttpResponse& response) const {
  if (origins_.empty()) return;
  // Also where nothing is allowed: a cache must not hand one origin's answer to another.
  response.headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.header("origin");
  if (!allows(origin)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  response.headers.emplace_back("Access-Control-Expose-Headers", "x-request-id");
}

HttpResponse Access::preflight(const HttpRequest& request) const {
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
  if (!allows(request.header("origin")) ||
      request.header("access-control-request-method").empty()) {
    return response;
  }
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string_view asked = request.header("access-control-request-headers");
  if (!asked.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

Result<std::vector<std::string>> parse_origins(std::string_view list) {
  std::vector<std::string> origins;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view one = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const bool is_web = one.starts_with("http://") || one.starts_with("https://");
    const std::string_view host = origin_host(one);
    const bool is_host = !host.empty() && std::ranges::all_of(host, [](char c) {
      return c > ' ' && c <= '~' && c != '/' && c != '*' && c != '@' && !(c >= 'A' && c <= 'Z');
    });
    if (one != "*" && !(is_web && is_host)) {
      return invalid_argument(
          fmt::format("--cors-origins: '{}' is not an origin like https://chat.example.org (lower "
                      "case, no path), nor * for every one",
                      one));
    }
    origins.emplace_back(one);
  }
  return origins;
}

}  // namespace glint
