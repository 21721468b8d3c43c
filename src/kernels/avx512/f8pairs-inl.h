// e4m3 widened to bfloat16 by the processor's own rounding: to nearest even, subnormals to zero as
// its products read them. Included inside a target region with AVX-512 BF16.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/avx512/vec512-inl.h"
#include "kernels/f8-inl.h"

namespace glint {
namespace {

struct F8StepToPairs {
  using Stored = std::uint16_t;
  static __m512 scale(float value) { return _mm512_set1_ps(value * 0x1p8f); }
  // Thirty-two in order.
  [[gnu::always_inline]] static __m512i widened(const std::byte* from, __m512 scale) {
    __m512 low, high;
    Vec512::load_e4m3(from, low, high);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale),  // NOLINT: vector types
                                        _mm512_mul_ps(low, scale));
  }
  static void widen(const std::byte* from, __m512 scale, std::uint16_t* to) {
    _mm512_storeu_si512(to, widened(from, scale));
  }
};

using F8ToPairs = F8Row<Vec512, F8StepToPairs>;

}  // namespace
}  // namespace glint
