// The stored blocks of tests/data/gguf/types.safetensors: per type raw bytes and the float32 values
// that the `gguf` package (PyPI) gives them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace glint {

struct BlockSamples {
  DType type = DType::kF32;
  std::size_t count = 0;
  std::vector<std::byte> raw;  // count blocks
  std::vector<float> values;
};

// Aborts where the file is not what it should be.
std::vector<BlockSamples> load_block_samples();

// Random blocks of the types of tensor/int_blocks.h, taken apart here by themselves.
std::vector<BlockSamples> int_block_samples();
std::vector<BlockSamples> all_block_samples();

}  // namespace glint
