// The measurements give plausible numbers with every instruction set of this machine.
#include "tools/machine_probe.h"

#include <gtest/gtest.h>

#include <set>

namespace glint {
namespace {

TEST(MachineProbe, memory_is_read_faster_than_a_disk_and_slower_than_light) {
  ThreadPool pool(2);
  const double rate = read_bandwidth(pool, 16u << 20);
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e14);
}

TEST(MachineProbe, every_available_instruction_set_has_a_peak) {
  ThreadPool pool(2);
  for (const Isa isa : available_isas()) {
    for (const Compute compute : {Compute::kBf16, Compute::kF32}) {
      const double rate = peak_flops(pool, peak_kind(isa, compute));
      EXPECT_GT(rate, 1e7) << isa_name(isa);
      EXPECT_LT(rate, 1e17) << isa_name(isa);
    }
    const double rate = peak_flops(pool, int8_peak_kind(isa));
    EXPECT_GT(rate, 1e7) << isa_name(isa);
    EXPECT_LT(rate, 1e17) << isa_name(isa);
  }
}

TEST(MachineProbe, every_kind_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kNumPeakKinds; ++kind) {
    names.insert(peak_name(static_cast<PeakKind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumPeakKinds));
  EXPECT_FALSE(names.contains(""));
}

TEST(MachineProbe, the_fastest_int8_products_beat_the_float_ones) {
  ThreadPool pool(1);
  const Isa isa = available_isas().back();
  if (isa == Isa::kScalar) GTEST_SKIP() << "SSE has no int8 products";
  EXPECT_GT(peak_flops(pool, int8_peak_kind(isa)), peak_flops(pool, peak_kind(isa, Compute::kF32)));
}

}  // namespace
}  // namespace glint
