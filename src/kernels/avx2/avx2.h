// The table for processors with AVX2, FMA and F16C.
#pragma once

namespace glint {

struct KernelTable;
const KernelTable& avx2_table();

}  // namespace glint
