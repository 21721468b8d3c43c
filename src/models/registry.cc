#include "models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/quant_config.h"
#include "models/cache_format.h"
#include "models/expert_store.h"
#include "models/glm4_moe.h"
#include "models/glm4_moe_lite.h"
#include "models/glm5_next.h"

namespace glint {
namespace {

struct Family {
  std::string_view model_type;
  Result<ModelInfo> (*describe)(const Checkpoint&);
  Status (*check)(const Checkpoint&, DraftLayer);
  Result<std::unique_ptr<Model>> (*load)(std::shared_ptr<const Checkpoint>, const LoadOptions&);
};

constexpr Family kFamilies[] = {
    {"glm4_moe", describe_glm4_moe, check_glm4_moe, load_glm4_moe},
    {"glm4_moe_lite", describe_glm4_moe_lite, check_glm4_moe_lite, load_glm4_moe_lite},
    {"glm5_next", describe_glm5_next, check_glm5_next, load_glm5_next},
};

Result<const Family*> find_family(const Checkpoint& checkpoint) {
  const Json* type = checkpoint.config().find("model_type");
  if (type == nullptr || !type->is_string()) {
    return corrupt(fmt::format("{}: config.json has no \"model_type\"; is this a model folder?",
                               checkpoint.folder().string()));
  }
  for (const Family& family : kFamilies) {
    if (family.model_type != type->as_string()) continue;
    if (const auto quantisation = read_quant_config(checkpoint); !quantisation)
      return quantisation.error();
    return &family;
  }
  return unsupported(fmt::format("{}: model_type \"{}\" is not supported; supported: {}",
                                 checkpoint.folder().string(), type->as_string(),
                                 fmt::join(supported_model_types(), ", ")));
}

}  // namespace

Result<ModelInfo> describe_model(const Checkpoint& checkpoint) {
  GLINT_TRY(const Family* family, find_family(checkpoint));
  return family->describe(checkpoint);
}

Status check_model(const Checkpoint& checkpoint, DraftLayer draft) {
  GLINT_TRY(const Family* family, find_family(checkpoint));
  const Status checked = family->check(checkpoint, draft);
  checkpoint.release();
  return checked;
}

Result<std::unique_ptr<Model>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                          const LoadOptions& options) {
  GLINT_TRY(const Family* family, find_family(*checkpoint));
  if (options.cache_format != CacheFormat::kBf16) {
    GLINT_TRY(const ModelInfo info, family->describe(*checkpoint));
    GLINT_TRY_VOID(check_cache_format(info, options.cache_format));
  }
  if (!options.streamed_experts.enabled) return family->load(std::move(checkpoint), options);
  LoadOptions with_store = options;
  GLINT_TRY(with_store.expert_store, ExpertStore::create(checkpoint, options));
  GLINT_TRY(auto model, family->load(checkpoint, with_store));
  checkpoint->release();
  GLINT_TRY_VOID(with_store.expert_store->start());
  model->set_experts(with_store.expert_store);
  return model;
}

std::vector<std::string> supported_model_types() {
  std::vector<std::string> types;
  for (const Family& family : kFamilies) types.emplace_back(family.model_type);
  return types;
}

}  // namespace glint
