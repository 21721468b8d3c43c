// Activations as int8: one row is blocks of kInt8Block values with a scale each, and the sums of
// their groups, which weights with a zero point or a minimum need.
//
// q = round(x * (127 / max|x|)) to nearest even, scale = max|x| / 127; a block whose max|x| is less
// than kInt8Smallest is zeros of scale 0. NaN and infinity give some finite q.
//
//   int8    q[blocks * kInt8Block], padding zero
//   float   scale[blocks]
//   int32   sum32[blocks * 4]    sums of 32 neighbours
//   int32   sum16[blocks * 8]    sums of 16
// and is rounded up to 64 bytes.
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

struct Int8Row {
  int blocks = 0;

  explicit constexpr Int8Row(int k) : blocks((k + kInt8Block - 1) / kInt8Block) {}
  constexpr std::size_t scales_at() const { return static_cast<std::size_t>(blocks) * kInt8Block; }
  constexpr std::size_t sums32_at() const {
    return scales_at() + static_cast<std::size_t>(blocks) * sizeof(float);
  }
  constexpr std::size_t sums16_at() const {
    return sums32_at() + static_cast<std::size_t>(blocks) * 4 * sizeof(std::int32_t);
  }
  constexpr std::size_t bytes() const {
    return (sums16_at() + static_cast<std::size_t>(blocks) * 8 * sizeof(std::int32_t) + 63) / 64 *
           64;
  }
};

}  // namespace glint
