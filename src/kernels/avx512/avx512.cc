#include "kernels/avx512/avx512.h"

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/avx512/kda.h"
#include "kernels/avx512/panel.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/row_format.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/attend-inl.h"
#include "kernels/avx512/rows-inl.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/f8few-inl.h"
#include "kernels/matmul-inl.h"

namespace glint {
namespace {

using F32 = F32Format<Vec512>;
using Bf16 = Bf16Format<Vec512, true>;
using Bf16Wide = Bf16Format<Vec512, false>;
using F16 = F16Format<Vec512, true>;
using F16Wide = F16Format<Vec512, false>;

KernelTable make_table() {
  KernelTable table;
  table.isa = Isa::kAvx512;
  table.bf16 = Matmul<Bf16>::kernels();
  table.bf16_f32 = Matmul<Bf16Wide>::kernels();
  table.f32 = Matmul<F32>::kernels();
  table.f16 = Matmul<F16>::kernels();
  table.f16_f32 = Matmul<F16Wide>::kernels();
  table.f8 = F8Matmul<Matmul<Bf16>, F8ToBf16<Vec512>, F8Few<Bf16, F8LoadBf16<Vec512>>>::kernels();
  table.f8_f32 = F8Matmul<Matmul<F32>, F8ToF32<Vec512>>::kernels();
  table.attend_bf16 = Attend<Bf16, Bf16>::kernels();
  table.attend_f32 = Attend<F32, F32>::kernels();
  Elementwise<Vec512>::fill(table);
  table.kda = avx512_kda();
  table.fp8_rows = Rows512::fp8_kernels();
  table.fp4_rows = Rows512::fp4_kernels();
  fill_avx512_panels(table);
  return table;
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

const KernelTable& avx512_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace glint
