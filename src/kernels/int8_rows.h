// Activations as int8: every kInt8Group values of a row have a scale, and the sums of the weights'
// groups are kept, which weights with a zero point or a minimum need.
//
// q = round(x * (127 / max|x|)) to nearest even, scale = max|x| / 127; a group whose max|x| is less
// than kInt8Smallest is zeros of scale 0. NaN and infinity give some finite q.
//
// Rows are kept sixteen at a time, block by block (Int8Chunk): sixteen rows of a group are the A
// side of an int8 tile. Padding of a row is zeros; rows that were not packed hold anything.
//
// The product of a row with a weight row adds up in this order, in float32:
//   for each kInt8Group columns g:  part = 0
//     for each weight group h of g (one, or two of 16):
//       part = fma(float(sum over h of q (c - zero_h)), S_h, part)
//       if the weights have minima: part = fma(float(sum over h of q), M_h, part)
//   total = fma(part, scale[g], total)
// where with a table the first sum is that of q table[c].
#pragma once

#include <cstddef>
#include <cstdint>

namespace glint {

inline constexpr int kInt8Group = 32;              // values that share a scale
inline constexpr int kInt8Block = 128;             // values of one chunk
inline constexpr float kInt8Smallest = 0x1p-120f;  // 127 / max|x| is finite from here on

inline constexpr int kInt8Rows = 16;

// One block of sixteen rows. A packed matrix [rows, k] is [rows / 16][blocks] of them.
struct alignas(64) Int8Chunk {
  std::int8_t q[kInt8Rows][kInt8Block];
  float scale[kInt8Block / kInt8Group][kInt8Rows];
  std::int32_t sum32[kInt8Block / 32][kInt8Rows];  // sums of 32 neighbours
  std::int32_t sum16[kInt8Block / 16][kInt8Rows];  // sums of 16
  std::byte padding[64];  // to an odd number of lines: blocks do not share cache sets
};
static_assert(sizeof(Int8Chunk) == 49 * 64);

constexpr int int8_blocks(int k) {
  return (k + kInt8Block - 1) / kInt8Block;
}
constexpr std::size_t int8_rows_bytes(int rows, int k) {
  return static_cast<std::size_t>((rows + kInt8Rows - 1) / kInt8Rows) *
         static_cast<std::size_t>(int8_blocks(k)) * sizeof(Int8Chunk);
}
// Where block `block` of the sixteen rows that hold `row` is; the row is lane row % kInt8Rows.
inline const Int8Chunk& int8_chunk(const void* packed, int k, int row, int block) {
  return static_cast<const Int8Chunk*>(
      packed)[static_cast<std::size_t>(row / kInt8Rows) * static_cast<std::size_t>(int8_blocks(k)) +
              static_cast<std::size_t>(block)];
}
inline Int8Chunk& int8_chunk(void* packed, int k, int row, int block) {
  return const_cast<Int8Chunk&>(int8_chunk(static_cast<const void*>(packed), k, row, block));
}

}  // namespace glint
