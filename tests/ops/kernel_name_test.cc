// The words for kernels, and that they follow the tables.
#include "ops/kernel_name.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/amx/panel.h"

namespace glint {
namespace {

using testing::HasSubstr;

TEST(KernelName, float_weights_are_named_by_what_multiplies_them) {
  EXPECT_EQ(kernel_name(Isa::kAmx, DType::kBf16, Compute::kBf16), "bf16 tiles (AMX)");
  EXPECT_EQ(kernel_name(Isa::kAvx512Bf16, DType::kBf16, Compute::kBf16), "bf16 pairs (AVX-512)");
  EXPECT_EQ(kernel_name(Isa::kAmx, DType::kBf16, Compute::kF32), "widened, float32 FMA (AVX-512)");
  EXPECT_EQ(kernel_name(Isa::kAvx2, DType::kF16, Compute::kBf16), "widened, float32 FMA (AVX2)");
  EXPECT_EQ(kernel_name(Isa::kScalar, DType::kF32, Compute::kBf16), "float32 loops (scalar)");
}

TEST(KernelName, e4m3_weights_become_what_multiplies_them) {
  EXPECT_EQ(kernel_name(Isa::kAmx, DType::kF8E4M3, Compute::kBf16),
            "widened to bf16, bf16 tiles (AMX)");
  EXPECT_EQ(kernel_name(Isa::kAvx2, DType::kF8E4M3, Compute::kBf16), "widened, float32 FMA (AVX2)");
  EXPECT_EQ(kernel_name(Isa::kAmx, DType::kF8E4M3, Compute::kF32),
            "widened, float32 FMA (AVX-512)");
}

TEST(KernelName, low_bit_weights_meet_int8_or_are_widened) {
  EXPECT_EQ(kernel_name(Isa::kAmx, DType::kQ4_0, Compute::kBf16),
            fmt::format("int8 tiles (AMX), VNNI below {} rows", kFewTileRows));
  EXPECT_EQ(kernel_name(Isa::kAvx2, DType::kIQ2_XXS, Compute::kBf16), "int8 pairs (AVX2)");
  EXPECT_EQ(kernel_name(Isa::kScalar, DType::kQ8_0, Compute::kBf16), "int8 loops (scalar)");
  EXPECT_THAT(kernel_name(Isa::kScalar, DType::kQ6_K, Compute::kF32), HasSubstr("widened"));
}

// Two tables that share a kernel share its name, and the other way round.
TEST(KernelName, names_differ_exactly_where_the_tables_do) {
  const std::vector<Isa> isas = available_isas();
  for (const Isa a : isas) {
    for (const Isa b : isas) {
      const KernelTable &of_a = kernel_table(a), &of_b = kernel_table(b);
      const auto same_name = [&](DType type, Compute compute) {
        return kernel_name(a, type, compute) == kernel_name(b, type, compute);
      };
      EXPECT_EQ(of_a.bf16.matmul == of_b.bf16.matmul, same_name(DType::kBf16, Compute::kBf16));
      EXPECT_EQ(of_a.f8.matmul == of_b.f8.matmul, same_name(DType::kF8E4M3, Compute::kBf16));
      EXPECT_EQ(of_a.f16.matmul == of_b.f16.matmul, same_name(DType::kF16, Compute::kBf16));
      EXPECT_EQ(of_a.f32.matmul == of_b.f32.matmul, same_name(DType::kF32, Compute::kBf16));
      EXPECT_EQ(of_a.panel_int8[0] == of_b.panel_int8[0], same_name(DType::kQ4_0, Compute::kBf16));
      EXPECT_EQ(of_a.panel_wide[0] == of_b.panel_wide[0], same_name(DType::kQ4_0, Compute::kF32));
    }
  }
}

}  // namespace
}  // namespace glint
