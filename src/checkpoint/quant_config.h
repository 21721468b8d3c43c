// What a checkpoint's config says about how its weights are quantised. What a tensor is follows
// from the tensors (checkpoint/stored_matrix.h); the config only settles what they leave open, and
// is refused where it names something that is not implemented.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace glint {

class Checkpoint;

struct QuantConfig {
  std::string method;  // "compressed-tensors"; empty: no config speaks of quantisation
  std::string where;   // `config.json: "quantization_config"`, for messages
  std::vector<std::string> schemes;  // "FP8", "NVFP4", "INT4", ...: what it declares
  std::vector<std::pair<std::size_t, std::size_t>> f8_blocks;  // rows, columns of a scale
  std::vector<std::size_t> groups;                             // columns that share a scale
  std::optional<int> bits;                                     // of AWQ and GPTQ
  std::optional<bool> symmetric;    // where everything it declares agrees
  bool gptq_zeros_less_one = true;  // GPTQ's first format stores zero points less one
};

// Reads quantization_config of config.json, or of its text_config, or hf_quant_config.json, the
// first that is there. kUnsupported names the method, the key and the value.
Result<QuantConfig> read_quant_config(const Checkpoint& checkpoint);

// A line on schemes that were found in the tensors and that the config does not declare; empty:
// there are none.
std::string undeclared_schemes(const QuantConfig& config, const std::set<std::string>& found);

// Of one such object; hf_quant_config.json wraps it in "quantization" beside "producer".
Result<QuantConfig> parse_quant_config(const Json& json, std::string where);

}  // namespace glint
