// The tensors of a GGUF file under their Hugging Face names: one table per architecture, and the
// experts of a layer, which GGUF stacks in one tensor, one by one.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"

namespace glint {

// GGUF's name inside "blk.N." (or of the whole model) and the Hugging Face name inside
// "model.layers.N." (or "model.", or of the whole model).
struct GgufTensorName {
  std::string_view gguf;
  std::string_view hugging_face;
};

struct GgufLayout {
  std::vector<std::span<const GgufTensorName>> layer_names;  // beside those that all share
  std::int64_t num_blocks = 0;                               // draft layers included
  std::int64_t num_draft_layers = 0;                         // the last ones
  std::int64_t num_experts = 0;
  std::string_view prefix = "model.";  // of the Hugging Face names of all but the head
};

// Errors: kUnsupported for a name that no table has; kCorrupt for a block out of range, experts
// that do not count num_experts, two tensors that become one.
Result<std::vector<TensorRef>> rename_gguf_tensors(const GgufFile& file, const GgufLayout& layout);

// The tensor of that GGUF name, or nullptr.
const TensorRef* find_gguf_tensor(const GgufFile& file, std::string_view name);

// "FILE: tensor NAME: REASON", naming the shard that holds it.
std::string gguf_tensor_place(const TensorRef& tensor);

}  // namespace glint
