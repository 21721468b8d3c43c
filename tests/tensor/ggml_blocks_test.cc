#include "tensor/ggml_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "block_samples.h"

namespace glint {
namespace {

TEST(GgmlBlocks, every_stored_block_decodes_to_equal_bits) {
  for (const BlockSamples& samples : load_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    std::vector<float> decoded(samples.values.size());
    decode_blocks(samples.type, samples.raw.data(), samples.count, decoded.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(decoded[i]) ==
          std::bit_cast<std::uint32_t>(samples.values[i]))
        continue;
      if (wrong++ == 0)
        ADD_FAILURE() << "element " << i << " is " << decoded[i] << ", not " << samples.values[i];
    }
    EXPECT_EQ(wrong, 0u);
  }
}

// FNV-1a of a code book's elements; the constants come from the `gguf` package's tables.
template <typename Grid>
std::uint64_t hash_of(Grid grid) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& entry : grid) {
    for (const auto element : entry)
      hash = (hash ^ static_cast<std::uint8_t>(element)) * 0x100000001b3u;
  }
  return hash;
}

TEST(GgmlBlocks, code_books_are_the_packages) {
  EXPECT_EQ(iq2_xxs_grid().size(), 256u);
  EXPECT_EQ(hash_of(iq2_xxs_grid()), 0xbb4ee025b5ac6e8eu);
  EXPECT_EQ(iq2_xs_grid().size(), 512u);
  EXPECT_EQ(hash_of(iq2_xs_grid()), 0xc9b1ee61e79909bdu);
  EXPECT_EQ(iq2_s_grid().size(), 1024u);
  EXPECT_EQ(hash_of(iq2_s_grid()), 0x123edd38a3b62b90u);
  EXPECT_EQ(iq3_xxs_grid().size(), 256u);
  EXPECT_EQ(hash_of(iq3_xxs_grid()), 0xdfa5dc83d6a155d5u);
  EXPECT_EQ(iq3_s_grid().size(), 512u);
  EXPECT_EQ(hash_of(iq3_s_grid()), 0xfa37020c25b44829u);
  EXPECT_EQ(iq1_grid().size(), 2048u);
  EXPECT_EQ(hash_of(iq1_grid()), 0x6703ed863501ae2eu);
}

TEST(GgmlBlocks, sign_bytes_have_an_even_number_of_signs) {
  for (unsigned index = 0; index < 128; ++index) {
    EXPECT_EQ(iq_signs(index) & 127u, index);
    EXPECT_EQ(std::popcount(iq_signs(index)) % 2, 0);
  }
}

TEST(GgmlBlocks, four_bit_values_are_the_formats) {
  // Every nibble once; scale 1, which for MXFP4 is half of 2^(128 - 127).
  std::vector<std::byte> block(18, std::byte{0});
  for (unsigned i = 0; i < 16; ++i) block[2 + i] = static_cast<std::byte>(i);
  block[1] = std::byte{0x3c};
  float values[32];
  decode_blocks(DType::kIQ4_NL, block.data(), 1, values);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(values[i], iq4_values()[i]);
  block[1] = std::byte{128};
  decode_blocks(DType::kMXFP4, block.data() + 1, 1, values);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(values[i], fp4_values()[i]);
}

TEST(GgmlBlocks, every_scale_of_the_float_types_has_its_value) {
  // Code 2 stands for 1, twice itself in the table.
  std::vector<std::byte> block(36, std::byte{0x22});
  float values[64];
  for (int bits = 0; bits < 256; ++bits) {
    block[0] = static_cast<std::byte>(bits);
    decode_blocks(DType::kMXFP4, block.data(), 1, values);
    EXPECT_EQ(values[0], std::ldexp(1.0f, bits - 127)) << bits;

    decode_blocks(DType::kNVFP4, block.data(), 1, values);
    const int exponent = bits >> 3 & 15;
    const auto mantissa = static_cast<float>(bits & 7);
    float scale =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
    if (bits == 0x7f) scale = 0;
    EXPECT_EQ(values[0], scale) << bits;
  }
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += "0123456789abcdef"[value >> 4];
    text += "0123456789abcdef"[value & 15];
  }
  return text;
}

std::string encoded_q8_0(const std::vector<float>& x) {
  std::vector<std::byte> blocks(x.size() / 32 * 34);
  encode_q8_0(x.data(), x.size(), blocks.data());
  return hex(blocks);
}

TEST(EncodeQ8, bytes_are_those_of_the_packages_quantiser) {
  std::vector<float> x;
  for (int block = 0; block < 3; ++block) {
    for (int i = 0; i < 32; ++i) {
      const int whole = (i * 7919 + block * 104729) % 4001 - 2000;
      x.push_back(static_cast<float>(whole) * 0.37f * std::ldexp(1.0f, 3 * block - 6));
    }
  }
  EXPECT_EQ(encoded_q8_0(x),
            "d42d817a756f6a655f5a55504a45403b35302b25201b16100b0601fbf6f1ebe6e1dc"
            "b739aca7a19c97918c86817f79746f69645e59544e49443e39332e29231e19130e08"
            "d145dad5d0cac5c0bbb5b0aba5a09b96908b867f7a746f6a655f5a554f4a45403a35");
  std::vector<float> ties = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
  ties.resize(32);
  EXPECT_EQ(encoded_q8_0(ties),
            "003c7f010203fffefd7f810000000000000000000000000000000000000000000000");
  EXPECT_EQ(encoded_q8_0(std::vector<float>(32)), std::string(68, '0'));
}

std::vector<float> normal_values(std::size_t n, float scale) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  std::ranges::generate(values, [&] { return normal(random); });
  return values;
}

// x encoded to `type` and decoded again.
std::vector<float> round_trip(DType type, const std::vector<float>& x) {
  std::vector<std::byte> blocks(x.size() / 32 * block_size(type).bytes);
  std::vector<float> decoded(x.size());
  (type == DType::kQ8_0 ? encode_q8_0 : encode_q4_0)(x.data(), x.size(), blocks.data());
  decode_blocks(type, blocks.data(), x.size() / 32, decoded.data());
  return decoded;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum;
}

float largest_of_block(const std::vector<float>& x, std::size_t index) {
  float largest = 0;
  for (std::size_t i = index / 32 * 32; i < index / 32 * 32 + 32; ++i)
    largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

TEST(EncodeQ8, no_element_is_off_by_more_than_half_a_step) {
  for (const float scale : {1e-2f, 1.0f, 300.0f}) {
    const std::vector<float> x = normal_values(4096, scale);
    const std::vector<float> back = round_trip(DType::kQ8_0, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Half a step, and 127 steps that are off by half a unit of float16's 11 bits.
      const float step = largest_of_block(x, i) / 127;
      EXPECT_LE(std::fabs(back[i] - x[i]), step * (0.5f + 127 * 0x1p-11f) * 1.001f);
    }
  }
}

// The error of the plain scale, -1/8 of the largest element, unrounded.
double plain_q4_error(const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (std::size_t i = begin; i < begin + 32; ++i)
      if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    for (std::size_t i = begin; i < begin + 32; ++i) {
      const float scale = largest / -8;
      const float code = std::clamp(std::round(x[i] / scale), -8.0f, 7.0f);
      sum += std::pow(static_cast<double>(x[i]) - static_cast<double>(scale) * code, 2);
    }
  }
  return sum;
}

TEST(EncodeQ4, is_a_tenth_better_than_the_plain_scale_on_normal_values) {
  for (const float scale : {1e-2f, 1.0f, 300.0f}) {
    const std::vector<float> x = normal_values(32 * 512, scale);
    const double error = squared_error(round_trip(DType::kQ4_0, x), x);
    EXPECT_LT(error, 0.92 * plain_q4_error(x));
    EXPECT_LT(error / squared_error(x, std::vector<float>(x.size())), 0.007);
  }
}

TEST(EncodeQ4, whole_steps_come_back_as_they_were) {
  std::vector<float> x;
  for (int i = 0; i < 32; ++i) x.push_back(0.25f * static_cast<float>(i % 16 - 8));
  EXPECT_EQ(round_trip(DType::kQ4_0, x), x);
  for (float& value : x) value = -value;  // the largest is now positive: a negative scale
  EXPECT_EQ(round_trip(DType::kQ4_0, x), x);
  EXPECT_EQ(round_trip(DType::kQ4_0, std::vector<float>(64)), std::vector<float>(64));
}

TEST(Encoders, values_without_a_finite_code_give_finite_ones) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 3e38f,
                          std::numeric_limits<float>::denorm_min(), 1e-9f}) {
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
      std::vector<float> x(32, 1e-9f);
      x[5] = odd;
      for (const float value : round_trip(type, x)) EXPECT_TRUE(std::isfinite(value)) << odd;
    }
  }
}

}  // namespace
}  // namespace glint
