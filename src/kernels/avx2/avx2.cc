#include "kernels/avx2/avx2.h"

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/avx2/kda.h"
#include "kernels/avx2/panel.h"
#include "kernels/scalar/scalar.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/row_format.h"

GLINT_TARGET_BEGIN("avx2,fma,f16c")

#include "kernels/attend-inl.h"
#include "kernels/avx2/rows-inl.h"
#include "kernels/avx2/vec256-inl.h"
#include "kernels/f8few-inl.h"
#include "kernels/matmul-inl.h"

namespace glint {
namespace {

using F32 = F32Format<Vec256>;
using Bf16 = Bf16Format<Vec256, true>;
using Bf16Wide = Bf16Format<Vec256, false>;
using F16 = F16Format<Vec256, true>;
using F16Wide = F16Format<Vec256, false>;

KernelTable make_table() {
  KernelTable table;
  table.isa = Isa::kAvx2;
  table.bf16 = Matmul<Bf16>::kernels();
  table.bf16_f32 = Matmul<Bf16Wide>::kernels();
  table.f32 = Matmul<F32>::kernels();
  table.f16 = Matmul<F16>::kernels();
  table.f16_f32 = Matmul<F16Wide>::kernels();
  table.f8 = F8Matmul<Matmul<Bf16>, F8ToBf16<Vec256>, F8Few<Bf16, F8LoadBf16<Vec256>>>::kernels();
  table.f8_f32 = F8Matmul<Matmul<F32>, F8ToF32<Vec256>>::kernels();
  fill_avx2_panels(table);
  table.attend_bf16 = Attend<Bf16, Bf16>::kernels();
  table.attend_f32 = Attend<F32, F32>::kernels();
  Elementwise<Vec256>::fill(table);
  table.kda = avx2_kda();
  // Packing is done once to a row.
  table.fp8_rows = {scalar_table().fp8_rows.pack, Rows256::unpack_fp8};
  table.fp4_rows = {scalar_table().fp4_rows.pack, Rows256::unpack_fp4};
  return table;
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

const KernelTable& avx2_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace glint
