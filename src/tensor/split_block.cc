// Every block type taken apart. Offsets are those of ggml's structs (ggml-common.h).
#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/ggml_blocks.h"
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

void split_q4(Bytes block, bool has_min, BlockParts& parts) {
  parts.half_scale[0] = load16(block);
  parts.half_min[0] = has_min ? load16(block + 2) : std::uint16_t{0};
  split_nibbles(block + (has_min ? 4 : 2), 16, parts.codes);
}

void split_q5(Bytes block, bool has_min, BlockParts& parts) {
  parts.half_scale[0] = load16(block);
  parts.half_min[0] = has_min ? load16(block + 2) : std::uint16_t{0};
  const Bytes high = block + (has_min ? 4 : 2);
  split_nibbles(high + 4, 16, parts.codes);
  const std::uint32_t bits = load32(high);
  for (int i = 0; i < 32; ++i)
    parts.codes[i] = static_cast<std::uint8_t>(parts.codes[i] | (bits >> i & 1) << 4);
}

void split_q8_0(Bytes block, BlockParts& parts) {
  parts.half_scale[0] = load16(block);
  for (int i = 0; i < 32; ++i) parts.codes[i] = block[2 + i] ^ 0x80;
}

void split_q2_k(Bytes block, BlockParts& parts) {
  std::memcpy(parts.byte_scale, block, 16);
  for (int half = 0; half < 2; ++half)
    split_pairs(block + 16 + 32 * half, 32, parts.codes + 128 * half);
  parts.d = load16(block + 80);
  parts.dmin = load16(block + 82);
}

void split_q3_k(Bytes block, BlockParts& parts) {
  const Bytes high = block, scales = block + 96;
  for (int half = 0; half < 2; ++half)
    split_pairs(block + 32 + 32 * half, 32, parts.codes + 128 * half);
  for (int part = 0; part < 8; ++part) {
    std::uint8_t* codes = parts.codes + 32 * part;
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<std::uint8_t>(codes[i] | (high[i] >> part & 1) << 2);
  }
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int top = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
    parts.byte_scale[g] = static_cast<std::uint8_t>((low | top << 4) - 32);
  }
  parts.d = load16(block + 108);
}

// Eight scales and eight minima of 6 bits in 12 bytes.
void split_scales_k(Bytes from, BlockParts& parts) {
  for (int g = 0; g < 4; ++g) {
    parts.byte_scale[g] = from[g] & 63;
    parts.byte_min[g] = from[4 + g] & 63;
    parts.byte_scale[4 + g] = static_cast<std::uint8_t>((from[8 + g] & 15) | (from[g] >> 6) << 4);
    parts.byte_min[4 + g] = static_cast<std::uint8_t>((from[8 + g] >> 4) | (from[4 + g] >> 6) << 4);
  }
}

void split_q4_k(Bytes block, BlockParts& parts) {
  parts.d = load16(block);
  parts.dmin = load16(block + 2);
  split_scales_k(block + 4, parts);
  for (int part = 0; part < 4; ++part)
    split_nibbles(block + 16 + 32 * part, 32, parts.codes + 64 * part);
}

void split_q5_k(Bytes block, BlockParts& parts) {
  parts.d = load16(block);
  parts.dmin = load16(block + 2);
  split_scales_k(block + 4, parts);
  const Bytes high = block + 16;
  for (int part = 0; part < 4; ++part)
    split_nibbles(block + 48 + 32 * part, 32, parts.codes + 64 * part);
  for (int part = 0; part < 8; ++part) {
    std::uint8_t* codes = parts.codes + 32 * part;
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<std::uint8_t>(codes[i] | (high[i] >> part & 1) << 4);
  }
}

void split_q6_k(Bytes block, BlockParts& parts) {
  for (int half = 0; half < 2; ++half) {
    std::uint8_t* codes = parts.codes + 128 * half;
    std::uint8_t top[128];
    split_nibbles(block + 64 * half, 64, codes);
    split_pairs(block + 128 + 32 * half, 32, top);
    for (int i = 0; i < 128; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | top[i] << 4);
  }
  std::memcpy(parts.byte_scale, block + 192, 16);
  parts.d = load16(block + 208);
}

void split_iq4_xs(Bytes block, BlockParts& parts) {
  parts.d = load16(block);
  const unsigned top = load16(block + 2);
  for (int g = 0; g < 8; ++g) {
    const unsigned scale = nibble(block + 4, g) | (top >> (2 * g) & 3) << 4;
    parts.byte_scale[g] = static_cast<std::uint8_t>(scale - 32);
    split_nibbles(block + 8 + 16 * g, 16, parts.codes + 32 * g);
  }
}

// The scale of MXFP4 is 2^(e - 127), halved because the table is doubled; the two lowest are
// subnormal, and the highest is no NaN.
void split_mxfp4(Bytes block, BlockParts& parts) {
  const unsigned e = block[0];
  parts.half_scale[0] = static_cast<std::uint16_t>(e < 2 ? 0x20u << e : (e - 1) << 7);
  split_nibbles(block + 1, 16, parts.codes);
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

void split_nvfp4(Bytes block, BlockParts& parts) {
  for (int g = 0; g < 4; ++g) {
    parts.half_scale[g] = half_of_ue4m3(block[g]);
    split_nibbles(block + 4 + 8 * g, 8, parts.codes + 16 * g);
  }
}

// The i-quants: an entry of a code book gives magnitudes, whose codes are the magnitudes shifted
// right (`shift`), and the sign is the bit above.
template <int kShift, int kSignBit, std::size_t kWidth>
void put_signed(const std::uint8_t (&entry)[kWidth], unsigned signs, std::uint8_t* codes) {
  for (std::size_t i = 0; i < kWidth; ++i)
    codes[i] = static_cast<std::uint8_t>(entry[i] >> kShift | (signs >> i & 1) << kSignBit);
}

void put_iq2(const std::uint8_t (&entry)[8], unsigned signs, std::uint8_t* codes) {
  put_signed<4, 2>(entry, signs, codes);
}

std::uint8_t odd(unsigned half_step) {
  return static_cast<std::uint8_t>(2 * half_step + 1);
}

void split_iq2_xxs(Bytes block, BlockParts& parts) {
  const auto grid = iq2_xxs_grid();
  parts.d = load16(block);
  for (int g = 0; g < 8; ++g) {
    const Bytes index = block + 2 + 8 * g;
    const std::uint32_t word = load32(index + 4);
    for (int i = 0; i < 4; ++i)
      put_iq2(grid[index[i]], iq_signs(word >> (7 * i) & 127), parts.codes + 32 * g + 8 * i);
    parts.byte_scale[g] = odd(word >> 28);
  }
}

void split_iq2_xs(Bytes block, BlockParts& parts) {
  const auto grid = iq2_xs_grid();
  parts.d = load16(block);
  for (int i = 0; i < 32; ++i) {
    const unsigned word = load16(block + 2 + 2 * i);
    put_iq2(grid[word & 511], iq_signs(word >> 9), parts.codes + 8 * i);
  }
  for (int g = 0; g < 16; ++g) parts.byte_scale[g] = odd(nibble(block + 66, g));
}

void split_iq2_s(Bytes block, BlockParts& parts) {
  const auto grid = iq2_s_grid();
  const Bytes low = block + 2, signs = block + 34, high = block + 66;
  parts.d = load16(block);
  for (int i = 0; i < 32; ++i) {
    const unsigned top = high[i / 4] >> (2 * (i % 4)) & 3u;
    put_iq2(grid[low[i] | top << 8], signs[i], parts.codes + 8 * i);
  }
  for (int g = 0; g < 16; ++g) parts.byte_scale[g] = odd(nibble(block + 74, g));
}

void split_iq3_xxs(Bytes block, BlockParts& parts) {
  const auto grid = iq3_xxs_grid();
  const Bytes index = block + 2;
  parts.d = load16(block);
  for (int g = 0; g < 8; ++g) {
    const std::uint32_t word = load32(block + 66 + 4 * g);
    for (int i = 0; i < 8; ++i) {
      const unsigned signs = iq_signs(word >> (7 * (i / 2)) & 127) >> (4 * (i % 2));
      put_signed<3, 3>(grid[index[8 * g + i]], signs, parts.codes + 32 * g + 4 * i);
    }
    parts.byte_scale[g] = odd(word >> 28);
  }
}

void split_iq3_s(Bytes block, BlockParts& parts) {
  const auto grid = iq3_s_grid();
  const Bytes low = block + 2, high = block + 66, signs = block + 74;
  parts.d = load16(block);
  for (int i = 0; i < 64; ++i) {
    const unsigned top = high[i / 8] >> (i % 8) & 1u;
    put_signed<1, 3>(grid[low[i] | top << 8], static_cast<unsigned>(signs[i / 2] >> (4 * (i % 2))),
                     parts.codes + 4 * i);
  }
  for (int g = 0; g < 8; ++g) parts.byte_scale[g] = odd(nibble(block + 106, g));
}

// An entry minus an eighth or plus an eighth: which of the table's two threes.
void put_iq1(unsigned index, bool minus, std::uint8_t* codes) {
  const std::int8_t(&entry)[8] = iq1_grid()[index];
  for (int i = 0; i < 8; ++i) codes[i] = static_cast<std::uint8_t>(entry[i] + (minus ? 1 : 5));
}

void split_iq1_s(Bytes block, BlockParts& parts) {
  parts.d = load16(block);
  for (int g = 0; g < 8; ++g) {
    const unsigned word = load16(block + 34 + 2 * g);
    for (int i = 0; i < 4; ++i) {
      const unsigned index = block[2 + 4 * g + i] | (word >> (3 * i) & 7) << 8;
      put_iq1(index, (word & 0x8000) != 0, parts.codes + 32 * g + 8 * i);
    }
    parts.byte_scale[g] = odd(word >> 12 & 7);
  }
}

void split_iq1_m(Bytes block, BlockParts& parts) {
  const Bytes scales = block + 48;
  parts.d = 0;
  for (int i = 0; i < 4; ++i)
    parts.d = static_cast<std::uint16_t>(parts.d | load16(scales + 2 * i) >> 12 << (4 * i));
  for (int i = 0; i < 32; ++i) {
    const unsigned high = nibble(block + 32, i);
    put_iq1(block[i] | (high & 7) << 8, (high & 8) != 0, parts.codes + 8 * i);
  }
  for (int g = 0; g < 16; ++g)
    parts.byte_scale[g] = odd(load16(scales + 2 * (g / 4)) >> (3 * (g % 4)) & 7u);
}

}  // namespace

std::uint8_t iq_signs(unsigned index) {
  return static_cast<std::uint8_t>(index | (std::popcount(index) & 1u) << 7);
}

void split_block(DType type, const std::byte* block, BlockParts& parts) {
  const auto* bytes = reinterpret_cast<Bytes>(block);
  switch (type) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return split_q4(bytes, false, parts);
    case DType::kQ4_1:
      return split_q4(bytes, true, parts);
    case DType::kQ5_0:
      return split_q5(bytes, false, parts);
    case DType::kQ5_1:
      return split_q5(bytes, true, parts);
    case DType::kQ8_0:
      return split_q8_0(bytes, parts);
    case DType::kQ2_K:
      return split_q2_k(bytes, parts);
    case DType::kQ3_K:
      return split_q3_k(bytes, parts);
    case DType::kQ4_K:
      return split_q4_k(bytes, parts);
    case DType::kQ5_K:
      return split_q5_k(bytes, parts);
    case DType::kQ6_K:
      return split_q6_k(bytes, parts);
    case DType::kIQ1_S:
      return split_iq1_s(bytes, parts);
    case DType::kIQ1_M:
      return split_iq1_m(bytes, parts);
    case DType::kIQ2_XXS:
      return split_iq2_xxs(bytes, parts);
    case DType::kIQ2_XS:
      return split_iq2_xs(bytes, parts);
    case DType::kIQ2_S:
      return split_iq2_s(bytes, parts);
    case DType::kIQ3_XXS:
      return split_iq3_xxs(bytes, parts);
    case DType::kIQ3_S:
      return split_iq3_s(bytes, parts);
    case DType::kIQ4_XS:
      return split_iq4_xs(bytes, parts);
    case DType::kMXFP4:
      return split_mxfp4(bytes, parts);
    case DType::kNVFP4:
      return split_nvfp4(bytes, parts);
    default:
      GLINT_CHECK(false);  // no block type
  }
}

}  // namespace glint
