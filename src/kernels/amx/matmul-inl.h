// Matrix products on tiles. Weights are the A side: sixteen weight rows of 32 values, as they lie
// in the file; packed activations are the B side. One output is one chain over k in steps of 32,
// whatever is computed beside it.
//
// Packed activations, rows x k: [rows / 16][k / 32] tiles, a tile holding [16 pairs of k][16
// rows][2].
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/amx/tiles-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

template <typename T>
struct TileMatmul {
  static std::size_t packed_bytes(int rows, int k) noexcept {
    return size(ceil_div(rows, kRowBlock)) * size(ceil_div(k, kTileK)) * kTileBytes;
  }

  // A panel of 32 weight rows in tile order (only where they cannot be read as they lie), and four
  // result tiles.
  static std::size_t scratch_bytes(int k) noexcept {
    return 2 * size(ceil_div(k, kTileK)) * kTileBytes + 4 * kTileBytes;
  }

  static void pack(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows,
                   int k, void* out) noexcept {
    auto* tile = static_cast<std::byte*>(out);
    for (int first = 0; first < rows; first += kRowBlock) {
      for (int k0 = 0; k0 < k; k0 += kTileK, tile += kTileBytes) {
        __m512i pairs[16];
        for (int r = 0; r < kRowBlock; ++r) {
          if (first + r >= rows) {
            pairs[r] = _mm512_setzero_si512();
            continue;
          }
          const std::size_t row =
              row_index == nullptr ? size(first + r) : size(row_index[first + r]);
          const float* at = x + row * x_stride + k0;
          const int left = k - k0;
          const __m512 low = left >= 16 ? Vec512::load(at) : Vec512::load_first(at, left);
          const __m512 high = left >= 32  ? Vec512::load(at + 16)
                              : left > 16 ? Vec512::load_first(at + 16, left - 16)
                                          : Vec512::zero();
          pairs[r] = to_bf16(low, high);
        }
        transpose16(pairs);
        for (int r = 0; r < 16; ++r) _mm512_store_si512(tile + 64 * r, pairs[r]);
      }
    }
  }

  // Sixteen weight rows: where their tiles are.
  struct Rows {
    const std::byte* base;
    std::size_t tile_step;  // bytes between k steps
    std::size_t stride;     // bytes between rows of a tile
  };

  // The weights of one pair of result columns blocks: sixteen rows at a, sixteen at b, some of them
  // absent (zero).
  struct Panel {
    const std::byte* a = nullptr;
    const std::byte* b = nullptr;
    int rows_a = 0, rows_b = 0;
    bool whole() const { return rows_a == kTileRows && rows_b == kTileRows; }
  };

  // Asks for the cache lines of the next panel, a few beside each k step: memory then works while
  // tiles multiply. In measurements every line has to be asked for; leaving some to the processor's
  // own prefetcher was slower.
  class Ahead {
   public:
    Ahead(const Panel& panel, std::size_t stride, int k)
        : panel_(panel),
          stride_(stride),
          lines_((size(k) * sizeof(bf16) + 63) / 64),
          at_(panel.a) {}
    std::size_t total() const { return size(panel_.rows_a + panel_.rows_b) * lines_; }
    void ask(std::size_t count) {
      while (count > 0 && row_ < panel_.rows_a + panel_.rows_b) {
        const std::size_t run = count < lines_ - line_ ? count : lines_ - line_;
        for (const std::byte* end = at_ + 64 * run; at_ != end; at_ += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(at_), _MM_HINT_T1);
        }
        count -= run;
        line_ += run;
        if (line_ < lines_) return;
        line_ = 0;
        ++row_;
        at_ = row_ < panel_.rows_a ? panel_.a + size(row_) * stride_
                                   : panel_.b + size(row_ - panel_.rows_a) * stride_;
      }
    }

   private:
    const Panel& panel_;
    std::size_t stride_, lines_;
    const std::byte* at_;
    std::size_t line_ = 0;
    int row_ = 0;
  };

  // `count` of sixteen rows copied into tile order at `to`, the others as zeros.
  static Rows copy_rows(const std::byte* w, std::size_t w_stride, int count, int k, std::byte* to) {
    const int steps = ceil_div(k, kTileK);
    for (int r = 0; r < kTileRows; ++r) {
      std::byte* out = to + 64 * r;
      if (r >= count) {
        for (int s = 0; s < steps; ++s)
          _mm512_store_si512(out + size(s) * kTileBytes, _mm512_setzero_si512());
        continue;
      }
      const std::byte* row = w + size(r) * w_stride;
      int s = 0;
      for (; s < k / kTileK; ++s) {
        _mm512_store_si512(out + size(s) * kTileBytes, _mm512_loadu_si512(row + size(s) * 64));
      }
      if (s < steps) {
        const auto mask = static_cast<__mmask32>((1u << (k % kTileK)) - 1u);
        _mm512_store_si512(out + size(s) * kTileBytes,
                           _mm512_maskz_loadu_epi16(mask, row + size(s) * 64));
      }
    }
    T::written();
    return {to, kTileBytes, 64};
  }

  // Tiles 0 and 1: weight rows a times row blocks x0, x1; 2 and 3: weight rows b times the same.
  // Each is [16 n][16 rows].
  template <bool kTwoBlocks>
  static void start_products() {
    T::template zero<0>();
    T::template zero<2>();
    if constexpr (kTwoBlocks) {
      T::template zero<1>();
      T::template zero<3>();
    }
  }
  template <bool kTwoBlocks, typename Ask>
  static void add_products(const Rows& a, const Rows& b, const std::byte* x0, const std::byte* x1,
                           int steps, const Ask& ask) {
    for (int s = 0; s < steps; ++s) {
      ask();
      T::template load<4>(a.base + size(s) * a.tile_step, a.stride);
      T::template load<6>(x0 + size(s) * kTileBytes, 64);
      T::template multiply_add<0, 4, 6>();
      T::template load<5>(b.base + size(s) * b.tile_step, b.stride);
      T::template multiply_add<2, 5, 6>();
      if constexpr (kTwoBlocks) {
        T::template load<7>(x1 + size(s) * kTileBytes, 64);
        T::template multiply_add<1, 4, 7>();
        T::template multiply_add<3, 5, 7>();
      }
    }
  }
  template <bool kTwoBlocks>
  static void store_products(std::byte* c) {
    T::template store<0>(c, 64);
    T::template store<2>(c + 2 * kTileBytes, 64);
    if constexpr (kTwoBlocks) {
      T::template store<1>(c + kTileBytes, 64);
      T::template store<3>(c + 3 * kTileBytes, 64);
    }
  }

  // All rows times one panel; write(row, c) takes the four result tiles of rows [row, row + 32).
  template <typename Write>
  static void run_panel(const Panel& panel, const Panel& next, std::size_t w_stride,
                        const void* packed, int rows, int k, std::byte* scratch, Write write) {
    const int steps = ceil_div(k, kTileK);
    std::byte* c = scratch + 2 * size(steps) * kTileBytes;
    const bool as_it_lies = panel.whole() && k % kTileK == 0;
    const Rows a = as_it_lies ? Rows{panel.a, 64, w_stride}
                              : copy_rows(panel.a, w_stride, panel.rows_a, k, scratch);
    const Rows b = as_it_lies ? Rows{panel.b, 64, w_stride}
                              : copy_rows(panel.b, w_stride, panel.rows_b, k,
                                          scratch + size(steps) * kTileBytes);
    Ahead ahead(next, w_stride, k);
    const std::size_t per_step = ahead.total() / (size(ceil_div(rows, 32)) * size(steps)) + 1;
    for (int row = 0; row < rows; row += 32) {
      const std::byte* x0 = static_cast<const std::byte*>(packed) + packed_bytes(row, k);
      const std::byte* x1 = x0 + size(steps) * kTileBytes;
      const auto ask = [&] { ahead.ask(per_step); };
      const auto product = [&]<bool kTwoBlocks>() {
        start_products<kTwoBlocks>();
        add_products<kTwoBlocks>(a, b, x0, x1, steps, ask);
        store_products<kTwoBlocks>(c);
      };
      if (rows - row > kRowBlock) {
        product.template operator()<true>();
      } else {
        product.template operator()<false>();
      }
      write(row, c);
    }
  }

  // One result tile [16 n][16 rows] to y: columns [n, n_end) of rows [row, rows).
  static void write_tile(const MatmulArgs& args, const std::byte* c, int n, int row) {
    const int width = args.n1 - n < 16 ? args.n1 - n : 16;
    const int count = args.rows - row < kRowBlock ? args.rows - row : kRowBlock;
    __m512i lanes[16];
    if (count > 2) {
      for (int i = 0; i < 16; ++i) lanes[i] = _mm512_load_si512(c + 64 * i);
      transpose16(lanes);
    } else {
      const __m512i places = _mm512_slli_epi32(
          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
      for (int r = 0; r < count; ++r) lanes[r] = _mm512_i32gather_epi32(places, c + 4 * r, 4);
    }
    for (int r = 0; r < count; ++r) {
      const std::size_t to = args.y_rows == nullptr ? size(row + r) : size(args.y_rows[row + r]);
      float* y = args.y + to * args.y_stride + n;
      __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(lanes[r]), _mm512_set1_ps(args.factor));
      if (args.row_scale != nullptr) v = _mm512_mul_ps(v, _mm512_set1_ps(args.row_scale[row + r]));
      if (args.accumulate) v = _mm512_add_ps(v, Vec512::load_first(y, width));
      Vec512::store_first(y, width, v);
    }
  }

  // Columns [n, n + 32) of w, as far as they come before n1.
  static Panel columns(const MatmulArgs& args, int n) {
    const auto present = [&](int from) {
      return from >= args.n1 ? 0 : args.n1 - from < 16 ? args.n1 - from : 16;
    };
    return {args.w + size(n) * args.w_stride, args.w + size(n + 16) * args.w_stride, present(n),
            present(n + 16)};
  }

  static void matmul(const MatmulArgs& args) noexcept {
    T::start();
    for (int n = args.n0; n < args.n1; n += 32) {
      const Panel panel = columns(args, n);
      run_panel(panel, columns(args, n + 32), args.w_stride, args.x, args.rows, args.k,
                args.scratch, [&](int row, const std::byte* c) { write_tiles(args, c, n, row); });
    }
  }

  // The four result tiles of columns [n, n + 32) and rows [row, row + 32).
  static void write_tiles(const MatmulArgs& args, const std::byte* c, int n, int row) {
    const bool second = n + 16 < args.n1;
    write_tile(args, c, n, row);
    if (second) write_tile(args, c + 2 * kTileBytes, n + 16, row);
    if (row + kRowBlock >= args.rows) return;
    write_tile(args, c + kTileBytes, n, row + kRowBlock);
    if (second) write_tile(args, c + 3 * kTileBytes, n + 16, row + kRowBlock);
  }

  // silu(gate) * up, bounded, of one pair of result tiles, as half a packed tile: eight pairs of
  // columns.
  static void write_hidden(const GateUpArgs& args, const std::byte* gate, const std::byte* up,
                           std::byte* to) {
    const __m512 gate_factor = _mm512_set1_ps(args.gate_factor);
    const __m512 up_factor = _mm512_set1_ps(args.up_factor);
    const __m512 limit = _mm512_set1_ps(args.limit);
    for (int pair = 0; pair < 8; ++pair) {
      __m512 z[2];
      for (int i = 0; i < 2; ++i) {
        const int n = 2 * pair + i;
        const __m512 g = _mm512_mul_ps(
            _mm512_load_ps(reinterpret_cast<const float*>(gate + 64 * n)), gate_factor);
        const __m512 u =
            _mm512_mul_ps(_mm512_load_ps(reinterpret_cast<const float*>(up + 64 * n)), up_factor);
        z[i] = gated<Vec512>(g, u, limit);
      }
      _mm512_store_si512(to + 64 * pair, pair_rows(z[0], z[1]));
    }
  }

  // Columns [n, n + 16) of the gate and of the up projection.
  static Panel columns(const GateUpArgs& args, int n) {
    const int present = n >= args.n1 ? 0 : args.n1 - n < 16 ? args.n1 - n : 16;
    const std::size_t at = size(n - args.w_first) * args.w_stride;
    return {args.w_gate + at, args.w_up + at, present, present};
  }

  static void gate_up(const GateUpArgs& args) noexcept {
    T::start();
    for (int n = args.n0; n < hidden_end(args); n += 16) {
      run_panel(columns(args, n), columns(args, n + 16), args.w_stride, args.x, args.rows, args.k,
                args.scratch,
                [&](int row, const std::byte* c) { write_hidden_tiles(args, c, n, row); });
    }
  }

  // The padding of the last tile is computed as columns of zero weights.
  static int hidden_end(const GateUpArgs& args) {
    return args.n1 == args.n_total ? ceil_div(args.n1, kTileK) * kTileK : args.n1;
  }
  // From the result tiles of columns [n, n + 16) of gate and up and rows [row, row + 32).
  static void write_hidden_tiles(const GateUpArgs& args, const std::byte* c, int n, int row) {
    const std::size_t block_bytes = size(ceil_div(args.n_total, kTileK)) * kTileBytes;
    std::byte* block = static_cast<std::byte*>(args.z) + size(row / kRowBlock) * block_bytes +
                       size(n / kTileK) * kTileBytes + (n % kTileK == 0 ? 0 : kTileBytes / 2);
    write_hidden(args, c, c + 2 * kTileBytes, block);
    if (row + kRowBlock < args.rows)
      write_hidden(args, c + kTileBytes, c + 3 * kTileBytes, block + block_bytes);
  }

  static MatmulKernels kernels() { return {packed_bytes, pack, matmul, gate_up, scratch_bytes}; }
};

}  // namespace
}  // namespace glint
