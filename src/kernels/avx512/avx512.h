// The tables for processors with AVX-512 (F, BW, VL, DQ), without and with its bfloat16 dot
// product. Both are complete; a table for a later instruction set may copy what it does not
// replace.
#pragma once

namespace glint {

struct KernelTable;
const KernelTable& avx512_table();
const KernelTable& avx512bf16_table();

}  // namespace glint
