// Any bytes, read whole and in small pieces: no crash, the same outcome, and no body over the
// limit.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/http_reader.h"

namespace {

struct Outcome {
  glint::RequestReader::State state;
  int status = 0;
  std::string path, body;
};

Outcome read(const glint::HttpOptions& options, std::string_view text, std::size_t step) {
  glint::RequestReader reader(options);
  std::string pending;
  using State = glint::RequestReader::State;
  const auto is_open = [&] {
    return reader.state() == State::kHeader || reader.state() == State::kBody;
  };
  for (std::size_t at = 0; at < text.size() && is_open(); at += step) {
    pending += text.substr(at, step);
    for (std::size_t used = 1; used > 0 && !pending.empty() && is_open();) {
      used = reader.put(pending);
      GLINT_CHECK(used <= pending.size());
      pending.erase(0, used);
    }
  }
  Outcome outcome;
  outcome.state = reader.state();
  outcome.path = reader.request().path;
  if (outcome.state == State::kFailed) outcome.status = reader.failed_status();
  if (outcome.state == State::kDone) outcome.body = reader.take().body;
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  glint::HttpOptions options;
  options.max_header_bytes = 1u << 14;  // longer than an input
  options.max_body_bytes = 100;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Outcome whole = read(options, text, std::max<std::size_t>(size, 1));
  GLINT_CHECK(whole.body.size() <= options.max_body_bytes);
  for (const std::size_t step : {1, 7}) {
    const Outcome split = read(options, text, step);
    // Where both succeed they agree; a split may meet another of several faults first.
    if (whole.state == glint::RequestReader::State::kDone) {
      GLINT_CHECK(split.state == whole.state);
      GLINT_CHECK(split.body == whole.body && split.path == whole.path);
    } else {
      GLINT_CHECK(split.state != glint::RequestReader::State::kDone);
    }
  }
  return 0;
}
