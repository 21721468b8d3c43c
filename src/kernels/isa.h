// The instruction sets glint has kernels for, and what this machine runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace glint {

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };  // ascending preference

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512bf16", "amx"
std::vector<Isa>
available_isas();  // by CPUID, operating system state and (AMX) permission; never empty
// "auto" (or "") picks the best available, or what the environment's GLINT_ISA says. Unknown or
// unavailable: an error listing what there is.
Result<Isa> choose_isa(std::string_view name);

// Whether this machine's AVX-512 has VNNI (vpdpbusd); nearly all have.
bool has_vnni512();

struct KernelTable;
// The table of an available ISA; any thread may use it.
const KernelTable& kernel_table(Isa isa);

}  // namespace glint
