// Matrix products of e4m3 weights with a grid of scales (tensor/scale_grid.h): kColumnBlock weight
// rows at a time are widened into scratch, where the products of a float format read them. So they
// have the bits that the widened matrix would have. A few rows of activations are not worth the
// scratch: Few multiplies what it widens at once, adding up in the same order.
//
// Row says how rows are widened: to elements of type Row::Stored by row(from, scale, n, to).
// Included inside a target region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/table.h"

namespace glint {
namespace {

// e4m3 times a scale over a vector type V, whole steps by Step::widen and the rest padded.
template <typename V, typename Step>
struct F8Row {
  using Stored = typename Step::Stored;
  static constexpr int kStep = 2 * V::kLanes;

  void operator()(const std::byte* from, float scale, int n, Stored* to) const {
    const typename V::Reg s = Step::scale(scale);
    int i = 0;
    for (; i + kStep <= n; i += kStep) Step::widen(from + i, s, to + i);
    if (i == n) return;
    std::byte padded[kStep] = {};
    Stored widened[kStep];
    std::memcpy(padded, from + i, static_cast<std::size_t>(n - i));
    Step::widen(padded, s, widened);
    std::memcpy(to + i, widened, static_cast<std::size_t>(n - i) * sizeof(Stored));
  }
};

// V loads e4m3 as 2^-8 of what they are.
template <typename V>
struct F8StepToF32 {
  using Stored = float;
  static typename V::Reg scale(float value) { return V::set1(value * 0x1p8f); }
  static void widen(const std::byte* from, typename V::Reg scale, float* to) {
    typename V::Reg low, high;
    V::load_e4m3(from, low, high);
    V::store(to, V::mul(low, scale));
    V::store(to + V::kLanes, V::mul(high, scale));
  }
};

template <typename V>
struct F8StepToBf16 {
  using Stored = std::uint16_t;
  using Reg = typename V::Reg;
  static Reg scale(float value) { return V::set1(value * 0x1p8f); }
  [[gnu::always_inline]] static void widen(const std::byte* from, Reg scale, Reg& even, Reg& odd) {
    V::load_e4m3_apart(from, even, odd);
    even = V::round_to_bf16(V::mul(even, scale));
    odd = V::round_to_bf16(V::mul(odd, scale));
  }
  static void widen(const std::byte* from, Reg scale, std::uint16_t* to) {
    Reg even, odd;
    widen(from, scale, even, odd);
    V::store_upper_halves(to, even, odd);
  }
};

template <typename V>
using F8ToF32 = F8Row<V, F8StepToF32<V>>;
template <typename V>
using F8ToBf16 = F8Row<V, F8StepToBf16<V>>;

// Never few.
struct F8NoFew {
  static bool takes(int, const ScaleGrid&, int) { return false; }
  static void matmul(const MatmulArgs&) {}
  static void gate_up(const GateUpArgs&) {}
};

template <typename Inner, typename Row, typename Few = F8NoFew>
struct F8Matmul {
  using Stored = typename Row::Stored;

  // Of a widened row. Rows are an odd number of cache lines apart, so that they share no sets.
  static std::size_t row_bytes(int k) {
    return (static_cast<std::size_t>(k) * sizeof(Stored) + 63) / 128 * 128 + 64;
  }
  static std::size_t block_bytes(int k) { return kColumnBlock * row_bytes(k); }

  // Rows [n, n + columns): all of them under one rectangle's columns before the next.
  static void widen_rows(const std::byte* w, std::size_t stride, const ScaleGrid& grid, int n,
                         int columns, int k, std::byte* to) {
    Row widen;
    for (int start = 0; start < k; start += grid.block_cols) {
      const int length = k - start < grid.block_cols ? k - start : grid.block_cols;
      for (int c = 0; c < columns; ++c) {
        const std::byte* from = w + static_cast<std::size_t>(n + c) * stride + start;
        auto* out = reinterpret_cast<Stored*>(to + static_cast<std::size_t>(c) * row_bytes(k));
        widen(from, grid.row(n + c)[start / grid.block_cols], length, out + start);
      }
    }
  }

  static void matmul(const MatmulArgs& a) noexcept {
    if (Few::takes(a.rows, a.grid, a.k)) return Few::matmul(a);
    MatmulArgs part = a;
    part.w = a.scratch;
    part.w_stride = row_bytes(a.k);
    part.scratch = a.scratch + 2 * block_bytes(a.k);
    part.n0 = 0;
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      part.n1 = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      part.y = a.y + n;
      widen_rows(a.w, a.w_stride, a.grid, n, part.n1, a.k, a.scratch);
      Inner::matmul(part);
    }
  }

  static void gate_up(const GateUpArgs& a) noexcept {
    if (Few::takes(a.rows, a.gate_grid, a.k) && Few::takes(a.rows, a.up_grid, a.k))
      return Few::gate_up(a);
    GateUpArgs part = a;
    part.w_gate = a.scratch;
    part.w_up = a.scratch + block_bytes(a.k);
    part.w_stride = part.w_up_stride = row_bytes(a.k);
    part.scratch = a.scratch + 2 * block_bytes(a.k);
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      const int columns = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      widen_rows(a.w_gate, a.w_stride, a.gate_grid, n, columns, a.k, a.scratch);
      widen_rows(a.w_up, a.w_up_stride, a.up_grid, n, columns, a.k, a.scratch + block_bytes(a.k));
      part.n0 = part.w_first = n;
      part.n1 = n + columns;
      Inner::gate_up(part);
    }
  }

  static std::size_t scratch_bytes(int k) noexcept {
    return 2 * block_bytes(k) + (Inner::scratch_bytes(k) + 63) / 64 * 64;
  }

  static MatmulKernels kernels() {
    return {Inner::packed_bytes, Inner::pack, matmul, gate_up, scratch_bytes};
  }
};

}  // namespace
}  // namespace glint
