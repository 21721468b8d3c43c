// The glm5_next family: GLM-5.3-Flash.
#pragma once

#include <memory>

#include "models/model.h"

namespace glint {

Result<ModelInfo> describe_glm5_next(const Checkpoint& checkpoint);
Status check_glm5_next(const Checkpoint& checkpoint, DraftLayer draft);
Result<std::unique_ptr<Model>> load_glm5_next(std::shared_ptr<const Checkpoint> checkpoint,
                                              const LoadOptions& options);

}  // namespace glint
