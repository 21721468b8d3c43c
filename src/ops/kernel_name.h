// What multiplies with weights of a type, in words for people: the one description of which kernels
// the tables hold.
#pragma once

#include <string>

#include "kernels/isa.h"
#include "ops/matmul.h"
#include "tensor/dtype.h"

namespace glint {

// For a weight whose elements in memory are of `type`: "int8 tiles (AMX), VNNI below 12 rows".
// kF32, kBf16, kF16, kF8E4M3 and block types only.
std::string kernel_name(Isa isa, DType type, Compute compute);

}  // namespace glint
