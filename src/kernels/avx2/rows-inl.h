// Rows of fp8 and fp4 (tensor/row_format.h): unpacking, which every step does to all of them.
// Included inside a target region with AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx2/vec256-inl.h"
#include "kernels/table.h"
#include "tensor/row_format.h"

namespace glint {
namespace {

struct Rows256 {
  // As in Rows512.
  static constexpr int kAhead = 4096;
  static void fetch_ahead(const std::byte* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at + kAhead), _MM_HINT_T0);
  }

  // Sixteen e4m3 times 2^(scale - 127) as bfloat16, for scales that keep all of them normal: the
  // exponents are added. Elements below 2^-6, which have none, are looked up.
  static __m256i widen_fp8(__m128i codes, int scale) {
    const __m256i words = _mm256_cvtepi8_epi16(codes);
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    const __m256i exponent = _mm256_set1_epi16(static_cast<short>((scale - 7) << 7));
    const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), exponent);
    // m 2^-9 for m = 0 to 7, as bits beside those of `exponent`; zero has no exponent at all.
    const __m256i steps =
        _mm256_setr_epi16(0, -256, -128, -64, 0, 32, 64, 96, 0, -256, -128, -64, 0, 32, 64, 96);
    const __m256i table =
        _mm256_blend_epi16(_mm256_add_epi16(steps, exponent), _mm256_setzero_si256(), 1);
    // Both bytes of word m.
    const __m256i places = _mm256_add_epi16(
        _mm256_or_si256(_mm256_slli_epi16(magnitude, 1), _mm256_slli_epi16(magnitude, 9)),
        _mm256_set1_epi16(0x100));
    const __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    __m256i bits = _mm256_blendv_epi8(normal, _mm256_shuffle_epi8(table, places), is_small);
    bits = _mm256_or_si256(bits,
                           _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0x8000))));
    return _mm256_blendv_epi8(bits, _mm256_set1_epi16(0x7fc0),
                              _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)));
  }

  // Scales [first, first + 16) of n, and `filler` beyond them.
  static __m128i sixteen(const std::byte* scales, int first, int n, char filler) {
    if (first + 16 <= n) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + first));
    __m128i some = _mm_set1_epi8(filler);
    std::memcpy(&some, scales + first, static_cast<std::size_t>(n - first));
    return some;
  }

  // Whether widen_fp8() takes all of n scales.
  static bool are_plain(const std::byte* scales, int n) {
    constexpr char kLeast = 10, kSpan = static_cast<char>(246 - 10);
    for (int i = 0; i < n; i += 16) {
      const __m128i above = _mm_sub_epi8(sixteen(scales, i, n, kLeast), _mm_set1_epi8(kLeast));
      const __m128i within = _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(kSpan)), above);
      if (_mm_movemask_epi8(within) != 0xffff) return false;
    }
    return true;
  }

  // Values [0, n) of a group of at most 32, n not its whole: through memory of its own.
  static void widen_part_fp8(const std::byte* codes, int n, int scale, bf16* out) {
    alignas(32) std::byte padded[kFp8RowGroup] = {};
    alignas(32) bf16 widened[kFp8RowGroup];
    std::memcpy(padded, codes, static_cast<std::size_t>(n));
    widen_group_fp8(padded, scale, widened);
    std::memcpy(out, widened, static_cast<std::size_t>(n) * sizeof(bf16));
  }

  static void widen_group_fp8(const std::byte* codes, int scale, bf16* out) {
    for (int i = 0; i < kFp8RowGroup; i += 16) {
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(out + i),
          widen_fp8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)), scale));
    }
  }

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
      for (; i + kFp8RowGroup <= width; i += kFp8RowGroup, ++scales) {
        fetch_ahead(rows + i);
        widen_group_fp8(rows + i, std::to_integer<int>(*scales), out + i);
      }
      if (i < width) widen_part_fp8(rows + i, width - i, std::to_integer<int>(*scales), out + i);
    }
  }

  // A group whose sixteen codes are eight bytes, times a scale that is not NaN: looked up, the
  // upper and the lower byte of each value apart.
  static __m256i widen_fp4(__m128i codes, float scale) {
    const __m256 products =
        _mm256_mul_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), _mm256_set1_ps(scale));
    const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(products), 16);
    const __m128i positive =
        _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    const __m128i negative = _mm_xor_si128(positive, _mm_set1_epi16(static_cast<short>(0x8000)));
    const __m128i low_byte = _mm_set1_epi16(0xff);
    const __m128i lower =
        _mm_packus_epi16(_mm_and_si128(positive, low_byte), _mm_and_si128(negative, low_byte));
    const __m128i upper =
        _mm_packus_epi16(_mm_srli_epi16(positive, 8), _mm_srli_epi16(negative, 8));
    const __m128i words = _mm_cvtepu8_epi16(codes);
    const __m128i places =
        _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi16(0x0f0f));
    const __m128i low = _mm_shuffle_epi8(lower, places), high = _mm_shuffle_epi8(upper, places);
    return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
  }

  static bool has_nan(const std::byte* scales, int n) {
    const __m128i nan = _mm_set1_epi8(0x7f);
    for (int i = 0; i < n; i += 16) {
      const __m128i bits = _mm_and_si128(sixteen(scales, i, n, 0), nan);
      if (_mm_movemask_epi8(_mm_cmpeq_epi8(bits, nan)) != 0) return true;
    }
    return false;
  }

  static void unpack_fp4(const std::byte* rows, std::size_t stride, int count, int width,
                         bf16* out) noexcept {
    const int groups = (width + kFp4RowGroup - 1) / kFp4RowGroup;
    for (int r = 0; r < count; ++r, rows += stride, out += width) {
      const std::byte* stored = rows + (width + 1) / 2;
      if (has_nan(stored, groups)) {
        unpack_fp4_row(rows, width, out);
        continue;
      }
      alignas(32) float scales[16];
      for (int group = 0; group < groups; ++group) {
        if (group % 16 == 0) {
          const __m128i bytes = sixteen(stored, group, groups, 0);
          __m256 low, high;
          Vec256::load_e4m3(&bytes, low, high);
          _mm256_store_ps(scales, _mm256_mul_ps(low, _mm256_set1_ps(0x1p8f)));
          _mm256_store_ps(scales + 8, _mm256_mul_ps(high, _mm256_set1_ps(0x1p8f)));
        }
        const int i = group * kFp4RowGroup;
        const float scale = scales[group % 16];
        if (i + kFp4RowGroup <= width) {
          fetch_ahead(rows + i / 2);
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(out + i),
              widen_fp4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + i / 2)), scale));
          continue;
        }
        __m128i codes = _mm_setzero_si128();
        std::memcpy(&codes, rows + i / 2, static_cast<std::size_t>((width - i + 1) / 2));
        const __m256i values = widen_fp4(codes, scale);
        std::memcpy(out + i, &values, static_cast<std::size_t>(width - i) * sizeof(bf16));
      }
    }
  }
};

}  // namespace
}  // namespace glint
