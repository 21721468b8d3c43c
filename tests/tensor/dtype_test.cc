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

}  // namespace
}  // namespace glint
