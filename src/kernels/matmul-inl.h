// Matrix products of a format F (formats-inl.h). Included inside a target region.
//
// Columns are taken kColumnBlock at a time, so that their weights stay in the L2 cache while all
// rows pass, and rows a tile at a time. Along K a tile of several rows is cut into pieces whose
// activations stay in the L1 cache; the running sums wait in memory as whole registers, so that the
// cut is not seen in the bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/formats-inl.h"
#include "kernels/math-inl.h"
#include "kernels/results-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

template <typename F>
struct Matmul {
  using V = typename F::Vec;
  using Reg = typename F::Reg;
  using Packed = typename F::Packed;
  static constexpr int kTileRows = V::kTileRows;
  static constexpr int kPiece = 512;  // elements of K, a multiple of every kStep

  static std::size_t row_stride(int k) { return static_cast<std::size_t>(round_up(k, F::kStep)); }

  static std::size_t packed_bytes(int rows, int k) noexcept {
    return static_cast<std::size_t>(rows) * row_stride(k) * sizeof(Packed);
  }

  static void pack(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows,
                   int k, void* out) noexcept {
    auto* to = static_cast<Packed*>(out);
    for (int row = 0; row < rows; ++row, to += row_stride(k)) {
      F::pack_row(x + static_cast<std::size_t>(row_index ? row_index[row] : row) * x_stride, k, to);
    }
  }

  // out[R][kColumnBlock] = the products of R rows with `columns` weight rows from w on.
  template <int R>
  struct Block {
    static void run(const Packed* x, std::size_t x_stride, const std::byte* w, std::size_t w_stride,
                    int columns, int k, float* out) {
      int c = 0;
      if constexpr (R == 1) {
        for (; c + 8 <= columns; c += 8) {
          products<F, 1, 8>(x, x_stride, w + static_cast<std::size_t>(c) * w_stride, w_stride, k,
                            out + c, kColumnBlock);
        }
      } else if (k > kPiece && columns == kColumnBlock) {
        return pieces<R>(x, x_stride, w, w_stride, k, out);
      }
      for (; c + 4 <= columns; c += 4) {
        products<F, R, 4>(x, x_stride, w + static_cast<std::size_t>(c) * w_stride, w_stride, k,
                          out + c, kColumnBlock);
      }
      for (; c < columns; ++c) {
        products<F, R, 1>(x, x_stride, w + static_cast<std::size_t>(c) * w_stride, w_stride, k,
                          out + c, kColumnBlock);
      }
    }
  };

  template <int R>
  [[gnu::noinline]] static void pieces(const Packed* x, std::size_t x_stride, const std::byte* w,
                                       std::size_t w_stride, int k, float* out) {
    constexpr int kTileFloats = R * 4 * V::kLanes;
    alignas(64) float kept[kColumnBlock / 4 * kTileFloats];
    for (int start = 0; start < k; start += kPiece) {
      const int length = k - start < kPiece ? k - start : kPiece;
      const bool last = start + length == k;
      for (int c = 0; c < kColumnBlock; c += 4) {
        const std::byte* from = w + static_cast<std::size_t>(c) * w_stride +
                                static_cast<std::size_t>(start) * sizeof(typename F::Stored);
        float* tile = kept + c / 4 * kTileFloats;
        Reg sums[R][4];
        GLINT_UNROLL
        for (int r = 0; r < R; ++r) {
          GLINT_UNROLL
          for (int i = 0; i < 4; ++i) {
            sums[r][i] = start == 0 ? V::zero() : V::load(tile + (r * 4 + i) * V::kLanes);
          }
        }
        add_products<F, R, 4>(x + start, x_stride, from, w_stride, length, sums);
        GLINT_UNROLL
        for (int r = 0; r < R; ++r) {
          if (last) {
            _mm_storeu_ps(out + r * kColumnBlock + c,
                          V::sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
          } else {
            GLINT_UNROLL
            for (int i = 0; i < 4; ++i) V::store(tile + (r * 4 + i) * V::kLanes, sums[r][i]);
          }
        }
      }
    }
  }

  static void matmul(const MatmulArgs& a) noexcept {
    alignas(64) float block[kTileRows * kColumnBlock];
    const std::size_t x_stride = row_stride(a.k);
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      const int columns = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      const std::byte* w = a.w + static_cast<std::size_t>(n) * a.w_stride;
      for (int row = 0; row < a.rows;) {
        const int rows = next_rows(a.rows - row, kTileRows);
        const Packed* x =
            static_cast<const Packed*>(a.x) + static_cast<std::size_t>(row) * x_stride;
        with_rows<Block, kTileRows>(rows, x, x_stride, w, a.w_stride, columns, a.k,
                                    static_cast<float*>(block));
        for (int r = 0; r < rows; ++r)
          write_products<V>(a, row + r, n, columns, block + r * kColumnBlock);
        row += rows;
      }
    }
  }

  static void gate_up(const GateUpArgs& a) noexcept {
    alignas(64) float gate[kTileRows * kColumnBlock];
    alignas(64) float up[kTileRows * kColumnBlock];
    const std::size_t x_stride = row_stride(a.k);
    const std::size_t z_stride = row_stride(a.n_total);
    for (int n = a.n0; n < a.n1; n += kColumnBlock) {
      const int columns = a.n1 - n < kColumnBlock ? a.n1 - n : kColumnBlock;
      const std::size_t w_offset = static_cast<std::size_t>(n - a.w_first) * a.w_stride;
      for (int row = 0; row < a.rows;) {
        const int rows = next_rows(a.rows - row, kTileRows);
        const Packed* x =
            static_cast<const Packed*>(a.x) + static_cast<std::size_t>(row) * x_stride;
        Packed* z = static_cast<Packed*>(a.z) + static_cast<std::size_t>(row) * z_stride + n;
        with_rows<Block, kTileRows>(rows, x, x_stride, a.w_gate + w_offset, a.w_stride, columns,
                                    a.k, static_cast<float*>(gate));
        with_rows<Block, kTileRows>(rows, x, x_stride, a.w_up + w_offset, a.w_stride, columns, a.k,
                                    static_cast<float*>(up));
        for (int r = 0; r < rows; ++r, z += z_stride) {
          float* values = gate + r * kColumnBlock;
          gate_values<V>(a, values, up + r * kColumnBlock, columns);
          F::pack_row(values, columns, z);
        }
        row += rows;
      }
    }
  }

  static std::size_t scratch_bytes(int) noexcept { return 0; }

  static MatmulKernels kernels() { return {packed_bytes, pack, matmul, gate_up, scratch_bytes}; }
};

}  // namespace
}  // namespace glint
