// The store of the prefix cache on disk: which pages belong to which model, and where they are.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cache/page_store.h"
#include "checkpoint/checkpoint.h"
#include "kernels/isa.h"
#include "models/model.h"
#include "tools/prefix_plan.h"

namespace glint {

// All that decides what a page of the cache holds beside its tokens: this build, instruction set,
// arithmetic, formats, config, and of the weights each tensor's name, type, shape and place, and
// each file's name, size and time of writing.
std::string prefix_identity(const Checkpoint& checkpoint, const ModelInfo& info,
                            const LoadOptions& load, const CacheSpec& spec, Isa isa);
// Null without a folder. Errors: kInvalidArgument, naming the option.
Result<std::shared_ptr<PageStore>> open_prefix_store(const PrefixCacheOptions& options,
                                                     std::string identity);

}  // namespace glint
