// What answers need to know of the model and the server. Immutable once attached.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/chat.h"
#include "server/api_call.h"

namespace glint {

// How much of what the engine said waits for the I/O thread, in bytes; beyond `most` (0: any
// number) the engine waits a little with each event, so that it goes no faster than what it says is
// written.
struct Backlog {
  std::shared_ptr<std::atomic<std::size_t>> bytes = std::make_shared<std::atomic<std::size_t>>(0);
  std::size_t most = 0;
};

struct ServedModel {
  Engine* engine = nullptr;
  std::shared_ptr<const TextAssets> text;
  std::vector<std::string> names;
  bool any_model = false;
  std::string fingerprint;
  Json template_kwargs;  // under each request's own
  ApiSettings api;
  double sse_ping_s = 5;
  double request_timeout_s = 0;
  int stream_interval = 1;
  Backlog backlog;
};

// The name to report for an asked one, or the 404.
std::expected<std::string, ApiError> resolve_model(const ServedModel& model, const ApiCall& call);

// Renders the prompt of a call's request with the server's template variables under its own.
std::expected<PreparedPrompt, ApiError> prepare_prompt(const ServedModel& model, ChatRequest& chat);

}  // namespace glint
