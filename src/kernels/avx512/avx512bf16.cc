#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/avx512/avx512.h"
#include "kernels/table.h"
#include "kernels/target.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/attend-inl.h"
#include "kernels/avx512/f8pairs-inl.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/f8few-inl.h"
#include "kernels/matmul-inl.h"

namespace glint {
namespace {

// bfloat16 on both sides, multiplied in pairs by the processor: neither is widened. Subnormal
// numbers count as zero, and each pair of products is added with its own rounding.
struct PairFormat {
  using Vec = Vec512;
  using Reg = __m512;
  using Stored = std::uint16_t;
  using Packed = std::uint16_t;
  static constexpr int kVectors = 1;
  static constexpr int kStep = 32;

  static Reg load_stored(const std::byte* w, int) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(w));
  }
  static Reg load_packed(const Packed* x, int) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(x));
  }
  static Reg multiply_add(Reg x, Reg w, Reg sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)(x),
                            (__m512bh)(w));  // NOLINT(google-readability-casting): vector types
  }
  static void store_packed(Packed* x, int, Reg v) {
    _mm512_storeu_si512(x, _mm512_castps_si512(v));
  }
  static void pack_row(const float* from, int n, Packed* to) {
    for (int i = 0; i < n; i += kStep) {
      for (int half = i; half < i + kStep; half += Vec512::kLanes) {
        const int left = n - half < 0 ? 0 : n - half;
        const Reg v =
            Vec512::load_first(from + half, left < Vec512::kLanes ? left : Vec512::kLanes);
        Vec512::store_upper_halves(to + half, Vec512::round_to_bf16(v));
      }
    }
  }
};

// e4m3 as PairFormat reads bfloat16.
struct F8LoadPairs {
  static __m512 scale(float value) { return F8StepToPairs::scale(value); }
  [[gnu::always_inline]] static void load(const std::byte* from, __m512 scale, __m512 (&w)[1]) {
    w[0] = _mm512_castsi512_ps(F8StepToPairs::widened(from, scale));
  }
};

KernelTable make_table() {
  KernelTable table = avx512_table();
  table.isa = Isa::kAvx512Bf16;
  table.bf16 = Matmul<PairFormat>::kernels();
  table.f8 = F8Matmul<Matmul<PairFormat>, F8ToPairs, F8Few<PairFormat, F8LoadPairs>>::kernels();
  // Weights of the values stay float32: rounding them would cost accuracy, and the products with
  // keys are the dearer part.
  table.attend_bf16 = Attend<PairFormat, Bf16Format<Vec512, false>>::kernels();
  return table;
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint {

const KernelTable& avx512bf16_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace glint
