// The block types of integer weights in safetensors checkpoints. Those files keep codes, scales and
// zero points in tensors apart; loading puts them into blocks of 32 elements, so that rows are
// packed and read like those of any other block type. Groups longer than a block repeat their
// scale.
//
// A block, little endian, without gaps; value = d * (code - zero):
//   kInt4B   bf16 d; u8 qs[16]                        zero 8
//   kInt4F   f32 d;  u8 qs[16]                        zero 8
//   kUint4B  bf16 d; u8 zero; u8 pad; u8 qs[16]
//   kUint4H  f16 d;  u8 zero; u8 pad; u8 qs[16]
//   kUint4F  f32 d;  u8 zero; u8 pad[3]; u8 qs[16]
//   kInt8B   bf16 d; u8 qs[32]                        zero 128
//   kInt8F   f32 d;  u8 qs[32]                        zero 128
//   kUint8F  f32 d;  u8 zero; u8 pad[3]; u8 qs[32]
// Two codes of 4 bits to a byte: element 2j is the low nibble of qs[j], 2j + 1 the high. Float16
// scales without zero points need no types here: kQ4_0 and kQ8_0 hold them.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace glint {

struct IntBlockLayout {
  int code_bits = 0;          // 4 or 8
  DType scale = DType::kF32;  // kBf16, kF16, kF32, at offset 0
  std::size_t zero_at = 0;    // offset of the zero point; 0: there is none
  std::size_t codes_at = 0;
};

constexpr bool is_int_block(DType type) {
  return type >= DType::kInt4B;
}

constexpr IntBlockLayout int_block_layout(DType type) {
  switch (type) {
    case DType::kInt4B:
      return {4, DType::kBf16, 0, 2};
    case DType::kInt4F:
      return {4, DType::kF32, 0, 4};
    case DType::kUint4B:
      return {4, DType::kBf16, 2, 4};
    case DType::kUint4H:
      return {4, DType::kF16, 2, 4};
    case DType::kUint4F:
      return {4, DType::kF32, 4, 8};
    case DType::kInt8B:
      return {8, DType::kBf16, 0, 2};
    case DType::kInt8F:
      return {8, DType::kF32, 0, 4};
    case DType::kUint8F:
      return {8, DType::kF32, 4, 8};
    default:
      return {};
  }
}

}  // namespace glint
