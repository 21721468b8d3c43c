#include "kernels/avx512/kda.h"

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/table.h"
#include "kernels/target.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/avx512/vec512-inl.h"
#include "kernels/kda-inl.h"

namespace glint {
namespace {

KdaKernels make_kernels() {
  return Kda<Vec512>::kernels();
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

KdaKernels avx512_kda() {
  return make_kernels();
}

}  // namespace glint
