// The config of whatever a MODEL argument names, and what else the files tell, also where
// Checkpoint refuses them: a profile needs no more than config.json or a GGUF header.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "serviceability/facts.h"

namespace glint {

struct ModelFiles {
  Json config;
  Json hf_quant_config;  // null when absent
  CheckpointFacts facts;
};

// A folder with config.json, a config.json, a GGUF file or a folder of one. Reads no tensors.
// Errors: as of Checkpoint::open for the files it reads; kUnsupported for a GGUF file whose keys do
// not say enough.
Result<ModelFiles> read_model_files(const std::filesystem::path& path);
// The same of an open checkpoint, whose tensors tell more.
ModelFiles model_files_of(const Checkpoint& checkpoint);

}  // namespace glint
