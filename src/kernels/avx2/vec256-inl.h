// Eight floats. The vector type of the AVX2 table; included inside its target region. Members as in
// Vec512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace glint {
namespace {

struct Vec256 {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 3;  // with four columns: 12 of the 16 registers accumulate

  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set1(float v) { return _mm256_set1_ps(v); }
  static Reg load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static Reg load_first(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static void store_first(float* p, int n, Reg v) { _mm256_maskstore_ps(p, first(n), v); }

  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg negate_fma(Reg a, Reg b, Reg c) { return _mm256_fnmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg round(Reg v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // Two steps, since 2^n itself may be out of range where v 2^n is not.
  static Reg scale(Reg v, Reg n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return mul(mul(v, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
  }
  static Reg power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }

  static Reg load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }

  static void load_e4m3(const void* p, Reg& low, Reg& high) {
    widen_halves(e4m3_halves(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))),
                 low, high);
  }
  static void load_e4m3_apart(const void* p, Reg& even, Reg& odd) {
    const __m128i pairs = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m128i evens = _mm_srai_epi16(_mm_slli_epi16(pairs, 8), 8);
    widen_halves(e4m3_halves(_mm256_set_m128i(_mm_srai_epi16(pairs, 8), evens)), even, odd);
  }
  static __m256i e4m3_halves(__m256i words) {
    const __m256i fields = _mm256_and_si256(_mm256_slli_epi16(words, 7),
                                            _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(fields, _mm256_set1_epi16(0x7fff)),
                                           _mm256_set1_epi16(0x3f80));
    return _mm256_or_si256(fields, _mm256_and_si256(nan, _mm256_set1_epi16(0x7c00)));
  }
  static void widen_halves(__m256i halves, Reg& low, Reg& high) {
    low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }

  static __m256i load_bits(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static __m256i upper_halves() { return _mm256_set1_epi32(static_cast<int>(0xffff0000u)); }
  static Reg load_bf16_even(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_bits(p), 16));
  }
  static Reg load_bf16_odd(const void* p) {
    return _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_setzero_si256(), load_bits(p), 0xaa));
  }
  static Reg even_of(Reg low, Reg high) {
    return middle_swapped(_mm256_shuffle_ps(low, high, 0x88));
  }
  static Reg odd_of(Reg low, Reg high) {
    return middle_swapped(_mm256_shuffle_ps(low, high, 0xdd));
  }
  static Reg middle_swapped(Reg v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  }
  static Reg low_of(Reg even, Reg odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x20);
  }
  static Reg high_of(Reg even, Reg odd) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x31);
  }

  static Reg round_to_bf16(Reg v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, nan), upper_halves()));
  }
  static void store_upper_halves(std::uint16_t* p, Reg v) {
    const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(v), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void store_upper_halves(std::uint16_t* p, Reg even, Reg odd) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_or_si256(_mm256_castps_si256(odd),
                                        _mm256_srli_epi32(_mm256_castps_si256(even), 16)));
  }

  static Reg load_twice(const float* p) {
    const __m256i places = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), places);
  }
  static Reg swap_pairs(Reg v) { return _mm256_permute_ps(v, 0xb1); }
  static Reg fma_sub_add(Reg a, Reg b, Reg c) { return _mm256_fmaddsub_ps(a, b, c); }

  static __m128 sum4(Reg a, Reg b, Reg c, Reg d) {
    const __m256 abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
};

}  // namespace
}  // namespace glint
