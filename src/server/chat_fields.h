// The body of POST /v1/chat/completions -> a neutral ChatRequest, or the error that names the
// field. Fields nobody knows are ignored and listed; fields that are known and cannot be honoured
// are refused.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"
#include "server/api_error.h"

namespace glint {

struct ChatCall {
  ChatRequest chat;
  std::string model;  // as sent; empty when absent
  bool stream = false;
  bool include_usage = false;     // one chunk with the usage before [DONE]
  bool continuous_usage = false;  // usage in every chunk
  int n = 1;
  bool include_reasoning = true;
  bool include_stop_string = false;
  std::vector<std::string> unknown_fields;
};

std::expected<ChatCall, ApiError> parse_chat_call(std::string_view body, int max_n);

}  // namespace glint
