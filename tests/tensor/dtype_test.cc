#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace glint {
namespace {

TEST(DType, every_name_leads_back_to_its_type) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GE(dtype_bytes(dtype), 1u);
  }
  EXPECT_EQ(dtype_bytes(DType::kBf16), 2u);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8u);
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "F8_E4M3");
  for (const char* unknown : {"", "bf16", "BF16 ", "F128", "F32\n"})
    EXPECT_EQ(dtype_from_name(unknown), std::nullopt);
}

TEST(DType, block_types_have_names_but_no_safetensors_header_holds_them) {
  for (int i = 0; i < kNumBlockTypes; ++i) {
    const auto dtype = static_cast<DType>(static_cast<int>(kFirstBlockType) + i);
    EXPECT_FALSE(dtype_name(dtype).empty());
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), std::nullopt);
    EXPECT_EQ(block_size(dtype).elements % 32, 0u);
  }
  EXPECT_EQ(dtype_name(DType::kIQ3_XXS), "IQ3_XXS");
  EXPECT_EQ(block_size(DType::kQ4_K).elements, 256u);
  EXPECT_EQ(block_size(DType::kQ4_K).bytes, 144u);
  EXPECT_EQ(block_size(DType::kF16).elements, 1u);
  EXPECT_EQ(block_size(DType::kF16).bytes, 2u);
}

TEST(DTypeDeathTest, a_block_type_has_no_bytes_per_element) {
  EXPECT_DEATH(dtype_bytes(DType::kQ8_0), "internal error");
}

TEST(Bf16, every_bit_pattern_survives_a_round_trip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = value.to_float();
    const std::uint16_t back = bf16::from_float(wide).bits;
    if (std::isnan(wide)) {
      EXPECT_EQ(back, bits | 0x40u);
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

TEST(Bf16, rounds_to_the_nearest_and_ties_to_even) {
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0x3f807fffu)).bits, 0x3f80);
  EXPECT_EQ(bf16::from_float(std::numeric_limits<float>::max()).bits,
            0x7f80);  // rounds to infinity
  EXPECT_EQ(bf16::from_float(-0.0f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(bf16::from_float(std::bit_cast<float>(0x7f800001u)).to_float()));
}

TEST(F16, every_bit_pattern_has_the_value_of_its_fields) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const double fraction = static_cast<double>(bits & 1023) / 1024;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const float value = f16_to_float(static_cast<std::uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value));
    } else if (exponent == 31) {
      EXPECT_EQ(value, static_cast<float>(sign) * std::numeric_limits<float>::infinity());
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      EXPECT_EQ(static_cast<double>(value), sign * expected);
      EXPECT_EQ(std::signbit(value), sign < 0);
    }
  }
}

TEST(F16, every_bit_pattern_survives_a_round_trip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = f16_to_float(static_cast<std::uint16_t>(bits));
    EXPECT_EQ(f16_from_float(wide), std::isnan(wide) ? (bits & 0x8000u) | 0x7e00u : bits);
  }
}

TEST(F16, rounds_to_the_nearest_and_ties_to_even) {
  // Between neighbours of one sign: the middle goes to the even one, a little off it to the nearer.
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = f16_to_float(bits);
    const float high = f16_to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1));
    ASSERT_EQ(f16_from_float(middle), even);
    ASSERT_EQ(f16_from_float(-middle), even | 0x8000);
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(f16_from_float(65519.0f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(3e38f), 0x7c00);
  EXPECT_EQ(f16_from_float(-3e38f), 0xfc00);
  EXPECT_EQ(f16_from_float(1e-40f), 0);
}

TEST(E4M3, every_bit_pattern_has_the_value_of_its_fields) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const int exponent = bits >> 3 & 15;
    const double fraction = (bits & 7) / 8.0;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
    EXPECT_EQ(static_cast<double>(value), bits < 128 ? size : -size) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128);
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
}

}  // namespace
}  // namespace glint
