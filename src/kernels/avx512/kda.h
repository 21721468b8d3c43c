// Kimi delta attention of the AVX-512 table.
#pragma once

#include "kernels/kda.h"

namespace glint {

KdaKernels avx512_kda();

}  // namespace glint
