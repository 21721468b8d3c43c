#include "tensor/int_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "block_samples.h"
#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

TEST(IntBlocks, every_block_decodes_to_scale_times_code_less_zero) {
  for (const BlockSamples& samples : int_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    std::vector<float> decoded(samples.values.size());
    decode_blocks(samples.type, samples.raw.data(), samples.count, decoded.data());
    for (std::size_t i = 0; i < decoded.size(); ++i) ASSERT_EQ(decoded[i], samples.values[i]) << i;
  }
}

// A block written down byte by byte.
std::vector<float> decoded(DType type, std::vector<int> bytes) {
  bytes.resize(block_size(type).bytes);
  std::vector<std::byte> block;
  for (const int byte : bytes) block.push_back(static_cast<std::byte>(byte));
  std::vector<float> values(32);
  decode_blocks(type, block.data(), 1, values.data());
  return values;
}

TEST(IntBlocks, nibbles_are_neighbours_and_the_low_one_comes_first) {
  // bf16 2.0; codes 1, 15, 8, 0.
  const std::vector<float> signed4 = decoded(DType::kInt4B, {0x00, 0x40, 0xf1, 0x08});
  EXPECT_EQ(std::vector<float>(signed4.begin(), signed4.begin() + 4),
            (std::vector<float>{-14, 14, 0, -16}));
  // f16 0.5, zero 3; codes 3, 4, 0, 15.
  const std::vector<float> unsigned4 = decoded(DType::kUint4H, {0x00, 0x38, 3, 0xee, 0x43, 0xf0});
  EXPECT_EQ(std::vector<float>(unsigned4.begin(), unsigned4.begin() + 4),
            (std::vector<float>{0, 0.5, -1.5, 6}));
}

TEST(IntBlocks, bytes_reach_beyond_what_signed_ones_hold) {
  // f32 1.0, zero 255 or 0; codes 0, 255.
  EXPECT_EQ(decoded(DType::kUint8F, {0, 0, 0x80, 0x3f, 255, 1, 2, 3, 0, 255})[0], -255);
  EXPECT_EQ(decoded(DType::kUint8F, {0, 0, 0x80, 0x3f, 0, 1, 2, 3, 0, 255})[1], 255);
  EXPECT_EQ(decoded(DType::kInt8B, {0x80, 0x3f, 0, 255})[0], -128);
  EXPECT_EQ(decoded(DType::kInt8B, {0x80, 0x3f, 0, 255})[1], 127);
  EXPECT_EQ(decoded(DType::kInt8F, {0, 0, 0x80, 0x3f, 129})[0], 1);
}

// GPTQ's zero points reach 16.
TEST(IntBlocks, a_zero_may_lie_beyond_the_codes) {
  EXPECT_EQ(decoded(DType::kUint4B, {0x80, 0x3f, 16, 0, 0x0f})[0], -1);
  EXPECT_EQ(decoded(DType::kUint4F, {0, 0, 0x80, 0x3f, 16, 0, 0, 0, 0x0f})[1], -16);
}

}  // namespace
}  // namespace glint
