// One answer in the events of the Responses API, and the whole response as their fold.
#pragma once

#include <memory>

#include "base/json.h"
#include "server/api_call.h"
#include "server/responses_input.h"

namespace glint {

// How the answer is to look, beside what the model is asked.
struct ResponseShape {
  bool stream = false;
  bool shows_reasoning = true;
  bool seals_thoughts = false;  // reasoning items carry encrypted_content
  bool logprobs = false;        // of the text that is shown
  bool include_stop_string = false;
  ClientTools tools;
  Json::Object echo;  // members of the response that repeat the request
};

std::unique_ptr<AnswerWriter> make_response_writer(ResponseShape shape);

}  // namespace glint
