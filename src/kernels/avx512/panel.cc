#include "kernels/avx512/panel.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/avx2/avx2.h"
#include "kernels/int8_rows.h"
#include "kernels/isa.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/panel.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

#include "kernels/avx512/panel512-inl.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/panel-inl.h"

namespace glint {
namespace {

std::size_t no_scratch(int) {
  return 0;
}

template <std::size_t... kIndex>
void fill_products(KernelTable& table, std::index_sequence<kIndex...>) {
  constexpr auto type = [](std::size_t i) {
    return static_cast<DType>(static_cast<std::size_t>(kFirstBlockType) + i);
  };
  ((table.panel_int8[kIndex] = VnniPanel<type(kIndex)>::product), ...);
  ((table.panel_wide[kIndex] = WidePanel512<type(kIndex)>::product), ...);
}

void fill(KernelTable& table) {
  table.int8 = PanelMatmul<Vec512, Int8Rows512, no_scratch>::kernels();
  table.panel_f32 = PanelMatmul<Vec512, F32Rows<Vec512>, no_scratch>::kernels();
  fill_products(table, std::make_index_sequence<kNumBlockTypes>());
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

void fill_avx512_panels(KernelTable& table) {
  const KernelTable& avx2 = avx2_table();
  if (has_vnni512()) {
    fill(table);
  } else {
    table.int8 = avx2.int8;
    table.panel_f32 = avx2.panel_f32;
    std::copy_n(avx2.panel_int8, kNumBlockTypes, table.panel_int8);
    std::copy_n(avx2.panel_wide, kNumBlockTypes, table.panel_wide);
  }
  std::copy_n(avx2.pack_panel, kNumBlockTypes, table.pack_panel);
}

}  // namespace glint
