// Activations as int8: one row is blocks of kInt8Block values with a scale each, and the sums of
// their groups, which weights with a zero point or a minimum need.
//
// q = round(x * (127 / max|x|)) to nearest even, scale = max|x| / 127; a block whose max|x| is less
// than kInt8Smallest is zeros of scale 0. NaN and infinity give some finite q.
//
// Rows are kept sixteen at a time, block by block (Int8Chunk): sixteen rows of one block are the A
// side of an int8 tile. Padding of a row is zeros; rows that were not packed hold anything.
//
// The product of a row with a weight row adds up in this order, in float32:
//   for each block b:  part = 0
//     for each weight group g of b:
//       part = fma(float(sum over g of q (c - zero)), S_g, part)
//       if the weights have minima: part = fma(float(sum over g of q), M_g, part)
//   total = fma(part, scale[b], total)
// where with a table the first sum is that of q table[c].
#pragma once

#include <cstddef>
#include <cstdint>

namespace glint {

inline constexpr int kInt8Block = 128;
inline constexpr float kInt8Smallest = 0x1p-120f;  // 127 / max|x| is finite from here on

inline constexpr int kInt8Rows = 16;

// One block of sixteen rows. A packed matrix [rows, k] is [rows / 16][blocks] of them.
struct alignas(64) Int8Chunk {
  std::int8_t q[kInt8Rows][kInt8Block];
  float scale[kInt8Rows];
  std::int32_t sum32[kInt8Block / 32][kInt8Rows];  // sums of 32 neighbours
  std::int32_t sum16[kInt8Block / 16][kInt8Rows];  // sums of 16
};
static_assert(sizeof(Int8Chunk) ==
              45 * 64);  // an odd number of lines: blocks do not share cache sets

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
