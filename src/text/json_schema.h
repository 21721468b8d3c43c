// JSON schemas as the grammar crate takes them.
#pragma once

#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace glint {

struct SchemaOptions {
  bool lenient = false;  // what is not implemented is left out instead of refused
  bool any_whitespace = true;
};

// `schema`, which is `root` or a part of it, as a document of its own: every reference leads into
// its $defs, annotations are gone, and what the client wrote for the crate itself counts for
// nothing. Errors: kInvalidArgument naming the place and the keyword: malformed, not implemented,
// a reference that leads nowhere, too large.
Result<Json> closed_schema(const Json& schema, const Json& root, const SchemaOptions& options);

// What a reference within a document leads to ("#", "#/a/b"), or nullptr.
const Json* find_reference(const Json& root, std::string_view reference);

}  // namespace glint
