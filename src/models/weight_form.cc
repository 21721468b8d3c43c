#include "models/weight_form.h"

#include <array>
#include <cmath>

#include "tensor/panel.h"

namespace glint {
namespace {

QuantFormat element_format(DType type) {
  if (type == DType::kBf16) return QuantFormat::kBf16;
  if (type == DType::kF8E4M3) return QuantFormat::kF8;
  return type == DType::kF16 ? QuantFormat::kF16 : QuantFormat::kF32;
}

MatrixUse use_of(WeightPart part) {
  switch (part) {
    case WeightPart::kAttention:
      return MatrixUse::kAttention;
    case WeightPart::kExperts:
    case WeightPart::kFeedForward:
      return MatrixUse::kFeedForward;
    case WeightPart::kHead:
      return MatrixUse::kHead;
    case WeightPart::kRouter:
    case WeightPart::kVectors:
    case WeightPart::kEmbedding:
      break;
  }
  return MatrixUse::kKept;
}

PlacedGroup place(const WeightGroup& group, const LoadOptions& options) {
  PlacedGroup placed;
  placed.stored = group;
  if (group.part == WeightPart::kVectors) {  // float32 in memory, whatever they were
    placed.bytes = group.parameters() * sizeof(float);
    return placed;
  }
  placed.form = group.expanded ? expanded_form(options)
                               : weight_form(group.type, group.cols, use_of(group.part), options);
  if (placed.form.format == QuantFormat::kF8)
    placed.beside = group.count * group.scales * sizeof(float);
  placed.bytes =
      group.count * Weight::bytes_of(placed.form.format, placed.form.type, group.rows, group.cols) +
      placed.beside;
  placed.in_file = stays_in_file(placed.form.format, options) && !group.expanded && !group.in_parts;
  return placed;
}

}  // namespace

WeightForm weight_form(DType stored, std::size_t cols, MatrixUse use, const LoadOptions& options) {
  DType type = stored;
  const bool may_quantise =
      !is_block_type(stored) && use != MatrixUse::kKept && cols % kPanelStep == 0;
  if (may_quantise && options.quant != WeightQuant::kAsIs) {
    type = options.quant == WeightQuant::kQ4 && use == MatrixUse::kFeedForward ? DType::kQ4_0
                                                                               : DType::kQ8_0;
  }
  if (!is_block_type(type)) return {element_format(type), type};
  const bool packs = use != MatrixUse::kKept && (options.repack || type != stored);
  return {packs ? QuantFormat::kPanels : QuantFormat::kBlocks, type};
}

WeightForm expanded_form(const LoadOptions& options) {
  if (options.compute == Compute::kF32) return {QuantFormat::kF32, DType::kF32};
  return {QuantFormat::kBf16, DType::kBf16};
}

bool stays_in_file(QuantFormat format, const LoadOptions& options) {
  return options.placement == WeightPlacement::kMapped && format != QuantFormat::kPanels;
}

std::vector<PlacedGroup> place_weights(const ModelInfo& info, const LoadOptions& options) {
  std::vector<PlacedGroup> weights;
  for (const WeightGroup& group : info.weights) weights.push_back(place(group, options));
  return weights;
}

std::uint64_t resident_bytes(const std::vector<PlacedGroup>& weights) {
  std::uint64_t total = 0;
  for (const PlacedGroup& group : weights) total += group.in_file ? group.beside : group.bytes;
  return total;
}

double share_read(const ModelInfo& info, WeightPart part, double tokens) {
  if (part == WeightPart::kEmbedding) return info.tied_embedding ? 1 : 0;
  if (part != WeightPart::kExperts || info.num_experts == 0) return 1;
  const double chosen = static_cast<double>(info.experts_per_token) / info.num_experts;
  return 1 - std::pow(1 - chosen, tokens);
}

double bytes_read(const ModelInfo& info, const std::vector<PlacedGroup>& weights, double tokens) {
  double total = 0;
  for (const PlacedGroup& group : weights)
    total += static_cast<double>(group.bytes) * share_read(info, group.stored.part, tokens);
  return total;
}

std::string_view part_name(WeightPart part) {
  constexpr std::array<std::string_view, kNumWeightParts> kNames = {
      "attention", "experts", "shared and dense", "router", "norms and biases",
      "embedding", "head"};
  return kNames[static_cast<std::size_t>(part)];
}

}  // namespace glint
