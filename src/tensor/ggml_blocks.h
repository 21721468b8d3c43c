// The block types of GGUF files: their exact values. A row is a sequence of blocks, a block codes
// block_size(type).elements neighbours with shared scales. Layouts as ggml writes them
// (github.com/ggml-org/ggml, ggml-common.h); every bit of the values equals the `gguf` package's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace glint {

// `count` blocks of any block type (tensor/int_blocks.h too) as float32, count *
// block_size(type).elements values.
void decode_blocks(DType type, const std::byte* blocks, std::size_t count, float* out);

// The nearest Q8_0 or Q4_0 blocks of n floats, n a multiple of 32. Q8_0: scale max|x| / 127; Q4_0:
// of several scales around max|x| / 8, the one with the least squared error.
void encode_q8_0(const float* x, std::size_t n, std::byte* blocks);
void encode_q4_0(const float* x, std::size_t n, std::byte* blocks);

// Code books: the elements that an index of an i-quant stands for, before sign and scale.
std::span<const std::uint8_t[8]> iq2_xxs_grid();  // 256 entries
std::span<const std::uint8_t[8]> iq2_xs_grid();   // 512
std::span<const std::uint8_t[8]> iq2_s_grid();    // 1024
std::span<const std::uint8_t[4]> iq3_xxs_grid();  // 256
std::span<const std::uint8_t[4]> iq3_s_grid();    // 512
std::span<const std::int8_t[8]> iq1_grid();       // 2048, elements -1, 0, 1
// The eight signs that a 7-bit index of IQ2_XXS, IQ2_XS and IQ3_XXS stands for, as bits (set:
// negative); the eighth makes their number even.
std::uint8_t iq_signs(unsigned index);
// The sixteen values of IQ4_NL and IQ4_XS; those of MXFP4 and NVFP4, doubled.
std::span<const std::int8_t, 16> iq4_values();
std::span<const std::int8_t, 16> fp4_values();

}  // namespace glint
