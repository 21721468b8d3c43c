// POST /v1/cache/save, /v1/cache/restore and /v1/cache/clear: what they answer.
#pragma once

#include "base/json.h"
#include "chat/chat.h"
#include "server/api_error.h"

namespace glint {

// {"action", "pages", "snapshots", "bytes", ...}
Json cache_json(const CacheReport& report);
// 409 where the server was started without what this needs.
ApiError cache_error(const Error& error);

}  // namespace glint
