// Who may talk to the server: API keys, without keys the guards that keep web pages of other sites
// out, and the origins whose pages are let in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace glint {

class Access {
 public:
  // `host` is what the server listens on. `cors_origins` as parse_origins() gives them.
  Access(std::vector<std::string> api_keys, std::string host,
         std::vector<std::string> cors_origins = {});
  // The refusal of a guarded request, or nothing.
  std::optional<ApiError> check(const HttpRequest& request) const;
  // The answer to OPTIONS: what the path takes, and for the page of an allowed origin what it may
  // send.
  HttpResponse preflight(const HttpRequest& request) const;
  // Lets the page of an allowed origin read this response; for HttpHandlers::on_response.
  void add_cors(const HttpRequest& request, HttpResponse& response) const;

 private:
  bool has_key(const HttpRequest& request) const;
  bool host_is_ours(std::string_view host) const;
  bool allows(std::string_view origin) const;
  std::vector<std::string> keys_;
  std::vector<std::string> names_;  // of this machine, in lower case
  std::vector<std::string> origins_;
};

// A list like "https://chat.example.org,http://localhost:3000", or "*" for every origin. Errors:
// kInvalidArgument, naming the entry.
Result<std::vector<std::string>> parse_origins(std::string_view list);

// True for "localhost", 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& host);

// Takes a time that depends on the length of `given` alone.
bool equals_secret(std::string_view given, std::string_view secret);

}  // namespace glint
