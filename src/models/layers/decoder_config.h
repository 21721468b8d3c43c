// What the families of dense, then sparse decoder layers share of their configs, whatever their
// attention: sizes, the sigmoid-routed mixture of experts, the layers of multi-token prediction.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "models/layers/hyper.h"
#include "models/layers/moe.h"
#include "models/model.h"

namespace glint {

struct DecoderConfig {
  std::string prefix = "model.";  // of the names of its tensors, all but the head
  int vocab_size = 0, hidden_size = 0, num_layers = 0, max_positions = 0;
  RouterDims router;
  int intermediate_size = 0, moe_intermediate_size = 0, n_shared_experts = 0;
  std::vector<bool> dense;  // per layer; a draft layer is sparse
  float rms_norm_eps = 0;
  float swiglu_limit = std::numeric_limits<float>::infinity();  // GatedMlp::limit of all blocks
  std::optional<HyperDims> hyper;  // residual streams of all layers but the draft layer
  bool tie_word_embeddings = false;
  int mtp_layers = 0;  // behind the others; the first is the draft layer

  std::string layer_prefix(int layer) const;  // "model.layers.3."
};

// Everything but the keys of attention, rope and residual streams.
DecoderConfig read_decoder(ConfigReader& reader);
// "mlp_layer_types": where there is a list, it wins over first_k_dense_replace.
void read_mlp_layer_types(ConfigReader& reader, DecoderConfig& config);

// Whether a tensor is of the layers of multi-token prediction.
bool belongs_to_mtp(std::string_view tensor, const DecoderConfig& config);
// Whether it is a buffer that old exports carry and that follows from the config.
bool is_derived(std::string_view tensor);

// Fills all of `info` but what tells of the attention: names, heads, cache, the last of which it
// reads. `attention_parameters` are those of all layers, norms included.
void describe_decoder(const DecoderConfig& config, std::uint64_t attention_parameters,
                      const Checkpoint& checkpoint, ModelInfo& info);

}  // namespace glint
