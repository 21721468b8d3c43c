#include "tensor/panel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace glint {
namespace {

constexpr std::size_t kPlane = 64;  // bytes of one register of codes

constexpr auto kFormats = [] {
  std::array<PanelFormat, kNumBlockTypes> formats;
  for (int i = 0; i < kNumBlockTypes; ++i)
    formats[static_cast<std::size_t>(i)] =
        make_panel_format(static_cast<DType>(static_cast<int>(kFirstBlockType) + i));
  return formats;
}();

constexpr bool every_type_has_a_format() {
  return std::ranges::all_of(kFormats, [](const PanelFormat& f) { return f.code_bits != 0; });
}
static_assert(every_type_has_a_format());

// Four codes, a byte each, that a row has in register v of a step.
std::uint32_t four_codes(const std::uint8_t* codes, int v) {
  std::uint32_t word;
  std::memcpy(&word, codes + 4 * v, 4);
  return word;
}

void put_word(std::byte* step, int plane, int row, std::uint32_t word) {
  std::memcpy(step + static_cast<std::size_t>(plane) * kPlane + 4 * row, &word, 4);
}

constexpr std::uint32_t every_byte(unsigned value) {
  return 0x01010101u * value;
}

void put_nibbles(const std::uint8_t* codes, int row, std::byte* step) {
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t low = four_codes(codes, j) & every_byte(15);
    const std::uint32_t high = four_codes(codes, j + 4) & every_byte(15);
    put_word(step, j, row, low | high << 4);
  }
}

// Two registers from `plane` on of the pairs of bits at `shift`.
void put_pairs(const std::uint8_t* codes, int shift, int row, int plane, std::byte* step) {
  for (int j = 0; j < 2; ++j) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i)
      word |= (four_codes(codes, 4 * j + i) >> shift & every_byte(3)) << (2 * i);
    put_word(step, plane + j, row, word);
  }
}

// One register of the bits at `shift`.
void put_bits(const std::uint8_t* codes, int shift, int row, int plane, std::byte* step) {
  std::uint32_t word = 0;
  for (int v = 0; v < 8; ++v) word |= (four_codes(codes, v) >> shift & every_byte(1)) << v;
  put_word(step, plane, row, word);
}

// The 32 codes of one row into a step.
void put_step(int code_bits, const std::uint8_t* codes, int row, std::byte* step) {
  switch (code_bits) {
    case 8:
      for (int v = 0; v < 8; ++v) put_word(step, v, row, four_codes(codes, v));
      return;
    case 6:
      put_nibbles(codes, row, step);
      return put_pairs(codes, 4, row, 4, step);
    case 5:
      put_nibbles(codes, row, step);
      return put_bits(codes, 4, row, 4, step);
    case 4:
      return put_nibbles(codes, row, step);
    case 3:
      put_pairs(codes, 0, row, 0, step);
      return put_bits(codes, 2, row, 2, step);
    case 2:
      return put_pairs(codes, 0, row, 0, step);
    default:
      GLINT_CHECK(false);
  }
}

// Where the bytes of one row at one group are.
struct ScalePlaces {
  std::size_t d, dmin, scale, min, zero;
};

// Those of row 0, group 0 of a panel of k columns.
ScalePlaces first_places(const PanelFormat& format, std::size_t k) {
  return {format.d_at(k), format.dmin_at(k), format.scales_at(k), format.mins_at(k),
          format.zeros_at(k)};
}

ScalePlaces scale_places(const PanelFormat& format, const ScalePlaces& start, std::size_t group,
                         std::size_t row) {
  const std::size_t super = group * static_cast<std::size_t>(format.group) / 256;
  const std::size_t d = 2 * (kPanelRows * super + row);
  const std::size_t lane = kPanelRows * group + row;
  const std::size_t at = format.scale_bytes() / kPanelRows * lane;
  return {start.d + d, start.dmin + d, start.scale + at, start.min + at, start.zero + lane};
}

// Calls move(panel offset, the field of `parts`) for every scale of a block, which is `groups`
// groups from `first` on, so that writing and reading a panel cannot differ.
template <typename Parts, typename Move>
void each_scale(const PanelFormat& format, const ScalePlaces& start, std::size_t first,
                std::size_t groups, std::size_t row, Parts& parts, const Move& move) {
  if (format.is_super()) {
    const ScalePlaces at = scale_places(format, start, first, row);
    move(at.d, parts.d);
    if (format.has_min) move(at.dmin, parts.dmin);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    const ScalePlaces at = scale_places(format, start, first + g, row);
    if (format.has_zeros) move(at.zero, parts.zero[g]);
    if (format.scale == PanelScale::kFloat) {
      move(at.scale, parts.float_scale[g]);
      continue;
    }
    if (!format.is_super()) {
      move(at.scale, parts.half_scale[g]);
      if (format.has_min) move(at.min, parts.half_min[g]);
      continue;
    }
    move(at.scale, parts.byte_scale[g]);
    if (format.has_min && format.scale != PanelScale::kSuperNibbles)
      move(at.min, parts.byte_min[g]);
  }
}

struct GroupScale {
  float scale, min;
};

GroupScale group_scale(const PanelFormat& format, const BlockParts& parts, std::size_t g) {
  if (format.scale == PanelScale::kFloat) return {parts.float_scale[g], 0.0f};
  if (!format.is_super()) {
    const std::uint16_t bits = parts.half_scale[g];
    return {format.scale == PanelScale::kBf16 ? bf16{bits}.to_float() : f16_to_float(bits),
            format.has_min ? f16_to_float(parts.half_min[g]) : 0.0f};
  }
  const float d = f16_to_float(parts.d) * format.unit;
  const std::uint8_t byte = parts.byte_scale[g];
  const bool nibbles = format.scale == PanelScale::kSuperNibbles;
  float scale = d * static_cast<float>(nibbles ? byte & 15 : byte);
  if (format.scale == PanelScale::kSuperS8)
    scale = d * static_cast<float>(static_cast<std::int8_t>(byte));
  if (!format.has_min) return {scale, 0.0f};
  const int min = nibbles ? byte >> 4 : parts.byte_min[g];
  return {scale, -(f16_to_float(parts.dmin) * static_cast<float>(min))};
}

// The code of a row at column `column` of a step: put_step undone.
int step_code(int code_bits, const std::byte* step, std::size_t row, std::size_t column) {
  const auto v = static_cast<unsigned>(column / 4);
  const auto byte = [&](unsigned plane) {
    return std::to_integer<unsigned>(step[plane * kPlane + 4 * row + column % 4]);
  };
  const unsigned nibble = code_bits == 8 ? 0 : byte(v % 4) >> (v / 4 * 4) & 15;
  const unsigned shift = 2 * (v % 4);
  switch (code_bits) {
    case 8:
      return static_cast<int>(byte(v));
    case 6:
      return static_cast<int>(nibble | (byte(4 + v / 4) >> shift & 3) << 4);
    case 5:
      return static_cast<int>(nibble | (byte(4) >> v & 1) << 4);
    case 4:
      return static_cast<int>(nibble);
    case 3:
      return static_cast<int>((byte(v / 4) >> shift & 3) | (byte(2) >> v & 1) << 2);
    default:
      return static_cast<int>(byte(v / 4) >> shift & 3);
  }
}

}  // namespace

const PanelFormat& panel_format(DType block_type) {
  GLINT_CHECK(is_block_type(block_type));
  return kFormats[static_cast<std::size_t>(block_type) - static_cast<std::size_t>(kFirstBlockType)];
}

int panel_code(const PanelFormat& format, const std::byte* panel, int row, std::size_t column) {
  const std::byte* step = panel + column / kPanelStep * format.step_bytes();
  return step_code(format.code_bits, step, static_cast<std::size_t>(row), column % kPanelStep);
}

void decode_parts(const PanelFormat& format, const BlockParts& parts, float* out) {
  const std::size_t n = block_size(format.type).elements;
  const auto group = static_cast<std::size_t>(format.group);
  for (std::size_t begin = 0; begin < n; begin += group) {
    const GroupScale s = group_scale(format, parts, begin / group);
    const int zero = format.has_zeros ? parts.zero[begin / group] : format.zero();
    for (std::size_t i = begin; i < begin + group; ++i) {
      const int code = parts.codes[i];
      const int whole =
          format.has_table ? format.table[static_cast<std::size_t>(code)] : code - zero;
      out[i] = s.scale * static_cast<float>(whole);
      if (format.has_min) out[i] += s.min;
    }
  }
}

void decode_panel_row(const PanelFormat& format, const std::byte* panel, int row, std::size_t k,
                      std::span<float> out) {
  const std::size_t n = block_size(format.type).elements;
  GLINT_CHECK(out.size() == k && k % n == 0 && row >= 0 && row < kPanelRows);
  const ScalePlaces start = first_places(format, k);
  BlockParts parts{};
  for (std::size_t begin = 0; begin < k; begin += n) {
    for (std::size_t i = 0; i < n; ++i)
      parts.codes[i] = static_cast<std::uint8_t>(panel_code(format, panel, row, begin + i));
    each_scale(format, start, format.groups(begin), format.groups(n), static_cast<std::size_t>(row),
               parts,
               [&](std::size_t at, auto& field) { std::memcpy(&field, panel + at, sizeof field); });
    decode_parts(format, parts, out.data() + begin);
  }
}

void pack_panel_scales(DType type, const std::byte* rows, std::size_t row_bytes, int num_rows,
                       std::size_t k, std::byte* panel) {
  const PanelFormat& format = panel_format(type);
  const BlockSize block = block_size(type);
  GLINT_CHECK(num_rows >= 0 && num_rows <= kPanelRows && k % block.elements == 0);
  // Rows beyond the matrix and the bytes that round up.
  std::memset(panel + format.codes_bytes(k), 0, format.panel_bytes(k) - format.codes_bytes(k));
  const std::size_t all = format.groups(k), groups = format.groups(block.elements);
  const ScalePlaces start = first_places(format, k);
  BlockParts parts{};
  for (int row = 0; row < num_rows; ++row) {
    const std::byte* from = rows + static_cast<std::size_t>(row) * row_bytes;
    for (std::size_t first = 0; first < all; first += groups, from += block.bytes) {
      split_scales(type, from, parts);
      each_scale(format, start, first, groups, static_cast<std::size_t>(row), std::as_const(parts),
                 [&](std::size_t at, const auto& field) {
                   std::memcpy(panel + at, &field, sizeof field);
                 });
    }
  }
}

void pack_panel(DType type, const std::byte* rows, std::size_t row_bytes, int num_rows,
                std::size_t k, std::byte* panel) {
  pack_panel_scales(type, rows, row_bytes, num_rows, k, panel);
  const PanelFormat& format = panel_format(type);
  const BlockSize block = block_size(type);
  if (num_rows < kPanelRows) std::memset(panel, 0, format.codes_bytes(k));
  std::uint8_t codes[256];
  for (std::size_t begin = 0; begin < k; begin += block.elements) {
    for (int row = 0; row < num_rows; ++row) {
      split_codes(
          type,
          rows + static_cast<std::size_t>(row) * row_bytes + begin / block.elements * block.bytes,
          codes);
      for (std::size_t i = 0; i < block.elements; i += kPanelStep)
        put_step(format.code_bits, codes + i, row,
                 panel + (begin + i) / kPanelStep * format.step_bytes());
    }
  }
}

}  // namespace glint
