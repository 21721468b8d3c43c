// What becomes of a checkpoint's weights in memory: decided here for the binder that loads them and
// for the plans and reports that only say what loading would cost.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "tensor/weight.h"

namespace glint {

// What a matrix is for, which decides what --weights may make of it.
enum class MatrixUse { kKept, kAttention, kFeedForward, kHead };

struct WeightForm {
  QuantFormat format = QuantFormat::kF32;
  DType type = DType::kF32;
};

// The form of a matrix of `cols` columns that is of type `stored` in the checkpoint.
WeightForm weight_form(DType stored, std::size_t cols, MatrixUse use, const LoadOptions& options);
// The form of a matrix that no kernel reads as it is stored: bf16, or float32 with f32 compute.
WeightForm expanded_form(const LoadOptions& options);
// Whether weights of this form need no memory of their own.
bool stays_in_file(QuantFormat format, const LoadOptions& options);

// A group of ModelInfo::weights as it is after loading.
struct PlacedGroup {
  WeightGroup stored;
  WeightForm form;
  std::uint64_t bytes = 0;   // of all its tensors in this form
  bool in_file = false;      // read where the file is mapped
  std::uint64_t beside = 0;  // of `bytes`, in memory all the same: scales
};
std::vector<PlacedGroup> place_weights(const ModelInfo& info, const LoadOptions& options);

// Memory of their own that all the weights take.
std::uint64_t resident_bytes(const std::vector<PlacedGroup>& weights);
// The share of a part's bytes that a step of `tokens` tokens reads: of the experts so many as a
// random choice meets, of the embedding nothing to speak of.
double share_read(const ModelInfo& info, WeightPart part, double tokens);
// Bytes of weights that a step of `tokens` tokens reads.
double bytes_read(const ModelInfo& info, const std::vector<PlacedGroup>& weights, double tokens);

// "attention", "experts", ...
std::string_view part_name(WeightPart part);

}  // namespace glint
