// Kimi delta attention of the AVX2 table.
#pragma once

#include "kernels/kda.h"

namespace glint {

KdaKernels avx2_kda();

}  // namespace glint
