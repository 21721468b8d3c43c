// model_type -> family. The one place that lists the families.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

namespace glint {

// What the checkpoint is and costs; does not need weights. kUnsupported names the model_type and
// lists what is supported.
Result<ModelInfo> describe_model(const Checkpoint& checkpoint);
// Everything that load_model validates, without reading more than the headers and a few vectors.
// `draft` as in LoadOptions.
Status check_model(const Checkpoint& checkpoint, DraftLayer draft = DraftLayer::kOff);
// Validates the config and every tensor (name, shape, dtype), binds the weights. Errors name key or
// tensor, and the remedy.
Result<std::unique_ptr<Model>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                          const LoadOptions& options);
std::vector<std::string> supported_model_types();

}  // namespace glint
