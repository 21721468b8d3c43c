#include "kernels/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kernels/table.h"

namespace glint {
namespace {

using testing::HasSubstr;

// Sets GLINT_ISA for a test and puts back what was there.
class IsaTest : public testing::Test {
 protected:
  IsaTest() {
    const char* value = std::getenv("GLINT_ISA");
    had_value_ = value != nullptr;
    if (had_value_) value_ = value;
    unsetenv("GLINT_ISA");
  }
  ~IsaTest() override {
    if (had_value_) {
      setenv("GLINT_ISA", value_.c_str(), 1);
    } else {
      unsetenv("GLINT_ISA");
    }
  }

 private:
  bool had_value_ = false;
  std::string value_;
};

TEST_F(IsaTest, scalar_is_always_there_and_preference_ascends) {
  const std::vector<Isa> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kScalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST_F(IsaTest, auto_takes_the_best) {
  EXPECT_EQ(choose_isa("auto").value(), available_isas().back());
  EXPECT_EQ(choose_isa("").value(), available_isas().back());
}

TEST_F(IsaTest, every_available_name_is_taken_and_has_a_complete_table) {
  for (const Isa isa : available_isas()) {
    EXPECT_EQ(choose_isa(isa_name(isa)).value(), isa);
    const KernelTable& table = kernel_table(isa);
    EXPECT_EQ(table.isa, isa);
    for (const MatmulKernels* kernels : {&table.bf16, &table.bf16_f32, &table.f32}) {
      EXPECT_NE(kernels->packed_bytes, nullptr);
      EXPECT_NE(kernels->pack, nullptr);
      EXPECT_NE(kernels->matmul, nullptr);
      EXPECT_NE(kernels->gate_up, nullptr);
      EXPECT_NE(kernels->scratch_bytes, nullptr);
    }
    for (const AttendKernels* kernels : {&table.attend_bf16, &table.attend_f32}) {
      EXPECT_NE(kernels->attend, nullptr);
      EXPECT_NE(kernels->scratch_bytes, nullptr);
    }
    EXPECT_NE(table.attend_merge, nullptr);
    for (const RowKernels* kernels : {&table.fp8_rows, &table.fp4_rows}) {
      EXPECT_NE(kernels->pack, nullptr);
      EXPECT_NE(kernels->unpack, nullptr);
    }
    EXPECT_NE(table.rms_norm, nullptr);
    EXPECT_NE(table.rope_interleaved, nullptr);
    EXPECT_NE(table.rope_half, nullptr);
    EXPECT_NE(table.add, nullptr);
    EXPECT_NE(table.scale_to_bf16, nullptr);
    EXPECT_NE(table.scale_to_f32, nullptr);
    EXPECT_NE(table.softmax, nullptr);
    EXPECT_NE(table.sigmoid, nullptr);
    EXPECT_NE(table.widen_bf16, nullptr);
    EXPECT_NE(table.kda.short_conv, nullptr);
    EXPECT_NE(table.kda.l2_norm, nullptr);
    EXPECT_NE(table.kda.bounded_decay, nullptr);
    EXPECT_NE(table.kda.softplus_decay, nullptr);
    EXPECT_NE(table.kda.sigmoid_times, nullptr);
    EXPECT_NE(table.kda.rows, nullptr);
    EXPECT_NE(table.kda.fold, nullptr);
    EXPECT_NE(table.kda.scratch_bytes, nullptr);
  }
}

TEST_F(IsaTest, the_environment_forces_a_table_and_an_explicit_name_wins) {
  setenv("GLINT_ISA", "scalar", 1);
  EXPECT_EQ(choose_isa("auto").value(), Isa::kScalar);
  EXPECT_EQ(choose_isa(isa_name(available_isas().back())).value(), available_isas().back());
  setenv("GLINT_ISA", "auto", 1);
  EXPECT_EQ(choose_isa("auto").value(), available_isas().back());
}

TEST_F(IsaTest, an_unknown_name_is_refused_with_what_there_is) {
  for (const bool by_environment : {false, true}) {
    if (by_environment) setenv("GLINT_ISA", "avx1024", 1);
    const Result<Isa> chosen = choose_isa(by_environment ? "auto" : "avx1024");
    ASSERT_FALSE(chosen.has_value());
    EXPECT_EQ(chosen.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(chosen.error().message, HasSubstr("avx1024"));
    EXPECT_THAT(chosen.error().message, HasSubstr(by_environment ? "GLINT_ISA" : "--isa"));
    for (const Isa isa : available_isas()) {
      EXPECT_THAT(chosen.error().message, HasSubstr(std::string(isa_name(isa))));
    }
  }
}

TEST_F(IsaTest, a_known_name_that_this_machine_lacks_is_refused_as_such) {
  const std::vector<Isa> isas = available_isas();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) continue;
    const Result<Isa> chosen = choose_isa(isa_name(isa));
    ASSERT_FALSE(chosen.has_value());
    EXPECT_EQ(chosen.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(chosen.error().message, HasSubstr("scalar"));
  }
}

}  // namespace
}  // namespace glint
