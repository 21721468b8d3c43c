#include "kernels/scalar/panel.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/int8_rows.h"
#include "kernels/table.h"
#include "tensor/panel.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void write(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// Activations as int8_rows.h has them.
struct Int8Rows {
  static constexpr int kBlock = kInt8Block;

  static std::size_t packed_bytes(int rows, int k) { return int8_rows_bytes(rows, k); }

  // Writes `block` of a row of k from its `count` values, padded with zeros.
  static void pack_block(const float* x, int count, int block, int k, void* packed, int row) {
    Int8Chunk& chunk = int8_chunk(packed, k, row, block);
    const int lane = row % kInt8Rows;
    for (auto& sums : chunk.sum16) sums[lane] = 0;
    for (auto& sums : chunk.sum32) sums[lane] = 0;
    for (int g = 0; g < kBlock / kInt8Group; ++g) {
      const int first = g * kInt8Group;
      float largest = 0;
      for (int i = first; i < std::min(first + kInt8Group, count); ++i) {
        if (std::abs(x[i]) > largest) largest = std::abs(x[i]);
      }
      const bool none = largest < kInt8Smallest;
      const float factor = none ? 0.0f : 127.0f / largest;
      chunk.scale[g][lane] = none ? 0.0f : largest / 127.0f;
      for (int i = first; i < first + kInt8Group; ++i) {
        const std::int8_t q = i < count ? rounded(x[i] * factor) : std::int8_t{0};
        chunk.q[lane][i] = q;
        chunk.sum16[i / 16][lane] += q;
        chunk.sum32[g][lane] += q;
      }
    }
  }

  // To the nearest whole number, even when halfway; NaN to some number.
  static std::int8_t rounded(float x) {
    if (!(x > -127.0f)) return -127;
    return static_cast<std::int8_t>(std::nearbyint(std::min(x, 127.0f)));
  }
};

// Activations as float32, padded with zeros to a multiple of a panel's step.
struct F32Rows {
  static constexpr int kBlock = kPanelStep;

  static std::size_t row_bytes(int k) {
    return size((k + kBlock - 1) / kBlock * kBlock) * sizeof(float);
  }
  static std::size_t packed_bytes(int rows, int k) { return size(rows) * row_bytes(k); }

  static void pack_block(const float* x, int count, int block, int k, void* packed, int row) {
    std::byte* to = static_cast<std::byte*>(packed) + size(row) * row_bytes(k);
    for (int i = 0; i < kBlock; ++i)
      write(to + size(block * kBlock + i) * sizeof(float), i < count ? x[i] : 0.0f);
  }
};

// The scale and the minimum of one group of one panel row.
struct GroupScale {
  float scale, min;
};

int group_zero(const PanelFormat& f, const std::byte* panel, std::size_t k, std::size_t group,
               std::size_t row) {
  if (!f.has_zeros) return f.zero();
  return read<std::uint8_t>(panel + f.zeros_at(k) + group * kPanelRows + row);
}

float half(const std::byte* at) {
  return f16_to_float(read<std::uint16_t>(at));
}

GroupScale group_scale(const PanelFormat& f, const std::byte* panel, std::size_t k,
                       std::size_t group, std::size_t row) {
  const std::size_t at = group * kPanelRows + row;
  const std::byte* scales = panel + f.scales_at(k);
  const std::byte* mins = panel + f.mins_at(k);
  if (f.scale == PanelScale::kFloat) return {read<float>(scales + 4 * at), 0};
  if (f.scale == PanelScale::kBf16) return {read<bf16>(scales + 2 * at).to_float(), 0};
  if (f.scale == PanelScale::kHalf)
    return {half(scales + 2 * at), f.has_min ? half(mins + 2 * at) : 0};

  const std::size_t super = (group * size(f.group) / 256 * kPanelRows + row) * 2;
  const float d = half(panel + f.d_at(k) + super) * f.unit;
  const float dmin = f.has_min ? half(panel + f.dmin_at(k) + super) : 0;
  const auto byte = read<std::uint8_t>(scales + at);
  if (f.scale == PanelScale::kSuperS8) return {d * read<std::int8_t>(scales + at), 0};
  if (f.scale == PanelScale::kSuperNibbles)
    return {d * static_cast<float>(byte & 15), -(dmin * static_cast<float>(byte >> 4))};
  return {d * byte, f.has_min ? -(dmin * read<std::uint8_t>(mins + at)) : 0};
}

// The product with int8 rows, added up as int8_rows.h says.
void multiply_int8(const PanelFormat& f, const PanelArgs& a) {
  std::fill_n(a.out, a.rows * kPanelRows, 0.0f);
  for (int n = 0; n < kPanelRows; ++n) {
    for (int block = 0; block < int8_blocks(a.k); ++block) {
      const int first = block * kInt8Block;
      const int count = std::min(a.k - first, kInt8Block);
      int weights[kInt8Block];
      for (int i = 0; i < count; ++i) {
        const int code = panel_code(f, a.panel, n, size(first + i));
        const int zero = group_zero(f, a.panel, size(a.k), size((first + i) / f.group), size(n));
        weights[i] = f.has_table ? f.table[size(code)] : code - zero;
      }
      for (int row = 0; row < a.rows; ++row) {
        const Int8Chunk& x = int8_chunk(a.x, a.k, row, block);
        const int lane = row % kInt8Rows;
        float& total = a.out[row * kPanelRows + n];
        float part = 0;
        for (int begin = 0; begin < count; begin += f.group) {
          int product = 0, sum = 0;
          for (int i = begin; i < begin + f.group; ++i) {
            const int q = x.q[lane][i];
            product += q * weights[i];
            sum += q;
          }
          const GroupScale s =
              group_scale(f, a.panel, size(a.k), size((first + begin) / f.group), size(n));
          part = std::fma(static_cast<float>(product), s.scale, part);
          if (f.has_min) part = std::fma(static_cast<float>(sum), s.min, part);
          if ((begin + f.group) % kInt8Group != 0) continue;
          total = std::fma(part, x.scale[begin / kInt8Group][lane], total);
          part = 0;
        }
      }
    }
  }
}

// The product with float32 rows: one chain over k for each output.
void multiply_wide(const PanelFormat& f, const PanelArgs& a) {
  const std::span<float> w(reinterpret_cast<float*>(a.scratch), size(a.k));
  for (int n = 0; n < kPanelRows; ++n) {
    decode_panel_row(f, a.panel, n, size(a.k), w);
    for (int row = 0; row < a.rows; ++row) {
      const std::byte* x = a.x + size(row) * F32Rows::row_bytes(a.k);
      float sum = 0;
      for (int i = 0; i < a.k; ++i) sum = std::fma(read<float>(x + size(i) * 4), w[size(i)], sum);
      a.out[row * kPanelRows + n] = sum;
    }
  }
}

template <DType kType>
void int8_product(const PanelArgs& a) noexcept {
  multiply_int8(panel_format(kType), a);
}

template <DType kType>
void wide_product(const PanelArgs& a) noexcept {
  multiply_wide(panel_format(kType), a);
}

template <DType kType>
void pack_rows(const std::byte* rows, std::size_t row_bytes, int num_rows, std::size_t k,
               std::byte* panel) noexcept {
  pack_panel(kType, rows, row_bytes, num_rows, k, panel);
}

// Scratch of one call: what a product wants, k floats, and a panel packed on the way. No format has
// more than 19 bytes of panel for a column of k.
std::size_t product_scratch(int k) {
  return (size(k) * sizeof(float) + 63) / 64 * 64;
}
std::size_t panel_bound(int k) {
  return (size(k) * 19 + 127) / 64 * 64;
}

float gated(float gate, float up, float limit) {
  gate = std::min(gate, limit);
  return gate / (1.0f + std::exp(-gate)) * std::clamp(up, -limit, limit);
}

// Sixteen columns of one weight with up to kRowBlock rows of one packed matrix.
struct Tile {
  alignas(64) float values[kRowBlock * kPanelRows];

  float at(int row, int column) const { return values[row * kPanelRows + column]; }

  void multiply(const std::byte* x, int rows, int k, const std::byte* w, std::size_t w_stride,
                const PanelSource& source, int n, int columns, std::byte* scratch) {
    PanelArgs p;
    p.x = x;
    p.rows = rows;
    p.k = k;
    p.panel = w + size(n / kPanelRows) * w_stride;
    p.out = values;
    p.scratch = scratch;
    if (source.pack != nullptr) {
      std::byte* room = scratch + product_scratch(k);
      source.pack(w + size(n) * w_stride, w_stride, columns, size(k), room);
      p.panel = room;
    }
    source.product(p);
  }
};

template <typename Rows>
struct PanelMatmul {
  static constexpr int kBlock = Rows::kBlock;

  static std::size_t packed_bytes(int rows, int k) noexcept { return Rows::packed_bytes(rows, k); }

  static void pack(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows,
                   int k, void* out) noexcept {
    for (int row = 0; row < rows; ++row) {
      const float* from = x + size(row_index ? row_index[row] : row) * x_stride;
      for (int i = 0; i < k; i += kBlock)
        Rows::pack_block(from + i, std::min(k - i, kBlock), i / kBlock, k, out, row);
    }
  }

  static void matmul(const MatmulArgs& a) noexcept {
    Tile tile;
    for (int first = 0; first < a.rows; first += kRowBlock) {
      const int rows = std::min(a.rows - first, kRowBlock);
      const auto* x = static_cast<const std::byte*>(a.x) + packed_bytes(first, a.k);
      for (int n = a.n0; n < a.n1; n += kPanelRows) {
        const int columns = std::min(a.n1 - n, kPanelRows);
        tile.multiply(x, rows, a.k, a.w, a.w_stride, a.source, n, columns, a.scratch);
        for (int r = 0; r < rows; ++r) {
          const int row = first + r;
          float* y = a.y + size(a.y_rows ? a.y_rows[row] : row) * a.y_stride;
          for (int c = 0; c < columns; ++c) {
            float value = tile.at(r, c) * a.factor;
            if (a.row_scale) value *= a.row_scale[row];
            y[n + c] = a.accumulate ? y[n + c] + value : value;
          }
        }
      }
    }
  }

  static void gate_up(const GateUpArgs& a) noexcept {
    Tile gate, up;
    for (int first = 0; first < a.rows; first += kRowBlock) {
      const int rows = std::min(a.rows - first, kRowBlock);
      const auto* x = static_cast<const std::byte*>(a.x) + packed_bytes(first, a.k);
      for (int n = a.n0; n < a.n1; n += kBlock) {
        float values[kRowBlock][kBlock];
        const int width = std::min(a.n1 - n, kBlock);
        for (int c0 = 0; c0 < width; c0 += kPanelRows) {
          const int columns = std::min(width - c0, kPanelRows);
          gate.multiply(x, rows, a.k, a.w_gate, a.w_stride, a.gate_source, n + c0, columns,
                        a.scratch);
          up.multiply(x, rows, a.k, a.w_up, a.w_up_stride, a.up_source, n + c0, columns, a.scratch);
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < columns; ++c) {
              values[r][c0 + c] =
                  gated(gate.at(r, c) * a.gate_factor, up.at(r, c) * a.up_factor, a.limit);
            }
          }
        }
        for (int r = 0; r < rows; ++r)
          Rows::pack_block(values[r], width, n / kBlock, a.n_total, a.z, first + r);
      }
    }
  }

  static std::size_t scratch_bytes(int k) noexcept { return product_scratch(k) + panel_bound(k); }

  static MatmulKernels kernels() {
    return {packed_bytes, pack, matmul, gate_up, scratch_bytes, kBlock};
  }
};

template <std::size_t... kIndex>
void fill_types(KernelTable& table, std::index_sequence<kIndex...>) {
  constexpr auto type = [](std::size_t i) {
    return static_cast<DType>(static_cast<std::size_t>(kFirstBlockType) + i);
  };
  ((table.panel_int8[kIndex] = int8_product<type(kIndex)>), ...);
  ((table.panel_wide[kIndex] = wide_product<type(kIndex)>), ...);
  ((table.pack_panel[kIndex] = pack_rows<type(kIndex)>), ...);
}

}  // namespace

void fill_scalar_panels(KernelTable& table) {
  table.int8 = PanelMatmul<Int8Rows>::kernels();
  table.panel_f32 = PanelMatmul<F32Rows>::kernels();
  fill_types(table, std::make_index_sequence<kNumBlockTypes>());
}

}  // namespace glint
