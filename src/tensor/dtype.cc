#include "tensor/dtype.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace glint {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t nbytes;  // of a block
  std::size_t elements = 1;
};

// In the order of the enumerators.
constexpr DTypeRow kDTypes[] = {
    {DType::kF32, "F32", 4},
    {DType::kF16, "F16", 2},
    {DType::kBf16, "BF16", 2},
    {DType::kF64, "F64", 8},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
    {DType::kBool, "BOOL", 1},
    {DType::kQ4_0, "Q4_0", 18, 32},
    {DType::kQ4_1, "Q4_1", 20, 32},
    {DType::kQ5_0, "Q5_0", 22, 32},
    {DType::kQ5_1, "Q5_1", 24, 32},
    {DType::kQ8_0, "Q8_0", 34, 32},
    {DType::kQ2_K, "Q2_K", 84, 256},
    {DType::kQ3_K, "Q3_K", 110, 256},
    {DType::kQ4_K, "Q4_K", 144, 256},
    {DType::kQ5_K, "Q5_K", 176, 256},
    {DType::kQ6_K, "Q6_K", 210, 256},
    {DType::kIQ1_S, "IQ1_S", 50, 256},
    {DType::kIQ1_M, "IQ1_M", 56, 256},
    {DType::kIQ2_XXS, "IQ2_XXS", 66, 256},
    {DType::kIQ2_XS, "IQ2_XS", 74, 256},
    {DType::kIQ2_S, "IQ2_S", 82, 256},
    {DType::kIQ3_XXS, "IQ3_XXS", 98, 256},
    {DType::kIQ3_S, "IQ3_S", 110, 256},
    {DType::kIQ4_NL, "IQ4_NL", 18, 32},
    {DType::kIQ4_XS, "IQ4_XS", 136, 256},
    {DType::kMXFP4, "MXFP4", 17, 32},
    {DType::kNVFP4, "NVFP4", 36, 64},
    {DType::kInt4B, "INT4", 18, 32},
    {DType::kInt4F, "INT4_F32", 20, 32},
    {DType::kUint4B, "UINT4", 20, 32},
    {DType::kUint4H, "UINT4_F16", 20, 32},
    {DType::kUint4F, "UINT4_F32", 24, 32},
    {DType::kInt8B, "INT8", 34, 32},
    {DType::kInt8F, "INT8_F32", 36, 32},
    {DType::kUint8F, "UINT8_F32", 40, 32},
};

constexpr bool rows_follow_the_enumerators() {
  int index = 0;
  for (const DTypeRow& row : kDTypes) {
    if (static_cast<int>(row.dtype) != index++) return false;
  }
  return index == static_cast<int>(kFirstBlockType) + kNumBlockTypes;
}
static_assert(rows_follow_the_enumerators());

const DTypeRow& row_of(DType dtype) {
  GLINT_CHECK(static_cast<std::size_t>(dtype) < std::size(kDTypes));
  return kDTypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t dtype_bytes(DType dtype) {
  GLINT_CHECK(!is_block_type(dtype));
  return row_of(dtype).nbytes;
}

BlockSize block_size(DType dtype) {
  return {row_of(dtype).elements, row_of(dtype).nbytes};
}

std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name && !is_block_type(row.dtype)) return row.dtype;
  }
  return std::nullopt;
}

float e4m3_to_float(std::uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // The same fields in a float16, whose exponent is biased by 8 more.
  const int half = (bits & 0x80) << 8 | (bits & 0x7f) << 7;
  return f16_to_float(static_cast<std::uint16_t>(half)) * 0x1p8f;
}

float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 2^16 and up
  std::uint32_t half;
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the unit of float16 is 2^-24, that of float32 between 0.5 and 1: adding 0.5
    // rounds to it, nearest even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace glint
