// What the families of dense, then sparse decoder layers share of their configs, whatever their
// attention: sizes, the sigmoid-routed mixture of experts, the layers of multi-token prediction.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "models/layers/moe.h"
#include "models/model.h"

namespace glint {

struct DecoderConfig {
  int vocab_size = 0, hidden_size = 0, num_layers = 0, max_positions = 0;
  RouterDims router;
  int intermediate_size = 0, moe_intermediate_size = 0, n_shared_experts = 0;
  std::vector<bool> dense;  // per layer; a draft layer is sparse
  float rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  int mtp_layers = 0;  // behind the others; the first is the draft layer
};

// Everything but the keys of attention and rope.
DecoderConfig read_decoder(ConfigReader& reader);

// Whether a tensor is of the layers of multi-token prediction.
bool belongs_to_mtp(std::string_view tensor, const DecoderConfig& config);
// Whether it is a buffer that old exports carry and that follows from the config.
bool is_derived(std::string_view tensor);

// Fills all of `info` but what tells of the attention: names, heads, cache, the last of which it
// reads. `attention_parameters` are those of one layer, norms included.
void describe_decoder(const DecoderConfig& config, std::uint64_t attention_parameters,
                      const Checkpoint& checkpoint, ModelInfo& info);

}  // namespace glint
