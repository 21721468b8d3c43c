// Kimi delta attention of the scalar table.
#pragma once

#include "kernels/kda.h"

namespace glint {

KdaKernels scalar_kda();

}  // namespace glint
