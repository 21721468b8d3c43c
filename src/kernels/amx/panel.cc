#include "kernels/amx/panel.h"

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/amx/tile_state.h"
#include "kernels/int8_rows.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/panel.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN(
    "amx-tile,amx-int8,amx-bf16,avx512bf16,avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,"
    "f16c")

#include "kernels/amx/panel-inl.h"
#include "kernels/amx/tiles-inl.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/panel-inl.h"

namespace glint {
namespace {

template <std::size_t... kIndex>
void fill_products(KernelTable& table, std::index_sequence<kIndex...>) {
  constexpr auto type = [](std::size_t i) {
    return static_cast<DType>(static_cast<std::size_t>(kFirstBlockType) + i);
  };
  ((table.panel_int8[kIndex] = TilePanel<RealTiles, type(kIndex)>::product), ...);
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

void fill_amx_panels(KernelTable& table) {
  table.int8 = PanelMatmul<Vec512, Int8Rows512, tile_panel_scratch>::kernels();
  fill_products(table, std::make_index_sequence<kNumBlockTypes>());
}

}  // namespace glint
