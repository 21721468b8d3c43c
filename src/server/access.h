// Who may talk to the server: API keys, and without keys the guards that keep web pages of other
// sites out.
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
  Access(std::vector<std::string> api_keys, std::string host)
      : keys_(std::move(api_keys)), host_(std::move(host)) {}
  // The refusal of a guarded request, or nothing.
  std::optional<ApiError> check(const HttpRequest& request) const;

 private:
  bool has_key(const HttpRequest& request) const;
  bool host_is_ours(std::string_view host) const;
  std::vector<std::string> keys_;
  std::string host_;
};

// True for "localhost", 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& host);

// Takes a time that depends on the length of `given` alone.
bool equals_secret(std::string_view given, std::string_view secret);

}  // namespace glint
