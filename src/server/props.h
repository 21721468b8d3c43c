// Introspection: what is served, by what, and what it does right now.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "server/served_model.h"
#include "server/server.h"

namespace glint {

// GET /props, in llama-server's words and some of our own.
Json props_json(const ServedModel& model, const ServedInfo& info, const ServerOptions& options);
// GET /slots: as many entries as sequences can run at once.
Json slots_json(const Engine& engine);
// GET /version
Json version_json(const ServerOptions& options, const Json& machine);
// An entry of GET /v1/models.
Json model_json(const std::string& name, const std::string& root, std::int64_t created,
                const ModelInfo& info, int context, bool takes_images);

}  // namespace glint
