// Every block type taken apart. Offsets are those of ggml's structs (ggml-common.h) and of
// tensor/int_blocks.h.
#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/ggml_blocks.h"
#include "tensor/int_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

using Bytes = const std::uint8_t*;

std::uint16_t load16(Bytes at) {
  return static_cast<std::uint16_t>(at[0] | at[1] << 8);
}

std::uint32_t load32(Bytes at) {
  return static_cast<std::uint32_t>(load16(at)) | static_cast<std::uint32_t>(load16(at + 2)) << 16;
}

std::uint8_t nibble(Bytes at, int index) {
  return static_cast<std::uint8_t>(at[index / 2] >> (4 * (index % 2)) & 15);
}

// n bytes hold 2 n codes: the low nibbles come first.
void split_nibbles(Bytes from, int n, std::uint8_t* codes) {
  for (int i = 0; i < n; ++i) {
    codes[i] = from[i] & 15;
    codes[n + i] = from[i] >> 4;
  }
}

// n bytes hold 4 n codes: the lowest pairs of bits come first.
void split_pairs(Bytes from, int n, std::uint8_t* codes) {
  for (int part = 0; part < 4; ++part) {
    for (int i = 0; i < n; ++i) {
      codes[n * part + i] = static_cast<std::uint8_t>(from[i] >> (2 * part) & 3);
    }
  }
}

// 32 bits on top of as many codes.
void add_bits(std::uint32_t bits, int place, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = static_cast<std::uint8_t>(codes[i] | (bits >> i & 1) << place);
}

// Eight times 32 codes take a bit each of 32 bytes, the lowest first.
void add_bit_planes(Bytes high, int place, std::uint8_t* codes) {
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i) {
      std::uint8_t& code = codes[32 * part + i];
      code = static_cast<std::uint8_t>(code | (high[i] >> part & 1) << place);
    }
  }
}

void codes_q2_k(Bytes from, std::uint8_t* codes) {
  for (int half = 0; half < 2; ++half) split_pairs(from + 32 * half, 32, codes + 128 * half);
}

void codes_q4_k(Bytes from, std::uint8_t* codes) {
  for (int part = 0; part < 4; ++part) split_nibbles(from + 32 * part, 32, codes + 64 * part);
}

void codes_q6_k(Bytes block, std::uint8_t* codes) {
  for (int half = 0; half < 2; ++half, codes += 128) {
    std::uint8_t top[128];
    split_nibbles(block + 64 * half, 64, codes);
    split_pairs(block + 128 + 32 * half, 32, top);
    for (int i = 0; i < 128; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | top[i] << 4);
  }
}

constexpr std::uint64_t kEveryByte = 0x0101010101010101;

// Bit i of `bits` as byte i, 0 or 1.
std::uint64_t spread_bits(unsigned bits) {
  const std::uint64_t apart = (kEveryByte * (bits & 255)) & 0x8040201008040201;
  return (apart + 0x7f * kEveryByte) >> 7 & kEveryByte;
}

// The i-quants: an entry of a code book gives magnitudes, whose codes are the magnitudes shifted
// right, and the sign is the bit above. All bytes of an entry at once.
template <int kShift, int kSignBit, std::size_t kWidth>
void put_signed(const std::uint8_t (&entry)[kWidth], unsigned signs, std::uint8_t* codes) {
  std::uint64_t all = 0;
  std::memcpy(&all, entry, kWidth);
  all = (all >> kShift & (0xff >> kShift) * kEveryByte) | spread_bits(signs) << kSignBit;
  std::memcpy(codes, &all, kWidth);
}

void put_iq2(const std::uint8_t (&entry)[8], unsigned signs, std::uint8_t* codes) {
  put_signed<4, 2>(entry, signs, codes);
}

void codes_iq2_xxs(Bytes from, std::uint8_t* codes) {
  const auto grid = iq2_xxs_grid();
  for (int g = 0; g < 8; ++g, from += 8) {
    const std::uint32_t word = load32(from + 4);
    for (int i = 0; i < 4; ++i)
      put_iq2(grid[from[i]], iq_signs(word >> (7 * i) & 127), codes + 32 * g + 8 * i);
  }
}

void codes_iq2_xs(Bytes from, std::uint8_t* codes) {
  const auto grid = iq2_xs_grid();
  for (int i = 0; i < 32; ++i) {
    const unsigned word = load16(from + 2 * i);
    put_iq2(grid[word & 511], iq_signs(word >> 9), codes + 8 * i);
  }
}

void codes_iq2_s(Bytes block, std::uint8_t* codes) {
  const auto grid = iq2_s_grid();
  const Bytes low = block + 2, signs = block + 34, high = block + 66;
  for (int i = 0; i < 32; ++i) {
    const unsigned top = high[i / 4] >> (2 * (i % 4)) & 3u;
    put_iq2(grid[low[i] | top << 8], signs[i], codes + 8 * i);
  }
}

void codes_iq3_xxs(Bytes block, std::uint8_t* codes) {
  const auto grid = iq3_xxs_grid();
  const Bytes index = block + 2;
  for (int g = 0; g < 8; ++g) {
    const std::uint32_t word = load32(block + 66 + 4 * g);
    for (int i = 0; i < 8; ++i) {
      const unsigned signs = iq_signs(word >> (7 * (i / 2)) & 127) >> (4 * (i % 2));
      put_signed<3, 3>(grid[index[8 * g + i]], signs, codes + 32 * g + 4 * i);
    }
  }
}

void codes_iq3_s(Bytes block, std::uint8_t* codes) {
  const auto grid = iq3_s_grid();
  const Bytes low = block + 2, high = block + 66, signs = block + 74;
  for (int i = 0; i < 64; ++i) {
    const unsigned top = high[i / 8] >> (i % 8) & 1u;
    put_signed<1, 3>(grid[low[i] | top << 8], static_cast<unsigned>(signs[i / 2] >> (4 * (i % 2))),
                     codes + 4 * i);
  }
}

// An entry, whose elements are -1, 0, 1, minus an eighth or plus an eighth: which of the table's
// two threes.
void put_iq1(unsigned index, bool minus, std::uint8_t* codes) {
  std::uint64_t all;
  std::memcpy(&all, iq1_grid()[index], 8);
  // In two bits -1 is 3, so that adding one makes 0, 1, 2 of them all.
  all &= 3 * kEveryByte;
  all = (all + kEveryByte) & 3 * kEveryByte;
  if (!minus) all |= 4 * kEveryByte;
  std::memcpy(codes, &all, 8);
}

void codes_iq1_s(Bytes block, std::uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    const unsigned word = load16(block + 34 + 2 * g);
    for (int i = 0; i < 4; ++i) {
      const unsigned index = block[2 + 4 * g + i] | (word >> (3 * i) & 7) << 8;
      put_iq1(index, (word & 0x8000) != 0, codes + 32 * g + 8 * i);
    }
  }
}

void codes_iq1_m(Bytes block, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const unsigned high = nibble(block + 32, i);
    put_iq1(block[i] | (high & 7) << 8, (high & 8) != 0, codes + 8 * i);
  }
}

void codes_int(DType type, Bytes block, std::uint8_t* codes) {
  const IntBlockLayout layout = int_block_layout(type);
  const Bytes from = block + layout.codes_at;
  for (int i = 0; i < 32; ++i) codes[i] = layout.code_bits == 8 ? from[i] : nibble(from, i);
}

// Scales.

void scale_int(DType type, Bytes block, BlockParts& parts) {
  const IntBlockLayout layout = int_block_layout(type);
  if (layout.scale == DType::kF32) {
    parts.float_scale[0] = std::bit_cast<float>(load32(block));
  } else {
    parts.half_scale[0] = load16(block);
  }
  if (layout.zero_at != 0) parts.zero[0] = block[layout.zero_at];
}

void scales_q3_k(Bytes from, BlockParts& parts) {
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? from[g] & 15 : from[g - 8] >> 4;
    const int top = from[8 + g % 4] >> (2 * (g / 4)) & 3;
    parts.byte_scale[g] = static_cast<std::uint8_t>((low | top << 4) - 32);
  }
}

// Eight scales and eight minima of 6 bits in 12 bytes.
void scales_q4_k(Bytes block, BlockParts& parts) {
  parts.dmin = load16(block + 2);
  const Bytes from = block + 4;
  for (int g = 0; g < 4; ++g) {
    parts.byte_scale[g] = from[g] & 63;
    parts.byte_min[g] = from[4 + g] & 63;
    parts.byte_scale[4 + g] = static_cast<std::uint8_t>((from[8 + g] & 15) | (from[g] >> 6) << 4);
    parts.byte_min[4 + g] = static_cast<std::uint8_t>((from[8 + g] >> 4) | (from[4 + g] >> 6) << 4);
  }
}

void scales_iq4_xs(Bytes block, BlockParts& parts) {
  const unsigned top = load16(block + 2);
  for (int g = 0; g < 8; ++g) {
    const unsigned scale = nibble(block + 4, g) | (top >> (2 * g) & 3) << 4;
    parts.byte_scale[g] = static_cast<std::uint8_t>(scale - 32);
  }
}

// The scale of MXFP4 is 2^(e - 127), halved because the table is doubled; the two lowest are
// subnormal, and the highest is no NaN.
std::uint16_t bf16_of_mxfp4(unsigned e) {
  return static_cast<std::uint16_t>(e < 2 ? 0x20u << e : (e - 1) << 7);
}

// Half of an unsigned float of 4 and 3 bits as float16. The top bit counts for nothing, except that
// 0x7f is 0 while 0xff is a number.
std::uint16_t half_of_ue4m3(unsigned bits) {
  constexpr std::uint16_t kSubnormals[8] = {0,      0x1400, 0x1800, 0x1a00,
                                            0x1c00, 0x1d00, 0x1e00, 0x1f00};
  if (bits == 0x7f) return 0;
  const unsigned exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 0) return kSubnormals[mantissa];
  return static_cast<std::uint16_t>((exponent + 7) << 10 | mantissa << 7);
}

std::uint8_t odd(unsigned half_step) {
  return static_cast<std::uint8_t>(2 * half_step + 1);
}

// `groups` scales of 4 bits.
void odd_nibbles(Bytes from, int groups, BlockParts& parts) {
  for (int g = 0; g < groups; ++g) parts.byte_scale[g] = odd(nibble(from, g));
}

// Eight scales, the top 4 bits of words that are `stride` bytes apart.
void odd_tops(Bytes from, int stride, BlockParts& parts) {
  for (int g = 0; g < 8; ++g) parts.byte_scale[g] = odd(from[stride * g + 3] >> 4);
}

void scales_iq1_m(Bytes from, BlockParts& parts) {
  parts.d = 0;
  for (int i = 0; i < 4; ++i)
    parts.d = static_cast<std::uint16_t>(parts.d | load16(from + 2 * i) >> 12 << (4 * i));
  for (int g = 0; g < 16; ++g)
    parts.byte_scale[g] = odd(load16(from + 2 * (g / 4)) >> (3 * (g % 4)) & 7u);
}

}  // namespace

std::uint8_t iq_signs(unsigned index) {
  // Bit n of 0x6996: whether n has an odd number of bits.
  const unsigned odd_bits = 0x6996u >> ((index ^ index >> 4) & 15) & 1u;
  return static_cast<std::uint8_t>(index | odd_bits << 7);
}

void split_codes(DType type, const std::byte* block, std::uint8_t* codes) {
  const auto* bytes = reinterpret_cast<Bytes>(block);
  switch (type) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return split_nibbles(bytes + 2, 16, codes);
    case DType::kQ4_1:
      return split_nibbles(bytes + 4, 16, codes);
    case DType::kQ5_0:
      split_nibbles(bytes + 6, 16, codes);
      return add_bits(load32(bytes + 2), 4, codes);
    case DType::kQ5_1:
      split_nibbles(bytes + 8, 16, codes);
      return add_bits(load32(bytes + 4), 4, codes);
    case DType::kQ8_0:
      for (int i = 0; i < 32; ++i) codes[i] = bytes[2 + i] ^ 0x80;
      return;
    case DType::kQ2_K:
      return codes_q2_k(bytes + 16, codes);
    case DType::kQ3_K:
      codes_q2_k(bytes + 32, codes);
      return add_bit_planes(bytes, 2, codes);
    case DType::kQ4_K:
      return codes_q4_k(bytes + 16, codes);
    case DType::kQ5_K:
      codes_q4_k(bytes + 48, codes);
      return add_bit_planes(bytes + 16, 4, codes);
    case DType::kQ6_K:
      return codes_q6_k(bytes, codes);
    case DType::kIQ1_S:
      return codes_iq1_s(bytes, codes);
    case DType::kIQ1_M:
      return codes_iq1_m(bytes, codes);
    case DType::kIQ2_XXS:
      return codes_iq2_xxs(bytes + 2, codes);
    case DType::kIQ2_XS:
      return codes_iq2_xs(bytes + 2, codes);
    case DType::kIQ2_S:
      return codes_iq2_s(bytes, codes);
    case DType::kIQ3_XXS:
      return codes_iq3_xxs(bytes, codes);
    case DType::kIQ3_S:
      return codes_iq3_s(bytes, codes);
    case DType::kIQ4_XS:
      for (int g = 0; g < 8; ++g) split_nibbles(bytes + 8 + 16 * g, 16, codes + 32 * g);
      return;
    case DType::kMXFP4:
      return split_nibbles(bytes + 1, 16, codes);
    case DType::kNVFP4:
      for (int g = 0; g < 4; ++g) split_nibbles(bytes + 4 + 8 * g, 8, codes + 16 * g);
      return;
    default:
      GLINT_CHECK(is_int_block(type));
      return codes_int(type, bytes, codes);
  }
}

void split_scales(DType type, const std::byte* block, BlockParts& parts) {
  const auto* bytes = reinterpret_cast<Bytes>(block);
  parts.d = load16(bytes);  // where most super scales are
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
      parts.half_scale[0] = load16(bytes);
      return;
    case DType::kQ4_1:
    case DType::kQ5_1:
      parts.half_scale[0] = load16(bytes);
      parts.half_min[0] = load16(bytes + 2);
      return;
    case DType::kQ2_K:
      std::memcpy(parts.byte_scale, bytes, 16);
      parts.d = load16(bytes + 80);
      parts.dmin = load16(bytes + 82);
      return;
    case DType::kQ3_K:
      parts.d = load16(bytes + 108);
      return scales_q3_k(bytes + 96, parts);
    case DType::kQ4_K:
    case DType::kQ5_K:
      return scales_q4_k(bytes, parts);
    case DType::kQ6_K:
      std::memcpy(parts.byte_scale, bytes + 192, 16);
      parts.d = load16(bytes + 208);
      return;
    case DType::kIQ1_S:
      for (int g = 0; g < 8; ++g) parts.byte_scale[g] = odd(load16(bytes + 34 + 2 * g) >> 12 & 7u);
      return;
    case DType::kIQ1_M:
      return scales_iq1_m(bytes + 48, parts);
    case DType::kIQ2_XXS:
      return odd_tops(bytes + 6, 8, parts);
    case DType::kIQ2_XS:
      return odd_nibbles(bytes + 66, 16, parts);
    case DType::kIQ2_S:
      return odd_nibbles(bytes + 74, 16, parts);
    case DType::kIQ3_XXS:
      return odd_tops(bytes + 66, 4, parts);
    case DType::kIQ3_S:
      return odd_nibbles(bytes + 106, 8, parts);
    case DType::kIQ4_XS:
      return scales_iq4_xs(bytes, parts);
    case DType::kMXFP4:
      parts.half_scale[0] = bf16_of_mxfp4(bytes[0]);
      return;
    case DType::kNVFP4:
      for (int g = 0; g < 4; ++g) parts.half_scale[g] = half_of_ue4m3(bytes[g]);
      return;
    default:
      GLINT_CHECK(is_int_block(type));
      return scale_int(type, bytes, parts);
  }
}

void split_block(DType type, const std::byte* block, BlockParts& parts) {
  split_codes(type, block, parts.codes);
  split_scales(type, block, parts);
}

}  // namespace glint
