// What the processor of GLM-5.3-Flash makes of an image before its vision tower sees it: a canvas
// of whole cells, then normalised patches.
#pragma once

#include <array>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "media/image.h"

namespace glint {

struct CanvasRules {
  int patch_size = 14;          // pixels a side
  int temporal_patch_size = 2;  // a still image is repeated so often
  int merge = 2;                // patches a side of a cell, which becomes one token
  int min_tokens = 16, max_tokens = 8000;
  std::array<float, 3> mean = {0.48145466f, 0.4578275f, 0.40821073f};
  std::array<float, 3> std = {0.26862954f, 0.26130258f, 0.27577711f};

  int cell() const { return patch_size * merge; }  // pixels a side
};

// `rules` with what a preprocessor_config.json (null: none) says. Errors name `file`: kCorrupt,
// kUnsupported for what another processor would do.
Result<CanvasRules> read_canvas_rules(const Json& config, const std::string& file,
                                      CanvasRules rules);

struct CanvasSize {
  int width = 0, height = 0;                  // multiples of cell()
  int content_width = 0, content_height = 0;  // the image, in the upper left corner
};

// The canvas of an image of that size: whole cells around it, within the rules' number of tokens.
CanvasSize canvas_size(const CanvasRules& rules, int width, int height);

// Scaled and padded with black.
Image make_canvas(const CanvasRules& rules, const Image& image);

// [patches, channel * time * row * column] of a canvas, normalised; the patches of a cell one after
// the other.
std::vector<float> make_patches(const CanvasRules& rules, const Image& canvas);

}  // namespace glint
