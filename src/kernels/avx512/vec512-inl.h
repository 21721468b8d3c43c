// Sixteen floats. The vector type of the AVX-512 tables; included inside their target region.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace glint {
namespace {

struct Vec512 {
  using Reg = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 6;  // with four columns: 24 of the 32 registers accumulate

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }  // 0 <= n <= 16

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float v) { return _mm512_set1_ps(v); }
  static Reg load(const void* p) { return _mm512_loadu_ps(p); }
  // The first n floats, then zeros; nothing beyond them is read.
  static Reg load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, int n, Reg v) { _mm512_mask_storeu_ps(p, first(n), v); }

  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }          // a b + c
  static Reg negate_fma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // Where one of the two is NaN: b.
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg round(Reg v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // v 2^n for whole n.
  static Reg scale(Reg v, Reg n) { return _mm512_scalef_ps(v, n); }

  // Sixteen float16 as floats.
  static Reg load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }

  // Thirty-two e4m3 times 2^-8, in order, or those at even and those at odd places.
  static void load_e4m3(const void* p, Reg& low, Reg& high) {
    const __m512i halves =
        e4m3_halves(_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
    low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  static void load_e4m3_apart(const void* p, Reg& even, Reg& odd) {
    const __m256i pairs = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    const __m512i words = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8)),
        _mm256_srai_epi16(pairs, 8), 1);
    const __m512i halves = e4m3_halves(words);
    even = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  // Sign-extended e4m3: the same fields as float16, whose exponent is biased by 8 more.
  static __m512i e4m3_halves(__m512i words) {
    const __m512i fields = _mm512_and_si512(_mm512_slli_epi16(words, 7),
                                            _mm512_set1_epi16(static_cast<short>(0xbfff)));
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(
        _mm512_and_si512(fields, _mm512_set1_epi16(0x7fff)), _mm512_set1_epi16(0x3f80));
    return _mm512_mask_mov_epi16(fields, nan, _mm512_set1_epi16(0x7e00));
  }

  // Thirty-two bfloat16 as floats: those at even places, those at odd places.
  static Reg load_bf16_even(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  // By a mask register, since tiles need all the vector registers.
  static Reg load_bf16_odd(const void* p) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaaaaaau, p));
  }
  // Even and odd places of the 32 floats (low, high), and back.
  static Reg even_of(Reg low, Reg high) {
    const __m512i places =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(low, places, high);
  }
  static Reg odd_of(Reg low, Reg high) {
    const __m512i places =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(low, places, high);
  }
  static Reg low_of(Reg even, Reg odd) {
    const __m512i places =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(even, places, odd);
  }
  static Reg high_of(Reg even, Reg odd) {
    const __m512i places =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(even, places, odd);
  }

  // bf16::from_float of each lane, as the upper half of a float whose lower half is zero.
  static Reg round_to_bf16(Reg v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(
        _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // The upper halves of sixteen floats, at p[0..16).
  static void store_upper_halves(std::uint16_t* p, Reg v) {
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
  }
  // Those of thirty-two floats held as even and odd places, whose lower halves are zero.
  static void store_upper_halves(std::uint16_t* p, Reg even, Reg odd) {
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_castps_si512(odd),
                                           _mm512_srli_epi32(_mm512_castps_si512(even), 16)));
  }

  // Eight floats, each twice; lanes exchanged in pairs; a b - c in even lanes and a b + c in odd
  // ones.
  static Reg load_twice(const float* p) {
    const __m512i places = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(places, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static Reg swap_pairs(Reg v) { return _mm512_permute_ps(v, 0xb1); }
  static Reg fma_sub_add(Reg a, Reg b, Reg c) { return _mm512_fmaddsub_ps(a, b, c); }

  // The sums of four registers. The order of additions is the same in each.
  static __m128 sum4(Reg a, Reg b, Reg c, Reg d) {
    const __m256 ab = _mm256_hadd_ps(halves_added(a), halves_added(b));
    const __m256 cd = _mm256_hadd_ps(halves_added(c), halves_added(d));
    const __m256 abcd = _mm256_hadd_ps(ab, cd);
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
  static __m256 halves_added(Reg v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  }
};

}  // namespace
}  // namespace glint
