#include "kernels/amx/amx.h"

#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/amx/panel.h"
#include "kernels/amx/tile_state.h"
#include "kernels/avx512/avx512.h"
#include "kernels/target.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN(
    "amx-tile,amx-int8,amx-bf16,avx512bf16,avx512vbmi,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/amx/attend-inl.h"
#include "kernels/amx/f8-inl.h"
#include "kernels/amx/matmul-inl.h"
#include "kernels/amx/tiles-inl.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/math-inl.h"

namespace glint {
namespace {

KernelTable make_table() {
  KernelTable table = avx512_table();
  table.isa = Isa::kAmx;
  table.bf16 = TileMatmul<RealTiles>::kernels();
  table.f8 = F8TileMatmul<RealTiles>::kernels();
  table.attend_bf16 = TileAttend<RealTiles>::kernels();
  fill_amx_panels(table);
  return table;
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

const KernelTable& amx_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace glint
