// The table for processors with AVX2 and FMA.
#pragma once

namespace glint {

struct KernelTable;
const KernelTable& avx2_table();

}  // namespace glint
