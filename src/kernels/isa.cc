#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"
#include "kernels/amx/amx.h"
#include "kernels/avx2/avx2.h"
#include "kernels/avx512/avx512.h"
#include "kernels/scalar/scalar.h"

namespace glint {
namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return {};
  return out;
}

bool bit(std::uint64_t word, int index) {
  return ((word >> index) & 1u) != 0;
}

// The register states that the operating system saves on a context switch (XCR0). A processor may
// have AVX-512 while the system does not keep its registers.
std::uint64_t saved_states(const Leaf& leaf1) {
  if (!bit(leaf1.ecx, 27)) return 0;  // OSXSAVE
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr std::uint64_t kYmmStates = 0x6;                // SSE, AVX
constexpr std::uint64_t kZmmStates = kYmmStates | 0xe0;  // opmask, upper halves, upper registers
constexpr std::uint64_t kTileStates = (1u << 17) | (1u << 18);  // tile configuration, tile data

// Linux gives tile data to a process only on request (arch_prctl(2), ARCH_REQ_XCOMP_PERM), and may
// refuse. Once granted it covers every thread of the process.
bool tile_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

bool available(Isa isa) {
  const Leaf leaf1 = cpuid(1, 0);
  const Leaf leaf7 = cpuid(7, 0);
  const Leaf leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Leaf{};
  const std::uint64_t states = saved_states(leaf1);
  const bool avx2 = (states & kYmmStates) == kYmmStates && bit(leaf1.ecx, 12) &&
                    bit(leaf1.ecx, 28) && bit(leaf1.ecx, 29) &&
                    bit(leaf7.ebx, 5);  // FMA, AVX, F16C, AVX2
  const bool avx512 = avx2 && (states & kZmmStates) == kZmmStates && bit(leaf7.ebx, 16) &&
                      bit(leaf7.ebx, 17) && bit(leaf7.ebx, 30) &&
                      bit(leaf7.ebx, 31);  // F, DQ, BW, VL
  const bool avx512_bf16 = avx512 && bit(leaf7_1.eax, 5);
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512_bf16;
    case Isa::kAmx:
      return avx512_bf16 && (states & kTileStates) == kTileStates && bit(leaf7.edx, 22) &&
             bit(leaf7.edx, 24) && bit(leaf7.edx, 25) && bit(leaf7.ecx, 1) && has_vnni512() &&
             tile_permission();  // with VBMI, as all of them have
  }
  return false;
}

std::string names_of(const std::vector<Isa>& isas) {
  std::string text;
  for (const Isa isa : isas) {
    if (!text.empty()) text += ", ";
    text += isa_name(isa);
  }
  return text;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

bool has_vnni512() {
  return available(Isa::kAvx512) && bit(cpuid(7, 0).ecx, 11);
}

std::vector<Isa> available_isas() {
  std::vector<Isa> found;
  for (const Isa isa : kAllIsas) {
    if (available(isa)) found.push_back(isa);
  }
  return found;
}

Result<Isa> choose_isa(std::string_view name) {
  const std::vector<Isa> isas = available_isas();
  std::string source = "--isa";
  std::string wanted(name);
  if (wanted.empty() || wanted == "auto") {
    source = "GLINT_ISA";
    const char* forced = std::getenv("GLINT_ISA");
    wanted = forced == nullptr ? "" : forced;
    if (wanted.empty() || wanted == "auto") return isas.back();
  }
  for (const Isa isa : kAllIsas) {
    if (isa_name(isa) != wanted) continue;
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) return isa;
    return unsupported(source + " asks for the instruction set '" + wanted +
                       "', which this machine does not have; it has " + names_of(isas));
  }
  return invalid_argument(source + " names an unknown instruction set '" + wanted +
                          "'; this machine has " + names_of(isas));
}

const KernelTable& kernel_table(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return scalar_table();
    case Isa::kAvx2:
      return avx2_table();
    case Isa::kAvx512:
      return avx512_table();
    case Isa::kAvx512Bf16:
      return avx512bf16_table();
    case Isa::kAmx:
      return amx_table();
  }
  GLINT_CHECK(false);
}

}  // namespace glint
