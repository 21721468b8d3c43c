// Matrix products of low-bit weights, a panel of sixteen columns at a time (tensor/panel.h), over a
// vector type V. Included inside a target region.
//
// Rows is how activations are packed. A row of them is blocks of Rows::kBlock values, written by
// pack_block, which pads the last one. The products themselves come with the arguments
// (PanelSource).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/int8_rows.h"
#include "kernels/math-inl.h"
#include "kernels/results-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

// The first n floats at p, or all lanes if n is more, or none.
template <typename V>
typename V::Reg load_up_to(const float* p, int n) {
  if (n <= 0) return V::zero();
  return V::load_first(p, n < V::kLanes ? n : V::kLanes);
}

// int8 with a scale each kInt8Group values (int8_rows.h).
template <typename V>
struct Int8Rows {
  using Reg = typename V::Reg;
  static constexpr int kBlock = kInt8Block;

  static std::size_t packed_bytes(int rows, int k) { return int8_rows_bytes(rows, k); }

  static void pack_block(const float* x, int count, int block, int k, void* packed, int row) {
    Int8Chunk& chunk = int8_chunk(packed, k, row, block);
    const int lane = row % kInt8Rows;
    for (int g = 0; g < kBlock / kInt8Group; ++g) {
      const int first = g * kInt8Group;
      alignas(64) float values[kInt8Group];
      const float largest = load_group(x + first, count - first, values);
      const bool none = largest < kInt8Smallest;
      round_group(none ? 0.0f : 127.0f / largest, values);
      chunk.scale[g][lane] = none ? 0.0f : largest / 127.0f;
      std::int8_t codes[kInt8Group];
      for (int i = 0; i < kInt8Group; ++i) codes[i] = static_cast<std::int8_t>(values[i]);
      std::memcpy(chunk.q[lane] + first, codes, kInt8Group);
      std::int32_t sums[2] = {};
      for (int i = 0; i < kInt8Group; ++i) sums[i / 16] += codes[i];
      chunk.sum16[2 * g][lane] = sums[0];
      chunk.sum16[2 * g + 1][lane] = sums[1];
      chunk.sum32[g][lane] = sums[0] + sums[1];
    }
  }

  // Copies a group, padded with zeros, and returns its largest magnitude. NaN is passed over: the
  // second operand of max wins.
  static float load_group(const float* x, int count, float* values) {
    Reg largest = V::zero();
    for (int i = 0; i < kInt8Group; i += V::kLanes) {
      const Reg v = load_up_to<V>(x + i, count - i);
      V::store(values + i, v);
      largest = V::max(V::max(v, V::sub(V::zero(), v)), largest);
    }
    return max_of<V>(largest);
  }

  static void round_group(float factor, float* values) {
    for (int i = 0; i < kInt8Group; i += V::kLanes) {
      const Reg rounded = V::round(V::mul(V::load(values + i), V::set1(factor)));
      V::store(values + i, V::min(V::max(rounded, V::set1(-127.0f)), V::set1(127.0f)));
    }
  }
};

// float32, padded with zeros to a multiple of a panel's step.
template <typename V>
struct F32Rows {
  static constexpr int kBlock = kPanelStep;

  static std::size_t row_floats(int k) {
    return static_cast<std::size_t>((k + kBlock - 1) / kBlock * kBlock);
  }
  static std::size_t packed_bytes(int rows, int k) {
    return static_cast<std::size_t>(rows) * row_floats(k) * sizeof(float);
  }

  static void pack_block(const float* x, int count, int block, int k, void* packed, int row) {
    float* to = static_cast<float*>(packed) + static_cast<std::size_t>(row) * row_floats(k) +
                block * kBlock;
    for (int i = 0; i < kBlock; i += V::kLanes) V::store(to + i, load_up_to<V>(x + i, count - i));
  }
};

// kProductScratch(k): bytes of scratch, a multiple of 64, that the products want for themselves.
template <typename V, typename Rows, std::size_t (*kProductScratch)(int k)>
struct PanelMatmul {
  static constexpr int kBlock = Rows::kBlock;
  // Rows of one call of a product: a panel is packed, and its codes are taken apart, once for them.
  static constexpr int kMostRows = 128;
  static constexpr std::size_t kOutFloats = static_cast<std::size_t>(kMostRows) * kPanelRows;

  static std::size_t packed_bytes(int rows, int k) noexcept { return Rows::packed_bytes(rows, k); }

  static void pack(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows,
                   int k, void* out) noexcept {
    for (int row = 0; row < rows; ++row) {
      const float* from = x + static_cast<std::size_t>(row_index ? row_index[row] : row) * x_stride;
      for (int i = 0; i < k; i += kBlock)
        Rows::pack_block(from + i, least(k - i, kBlock), i / kBlock, k, out, row);
    }
  }

  static void matmul(const MatmulArgs& a) noexcept {
    const Scratch scratch(a.scratch, a.k);
    const Columns w{a.w, a.w_stride, a.source, a.k};
    for (int n = a.n0; n < a.n1; n += kPanelRows) {
      const int columns = least(a.n1 - n, kPanelRows);
      PanelArgs p;
      p.k = a.k;
      p.panel = w.panel(n, columns, scratch.panel);
      p.out = scratch.out;
      p.scratch = scratch.product;
      for (int row = 0; row < a.rows; row += kMostRows) {
        p.rows = least(a.rows - row, kMostRows);
        p.x = static_cast<const std::byte*>(a.x) + packed_bytes(row, a.k);
        p.next = row + p.rows == a.rows ? w.ahead(n + kPanelRows, a.n1) : nullptr;
        a.source.product(p);
        for (int r = 0; r < p.rows; ++r)
          write_products<V>(a, row + r, n, columns, p.out + r * kPanelRows);
      }
    }
  }

  static void gate_up(const GateUpArgs& a) noexcept {
    const Scratch scratch(a.scratch, a.k);
    for (int n = a.n0; n < a.n1; n += kBlock) {
      const int columns = least(a.n1 - n, kBlock);
      for (int row = 0; row < a.rows; row += kMostRows) {
        const int rows = least(a.rows - row, kMostRows);
        gated_block(a, scratch, row, rows, n, columns);
        for (int r = 0; r < rows; ++r) {
          alignas(64) float values[kBlock];
          for (int c = 0; c < columns; c += kPanelRows) {
            std::memcpy(values + c, scratch.gate_of(c) + r * kPanelRows,
                        kPanelRows * sizeof(float));
          }
          Rows::pack_block(values, columns, n / kBlock, a.n_total, a.z, row + r);
        }
      }
    }
  }

  static std::size_t scratch_bytes(int k) noexcept {
    return panel_bound(k) + kOutFloats * (1 + kBlock / kPanelRows) * sizeof(float) +
           kProductScratch(k);
  }

  static MatmulKernels kernels() {
    return {packed_bytes, pack, matmul, gate_up, scratch_bytes, kBlock};
  }

 private:
  static int least(int a, int b) { return a < b ? a : b; }

  // Bytes that hold a panel of any format: for each column of k the widest, kUint8F, has sixteen
  // codes and a 32nd of sixteen scales and zeros.
  static std::size_t panel_bound(int k) {
    return (static_cast<std::size_t>(k) * 19 + 127) / 64 * 64;
  }

  struct Scratch {
    std::byte* panel;  // a panel packed on the way
    float* out;        // [kMostRows, kPanelRows]
    float* gate;       // [kBlock / kPanelRows, kMostRows, kPanelRows]
    std::byte* product;

    Scratch(std::byte* base, int k)
        : panel(base),
          out(reinterpret_cast<float*>(base + panel_bound(k))),
          gate(out + kOutFloats),
          product(reinterpret_cast<std::byte*>(gate + kOutFloats * (kBlock / kPanelRows))) {}
    float* gate_of(int column) const {
      return gate + static_cast<std::size_t>(column / kPanelRows) * kOutFloats;
    }
  };

  // The columns of one weight, which lie as panels or as rows of blocks.
  struct Columns {
    const std::byte* w;
    std::size_t stride;
    const PanelSource& source;
    int k;

    // Columns [n, n + count) as a panel: where it lies, or packed at `room`.
    const std::byte* panel(int n, int count, std::byte* room) const {
      if (source.pack == nullptr) return w + static_cast<std::size_t>(n / kPanelRows) * stride;
      source.pack(w + static_cast<std::size_t>(n) * stride, stride, count,
                  static_cast<std::size_t>(k), room);
      return room;
    }
    // Where the panel of column n lies, to be fetched ahead; null if there is none before `end`.
    const std::byte* ahead(int n, int end) const {
      if (source.pack != nullptr || n >= end) return nullptr;
      return w + static_cast<std::size_t>(n / kPanelRows) * stride;
    }
  };

  // silu(gate) * up of columns [n, n + columns) and some rows into scratch.gate.
  static void gated_block(const GateUpArgs& a, const Scratch& scratch, int row, int rows, int n,
                          int columns) {
    const Columns gate{a.w_gate, a.w_stride, a.gate_source, a.k};
    const Columns up{a.w_up, a.w_up_stride, a.up_source, a.k};
    PanelArgs p;
    p.x = static_cast<const std::byte*>(a.x) + packed_bytes(row, a.k);
    p.rows = rows;
    p.k = a.k;
    p.scratch = scratch.product;
    for (int c = 0; c < columns; c += kPanelRows) {
      const int count = least(columns - c, kPanelRows);
      p.panel = gate.panel(n + c, count, scratch.panel);
      p.next = up.ahead(n + c, a.n1);
      p.out = scratch.gate_of(c);
      a.gate_source.product(p);
      p.panel = up.panel(n + c, count, scratch.panel);
      p.next = gate.ahead(n + c + kPanelRows, a.n1);
      p.out = scratch.out;
      a.up_source.product(p);
      for (int r = 0; r < rows; ++r)
        gate_values<V>(a, scratch.gate_of(c) + r * kPanelRows, scratch.out + r * kPanelRows, count);
    }
  }
};

}  // namespace
}  // namespace glint
