// What answers need to know of the model and the server. Immutable once attached.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/chat.h"
#include "server/api_call.h"

namespace glint {

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
};

// The name to report for an asked one, or the 404.
std::expected<std::string, ApiError> resolve_model(const ServedModel& model, const ApiCall& call);

// Renders the prompt of a call's request with the server's template variables under its own.
std::expected<PreparedPrompt, ApiError> prepare_prompt(const ServedModel& model, ChatRequest& chat);

}  // namespace glint
