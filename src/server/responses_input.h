// The conversation of /v1/responses: its input items as chat messages, its tools as functions, and
// thoughts sealed into text that clients carry from one request to the next. What cannot be taken
// is an error of the FieldReader, under the client's own path.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"
#include "server/field_reader.h"

namespace glint {

// `input` and `instructions` -> messages. Adjacent reasoning, message and call items of the
// assistant become one turn. Notes say what was left out. `takes_images`: those of users and tools
// are left to normalise_messages(); else refused.
void read_input(FieldReader& fields, bool takes_images, ChatRequest& chat,
                std::vector<std::string>& notes);

// What a function of the prompt is to the client.
struct ClientTool {
  std::string name;
  std::string name_space;  // empty: none
  bool is_custom = false;  // takes a text, not arguments
};
using ClientTools = std::map<std::string, ClientTool>;  // by the function's name

// `tools` -> functions. Custom tools become functions of one string, `input`; those inside a
// namespace bear its name in front of their own. Tools that run at the provider's are left out,
// with a note.
void read_response_tools(FieldReader& fields, ChatRequest& chat, ClientTools& tools,
                         std::vector<std::string>& notes);

// A thought as a client that shows none may carry it: opaque to it, and recognisable to us.
std::string seal_thought(std::string_view text);
// Nothing when the seal is not ours.
std::optional<std::string> open_thought(std::string_view sealed);

}  // namespace glint
