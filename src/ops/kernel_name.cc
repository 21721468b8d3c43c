#include "ops/kernel_name.h"

#include <fmt/format.h>

#include "kernels/amx/panel.h"

namespace glint {
namespace {

std::string float_name(Isa isa) {
  if (isa == Isa::kScalar) return "float32 loops (scalar)";
  return isa == Isa::kAvx2 ? "float32 FMA (AVX2)" : "float32 FMA (AVX-512)";
}

std::string int8_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "int8 loops (scalar)";
    case Isa::kAvx2:
      break;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      if (has_vnni512()) return "int8 VNNI (AVX-512)";
      break;
    case Isa::kAmx:
      return fmt::format("int8 tiles (AMX), VNNI below {} rows", kFewTileRows);
  }
  return "int8 pairs (AVX2)";
}

}  // namespace

std::string kernel_name(Isa isa, DType type, Compute compute) {
  if (is_block_type(type)) {
    // Without VNNI the AVX-512 table takes all products of low-bit weights from AVX2.
    const bool by_avx2 = isa == Isa::kAvx512 && !has_vnni512();
    return compute == Compute::kF32 ? "widened, " + float_name(by_avx2 ? Isa::kAvx2 : isa)
                                    : int8_name(isa);
  }
  if (compute == Compute::kBf16 && (type == DType::kBf16 || type == DType::kF8E4M3)) {
    const std::string widened = type == DType::kBf16 ? "" : "widened to bf16, ";
    if (isa == Isa::kAmx) return widened + "bf16 tiles (AMX)";
    if (isa == Isa::kAvx512Bf16) return widened + "bf16 pairs (AVX-512)";
  }
  return (type == DType::kF32 ? "" : "widened, ") + float_name(isa);
}

}  // namespace glint
