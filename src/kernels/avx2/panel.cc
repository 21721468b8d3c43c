#include "kernels/avx2/panel.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/int8_rows.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/int_blocks.h"

GLINT_TARGET_BEGIN("avx2,fma,f16c")

#include "kernels/avx2/pack256-inl.h"
#include "kernels/avx2/panel256-inl.h"
#include "kernels/avx2/vec256-inl.h"
#include "kernels/formats-inl.h"
#include "kernels/panel-inl.h"

namespace glint {
namespace {

constexpr int kTileRows = 4;

// Some rows of one block of int8 rows.
struct Int8Rows256 {
  const Int8Chunk& chunk;
  int first;  // lane of row 0

  // The four columns from `column` on of row r.
  std::int32_t four(int r, int column) const {
    std::int32_t value;
    std::memcpy(&value, chunk.q[first + r] + column, sizeof value);
    return value;
  }
  template <int kGroup>
  std::int32_t sum(int r, int group) const {
    return kGroup == 32 ? chunk.sum32[group][first + r] : chunk.sum16[group][first + r];
  }
};

// Sums of the products of R rows with one group in whole numbers.
template <Int8Kind kKind, int R, typename Block>
[[gnu::always_inline]] inline void multiply_group(const Block& w, const Int8Rows256& x, int step,
                                                  int group_of_step, __m256i (&sums)[R][2]) {
  constexpr int kRegisters = kKind.group / 4;
  const __m256i ones = _mm256_set1_epi16(1);
  GLINT_UNROLL
  for (int first = 0; first < kRegisters; first += kKind.fit) {
    __m256i pairs[R][2];
    GLINT_UNROLL
    for (int i = first; i < first + kKind.fit; ++i) {
      const int v = group_of_step * kRegisters + i;
      const __m256i codes[2] = {w.codes(step, v, 0), w.codes(step, v, 1)};
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i four = _mm256_set1_epi32(x.four(r, step * kPanelStep + 4 * v));
        GLINT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const __m256i c = codes[half];
          const __m256i product =
              kKind.is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(four, c))
                              : _mm256_maddubs_epi16(c, four);
          pairs[r][half] = i == first ? product : _mm256_add_epi16(pairs[r][half], product);
        }
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m256i fours = _mm256_madd_epi16(pairs[r][half], ones);
        sums[r][half] = first == 0 ? fours : _mm256_add_epi32(sums[r][half], fours);
      }
    }
  }
}

// Adds the products of R rows with one block of `steps` steps to out[R][kPanelRows].
template <Int8Kind kKind, int R, typename Block>
[[gnu::always_inline]] inline void multiply_block(const Block& w, const Int8Rows256& x, int steps,
                                                  float* out) {
  static_assert(kPanelStep == kInt8Group);
  constexpr int kGroupsPerStep = kKind.groups_per_step();
  __m256 total[R][2];
  GLINT_UNROLL
  for (int r = 0; r < R; ++r) {
    total[r][0] = _mm256_load_ps(out + r * kPanelRows);
    total[r][1] = _mm256_load_ps(out + r * kPanelRows + 8);
  }
  for (int step = 0; step < steps; ++step) {
    __m256 part[R][2];
    GLINT_UNROLL
    for (int g = 0; g < kGroupsPerStep; ++g) {
      const int group = step * kGroupsPerStep + g;
      __m256i sums[R][2];
      multiply_group<kKind, R>(w, x, step, g, sums);
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const std::int32_t sum = x.sum<kKind.group>(r, group);
        GLINT_UNROLL
        for (int half = 0; half < 2; ++half) {
          __m256i whole = sums[r][half];
          if constexpr (kKind.zero != 0)
            whole = _mm256_sub_epi32(whole, _mm256_set1_epi32(kKind.zero * sum));
          const __m256 before = g == 0 ? _mm256_setzero_ps() : part[r][half];
          __m256 product = _mm256_cvtepi32_ps(whole);
          if constexpr (kKind.has_zeros) {
            product = _mm256_fnmadd_ps(_mm256_set1_ps(static_cast<float>(sum)), w.zero(group, half),
                                       product);
          }
          part[r][half] = _mm256_fmadd_ps(product, w.scale(group, half), before);
          if constexpr (kKind.has_min) {
            part[r][half] = _mm256_fmadd_ps(_mm256_set1_ps(static_cast<float>(sum)),
                                            w.minimum(group, half), part[r][half]);
          }
        }
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_set1_ps(x.chunk.scale[step][x.first + r]);
      GLINT_UNROLL
      for (int half = 0; half < 2; ++half)
        total[r][half] = _mm256_fmadd_ps(part[r][half], scale, total[r][half]);
    }
  }
  GLINT_UNROLL
  for (int r = 0; r < R; ++r) {
    _mm256_store_ps(out + r * kPanelRows, total[r][0]);
    _mm256_store_ps(out + r * kPanelRows + 8, total[r][1]);
  }
}

template <Int8Kind kKind>
struct Int8Tile {
  template <int R>
  struct Rows {
    [[gnu::noinline]] static void run(const ExpandedBlock& w, const Int8Rows256& x, int steps,
                                      float* out) {
      multiply_block<kKind, R>(w, x, steps, out);
    }
  };
};

inline int steps_of_block(int k, int block) {
  return std::min(k / kPanelStep - block * kBlockSteps, kBlockSteps);
}

// One row reads codes as they lie; several share a block that is taken apart once.
template <DType kType>
struct Int8Panel {
  static constexpr Int8Kind kKind = PackedBlock<kType>::kKind;

  [[gnu::noinline]] static void one_row(const PanelArgs& a) {
    for (int block = 0; block * kInt8Block < a.k; ++block) {
      const PackedBlock<kType> w(a.panel, a.k, block);
      const Int8Rows256 x{int8_chunk(a.x, a.k, 0, block), 0};
      multiply_block<kKind, 1>(w, x, steps_of_block(a.k, block), a.out);
    }
  }

  static void product(const PanelArgs& a) noexcept {
    std::memset(a.out, 0, static_cast<std::size_t>(a.rows * kPanelRows) * sizeof(float));
    if (a.rows == 1) return one_row(a);
    ExpandedBlock w;
    for (int block = 0; block * kInt8Block < a.k; ++block) {
      const int steps = steps_of_block(a.k, block);
      w.fill<kType>(a.panel, a.k, block, steps);
      for (int row = 0; row < a.rows;) {
        const Int8Rows256 x{int8_chunk(a.x, a.k, row, block), row % kInt8Rows};
        const int rows = next_rows(std::min(a.rows - row, kInt8Rows - x.first), kTileRows);
        with_rows<Int8Tile<kKind>::template Rows, kTileRows>(rows, w, x, steps,
                                                             a.out + row * kPanelRows);
        row += rows;
      }
    }
  }
};

// Adds the products of R float32 rows with w[kPanelStep][kPanelRows] to out[R][kPanelRows], one
// chain over k for each.
template <int R>
struct WideTile {
  [[gnu::noinline]] static void run(const float* x, std::size_t x_stride, const float* w,
                                    float* out) {
    __m256 sums[R][2];
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int half = 0; half < 2; ++half)
        sums[r][half] = _mm256_load_ps(out + r * kPanelRows + half * 8);
    }
    for (int i = 0; i < kPanelStep; ++i, w += kPanelRows) {
      const __m256 column[2] = {_mm256_load_ps(w), _mm256_load_ps(w + 8)};
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 value =
            _mm256_set1_ps(x[static_cast<std::size_t>(r) * x_stride + static_cast<std::size_t>(i)]);
        GLINT_UNROLL
        for (int half = 0; half < 2; ++half)
          sums[r][half] = _mm256_fmadd_ps(value, column[half], sums[r][half]);
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int half = 0; half < 2; ++half)
        _mm256_store_ps(out + r * kPanelRows + half * 8, sums[r][half]);
    }
  }
};

template <DType kType>
struct WidePanel {
  static constexpr PanelFormat kFormat = make_panel_format(kType);

  // One step of a block as float32, w[kPanelStep][kPanelRows].
  [[gnu::noinline]] static void widen(const PackedBlock<kType>& block, int step, float* w) {
    GLINT_UNROLL
    for (int v = 0; v < 8; ++v) {
      const int group = (step * kPanelStep + 4 * v) / kFormat.group;
      for (int half = 0; half < 2; ++half) {
        const __m256i codes = block.signed_codes(step, v, half);
        const __m256 scale = block.scale(group, half);
        GLINT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const __m256i code = _mm256_srai_epi32(_mm256_slli_epi32(codes, 24 - 8 * i), 24);
          __m256 value = _mm256_cvtepi32_ps(code);
          if constexpr (kFormat.has_zeros) value = _mm256_sub_ps(value, block.zero(group, half));
          value = _mm256_mul_ps(scale, value);
          if constexpr (kFormat.has_min) value = _mm256_add_ps(value, block.minimum(group, half));
          _mm256_store_ps(w + (4 * v + i) * kPanelRows + half * 8, value);
        }
      }
    }
  }

  static void product(const PanelArgs& a) noexcept {
    std::memset(a.out, 0, static_cast<std::size_t>(a.rows * kPanelRows) * sizeof(float));
    const std::size_t x_stride = F32Rows<Vec256>::row_floats(a.k);
    alignas(64) float w[kPanelStep * kPanelRows];
    for (int step = 0; step * kPanelStep < a.k; ++step) {
      const PackedBlock<kType> block(a.panel, a.k, step / kBlockSteps);
      widen(block, step % kBlockSteps, w);
      for (int row = 0; row < a.rows;) {
        const int rows = next_rows(a.rows - row, kTileRows);
        const float* x = reinterpret_cast<const float*>(a.x) +
                         static_cast<std::size_t>(row) * x_stride + step * kPanelStep;
        with_rows<WideTile, kTileRows>(rows, x, x_stride, static_cast<const float*>(w),
                                       a.out + row * kPanelRows);
        row += rows;
      }
    }
  }
};

std::size_t no_scratch(int) {
  return 0;
}

template <std::size_t... kIndex>
void fill_products(KernelTable& table, std::index_sequence<kIndex...>) {
  constexpr auto type = [](std::size_t i) {
    return static_cast<DType>(static_cast<std::size_t>(kFirstBlockType) + i);
  };
  ((table.panel_int8[kIndex] = Int8Panel<type(kIndex)>::product), ...);
  ((table.panel_wide[kIndex] = WidePanel<type(kIndex)>::product), ...);
  ((table.pack_panel[kIndex] = Packing<type(kIndex)>::pack), ...);
}

void fill(KernelTable& table) {
  table.int8 = PanelMatmul<Vec256, Int8Rows<Vec256>, no_scratch>::kernels();
  table.panel_f32 = PanelMatmul<Vec256, F32Rows<Vec256>, no_scratch>::kernels();
  fill_products(table, std::make_index_sequence<kNumBlockTypes>());
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

void fill_avx2_panels(KernelTable& table) {
  fill(table);
}

}  // namespace glint
