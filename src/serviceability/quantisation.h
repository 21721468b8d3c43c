// What a config declares about how its weights are stored, read leniently: for an estimate of their
// bytes, not for loading (checkpoint/quant_config.h is for that).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace glint {

// Weights that quantisers treat alike.
enum class WeightKind {
  kAttention,
  kRoutedExperts,
  kSharedExperts,
  kDense,
  kRouter,
  kIndexer,
  kOther,  // norms, biases, residual mixing
  kEmbedding,
  kHead
};
std::string_view weight_kind_name(WeightKind kind);

struct Quantisation {
  std::string method;  // "fp8", "compressed-tensors", "modelopt", ...; empty: none is declared
  std::string scheme;  // "FP8 in blocks of 128 x 128", "NVFP4", "INT4 in groups of 128", ...
  std::string cache;   // what it says of the KV cache; empty: nothing
  double bytes_per_weight = 2;         // of a quantised matrix, scales included
  double expert_bytes_per_weight = 2;  // of the routed experts'
  std::vector<WeightKind> kept;        // kinds that stay as they are, 2 bytes a weight
  bool float8 = false;                 // FP8 in blocks or rows with scales of their own
  double bytes_of(WeightKind kind) const;
};

// `config` is the root, `text` its text_config or the root again; `hf_quant_config` may be null.
Quantisation read_quantisation(const Json& config, const Json& text, const Json& hf_quant_config);

}  // namespace glint
