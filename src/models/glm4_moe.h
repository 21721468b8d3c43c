// The glm4_moe family: GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7.
#pragma once

#include <memory>

#include "models/model.h"

namespace glint {

Result<ModelInfo> describe_glm4_moe(const Checkpoint& checkpoint);
Status check_glm4_moe(const Checkpoint& checkpoint, DraftLayer draft);
Result<std::unique_ptr<Model>> load_glm4_moe(std::shared_ptr<const Checkpoint> checkpoint,
                                             const LoadOptions& options);

}  // namespace glint
