// Rows of fp8 and fp4 (tensor/row_format.h). Included inside a target region with AVX-512.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx512/vec512-inl.h"
#include "kernels/table.h"
#include "tensor/row_format.h"

namespace glint {
namespace {

struct Rows512 {
  // What is so many bytes ahead is asked for meanwhile: often the rows that come next, whose page
  // the processor does not foresee. Anywhere else that is a harmless hint.
  static constexpr int kAhead = 4096;
  static void fetch_ahead(const std::byte* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at + kAhead), _MM_HINT_T0);
  }

  // ---- fp8

  // Thirty-two e4m3 times 2^(scale - 127) as bfloat16, for scales that keep all of them normal: the
  // exponents are added. Elements below 2^-6, which have none, are looked up.
  static __m512i widen_fp8(__m256i codes, int scale) {
    const __m512i words = _mm512_cvtepi8_epi16(codes);
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    const __m512i exponent = _mm512_set1_epi16(static_cast<short>((scale - 7) << 7));
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), exponent);
    // m 2^-9 for m = 0 to 7, as bits beside those of `exponent`; zero has no exponent at all.
    const __m512i steps = _mm512_broadcast_i32x4(_mm_setr_epi16(0, -256, -128, -64, 0, 32, 64, 96));
    const __m512i small = _mm512_maskz_add_epi16(0xfefefefeu, steps, exponent);
    __m512i bits = _mm512_mask_permutexvar_epi16(
        normal, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude, small);
    bits = _mm512_or_si512(bits,
                           _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(0x8000))));
    return _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)),
                                 _mm512_set1_epi16(0x7fc0));
  }

  // Whether widen_fp8() takes all of n scales.
  static bool are_plain(const std::byte* scales, int n) {
    for (; n > 0; n -= 64, scales += 64) {
      const __mmask64 lanes = n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1;
      const __m512i above =
          _mm512_sub_epi8(_mm512_maskz_loadu_epi8(lanes, scales), _mm512_set1_epi8(kLeastPlain));
      if (_mm512_mask_cmpgt_epu8_mask(
              lanes, above, _mm512_set1_epi8(static_cast<char>(kMostPlain - kLeastPlain))) != 0)
        return false;
    }
    return true;
  }
  static constexpr int kLeastPlain = 10, kMostPlain = 246;

  static void unpack_fp8(const std::byte* rows, std::size_t stride, int count, int width,
                         bf16* out) noexcept {
    const int groups = (width + kFp8RowGroup - 1) / kFp8RowGroup;
    for (int r = 0; r < count; ++r, rows += stride, out += width) {
      const std::byte* scales = rows + width;
      if (!are_plain(scales, groups)) {
        unpack_fp8_row(rows, width, out);
        continue;
      }
      int i = 0;
      for (; i + 32 <= width; i += 32, ++scales) {
        fetch_ahead(rows + i);
        _mm512_storeu_si512(
            out + i, widen_fp8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + i)),
                               std::to_integer<int>(*scales)));
      }
      if (i == width) continue;
      const __mmask32 lanes = (__mmask32{1} << (width - i)) - 1;
      _mm512_mask_storeu_epi16(
          out + i, lanes,
          widen_fp8(_mm256_maskz_loadu_epi8(lanes, rows + i), std::to_integer<int>(*scales)));
    }
  }

  // e4m3_from_float of each lane, which is no NaN, in its lowest byte.
  static __m512i e4m3_of(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i magnitude =
        _mm512_min_epu32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                         _mm512_set1_epi32(std::bit_cast<int>(448.0f)));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i normal =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, odd),
                                           _mm512_set1_epi32(0x7ffff - (120 << 23))),
                          20);
    const __m512 unit = _mm512_set1_ps(0x1p14f);
    const __m512i small =
        _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), unit)),
                         _mm512_castps_si512(unit));
    const __mmask16 is_small =
        _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(std::bit_cast<int>(0x1p-6f)));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    return _mm512_or_si512(sign, _mm512_mask_mov_epi32(normal, is_small, small));
  }

  static __m512i magnitudes(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  }

  static void pack_fp8(const float* x, int width, std::byte* row) noexcept {
    std::byte* scales = row + width;
    for (int i = 0; i < width; i += kFp8RowGroup, ++scales) {
      const int n = width - i < kFp8RowGroup ? width - i : kFp8RowGroup;
      const int low = n < 16 ? n : 16, high = n - low;
      const __m512 x0 = Vec512::load_first(x + i, low);
      const __m512 x1 = high > 0 ? Vec512::load_first(x + i + 16, high) : _mm512_setzero_ps();
      const std::uint32_t most =
          _mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes(x0), magnitudes(x1)));
      if (most >= 0x7f800000u) {
        std::memset(row + i, 0x7f, static_cast<std::size_t>(n));
        *scales = std::byte{kNanFp8RowScale};
        continue;
      }
      const std::uint32_t exponent = fp8_row_scale(std::bit_cast<float>(most));
      const __m512 factor = _mm512_set1_ps(std::bit_cast<float>((254u - exponent) << 23));
      _mm512_mask_cvtepi32_storeu_epi8(row + i, Vec512::first(low),
                                       e4m3_of(_mm512_mul_ps(x0, factor)));
      if (high > 0) {
        _mm512_mask_cvtepi32_storeu_epi8(row + i + 16, Vec512::first(high),
                                         e4m3_of(_mm512_mul_ps(x1, factor)));
      }
      *scales = static_cast<std::byte>(exponent);
    }
  }

  // ---- fp4

  // The values of sixteen codes times a scale: exact as bfloat16, in the upper halves.
  static __m512 fp4_products(float scale) {
    const __m512 values =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_mul_ps(values, _mm512_set1_ps(scale));
  }

  // Two groups, whose codes are sixteen bytes.
  static __m512i widen_fp4(__m128i codes, const float* scales) {
    const __m512i bytes = _mm512_cvtepu8_epi32(codes);
    __m512i places = _mm512_and_si512(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)),
                                      _mm512_set1_epi32(0x000f000f));
    // The second group looks up in the second half.
    places = _mm512_or_si512(places,
                             _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1));
    alignas(64) static constexpr std::uint16_t kUpperHalves[32] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i table = _mm512_permutex2var_epi16(_mm512_castps_si512(fp4_products(scales[0])),
                                                    _mm512_load_si512(kUpperHalves),
                                                    _mm512_castps_si512(fp4_products(scales[1])));
    return _mm512_permutexvar_epi16(places, table);
  }

  static void unpack_fp4(const std::byte* rows, std::size_t stride, int count, int width,
                         bf16* out) noexcept {
    constexpr int kScalesAtOnce = 32;
    const int groups = (width + kFp4RowGroup - 1) / kFp4RowGroup;
    for (int r = 0; r < count; ++r, rows += stride, out += width) {
      const std::byte* all_scales = rows + (width + 1) / 2;
      for (int group = 0; group < groups; group += kScalesAtOnce) {
        const int left = groups - group;
        const __mmask32 lanes = left >= kScalesAtOnce ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
        alignas(64) std::byte codes[kScalesAtOnce];
        _mm256_store_si256(reinterpret_cast<__m256i*>(codes),
                           _mm256_maskz_loadu_epi8(lanes, all_scales + group));
        alignas(64) float scales[kScalesAtOnce];
        __m512 low, high;
        Vec512::load_e4m3(codes, low, high);
        _mm512_store_ps(scales, _mm512_mul_ps(low, _mm512_set1_ps(0x1p8f)));
        _mm512_store_ps(scales + 16, _mm512_mul_ps(high, _mm512_set1_ps(0x1p8f)));
        const int first = group * kFp4RowGroup;
        const int end = left >= kScalesAtOnce ? first + kScalesAtOnce * kFp4RowGroup : width;
        int i = first;
        for (; i + 32 <= end; i += 32) {
          fetch_ahead(rows + i / 2);
          const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i / 2));
          _mm512_storeu_si512(out + i, widen_fp4(pairs, scales + (i - first) / kFp4RowGroup));
        }
        if (i == end) continue;
        const auto halves = static_cast<__mmask16>((1u << ((end - i + 1) / 2)) - 1u);
        _mm512_mask_storeu_epi16(out + i, (__mmask32{1} << (end - i)) - 1,
                                 widen_fp4(_mm_maskz_loadu_epi8(halves, rows + i / 2),
                                           scales + (i - first) / kFp4RowGroup));
      }
    }
  }

  // e2m1_from_float of each lane, in its lowest bits.
  static __m512i e2m1_of(__m512 value) {
    const __m512 x = _mm512_abs_ps(value);
    __m512i code =
        _mm512_srli_epi32(_mm512_and_si512(_mm512_castps_si512(value),
                                           _mm512_set1_epi32(static_cast<int>(0x80000000u))),
                          28);
    const __m512i one = _mm512_set1_epi32(1);
    const auto count = [&](__mmask16 lanes) {
      code = _mm512_mask_add_epi32(code, lanes, code, one);
    };
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(0.25f), _CMP_GT_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(0.75f), _CMP_GE_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(1.25f), _CMP_GT_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(1.75f), _CMP_GE_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(2.5f), _CMP_GT_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(3.5f), _CMP_GE_OQ));
    count(_mm512_cmp_ps_mask(x, _mm512_set1_ps(5.0f), _CMP_GT_OQ));
    return code;
  }

  static void pack_fp4(const float* x, int width, std::byte* row) noexcept {
    std::byte* scales = row + (width + 1) / 2;
    for (int i = 0; i < width; i += kFp4RowGroup, ++scales) {
      const int n = width - i < kFp4RowGroup ? width - i : kFp4RowGroup;
      const __m512 values = Vec512::load_first(x + i, n);
      const float most = std::bit_cast<float>(_mm512_reduce_max_epu32(magnitudes(values)));
      const std::uint8_t scale = fp4_row_scale(most);
      __m128i codes = _mm_setzero_si128();
      if (!std::isnan(most)) {
        codes = _mm512_cvtepi32_epi8(
            e2m1_of(_mm512_div_ps(values, _mm512_set1_ps(e4m3_to_float(scale)))));
      }
      if (n < kFp4RowGroup) codes = _mm_maskz_mov_epi8(Vec512::first(n), codes);
      // Two codes a byte: the first one and sixteen times the second.
      const __m128i pairs = _mm_maddubs_epi16(codes, _mm_set1_epi16(0x1001));
      const __m128i packed = _mm_packus_epi16(pairs, pairs);
      std::memcpy(row + i / 2, &packed, static_cast<std::size_t>((n + 1) / 2));
      *scales = static_cast<std::byte>(scale);
    }
  }

  static RowKernels fp8_kernels() { return {pack_fp8, unpack_fp8}; }
  static RowKernels fp4_kernels() { return {pack_fp4, unpack_fp4}; }
};

}  // namespace
}  // namespace glint
