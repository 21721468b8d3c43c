// The AMX-BF16 table: matrix products and attention on tiles, everything else from AVX-512.
#pragma once

#include "kernels/table.h"

namespace glint {
const KernelTable& amx_table();
}  // namespace glint
