#include "kernels/avx2/kda.h"

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/table.h"
#include "kernels/target.h"

GLINT_TARGET_BEGIN("avx2,fma,f16c")

#include "kernels/avx2/vec256-inl.h"
#include "kernels/kda-inl.h"

namespace glint {
namespace {

KdaKernels make_kernels() {
  return Kda<Vec256>::kernels();
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

KdaKernels avx2_kda() {
  return make_kernels();
}

}  // namespace glint
