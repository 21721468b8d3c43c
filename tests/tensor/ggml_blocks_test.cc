#include "tensor/ggml_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "block_samples.h"

namespace glint {
namespace {

TEST(GgmlBlocks, every_stored_block_decodes_to_equal_bits) {
  for (const BlockSamples& samples : load_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    std::vector<float> decoded(samples.values.size());
    decode_blocks(samples.type, samples.raw.data(), samples.count, decoded.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(decoded[i]) ==
          std::bit_cast<std::uint32_t>(samples.values[i]))
        continue;
      if (wrong++ == 0)
        ADD_FAILURE() << "element " << i << " is " << decoded[i] << ", not " << samples.values[i];
    }
    EXPECT_EQ(wrong, 0u);
  }
}

}  // namespace
}  // namespace glint
