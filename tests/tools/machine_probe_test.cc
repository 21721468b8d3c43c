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
  }
}

TEST(MachineProbe, every_kind_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (const PeakKind kind : {PeakKind::kSse, PeakKind::kFma256, PeakKind::kFma512,
                              PeakKind::kDotBf16, PeakKind::kAmxBf16}) {
    names.insert(peak_name(kind));
  }
  EXPECT_EQ(names.size(), 5u);
}

}  // namespace
}  // namespace glint
