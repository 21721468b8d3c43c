// The glm4_moe_lite family: GLM-4.7-Flash.
#pragma once

#include <memory>

#include "models/model.h"

namespace glint {

Result<ModelInfo> describe_glm4_moe_lite(const Checkpoint& checkpoint);
Status check_glm4_moe_lite(const Checkpoint& checkpoint, DraftLayer draft);
Result<std::unique_ptr<Model>> load_glm4_moe_lite(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const LoadOptions& options);

}  // namespace glint
