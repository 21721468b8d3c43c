// A GGUF file in the terms of a Hugging Face folder: the config.json that says the same, and
// tensors by their Hugging Face names, so that the families of src/models need not know where a
// checkpoint comes from. One table per `general.architecture`.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"

namespace glint {

struct GgufModel {
  Json config;             // as config.json of transformers
  Json generation_config;  // {"eos_token_id": [...]} and sampling defaults, if the file has any
  std::vector<TensorRef> tensors;  // renamed; experts one by one, [rows, cols]
  std::vector<std::string> notes;  // what was assumed, one line each ("no expert_gating_func: ...")
};

// Errors: kUnsupported (architecture, tensor name, or key that is not known, listing what is),
// kCorrupt (a key that is missing or does not fit the tensors).
//
// kv_b of latent attention comes in three layouts. Fused: model.layers.N.self_attn.kv_b_proj.weight
// [heads * (nope + v), c]. Split: self_attn.k_b_proj.weight [heads, c, nope] (transposed per head)
// and self_attn.v_b_proj.weight [heads, v, c]. Both: the split ones are taken. What stands for
// self_attn.A_log of linear attention is self_attn.A, the negated exponential.
Result<GgufModel> translate_gguf(const GgufFile& file);
std::vector<std::string> supported_gguf_architectures();

}  // namespace glint
