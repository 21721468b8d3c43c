// Element types as checkpoints name them, block types as GGUF files name them and those that the
// integer weights of safetensors checkpoints become, and bfloat16 arithmetic (g++ 12 has no usable
// __bf16).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace glint {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBf16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool,
  // Blocks of elements that share scales, along a row: those of GGUF files (tensor/ggml_blocks.h),
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kNVFP4,
  // and those of ours (tensor/int_blocks.h), for integers whose scales are float16 (H), bfloat16
  // (B) or float32 (F).
  kInt4B,
  kInt4F,
  kUint4B,
  kUint4H,
  kUint4F,
  kInt8B,
  kInt8F,
  kUint8F
};

inline constexpr DType kFirstBlockType = DType::kQ4_0;
inline constexpr int kNumBlockTypes =
    static_cast<int>(DType::kUint8F) - static_cast<int>(kFirstBlockType) + 1;
// The first so many of them are GGUF's.
inline constexpr int kNumGgmlTypes =
    static_cast<int>(DType::kNVFP4) - static_cast<int>(kFirstBlockType) + 1;
constexpr bool is_block_type(DType dtype) {
  return dtype >= kFirstBlockType;
}

// Bytes of one element; not for block types.
std::size_t dtype_bytes(DType dtype);
// Elements and bytes of one block; {1, dtype_bytes} for the others.
struct BlockSize {
  std::size_t elements, bytes;
};
BlockSize block_size(DType dtype);
// "BF16", "Q4_K", "INT4": as in a safetensors header, as GGUF tools write it, or our own.
std::string_view dtype_name(DType dtype);
// A name of a safetensors header: element types only. nullopt: unknown.
std::optional<DType> dtype_from_name(std::string_view name);

// The upper half of a float32. Conversion rounds to nearest even; NaN stays NaN (quiet).
struct bf16 {
  std::uint16_t bits;

  static bf16 from_float(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
  float to_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

// The float of 4 exponent and 3 fraction bits without infinities: 0x7f and 0xff are NaN, 448 is the
// largest.
float e4m3_to_float(std::uint8_t bits);

float f16_to_float(std::uint16_t bits);  // IEEE binary16
// Rounds to nearest even, to infinity from 65520 on; NaN stays NaN (quiet).
std::uint16_t f16_from_float(float value);

}  // namespace glint
