// Element types as checkpoints name them, and bfloat16 arithmetic (g++ 12 has no usable __bf16).
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
  kBool
};

std::size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);                     // "BF16", as in a safetensors header
std::optional<DType> dtype_from_name(std::string_view name);  // nullopt: unknown

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

float f16_to_float(std::uint16_t bits);  // IEEE binary16

}  // namespace glint
