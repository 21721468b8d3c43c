#include "tensor/panel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "block_samples.h"
#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

bool same(float a, float b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Packs rows of sample blocks and compares every row with what the blocks decode to.
void expect_rows_survive(const BlockSamples& samples, int num_rows, std::size_t blocks_per_row) {
  const PanelFormat& format = panel_format(samples.type);
  const BlockSize size = block_size(samples.type);
  const std::size_t k = blocks_per_row * size.elements;
  const std::size_t row_bytes = blocks_per_row * size.bytes;
  std::vector<std::byte> rows;
  for (std::size_t b = 0; b < static_cast<std::size_t>(num_rows) * blocks_per_row; ++b) {
    const auto* block = samples.raw.data() + b * 7 % samples.count * size.bytes;
    rows.insert(rows.end(), block, block + size.bytes);
  }
  std::vector<std::byte> panel(format.panel_bytes(k), std::byte{0xcd});
  pack_panel(samples.type, rows.data(), row_bytes, num_rows, k, panel.data());

  std::vector<float> expected(k), decoded(k);
  for (int row = 0; row < kPanelRows; ++row) {
    std::ranges::fill(expected, 0.0f);
    if (row < num_rows)
      decode_blocks(samples.type, rows.data() + static_cast<std::size_t>(row) * row_bytes,
                    blocks_per_row, expected.data());
    decode_panel_row(format, panel.data(), row, k, decoded);
    for (std::size_t i = 0; i < k; ++i)
      ASSERT_TRUE(same(decoded[i], expected[i]))
          << "row " << row << ", column " << i << ": " << decoded[i] << ", not " << expected[i];
  }
}

TEST(Panel, rows_of_every_type_survive_packing) {
  for (const BlockSamples& samples : load_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    for (const int num_rows : {1, 3, 16}) {
      for (const std::size_t blocks : {1u, 2u, 5u}) expect_rows_survive(samples, num_rows, blocks);
    }
  }
}

}  // namespace
}  // namespace glint
