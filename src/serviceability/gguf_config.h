// The keys of a GGUF file of any architecture in the terms of a config.json, as far as a profile
// asks: leniently, unlike checkpoint/gguf_model.h, whose models are to run.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"

namespace glint {

// kUnsupported: the file does not name its architecture or lacks its sizes.
Result<Json> config_of_gguf(const GgufFile& file);
// Experts whose routing function is not said.
bool gguf_lacks_gating(const GgufFile& file);

}  // namespace glint
