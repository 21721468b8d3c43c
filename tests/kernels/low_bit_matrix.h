// Random low-bit weights, as rows of blocks and as panels.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernel_test.h"
#include "tensor/ggml_blocks.h"
#include "tensor/int_blocks.h"
#include "tensor/panel.h"

namespace glint::test {

inline std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

inline std::vector<DType> block_types() {
  std::vector<DType> types;
  for (int i = 0; i < kNumBlockTypes; ++i)
    types.push_back(static_cast<DType>(static_cast<int>(kFirstBlockType) + i));
  return types;
}

inline std::size_t index_of(DType type) {
  return static_cast<std::size_t>(type) - static_cast<std::size_t>(kFirstBlockType);
}

// Where a block's float16 scales and minima are.
inline std::vector<std::size_t> half_places(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kIQ1_M:
    case DType::kMXFP4:
    case DType::kNVFP4:
    case DType::kInt4B:
    case DType::kInt4F:
    case DType::kUint4B:
    case DType::kUint4F:
    case DType::kInt8B:
    case DType::kInt8F:
    case DType::kUint8F:
      return {};
    default:
      return {0};
  }
}

// A float16 of either sign between 2^-7 and 2^-4.
inline std::uint16_t small_half(Random& random) {
  const int exponent = 8 + random.below(3);
  return static_cast<std::uint16_t>(random.below(2) << 15 | exponent << 10 | random.below(1024));
}

// Random codes and group scales under small scales of blocks; or codes and group scales of one byte
// over and over.
inline void fill_block(Random& random, DType type, std::optional<int> byte, std::byte* block) {
  for (std::size_t i = 0; i < block_size(type).bytes; ++i)
    block[i] = static_cast<std::byte>(byte.value_or(random.below(256)));
  for (const std::size_t at : half_places(type)) {
    const std::uint16_t half = small_half(random);
    std::memcpy(block + at, &half, 2);
  }
  const IntBlockLayout integers = int_block_layout(type);
  if (is_int_block(type)) {
    const float scale = random.uniform(-1.0f, 1.0f) * 0x1p-5f;
    const bf16 narrow = bf16::from_float(scale);
    if (integers.scale == DType::kF32) std::memcpy(block, &scale, 4);
    if (integers.scale == DType::kBf16) std::memcpy(block, &narrow, 2);
  }
  if (type == DType::kMXFP4) block[0] = static_cast<std::byte>(120 + random.below(8));
  if (type == DType::kNVFP4) {
    for (int i = 0; i < 4; ++i) block[i] = static_cast<std::byte>(random.below(0x50));
  }
  if (type == DType::kIQ1_M) {
    const std::uint16_t half = small_half(random);
    for (int i = 0; i < 4; ++i) {  // four bits of it on top of each of four words
      std::byte& top = block[49 + 2 * i];
      top = (top & std::byte{0x0f}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
    }
  }
}

// One matrix as rows of blocks, which do not follow each other without gaps, and as panels.
class LowBitMatrix {
 public:
  LowBitMatrix(Random& random, DType type, int n, int k, std::optional<int> byte = {})
      : type_(type),
        n_(n),
        k_(k),
        stride_(size(k) / block_size(type).elements * block_size(type).bytes + 3),
        rows_(size(n) * stride_ - 3),
        panels_(panel_stride() * size((n + kPanelRows - 1) / kPanelRows)) {
    for (int row = 0; row < n; ++row) {
      std::byte* at = rows_.data() + size(row) * stride_;
      for (std::size_t i = 0; i < size(k) / block_size(type).elements; ++i)
        fill_block(random, type, byte, at + i * block_size(type).bytes);
    }
    for (int row = 0; row < n; row += kPanelRows) {
      pack_panel(type, rows_.data() + size(row) * stride_, stride_, std::min(n - row, kPanelRows),
                 size(k), panels_.data() + size(row / kPanelRows) * panel_stride());
    }
  }

  DType type() const { return type_; }
  int n() const { return n_; }
  int k() const { return k_; }
  const std::byte* rows() const { return rows_.data(); }
  std::size_t row_stride() const { return stride_; }
  const std::byte* panels() { return panels_.data(); }
  std::size_t panel_stride() const { return panel_format(type_).panel_bytes(size(k_)); }

  std::vector<float> row(int index) const {
    std::vector<float> values(size(k_));
    decode_blocks(type_, rows_.data() + size(index) * stride_,
                  size(k_) / block_size(type_).elements, values.data());
    return values;
  }

 private:
  DType type_;
  int n_, k_;
  std::size_t stride_;
  std::vector<std::byte> rows_;
  Block panels_;
};

}  // namespace glint::test
