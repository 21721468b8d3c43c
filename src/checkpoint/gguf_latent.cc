// What GGUF files of every architecture with multi-head latent attention say alike.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "checkpoint/gguf_family.h"

namespace glint {
namespace {

bool is_part(const TensorRef& tensor, std::string_view part) {
  return tensor.name.ends_with(part);
}

std::string layer_prefix(const TensorRef& tensor, std::string_view part) {
  return tensor.name.substr(0, tensor.name.size() - part.size());
}

// The layers that have `part`.
std::set<std::string> layers_with(const std::vector<TensorRef>& tensors, std::string_view part) {
  std::set<std::string> layers;
  for (const TensorRef& tensor : tensors) {
    if (is_part(tensor, part)) layers.insert(layer_prefix(tensor, part));
  }
  return layers;
}

// Plain matrices of all heads below each other are the same bytes as a matrix per head.
Status shape_per_head(TensorRef& tensor, std::vector<std::int64_t> shape) {
  const std::vector<std::int64_t> flat = {shape[0] * shape[1], shape[2]};
  if (tensor.shape != shape && tensor.shape != flat) {
    return corrupt(
        fmt::format("{} does not have the shape that head_count, kv_lora_rank, "
                    "key_length and value_length ask for; convert the model again",
                    gguf_tensor_place(tensor)));
  }
  tensor.shape = std::move(shape);
  return {};
}

}  // namespace

void set_gguf_latent_dims(const GgufLatentDims& dims, Json& config) {
  config.set("num_key_value_heads", dims.heads);
  config.set("kv_lora_rank", dims.latent);
  config.set("qk_nope_head_dim", dims.nope);
  config.set("qk_rope_head_dim", dims.rope);
  config.set("v_head_dim", dims.value);
  config.set("attention_bias", false);
}

Status settle_gguf_kv_b(std::vector<TensorRef>& tensors, const GgufLatentDims& d,
                        std::vector<std::string>& notes) {
  const auto fused = layers_with(tensors, kGgufFusedKvB);
  const auto keys = layers_with(tensors, kGgufSplitKB), values = layers_with(tensors, kGgufSplitVB);
  const auto is_split = [&](const std::string& layer) {
    return keys.contains(layer) && values.contains(layer);
  };
  std::size_t both = 0;
  for (const std::string& layer : fused) both += is_split(layer) ? 1 : 0;
  std::erase_if(tensors, [&](const TensorRef& tensor) {
    if (is_part(tensor, kGgufFusedKvB)) return is_split(layer_prefix(tensor, kGgufFusedKvB));
    for (const std::string_view part : {kGgufSplitKB, kGgufSplitVB}) {
      if (!is_part(tensor, part)) continue;
      const std::string layer = layer_prefix(tensor, part);
      return fused.contains(layer) && !is_split(layer);
    }
    return false;
  });
  if (both > 0) {
    notes.push_back(
        fmt::format("attn_kv_b of {} layers is ignored: attn_k_b and attn_v_b say the same", both));
  }
  for (TensorRef& tensor : tensors) {
    if (is_part(tensor, kGgufSplitKB)) {
      GLINT_TRY_VOID(shape_per_head(tensor, {d.heads, d.latent, d.nope}));
    } else if (is_part(tensor, kGgufSplitVB)) {
      GLINT_TRY_VOID(shape_per_head(tensor, {d.heads, d.value, d.latent}));
    }
  }
  return {};
}

}  // namespace glint
