// The tile registers: real ones, and a model of them in plain code that tests the packing on any
// machine. Included inside a target region. Tiles are used whole, in one of the shapes below; short
// ends are padded in memory.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/amx/tile_state.h"
#include "kernels/avx512/vec512-inl.h"
#include "kernels/math-inl.h"
#include "kernels/target.h"

namespace glint {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;  // bfloat16 of one tile row
constexpr std::size_t kTileBytes = 1024;

struct TileSize {
  int rows, bytes;
};
constexpr TileSize tile_size(TileShape shape, int tile) {
  const int k = static_cast<int>(shape);
  if (tile < 4) return {kTileRows, 64};
  return tile < 6 ? TileSize{kTileRows, k} : TileSize{k / 4, 64};
}

struct RealTiles {
  // The configuration belongs to the thread; the kernel keeps it across switches.
  static void start(TileShape shape = TileShape::k64) {
    if (configured_tile_shape == shape) return;
    alignas(64) std::uint8_t config[64] = {};
    config[0] = 1;  // palette
    for (int tile = 0; tile < 8; ++tile) {
      const TileSize size = tile_size(shape, tile);
      const auto bytes_per_row = static_cast<std::uint16_t>(size.bytes);
      std::memcpy(config + 16 + 2 * tile, &bytes_per_row, sizeof bytes_per_row);
      config[48 + tile] = static_cast<std::uint8_t>(size.rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
    configured_tile_shape = shape;
  }
  // The loads below do not tell the compiler that they read memory.
  static void written() { asm volatile("" ::: "memory"); }

  // Written as assembly: the intrinsics of g++ are macros that take literal numbers only.
  template <int D>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(D));
  }
  template <int D>
  static void load(const void* base, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(D));
  }
  template <int D>
  static void store(void* base, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(D) : "memory");
  }
  // D[m][n] += sum over k of A[m][k] B[k / 2][n][k % 2].
  template <int D, int A, int B>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(D), "i"(A), "i"(B));
  }
  // D[m][n] += sum over k of A[m][k] B[k / 4][n][k % 4], signed bytes, int32 sums.
  template <int D, int A, int B>
  static void multiply_add_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(D), "i"(A), "i"(B));
  }
};

// Intel's description of TDPBF16PS: even and odd products in two chains, subnormals as zero aside.
struct EmulatedTiles {
  struct Tile {
    alignas(64) std::byte row[kTileRows][64];
  };
  static Tile& tile(int index) {
    static thread_local Tile tiles[8];
    return tiles[index];
  }
  static TileShape& shape() {
    static thread_local TileShape current = TileShape::kNone;
    return current;
  }
  static void start(TileShape wanted = TileShape::k64) { shape() = wanted; }
  static void written() {}
  template <int D>
  static void zero() {
    std::memset(&tile(D), 0, sizeof(Tile));
  }
  template <int D>
  static void load(const void* base, std::size_t stride) {
    const TileSize used = tile_size(shape(), D);
    std::memset(&tile(D), 0, sizeof(Tile));
    for (int r = 0; r < used.rows; ++r) {
      std::memcpy(tile(D).row[r],
                  static_cast<const std::byte*>(base) + static_cast<std::size_t>(r) * stride,
                  static_cast<std::size_t>(used.bytes));
    }
  }
  template <int D>
  static void store(void* base, std::size_t stride) {
    for (int r = 0; r < kTileRows; ++r) {
      std::memcpy(static_cast<std::byte*>(base) + static_cast<std::size_t>(r) * stride,
                  tile(D).row[r], 64);
    }
  }
  static float value(const Tile& t, int row, int place) {
    bf16 v;
    std::memcpy(&v, t.row[row] + 2 * place, sizeof v);
    return v.to_float();
  }
  template <int D, int A, int B>
  static void multiply_add() {
    for (int m = 0; m < kTileRows; ++m) {
      for (int n = 0; n < 16; ++n) {
        float even = 0, odd = 0, sum;
        for (int k = 0; k < 16; ++k) {
          even += value(tile(A), m, 2 * k) * value(tile(B), k, 2 * n);
          odd += value(tile(A), m, 2 * k + 1) * value(tile(B), k, 2 * n + 1);
        }
        std::memcpy(&sum, tile(D).row[m] + 4 * n, sizeof sum);
        sum += even + odd;
        std::memcpy(tile(D).row[m] + 4 * n, &sum, sizeof sum);
      }
    }
  }
  template <int D, int A, int B>
  static void multiply_add_int8() {
    for (int m = 0; m < kTileRows; ++m) {
      for (int n = 0; n < 16; ++n) {
        std::int32_t sum;
        std::memcpy(&sum, tile(D).row[m] + 4 * n, sizeof sum);
        for (int k = 0; k < static_cast<int>(shape()); ++k) {
          sum += static_cast<std::int8_t>(tile(A).row[m][k]) *
                 static_cast<std::int8_t>(tile(B).row[k / 4][4 * n + k % 4]);
        }
        std::memcpy(tile(D).row[m] + 4 * n, &sum, sizeof sum);
      }
    }
  }
};

constexpr std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}
constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// Sixteen rows of sixteen 32-bit lanes, turned in place.
inline void transpose16(__m512i* r) {
  __m512i t[16];
  GLINT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  GLINT_UNROLL
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  GLINT_UNROLL
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  GLINT_UNROLL
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Two rows of sixteen floats as sixteen pairs of bfloat16, the even row in the low halves: one row
// of a B tile. The processor's own rounding: to nearest even, subnormals to zero as the tiles read
// them.
inline __m512i pair_rows(__m512 even, __m512 odd) {
  const __m512i apart = (__m512i)_mm512_cvtne2ps_pbh(odd, even);  // NOLINT: vector types
  const __m512i places =
      _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                        0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                        0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
  return _mm512_permutexvar_epi16(places, apart);
}

// Thirty-two floats in order as bfloat16.
inline __m512i to_bf16(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);  // NOLINT: vector types
}

}  // namespace
}  // namespace glint
