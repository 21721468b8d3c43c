// Products of few rows with e4m3 weights that are widened on the way into registers, in the order
// of Matmul<F>. Included inside a target region.
//
// Step::load(from, scale, w) widens F::kStep elements to the registers that F::load_stored gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/f8-inl.h"
#include "kernels/formats-inl.h"
#include "kernels/matmul-inl.h"
#include "kernels/results-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

// bfloat16 as Bf16Format<V, true> holds them: even places, then odd ones.
template <typename V>
struct F8LoadBf16 {
  using Reg = typename V::Reg;
  static Reg scale(float value) { return F8StepToBf16<V>::scale(value); }
  [[gnu::always_inline]] static void load(const std::byte* from, Reg scale, Reg (&w)[2]) {
    F8StepToBf16<V>::widen(from, scale, w[0], w[1]);
  }
};

template <typename F, typename Step>
struct F8Few {
  using V = typename F::Vec;
  using Reg = typename F::Reg;
  using Packed = typename F::Packed;
  static constexpr int kMostRows = 4;
  static constexpr int kColumns = 4;

  static bool takes(int rows, const ScaleGrid& grid, int k) {
    return rows <= kMostRows && (grid.block_cols % F::kStep == 0 || grid.block_cols >= k);
  }

  // The weight rows of kColumns columns.
  struct Columns {
    const std::byte* rows[kColumns];
    const float* scales[kColumns];
    int block_cols;
    std::size_t ahead;  // bytes to the row that is read four columns later
  };

  // Their products with R rows, out[R][kColumnBlock].
  template <int R>
  struct Products {
    [[gnu::noinline]] static void run(const Packed* x, std::size_t x_stride, const Columns& columns,
                                      int k, float* out) {
      Reg sums[R][kColumns];
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        GLINT_UNROLL
        for (int c = 0; c < kColumns; ++c) sums[r][c] = V::zero();
      }
      int at = 0;
      for (int block = 0; at < k; ++block) {
        const int end = k - at < columns.block_cols ? k : at + columns.block_cols;
        Reg scales[kColumns];
        GLINT_UNROLL
        for (int c = 0; c < kColumns; ++c) scales[c] = Step::scale(columns.scales[c][block]);
        for (; at + F::kStep <= end; at += F::kStep, x += F::kStep) {
          GLINT_UNROLL
          for (int c = 0; c < kColumns; ++c) {
            const std::byte* from = columns.rows[c] + at;
            _mm_prefetch(reinterpret_cast<const char*>(from + columns.ahead), _MM_HINT_T1);
            add<R>(x, x_stride, from, scales[c], c, sums);
          }
        }
        if (at == end) continue;  // the last block alone ends within a step
        GLINT_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          std::byte padded[F::kStep] = {};
          std::memcpy(padded, columns.rows[c] + at, static_cast<std::size_t>(end - at));
          add<R>(x, x_stride, padded, scales[c], c, sums);
        }
        at = end;
      }
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        _mm_storeu_ps(out + r * kColumnBlock,
                      V::sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
      }
    }
  };

  // A step of column c.
  template <int R>
  [[gnu::always_inline]] static void add(const Packed* x, std::size_t x_stride,
                                         const std::byte* from, Reg scale, int c,
                                         Reg (&sums)[R][kColumns]) {
    Reg w[F::kVectors];
    Step::load(from, scale, w);
    GLINT_UNROLL
    for (int vector = 0; vector < F::kVectors; ++vector) {
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const Reg value = F::load_packed(x + static_cast<std::size_t>(r) * x_stride, vector);
        sums[r][c] = F::multiply_add(value, w[vector], sums[r][c]);
      }
    }
  }

  // Products [n, n + count) of all rows, count up to kColumnBlock: out[rows][kColumnBlock].
  static void block(const void* x, int rows, int k, const std::byte* w, std::size_t stride,
                    const ScaleGrid& grid, int n, int count, float* out) {
    Columns columns{{}, {}, grid.block_cols, kColumns * stride};
    for (int first = 0; first < count; first += kColumns) {
      for (int c = 0; c < kColumns; ++c) {
        // Columns that are missing are the last one over again.
        const int column = n + (first + c < count ? first + c : count - 1);
        columns.rows[c] = w + static_cast<std::size_t>(column) * stride;
        columns.scales[c] = grid.row(column);
      }
      with_rows<Products, kMostRows>(rows, static_cast<const Packed*>(x), Matmul<F>::row_stride(k),
                                     columns, k, out + first);
    }
  }

  static void matmul(const MatmulArgs& a) {
    alignas(64) float values[kMostRows * kColumnBlock];
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      const int count = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      block(a.x, a.rows, a.k, a.w, a.w_stride, a.grid, n, count, values);
      for (int r = 0; r < a.rows; ++r) write_products<V>(a, r, n, count, values + r * kColumnBlock);
    }
  }

  static void gate_up(const GateUpArgs& a) {
    alignas(64) float gate[kMostRows * kColumnBlock];
    alignas(64) float up[kMostRows * kColumnBlock];
    const std::size_t z_stride = Matmul<F>::row_stride(a.n_total);
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      const int count = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      block(a.x, a.rows, a.k, a.w_gate, a.w_stride, a.gate_grid, n, count, gate);
      block(a.x, a.rows, a.k, a.w_up, a.w_up_stride, a.up_grid, n, count, up);
      Packed* z = static_cast<Packed*>(a.z) + n;
      for (int r = 0; r < a.rows; ++r, z += z_stride) {
        float* values = gate + r * kColumnBlock;
        gate_values<V>(a, values, up + r * kColumnBlock, count);
        F::pack_row(values, count, z);
      }
    }
  }
};

}  // namespace
}  // namespace glint
