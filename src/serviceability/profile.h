// What a model is and costs by its config.json alone, for every family that is known here, whether
// glint runs it or not; other configs by generic rules, which is said. No tensor is needed. Where
// glint runs the family the numbers are those of ModelInfo (tests/serviceability compares them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "serviceability/cache_layouts.h"
#include "serviceability/count.h"
#include "serviceability/quantisation.h"

namespace glint {

// How keys and values are kept. kMla: one latent and one rope key for all heads. kSharedKv: one
// vector that is key and value of all heads. The others: keys and values of kv heads.
enum class AttentionKind { kMla, kSharedKv, kGqa, kMqa, kMha };
std::string_view attention_kind_name(AttentionKind kind);  // "mla", "shared-kv", "gqa", ...

// A width of the heads or of the cache.
struct ProfileDim {
  std::string name;
  std::int64_t value = 0;
  std::string derived = {};  // how it follows from others; empty: the config has it
};

// Parameters of one kind of weights. `active`: what one decoded token multiplies with.
struct ParameterPart {
  WeightKind kind = WeightKind::kOther;
  Count total, active;
};

struct ContextLimits {
  std::int64_t positions = 0;    // 0: the config does not say
  std::string rope = "default";  // "default", "yarn", ..., "none"
  double factor = 1;             // of a scaled rope
  std::int64_t original = 0;     // positions before scaling; 0: not said
  std::optional<double> theta;
};

struct ModelProfile {
  std::string model_type;    // of the root: "kimi_k3"
  std::string architecture;  // architectures[0]; may be empty
  std::string family;        // "kimi_k3", "deepseek_v3", ...: which reader read it; "generic"
  std::string name;          // "Kimi-K3"
  bool guessed = false;      // by generic rules
  AttentionKind attention = AttentionKind::kMha;
  std::string attention_class;  // for people: "MLA-sparse (DSA)", "hybrid: KDA + MLA", ...
  std::string attention_why;    // the rule that decided it
  bool sparse = false;          // an indexer chooses what a token attends to
  bool hybrid = false;          // some layers keep a state of constant size

  std::int64_t layers = 0, hidden_size = 0, vocab_size = 0, heads = 0, kv_heads = 0;
  std::vector<ProfileDim> dims;
  std::int64_t dim(std::string_view name) const;  // -1: there is none

  std::vector<CachePart> cache;      // what grows with the tokens
  std::vector<CachePart> mtp_cache;  // what a draft layer adds
  std::vector<CacheLayout> layouts;  // bytes per token of both, the first in bf16
  Count per_head_bytes;  // of a token in bf16, were the latent kept as keys and values; 0: not MLA
  Count state_bytes;     // of a sequence however long: recurrent states and convolutions
  Count window_bytes;    // of a sequence: sliding windows, in bf16
  std::int64_t state_layers = 0, cache_layers = 0, index_layers = 0;

  std::vector<ParameterPart> parts;  // without MTP and vision
  std::vector<ParameterPart> mtp_parts;
  Count total_parameters, active_parameters, mtp_parameters;
  std::int64_t experts = 0, experts_per_token = 0, shared_experts = 0, dense_layers = 0;

  ContextLimits context;
  std::int64_t mtp_layers = 0;
  Quantisation quantisation;
  // About: from the parameters and what is declared, MTP and a tower that is counted included.
  Count weight_bytes, active_weight_bytes;

  bool vision = false;
  Count vision_parameters;  // 0: not counted
  std::optional<double> vision_eps;
  std::optional<std::int64_t> index_topk, index_pool;
  std::int64_t least_compression = 0;  // of the compressed layers; 0: there are none
  std::int64_t residual_streams = 1;
  bool has_head_dim = false;  // the config has the key, though nothing follows from it under MLA
  std::string router;         // "sigmoid", "softmax", "sqrtsoftplus"; empty: no experts
  std::vector<std::string> notes;
};

// Errors: kCorrupt naming the key that is missing, of the wrong type or out of range, or sizes
// whose product leaves 63 bits. `hf_quant_config` may be null.
Result<ModelProfile> read_profile(const Json& config, const Json& hf_quant_config = {});

// Bytes of the bf16 cache that a token reads at `context` tokens, states and windows included: with
// an indexer its keys, and of the rows it chooses from so many as it chooses.
double cache_read_bytes(const ModelProfile& profile, std::int64_t context);

// The families that have a reader of their own.
std::vector<std::string> profiled_families();

}  // namespace glint
