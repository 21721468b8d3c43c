// The vision tower of GLM-5.3-Flash (modeling_glm5_next.py, Glm5NextVisionModel): patches of an
// image pass through blocks of full attention with a two-dimensional rope, then each cell of merge
// x merge patches becomes one vector of the language model's width.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "models/model.h"
#include "models/tensor_binder.h"
#include "ops/gated_mlp.h"

namespace glint {

inline constexpr std::string_view kVisionPrefix = "model.visual.";
// Of norm1 and norm2. The released config says 1e-5 for every norm, but the tower was trained with
// this, and describes images badly without it (vLLM, glm5_next.py).
inline constexpr float kVisionBlockEps = 1e-6f;

struct VisionDims {
  int depth = 0, hidden_size = 0, intermediate_size = 0, num_heads = 0;
  int patch_size = 0, temporal_patch_size = 0, merge = 0, channels = 0;
  int out_hidden_size = 0, projection_intermediate_size = 0;
  float rms_norm_eps = 0;  // of q_norm, k_norm and post_layernorm
  float block_eps = kVisionBlockEps;
  float swiglu_limit = 0;
  double rope_theta = 0;

  int head_dim() const { return hidden_size / num_heads; }
  int cell_patches() const { return merge * merge; }
  int patch_values() const { return channels * temporal_patch_size * patch_size * patch_size; }
};

// From `vision_config`; the tower's vectors must have the language model's hidden_size. Errors:
// kCorrupt, kUnsupported.
Result<VisionDims> read_vision(const Json& vision_config, int hidden_size);

struct VisionLinear {
  Weight weight;
  std::vector<float> bias;
};

struct VisionBlock {
  std::vector<float> norm1, norm2;    // [hidden]
  VisionLinear qkv, proj;             // [3 hidden, hidden], [hidden, hidden]
  std::vector<float> q_norm, k_norm;  // [head_dim]
  VisionLinear gate_proj, up_proj, down_proj;
};

struct VisionWeights {
  VisionLinear patch_embed;  // [hidden, channel * time * row * column]
  std::vector<VisionBlock> blocks;
  std::vector<float> post_layernorm;  // [hidden]
  VisionLinear downsample;            // [out_hidden, hidden * row * column of a cell]
  Weight merger_proj;                 // [out_hidden, out_hidden]
  std::vector<float> post_projection_norm, post_projection_norm_bias;  // [out_hidden]
  GatedMlp merger;
};

// Tensors of kVisionPrefix, in the form they are stored whatever --weights says.
VisionWeights bind_vision(TensorBinder& binder, const VisionDims& dims);

// How it wants its images; without tokens. Counts the tower's tensors in `checkpoint`.
ImageInput describe_vision(const VisionDims& dims, const Checkpoint& checkpoint);

// One line of the log where block_eps is not what the config says.
void log_vision_eps(const VisionDims& dims);

// One vector a cell into `features` [image.tokens(), out_hidden_size]. Beside them and the image it
// takes about 10 KiB of memory a patch of a tower 1024 wide, given back at the end.
void encode_image(Exec& exec, Compute compute, const VisionDims& dims, const VisionWeights& weights,
                  const ImagePatches& image, std::span<float> features);

}  // namespace glint
