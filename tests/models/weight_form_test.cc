// What becomes of weights when they are loaded, as plans and the binder both see it.
#include "models/weight_form.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "models/registry.h"
#include "tensor/panel.h"

namespace glint {
namespace {

WeightForm form(DType stored, MatrixUse use, const LoadOptions& options, std::size_t cols = 64) {
  return weight_form(stored, cols, use, options);
}

TEST(WeightForm, quantisation_spares_what_is_kept_and_what_has_few_bits_already) {
  const LoadOptions q4{.quant = WeightQuant::kQ4}, q8{.quant = WeightQuant::kQ8};
  EXPECT_EQ(form(DType::kBf16, MatrixUse::kFeedForward, q4).type, DType::kQ4_0);
  EXPECT_EQ(form(DType::kF32, MatrixUse::kFeedForward, q8).type, DType::kQ8_0);
  for (const MatrixUse use : {MatrixUse::kAttention, MatrixUse::kHead}) {
    EXPECT_EQ(form(DType::kF16, use, q4).type, DType::kQ8_0);
  }
  EXPECT_EQ(form(DType::kBf16, MatrixUse::kKept, q4).type, DType::kBf16);
  EXPECT_EQ(form(DType::kQ6_K, MatrixUse::kFeedForward, q4).type, DType::kQ6_K);
  EXPECT_EQ(form(DType::kBf16, MatrixUse::kFeedForward, q4, 40).type, DType::kBf16);
}

TEST(WeightForm, low_bit_weights_are_packed_unless_repack_is_off) {
  const LoadOptions off{.repack = false};
  EXPECT_EQ(form(DType::kQ4_0, MatrixUse::kAttention, {}).format, QuantFormat::kPanels);
  EXPECT_EQ(form(DType::kQ4_0, MatrixUse::kAttention, off).format, QuantFormat::kBlocks);
  EXPECT_EQ(form(DType::kQ4_0, MatrixUse::kKept, {}).format, QuantFormat::kBlocks);
  // There are no such blocks in the file.
  const LoadOptions quantised{.quant = WeightQuant::kQ8, .repack = false};
  EXPECT_EQ(form(DType::kBf16, MatrixUse::kAttention, quantised).format, QuantFormat::kPanels);
}

ModelInfo gguf_demo() {
  const auto file = std::filesystem::path(GLINT_TEST_DATA) / "gguf" / "demo-q4_0.gguf";
  return *describe_model(**Checkpoint::open(file));
}

TEST(PlaceWeights, a_file_takes_about_its_own_size_in_panels) {
  const ModelInfo info = gguf_demo();
  std::uint64_t stored = 0;
  for (const WeightGroup& group : info.weights) {
    const BlockSize block = block_size(group.type);
    stored += group.parameters() / block.elements * block.bytes;
  }
  EXPECT_EQ(stored, info.weight_bytes);
  const auto resident = static_cast<double>(resident_bytes(place_weights(info, {})));
  EXPECT_NEAR(resident / static_cast<double>(info.weight_bytes), 1, 0.05);
}

TEST(PlaceWeights, mapped_files_cost_only_what_is_packed) {
  const ModelInfo info = gguf_demo();
  LoadOptions mapped{.placement = WeightPlacement::kMapped};
  const std::uint64_t packed = resident_bytes(place_weights(info, mapped));
  EXPECT_LT(packed, resident_bytes(place_weights(info, {})));  // the embedding stays
  mapped.repack = false;
  const std::uint64_t unpacked = resident_bytes(place_weights(info, mapped));
  std::uint64_t vectors = 0;
  for (const WeightGroup& group : info.weights)
    vectors += group.part == WeightPart::kVectors ? group.parameters() * sizeof(float) : 0;
  EXPECT_EQ(unpacked, vectors);
  EXPECT_GT(packed, 10 * unpacked);
}

TEST(BytesRead, a_token_reads_its_experts_and_many_tokens_all) {
  const ModelInfo info = gguf_demo();
  const std::vector<PlacedGroup> weights = place_weights(info, {});
  double experts = 0, others = 0;
  for (const PlacedGroup& group : weights) {
    if (group.stored.part == WeightPart::kEmbedding) continue;
    (group.stored.part == WeightPart::kExperts ? experts : others) +=
        static_cast<double>(group.bytes);
  }
  const double share = static_cast<double>(info.experts_per_token) / info.num_experts;
  EXPECT_GT(experts, 0);
  EXPECT_NEAR(bytes_read(info, weights, 1), others + share * experts, 1);
  EXPECT_NEAR(bytes_read(info, weights, 1e6), others + experts, 1);
}

}  // namespace
}  // namespace glint
