// Reads one request out of bytes: Beast's parser behind HttpRequest, with the limits, and with the
// forms refused that two parsers on the way could read differently. No sockets and no clock.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace glint {

class RequestReader {
 public:
  enum class State { kHeader, kBody, kDone, kFailed };

  // Borrows the options.
  explicit RequestReader(const HttpOptions& options);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Takes what it can from the front and says how much: up to the end of the header, then up to the
  // end of the body. What it leaves it wants again, with more behind it. Not after kDone or
  // kFailed.
  std::size_t put(std::string_view bytes);
  State state() const;

  // Known from the end of the header on; while kFailed, what was understood.
  const HttpRequest& request() const;
  bool keep_alive() const;
  bool is_http10() const;
  bool wants_continue() const;  // Expect: 100-continue, and there is a body
  // With its body.
  HttpRequest take();

  // kFailed: what to answer before closing the connection.
  int failed_status() const;
  const std::string& failed_message() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glint
