#include "tensor/panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
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
  for (const BlockSamples& samples : all_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    for (const int num_rows : {1, 3, 16}) {
      for (const std::size_t blocks : {1u, 2u, 5u}) expect_rows_survive(samples, num_rows, blocks);
    }
  }
}

// Where bit `bit` of the code of register v is, as tensor/panel.h tells it: register and bit.
struct BitPlace {
  std::size_t plane;
  unsigned bit;
};

BitPlace place_of(int code_bits, unsigned v, unsigned bit) {
  if (code_bits == 8) return {v, bit};
  if (code_bits >= 4 && bit < 4) return {v % 4, bit + (v >= 4 ? 4 : 0)};
  if (code_bits <= 3 && bit < 2) return {v / 4, 2 * (v % 4) + bit};
  if (code_bits == 6) return {4 + v / 4, 2 * (v % 4) + bit - 4};
  return {code_bits == 5 ? 4u : 2u, v};
}

void append16(std::vector<std::byte>& bytes, std::uint16_t value) {
  bytes.push_back(static_cast<std::byte>(value & 255));
  bytes.push_back(static_cast<std::byte>(value >> 8));
}

// The panel of sixteen rows of one block each, written down part after part.
std::vector<std::byte> spelled_out(const PanelFormat& format, std::span<const BlockParts> rows) {
  const std::size_t k = block_size(format.type).elements;
  std::vector<std::byte> panel(k / 32 * 64 * static_cast<std::size_t>(format.code_bits));
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < k; ++column) {
      for (unsigned bit = 0; bit < static_cast<unsigned>(format.code_bits); ++bit) {
        const unsigned set = rows[row].codes[column] >> bit & 1u;
        const BitPlace at = place_of(format.code_bits, static_cast<unsigned>(column % 32 / 4), bit);
        panel[(column / 32 * static_cast<std::size_t>(format.code_bits) + at.plane) * 64 + 4 * row +
              column % 4] |= static_cast<std::byte>(set << at.bit);
      }
    }
  }
  const std::size_t groups = k / static_cast<std::size_t>(format.group);
  if (format.is_super()) {
    for (const BlockParts& row : rows) append16(panel, row.d);
    if (format.has_min)
      for (const BlockParts& row : rows) append16(panel, row.dmin);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    for (const BlockParts& row : rows) {
      if (format.is_super()) {
        panel.push_back(std::byte{row.byte_scale[g]});
      } else if (format.scale == PanelScale::kFloat) {
        const auto bits = std::bit_cast<std::uint32_t>(row.float_scale[g]);
        append16(panel, static_cast<std::uint16_t>(bits));
        append16(panel, static_cast<std::uint16_t>(bits >> 16));
      } else {
        append16(panel, row.half_scale[g]);
      }
    }
  }
  const bool own_minima = format.has_min && format.scale != PanelScale::kSuperNibbles;
  for (std::size_t g = 0; own_minima && g < groups; ++g) {
    for (const BlockParts& row : rows) {
      if (format.is_super())
        panel.push_back(std::byte{row.byte_min[g]});
      else
        append16(panel, row.half_min[g]);
    }
  }
  for (std::size_t g = 0; format.has_zeros && g < groups; ++g) {
    for (const BlockParts& row : rows) panel.push_back(std::byte{row.zero[g]});
  }
  panel.resize((panel.size() + 63) / 64 * 64);
  return panel;
}

TEST(Panel, bytes_lie_where_the_header_says) {
  for (const BlockSamples& samples : all_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    const PanelFormat& format = panel_format(samples.type);
    const BlockSize size = block_size(samples.type);
    std::vector<BlockParts> rows(16);
    const std::byte* first =
        samples.raw.data() + 20 * size.bytes;  // odd blocks, then ordinary ones
    for (std::size_t row = 0; row < 16; ++row)
      split_block(samples.type, first + row * size.bytes, rows[row]);
    std::vector<std::byte> panel(format.panel_bytes(size.elements), std::byte{0xcd});
    pack_panel(samples.type, first, size.bytes, 16, size.elements, panel.data());
    EXPECT_EQ(panel, spelled_out(format, rows));
  }
}

TEST(Panel, codes_are_found_one_by_one_and_are_small_enough) {
  for (const BlockSamples& samples : all_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    const PanelFormat& format = panel_format(samples.type);
    const BlockSize size = block_size(samples.type);
    const std::size_t blocks = 3;
    std::vector<std::byte> panel(format.panel_bytes(blocks * size.elements));
    pack_panel(samples.type, samples.raw.data() + 30 * size.bytes, blocks * size.bytes, 5,
               blocks * size.elements, panel.data());
    BlockParts parts;
    for (std::size_t block = 0; block < 5 * blocks; ++block) {
      split_block(samples.type, samples.raw.data() + (30 + block) * size.bytes, parts);
      for (std::size_t i = 0; i < size.elements; ++i) {
        ASSERT_LT(parts.codes[i], 1 << format.code_bits);
        ASSERT_EQ(panel_code(format, panel.data(), static_cast<int>(block / blocks),
                             block % blocks * size.elements + i),
                  parts.codes[i]);
      }
    }
  }
}

TEST(Panel, missing_rows_and_rounding_up_are_zero) {
  for (const BlockSamples& samples : all_block_samples()) {
    SCOPED_TRACE(dtype_name(samples.type));
    const PanelFormat& format = panel_format(samples.type);
    const BlockSize size = block_size(samples.type);
    std::vector<std::byte> panel(format.panel_bytes(size.elements), std::byte{0xcd});
    pack_panel(samples.type, samples.raw.data(), size.bytes, 0, size.elements, panel.data());
    EXPECT_EQ(panel, std::vector<std::byte>(panel.size()));
  }
}

TEST(Panel, types_of_one_layout_still_have_formats_of_their_own) {
  for (int i = 0; i < kNumBlockTypes; ++i) {
    const auto type = static_cast<DType>(static_cast<int>(kFirstBlockType) + i);
    EXPECT_EQ(panel_format(type).type, type);
    EXPECT_EQ(block_size(type).elements % static_cast<std::size_t>(panel_format(type).group), 0u);
  }
}

TEST(PanelDeathTest, a_width_of_broken_blocks_aborts) {
  std::vector<std::byte> memory(4096);
  EXPECT_DEATH(pack_panel(DType::kQ4_K, memory.data(), 144, 1, 128, memory.data()),
               "internal error");
  EXPECT_DEATH(panel_format(DType::kBf16), "internal error");
}

}  // namespace
}  // namespace glint
