// Packing of panels (tensor/panel.h) with AVX2. Included inside a target region.
//
// Eight rows at a time: 32 codes of a row are a register of bytes, whose dwords, transposed, are
// the registers v of a step. Scales are few and are left to the portable code.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx2/panel256-inl.h"
#include "kernels/target.h"
#include "tensor/int_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

// The 32 codes of step `step` of a block, a byte each, for the types that have them as plain bits.
template <DType kType>
struct BlockCodes {
  static __m128i load128(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m256i load256(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  // Bits [shift, shift + bits) of each byte at bit `place`.
  static __m256i field(__m256i v, int shift, int bits, int place) {
    return moved_bits(v, place - shift, ((1 << bits) - 1) << place);
  }

  // Sixteen bytes of which the low nibbles come first.
  static __m256i nibbles16(const std::byte* at) {
    const __m128i bytes = load128(at);
    return field(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), 0, 4, 0);
  }
  // Sixteen bytes of two neighbours each.
  static __m256i pairs16(const std::byte* at) {
    const __m128i bytes = load128(at);
    const __m128i high = _mm_srli_epi16(bytes, 4);
    return field(_mm256_set_m128i(_mm_unpackhi_epi8(bytes, high), _mm_unpacklo_epi8(bytes, high)),
                 0, 4, 0);
  }
  // Twice eight bytes of which the low nibbles come first.
  static __m256i nibbles8(const std::byte* at) {
    const __m128i bytes = load128(at);
    const __m128i high = _mm_srli_epi16(bytes, 4);
    const __m256i codes =
        _mm256_set_m128i(_mm_unpackhi_epi64(bytes, high), _mm_unpacklo_epi64(bytes, high));
    return field(codes, 0, 4, 0);
  }
  // Bit i of the 32 bits at `at` as bit `place` of byte i.
  static __m256i spread_bits(const std::byte* at, int place) {
    std::int32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    const __m256i byte_of = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101,
                                               0x0202020202020202, 0x0303030303030303);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << place)));
  }
  // Bytes 32 (step / 2) on: the low nibbles are the even step, the high ones the odd.
  static __m256i nibbles32(const std::byte* at, int step) {
    return field(load256(at + 32 * (step / 2)), 4 * (step % 2), 4, 0);
  }
  // Bytes 32 (step / 4) on: four steps of two bits each, the lowest first.
  static __m256i pairs32(const std::byte* at, int step, int place) {
    return field(load256(at + 32 * (step / 4)), 2 * (step % 4), 2, place);
  }
  static __m256i q6(const std::byte* block, int step) {
    const int part = step % 4;
    const __m256i low =
        field(load256(block + 64 * (step / 4) + 32 * (part % 2)), 4 * (part / 2), 4, 0);
    return _mm256_or_si256(low, pairs32(block + 128, step, 4));
  }

  static constexpr bool kPlain = kType < DType::kIQ1_S || kType > DType::kIQ3_S;

  [[gnu::always_inline]] static __m256i load(const std::byte* block, int step) {
    switch (kType) {
      case DType::kQ4_0:
      case DType::kIQ4_NL:
        return nibbles16(block + 2);
      case DType::kQ4_1:
        return nibbles16(block + 4);
      case DType::kQ5_0:
        return _mm256_or_si256(nibbles16(block + 6), spread_bits(block + 2, 4));
      case DType::kQ5_1:
        return _mm256_or_si256(nibbles16(block + 8), spread_bits(block + 4, 4));
      case DType::kQ8_0:
        return _mm256_xor_si256(load256(block + 2), _mm256_set1_epi8(static_cast<char>(0x80)));
      case DType::kQ2_K:
        return pairs32(block + 16, step, 0);
      case DType::kQ3_K:
        return _mm256_or_si256(pairs32(block + 32, step, 0), field(load256(block), step, 1, 2));
      case DType::kQ4_K:
        return nibbles32(block + 16, step);
      case DType::kQ5_K:
        return _mm256_or_si256(nibbles32(block + 48, step), field(load256(block + 16), step, 1, 4));
      case DType::kQ6_K:
        return q6(block, step);
      case DType::kIQ4_XS:
        return nibbles16(block + 8 + 16 * step);
      case DType::kMXFP4:
        return nibbles16(block + 1);
      case DType::kNVFP4:
        return nibbles8(block + 4 + 16 * step);
      case DType::kInt4B:
      case DType::kInt4F:
      case DType::kUint4B:
      case DType::kUint4H:
      case DType::kUint4F:
        return pairs16(block + int_block_layout(kType).codes_at);
      case DType::kInt8B:
      case DType::kInt8F:
      case DType::kUint8F:
        return load256(block + int_block_layout(kType).codes_at);
      default:
        return load256(block + 32 * step);  // codes that were split before
    }
  }
};

// rows[r] dword v becomes rows[v] dword r.
[[gnu::always_inline]] inline void transpose8(__m256i (&rows)[8]) {
  __m256i pairs[8], fours[8];
  GLINT_UNROLL
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  GLINT_UNROLL
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  GLINT_UNROLL
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

// Writes half of a step from its eight registers, cut into the planes of codes of kBits.
template <int kBits>
[[gnu::always_inline]] inline void store_step(const __m256i (&v)[8], std::byte* half) {
  const auto store = [&](int plane, __m256i value) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(half + 64 * plane), value);
  };
  // Two bits, from `from` on, of registers 4j to 4j + 3.
  const auto pairs = [&](int j, int from) {
    __m256i plane = _mm256_setzero_si256();
    GLINT_UNROLL
    for (int i = 0; i < 4; ++i)
      plane = _mm256_or_si256(plane, moved_bits(v[4 * j + i], 2 * i - from, 3 << (2 * i)));
    return plane;
  };
  // Bit `from` of all registers.
  const auto bits = [&](int from) {
    __m256i plane = _mm256_setzero_si256();
    GLINT_UNROLL
    for (int i = 0; i < 8; ++i) plane = _mm256_or_si256(plane, moved_bits(v[i], i - from, 1 << i));
    return plane;
  };
  if constexpr (kBits == 8) {
    GLINT_UNROLL
    for (int i = 0; i < 8; ++i) store(i, v[i]);
  } else if constexpr (kBits >= 4) {
    GLINT_UNROLL
    for (int i = 0; i < 4; ++i) {
      store(i, _mm256_or_si256(moved_bits(v[i], 0, 0x0f), moved_bits(v[i + 4], 4, 0xf0)));
    }
    if constexpr (kBits == 5) store(4, bits(4));
    if constexpr (kBits == 6) {
      store(4, pairs(0, 4));
      store(5, pairs(1, 4));
    }
  } else {
    store(0, pairs(0, 0));
    store(1, pairs(1, 0));
    if constexpr (kBits == 3) store(2, bits(2));
  }
}

template <DType kType>
struct Packing {
  using Codes = BlockCodes<kType>;
  static constexpr PanelFormat kFormat = make_panel_format(kType);

  // The codes of one block of eight rows, `num_rows` of them present, into the panel's steps from
  // `to` on.
  [[gnu::noinline]] static void pack_half(const std::byte* rows, std::size_t row_bytes,
                                          int num_rows, int steps, std::byte* to) {
    alignas(32) std::uint8_t split[8][256];
    const std::byte* blocks[8];
    for (int r = 0; r < num_rows; ++r) {
      blocks[r] = rows + static_cast<std::size_t>(r) * row_bytes;
      if constexpr (!Codes::kPlain) {
        split_codes(kType, blocks[r], split[r]);
        blocks[r] = reinterpret_cast<const std::byte*>(split[r]);
      }
    }
    for (int step = 0; step < steps; ++step, to += kFormat.step_bytes()) {
      __m256i v[8];
      GLINT_UNROLL
      for (int r = 0; r < 8; ++r)
        v[r] = r < num_rows ? Codes::load(blocks[r], step) : _mm256_setzero_si256();
      transpose8(v);
      store_step<kFormat.code_bits>(v, to);
    }
  }

  static void pack(const std::byte* rows, std::size_t row_bytes, int num_rows, std::size_t k,
                   std::byte* panel) noexcept {
    pack_panel_scales(kType, rows, row_bytes, num_rows, k, panel);
    const BlockSize block = block_size(kType);
    const int steps = static_cast<int>(block.elements) / kPanelStep;
    for (std::size_t i = 0; i < k / block.elements; ++i) {
      const std::byte* from = rows + i * block.bytes;
      std::byte* to = panel + i * static_cast<std::size_t>(steps) * kFormat.step_bytes();
      const int first = num_rows < 8 ? num_rows : 8;
      pack_half(from, row_bytes, first, steps, to);
      pack_half(from + static_cast<std::size_t>(first) * row_bytes, row_bytes, num_rows - first,
                steps, to + 32);
    }
  }
};

}  // namespace
}  // namespace glint
