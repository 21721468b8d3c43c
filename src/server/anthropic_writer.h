// One answer in the events of the Messages API, and the whole message as their fold.
#pragma once

#include <memory>

#include "server/api_call.h"

namespace glint {

std::unique_ptr<AnswerWriter> make_messages_writer(bool stream);

}  // namespace glint
