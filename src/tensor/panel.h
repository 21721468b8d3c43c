// Low-bit weights in the order that kernels read them. A panel holds kPanelRows rows of a matrix,
// so that a vector register holds the same four neighbours of K of sixteen output columns, which is
// also the layout of an int8 tile. Packing loses nothing: every block type is codes of 2 to 8 bits,
// scales for groups of 16 or 32, and sometimes minima or zero points.
//
// A panel of k columns (k a multiple of the type's block) is, without gaps:
//   codes   k / 32 steps of 64 * code_bits bytes (below)
//   scales  kHalf, kBf16, kFloat: [k / group][16] of 2 or 4 bytes
//           super: d [k / 256][16] float16, dmin [k / 256][16] float16 if has_min, then
//           [k / group][16] bytes; kSuperNibbles: scale in the low, minimum in the high nibble
//   minima  if has_min: kHalf [k / group][16] float16; kSuperU8 [k / group][16] bytes
//   zeros   if has_zeros: [k / group][16] bytes
// and is rounded up to 64 bytes. Rows beyond the matrix are zero scales and zero minima.
//
// The value of a code c of group g in row r is
//   S * (table ? table[c] : c - zero) + M,  S = (d * unit) * s,  M = -(dmin * m),
// for kHalf, kBf16 and kFloat: S = s, M = m; all in float32, rounded after each operation. With
// has_zeros zero is the byte of the group, and M = 0.
//
// A step is 32 columns: eight registers v = 0..7 of sixteen dwords, register v holding columns
// 4v..4v+3 of the sixteen rows, a byte each. Their codes are cut into planes of 64-byte registers:
//   code_bits 8      registers 0..7 themselves
//   code_bits 4,5,6  four registers; the low nibbles of register j are v = j, the high v = j + 4
//   code_bits 2,3    two registers; bits 2i, 2i + 1 of register j are v = 4 j + i
// then, for code_bits 5 and 3, one register whose bit v is the top bit of the code of register v;
// for code_bits 6, two, bits 2i, 2i + 1 of register j being the top two bits of v = 4 j + i.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace glint {

inline constexpr int kPanelRows = 16;
inline constexpr int kPanelStep = 32;

enum class PanelScale : std::uint8_t {
  kHalf,         // float16 a group
  kBf16,         // bfloat16 a group
  kFloat,        // float32 a group
  kSuperS8,      // float16 for 256 elements times a signed byte a group
  kSuperU8,      // the same with an unsigned byte, and one for the minimum if has_min
  kSuperNibbles  // the same with scale and minimum in one byte
};

struct PanelFormat {
  DType type = DType::kF32;
  int code_bits = 0;  // 2, 3, 4, 5, 6, 8
  int group = 0;      // columns that share a scale: 16, 32
  PanelScale scale = PanelScale::kHalf;
  bool has_min = false;
  bool has_zeros = false;
  int zero_log2 = -1;  // zero = 2^zero_log2, or 0 if negative
  float unit = 1.0f;
  bool has_table = false;
  std::array<std::int8_t, 16> table{};

  constexpr int zero() const { return zero_log2 < 0 ? 0 : 1 << zero_log2; }
  // What makes signed bytes of the codes: the zero, or something near those of the groups.
  constexpr int signed_zero() const { return has_zeros && code_bits == 8 ? 128 : zero(); }
  constexpr bool is_super() const { return scale >= PanelScale::kSuperS8; }
  // Bytes of the scales of one group.
  constexpr std::size_t scale_bytes() const {
    return kPanelRows * (is_super() ? 1u : scale == PanelScale::kFloat ? 4u : 2u);
  }

  constexpr std::size_t step_bytes() const { return 64u * static_cast<std::size_t>(code_bits); }
  constexpr std::size_t codes_bytes(std::size_t k) const { return k / kPanelStep * step_bytes(); }
  constexpr std::size_t groups(std::size_t k) const { return k / static_cast<std::size_t>(group); }
  // Offsets from the start of the panel.
  constexpr std::size_t d_at(std::size_t k) const { return codes_bytes(k); }
  constexpr std::size_t dmin_at(std::size_t k) const {
    return d_at(k) + (is_super() ? k / 256 * 32 : 0);
  }
  constexpr std::size_t scales_at(std::size_t k) const {
    return dmin_at(k) + (is_super() && has_min ? k / 256 * 32 : 0);
  }
  constexpr std::size_t mins_at(std::size_t k) const {
    return scales_at(k) + groups(k) * scale_bytes();
  }
  constexpr std::size_t zeros_at(std::size_t k) const { return mins_at(k); }
  constexpr std::size_t panel_bytes(std::size_t k) const {
    const std::size_t mins =
        has_min && scale != PanelScale::kSuperNibbles ? groups(k) * (is_super() ? 16 : 32) : 0;
    return (mins_at(k) + mins + (has_zeros ? groups(k) * kPanelRows : 0) + 63) / 64 * 64;
  }
};

// The format of a block type.
const PanelFormat& panel_format(DType block_type);
// The same as a constant, for kernels.
constexpr PanelFormat make_panel_format(DType block_type);

// Where code (row, column) is: value of the panel's codes.
int panel_code(const PanelFormat& format, const std::byte* panel, int row, std::size_t column);
// One row of a panel as float32, out[k].
void decode_panel_row(const PanelFormat& format, const std::byte* panel, int row, std::size_t k,
                      std::span<float> out);

// The parts of one block of one row, as a panel stores them. Codes are 0 .. 2^code_bits - 1.
struct BlockParts {
  std::uint8_t codes[256];
  std::uint16_t d = 0, dmin = 0;  // float16 bits, super scales only
  std::uint16_t half_scale[8];    // kHalf, kBf16: a group each
  std::uint16_t half_min[8];
  float float_scale[8];         // kFloat
  std::uint8_t zero[8];         // has_zeros: a group each
  std::uint8_t byte_scale[16];  // super scales: a group each; kSuperNibbles: both
  std::uint8_t byte_min[16];
};
// Takes a block apart, and what its elements then are: out[block_size(format.type).elements].
void split_block(DType type, const std::byte* block, BlockParts& parts);
void split_codes(DType type, const std::byte* block, std::uint8_t* codes);  // parts.codes alone
void split_scales(DType type, const std::byte* block, BlockParts& parts);   // all the others
void decode_parts(const PanelFormat& format, const BlockParts& parts, float* out);

// Packs up to kPanelRows rows of k columns into a panel; row r starts at rows + r * row_bytes.
void pack_panel(DType type, const std::byte* rows, std::size_t row_bytes, int num_rows,
                std::size_t k, std::byte* panel);
// The same without the codes, whose bytes are left alone.
void pack_panel_scales(DType type, const std::byte* rows, std::size_t row_bytes, int num_rows,
                       std::size_t k, std::byte* panel);

// ---- implementation of make_panel_format

constexpr PanelFormat make_panel_format(DType type) {
  PanelFormat f;
  f.type = type;
  f.group = 32;
  const auto affine = [&](int bits, int zero_log2) {
    f.code_bits = bits;
    f.zero_log2 = zero_log2;
  };
  const auto table = [&](int bits, std::array<std::int8_t, 16> values) {
    f.code_bits = bits;
    f.has_table = true;
    f.table = values;
  };
  const auto super = [&](PanelScale scale, int group, bool has_min, float unit) {
    f.scale = scale;
    f.group = group;
    f.has_min = has_min;
    f.unit = unit;
  };
  constexpr std::array<std::int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                1,    13,   25,  38,  53,  69,  89,  113};
  constexpr std::array<std::int8_t, 16> kFp4 = {0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};
  switch (type) {
    case DType::kQ4_0:
      affine(4, 3);
      break;
    case DType::kQ4_1:
      affine(4, -1);
      f.has_min = true;
      break;
    case DType::kQ5_0:
      affine(5, 4);
      break;
    case DType::kQ5_1:
      affine(5, -1);
      f.has_min = true;
      break;
    case DType::kQ8_0:
      affine(8, 7);
      break;
    case DType::kQ2_K:
      affine(2, -1);
      super(PanelScale::kSuperNibbles, 16, true, 1.0f);
      break;
    case DType::kQ3_K:
      affine(3, 2);
      super(PanelScale::kSuperS8, 16, false, 1.0f);
      break;
    case DType::kQ4_K:
      affine(4, -1);
      super(PanelScale::kSuperU8, 32, true, 1.0f);
      break;
    case DType::kQ5_K:
      affine(5, -1);
      super(PanelScale::kSuperU8, 32, true, 1.0f);
      break;
    case DType::kQ6_K:
      affine(6, 5);
      super(PanelScale::kSuperS8, 16, false, 1.0f);
      break;
    case DType::kIQ4_NL:
      table(4, kIq4);
      break;
    case DType::kIQ4_XS:
      table(4, kIq4);
      super(PanelScale::kSuperS8, 32, false, 1.0f);
      break;
    case DType::kMXFP4:
      table(4, kFp4);
      f.scale = PanelScale::kBf16;
      break;
    case DType::kNVFP4:
      table(4, kFp4);
      f.group = 16;
      break;
    case DType::kIQ3_XXS:
      table(4, {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62});
      super(PanelScale::kSuperU8, 32, false, 0.25f);
      break;
    case DType::kIQ3_S:
      table(4, {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15});
      super(PanelScale::kSuperU8, 32, false, 1.0f);
      break;
    case DType::kIQ2_XXS:
      table(3, {8, 25, 43, 0, -8, -25, -43, 0});
      super(PanelScale::kSuperU8, 32, false, 0.125f);
      break;
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      table(3, {8, 25, 43, 0, -8, -25, -43, 0});
      super(PanelScale::kSuperU8, 16, false, 0.125f);
      break;
    case DType::kIQ1_S:
      // (-1, 0, 1) minus and plus an eighth, in eighths.
      table(3, {-9, -1, 7, 0, -7, 1, 9, 0});
      super(PanelScale::kSuperU8, 32, false, 0.125f);
      break;
    case DType::kIQ1_M:
      table(3, {-9, -1, 7, 0, -7, 1, 9, 0});
      super(PanelScale::kSuperU8, 16, false, 0.125f);
      break;
    case DType::kInt4B:
      affine(4, 3);
      f.scale = PanelScale::kBf16;
      break;
    case DType::kInt4F:
      affine(4, 3);
      f.scale = PanelScale::kFloat;
      break;
    case DType::kUint4B:
      affine(4, -1);
      f.scale = PanelScale::kBf16;
      f.has_zeros = true;
      break;
    case DType::kUint4H:
      affine(4, -1);
      f.has_zeros = true;
      break;
    case DType::kUint4F:
      affine(4, -1);
      f.scale = PanelScale::kFloat;
      f.has_zeros = true;
      break;
    case DType::kInt8B:
      affine(8, 7);
      f.scale = PanelScale::kBf16;
      break;
    case DType::kInt8F:
      affine(8, 7);
      f.scale = PanelScale::kFloat;
      break;
    case DType::kUint8F:
      affine(8, -1);
      f.scale = PanelScale::kFloat;
      f.has_zeros = true;
      break;
    default:
      f.group = 0;
  }
  return f;
}

}  // namespace glint
