// Matrix products of e4m3 weights on tiles. Few rows widen a piece of K at a time, which tiles then
// read from the first-level cache; many rows widen whole columns and share them (kernels/f8-inl.h).
// Both add up in the order of TileMatmul.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/amx/matmul-inl.h"
#include "kernels/amx/tiles-inl.h"
#include "kernels/avx512/f8pairs-inl.h"
#include "kernels/f8-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

// e4m3 times a scale as bfloat16, looked up: the bytes of all 128 magnitudes lie in four registers.
// A table costs as much as some 256 elements, so rows that share a scale should follow each other.
class F8TablePairs {
 public:
  using Stored = std::uint16_t;

  void operator()(const std::byte* from, float scale, int n, std::uint16_t* to) {
    if (std::memcmp(&scale, &scale_, sizeof scale) != 0) fill(scale);
    int i = 0;
    for (; i + 64 <= n; i += 64) {
      __m512i low, high;
      look_up(_mm512_loadu_si512(from + i), low, high);
      _mm512_storeu_si512(to + i, low);
      _mm512_storeu_si512(to + i + 32, high);
    }
    if (i == n) return;
    const auto left = ~std::uint64_t{0} >> (64 - (n - i));
    __m512i low, high;
    look_up(_mm512_maskz_loadu_epi8(left, from + i), low, high);
    _mm512_mask_storeu_epi16(to + i, static_cast<__mmask32>(left), low);
    _mm512_mask_storeu_epi16(to + i + 32, static_cast<__mmask32>(left >> 32), high);
  }

 private:
  [[gnu::always_inline]] void look_up(__m512i bytes, __m512i& low, __m512i& high) const {
    // Unpacking takes from both halves of each 16 bytes: brought together beforehand.
    bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
    const __m512i lower = _mm512_permutex2var_epi8(lower_[0], bytes, lower_[1]);
    __m512i upper = _mm512_permutex2var_epi8(upper_[0], bytes, upper_[1]);
    upper = _mm512_ternarylogic_epi32(upper, bytes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                      0x78);  // a ^ (b & c): scales may be negative
    low = _mm512_unpacklo_epi8(lower, upper);
    high = _mm512_unpackhi_epi8(lower, upper);
  }

  [[gnu::noinline]] void fill(float scale) {
    alignas(64) static constexpr auto kBytes = [] {
      std::array<std::uint8_t, 128> bytes{};
      for (std::size_t i = 0; i < 128; ++i) bytes[i] = static_cast<std::uint8_t>(i);
      return bytes;
    }();
    const auto* all = reinterpret_cast<const std::byte*>(kBytes.data());
    const __m512i even = _mm512_add_epi8(_mm512_load_si512(all), _mm512_load_si512(all));
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    const __m512 s = F8StepToPairs::scale(scale);
    for (int half = 0; half < 2; ++half, all += 64) {
      const __m512i low = F8StepToPairs::widened(all, s);
      const __m512i high = F8StepToPairs::widened(all + 32, s);
      lower_[half] = _mm512_permutex2var_epi8(low, even, high);
      upper_[half] = _mm512_permutex2var_epi8(low, odd, high);
    }
    scale_ = scale;
  }

  __m512i lower_[2] = {}, upper_[2] = {};  // of a scale of zero
  float scale_ = 0;
};

template <typename T>
struct F8TileMatmul {
  using Tiles = TileMatmul<T>;
  using Wide = F8Matmul<Tiles, F8TablePairs>;
  static constexpr int kFewRows = 2 * kRowBlock;
  static constexpr int kPieceSteps = 4;
  static constexpr int kPiece = kPieceSteps * kTileK;  // elements of K
  static constexpr int kAhead = 4 * kPiece;            // elements that are asked for beforehand
  // An odd number of cache lines: rows share no sets.
  static constexpr std::size_t kPieceStride = kPiece * sizeof(bf16) + 64;
  static constexpr std::size_t kPieceBytes = 2 * kTileRows * kPieceStride;

  // Up to sixteen weight rows from `row` of the matrix on, the others as zeros.
  struct Rows {
    const std::byte* w;  // the first of them
    std::size_t stride;
    int present;
    int block_cols;
    int rows_ahead;  // so many rows on are those that come next
    const float* scales[kTileRows];

    Rows(const std::byte* matrix, std::size_t row_stride, const ScaleGrid& grid, int row, int end,
         int step)
        : w(matrix + size(row) * row_stride),
          stride(row_stride),
          present(row >= end              ? 0
                  : end - row < kTileRows ? end - row
                                          : kTileRows),
          block_cols(grid.block_cols),
          rows_ahead(step) {
      for (int r = 0; r < present; ++r) scales[r] = grid.row(row + r);
    }

    // Columns [at, at + count), which share a column of the grid.
    void widen(int at, int count, int k, F8TablePairs& table, std::byte* to) const {
      // Memory does not foresee which rows come next.
      const std::ptrdiff_t ahead =
          at + kAhead < k ? kAhead
                          : static_cast<std::ptrdiff_t>(size(rows_ahead) * stride) + kAhead - k;
      const int block = at / block_cols;
      for (int r = 0; r < present; ++r, to += kPieceStride) {
        const std::byte* from = w + size(r) * stride + at;
        for (int line = 0; line < count; line += 64)
          _mm_prefetch(reinterpret_cast<const char*>(from + ahead + line), _MM_HINT_T1);
        table(from, scales[r][block], count, reinterpret_cast<std::uint16_t*>(to));
      }
    }
    // What a piece of `length` columns lacks to whole steps of sixteen rows.
    void pad(int length, std::byte* to) const {
      const std::size_t used = size(length) * sizeof(bf16);
      const std::size_t whole = size(ceil_div(length, kTileK)) * kTileK * sizeof(bf16);
      for (int r = 0; r < kTileRows; ++r, to += kPieceStride) {
        const std::size_t kept = r < present ? used : 0;
        if (kept < whole) std::memset(to + kept, 0, whole - kept);
      }
    }
  };

  // The result tiles of weight rows a and b with up to kFewRows rows. A piece is widened while the
  // one before is multiplied.
  template <bool kTwoBlocks>
  struct Products {
    const Rows& a;
    const Rows& b;
    int k;
    std::byte* scratch;
    F8TablePairs table{};

    std::byte* piece(int start) const {
      return scratch + 4 * kTileBytes + size(start / kPiece % 2) * kPieceBytes;
    }
    int length(int start) const { return k - start < kPiece ? k - start : kPiece; }

    void widen(int start) {
      const int end = start + length(start);
      std::byte* to = piece(start);
      for (int at = start; at < end;) {
        const int border = (at / a.block_cols + 1) * a.block_cols;
        const int border_b = (at / b.block_cols + 1) * b.block_cols;
        int stop = border < border_b ? border : border_b;
        if (stop > end) stop = end;
        std::byte* at_to = to + size(at - start) * sizeof(bf16);
        a.widen(at, stop - at, k, table, at_to);
        b.widen(at, stop - at, k, table, at_to + kTileRows * kPieceStride);
        at = stop;
      }
      a.pad(end - start, to);
      b.pad(end - start, to + kTileRows * kPieceStride);
      T::written();
    }

    void multiply(int start, const std::byte* x) const {
      const std::byte* from = piece(start);
      const std::byte* x0 = x + size(start / kTileK) * kTileBytes;
      Tiles::template add_products<kTwoBlocks>(
          {from, 64, kPieceStride}, {from + kTileRows * kPieceStride, 64, kPieceStride}, x0,
          x0 + size(ceil_div(k, kTileK)) * kTileBytes, ceil_div(length(start), kTileK), [] {});
    }

    const std::byte* run(const void* x) {
      const auto* packed = static_cast<const std::byte*>(x);
      Tiles::template start_products<kTwoBlocks>();
      widen(0);
      for (int start = 0; start < k; start += kPiece) {
        if (start + kPiece < k) widen(start + kPiece);
        multiply(start, packed);
      }
      Tiles::template store_products<kTwoBlocks>(scratch);
      return scratch;
    }
  };
  static const std::byte* products(const Rows& a, const Rows& b, const void* x, int rows, int k,
                                   std::byte* scratch) {
    return rows > kRowBlock ? Products<true>{a, b, k, scratch}.run(x)
                            : Products<false>{a, b, k, scratch}.run(x);
  }

  static void matmul(const MatmulArgs& args) noexcept {
    if (args.rows > kFewRows) return Wide::matmul(args);
    T::start();
    for (int n = args.n0; n < args.n1; n += 32) {
      const Rows a{args.w, args.w_stride, args.grid, n, args.n1, 32};
      const Rows b{args.w, args.w_stride, args.grid, n + 16, args.n1, 32};
      Tiles::write_tiles(args, products(a, b, args.x, args.rows, args.k, args.scratch), n, 0);
    }
  }

  static void gate_up(const GateUpArgs& args) noexcept {
    if (args.rows > kFewRows) return Wide::gate_up(args);
    T::start();
    for (int n = args.n0; n < Tiles::hidden_end(args); n += 16) {
      const Rows gate{args.w_gate, args.w_stride, args.gate_grid, n, args.n1, 16};
      const Rows up{args.w_up, args.w_up_stride, args.up_grid, n, args.n1, 16};
      Tiles::write_hidden_tiles(args, products(gate, up, args.x, args.rows, args.k, args.scratch),
                                n, 0);
    }
  }

  static std::size_t scratch_bytes(int k) noexcept {
    const std::size_t many = Wide::scratch_bytes(k);
    const std::size_t few = 4 * kTileBytes + 2 * kPieceBytes;
    return many > few ? many : few;
  }

  static MatmulKernels kernels() {
    return {Tiles::packed_bytes, Tiles::pack, matmul, gate_up, scratch_bytes};
  }
};

}  // namespace
}  // namespace glint
