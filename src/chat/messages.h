// Messages and tools as clients send them -> what a chat template expects. JSON in, JSON out;
// nothing is rendered here.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace glint {

// What a template does with a call's arguments: walks the object, or prints the string.
enum class ArgumentStyle { kObject, kString };

struct ImagePart;

// Roles and contents in one shape: `developer` becomes system and `function` tool; content is
// always a string (null and absent are empty, lists of text parts are joined); reasoning is under
// reasoning_content; arguments follow `style`. With `images`, which gets them in order, messages of
// users and tools may hold images: their content is then a list of {"type": "text", "text": ...}
// and {"type": "image"}. Errors name the message: kInvalidArgument, kUnsupported for other parts.
Result<Json> normalise_messages(const Json& messages, ArgumentStyle style,
                                std::vector<ImagePart>* images = nullptr);

// Wraps bare tool objects into {"type": "function", "function": ...}, keeps everything else as
// received. Null and [] give null. Errors name the tool: a wrong type or name, two of one name, a
// malformed schema.
Result<Json> normalise_tools(const Json& tools);

// A call's argument text as an object: closes open strings and brackets where that is enough to
// parse, otherwise
// {"_raw": text}. Empty, blank and "null" give {}.
Json arguments_object(std::string_view text);

// Every string and key of `value` through Tokenizer::guard.
Json guard_strings(const Json& value, const Tokenizer& tokenizer);

}  // namespace glint
