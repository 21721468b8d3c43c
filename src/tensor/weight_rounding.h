// Rounding of float weights to the low-bit forms that `glint quantize` writes. Slow and careful:
// each group's scale is searched for the least squared error, not just taken from its largest
// value.
#pragma once

#include <cstdint>
#include <span>

namespace glint {

// Symmetric integers of `bits` bits (2 to 8): weights ~ scale * codes, codes in [-2^(bits - 1),
// 2^(bits - 1) - 1]. Returns the scale, positive and exact in bfloat16. Weights are finite; codes
// has as many entries.
float round_to_integers(std::span<const float> weights, int bits, std::span<std::int8_t> codes);

// The nearest e4m3 value (ties to even mantissas), saturated at +-448; NaN stays NaN.
std::uint8_t e4m3_from_float(float value);

}  // namespace glint
