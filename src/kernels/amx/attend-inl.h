// Attention over bfloat16 pages on tiles. Keys are the A side of the scores, as they lie in the
// page; queries are packed as the B side, so a score tile is [16 keys][16 query rows] and the
// softmax runs down the keys with a query row in each lane. The weights, rounded to bfloat16, then
// meet pairs of value rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/amx/matmul-inl.h"
#include "kernels/amx/tiles-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

template <typename T>
struct TileAttend {
  static constexpr int kKeyTiles = kAttendSpan / kTileK;  // tiles of 32 keys in a span

  struct Scratch {
    std::byte* q;        // packed queries: [row blocks][dk / 32] tiles
    std::byte* keys;     // [256][dk padded], only when dk is no multiple of 32
    std::byte* values;   // [dv / 16][8] tiles of [16 pairs of keys][16 columns][2]
    float* scores;       // [256 keys][16 rows]
    std::byte* weights;  // [8] tiles of [16 rows][32 keys]
    float* tile;         // four result tiles
  };

  static std::size_t padded(int d) {
    return size(ceil_div(d, kTileK)) * 64;
  }  // bytes of a padded key

  static Scratch split(std::byte* base, int rows, int dk, int dv) {
    Scratch s;
    s.q = base;
    s.keys = s.q + size(ceil_div(rows, kRowBlock)) * size(ceil_div(dk, kTileK)) * kTileBytes;
    s.values = s.keys + (dk % kTileK == 0 ? 0 : kAttendSpan * padded(dk));
    std::byte* next = s.values + size(ceil_div(dv, 16)) * kKeyTiles * kTileBytes;
    s.scores = reinterpret_cast<float*>(next);
    s.weights = next + kAttendSpan * 64;
    s.tile = reinterpret_cast<float*>(s.weights + kKeyTiles * kTileBytes);
    return s;
  }

  static std::size_t scratch_bytes(int rows, int dk, int dv) noexcept {
    const Scratch s = split(nullptr, rows, dk, dv);
    return size_of(s.tile) + 4 * kTileBytes;
  }
  static std::size_t size_of(const float* end) { return reinterpret_cast<std::uintptr_t>(end); }

  static __m512i load_row(const std::byte* row, int left) {  // 32 bfloat16, zeros beyond `left`
    if (left >= kTileK) return _mm512_loadu_si512(row);
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << left) - 1u), row);
  }

  static void pack_queries(const AttendArgs& args, std::byte* to) {
    const auto* q = static_cast<const std::byte*>(args.q);
    for (int first = 0; first < args.rows; first += kRowBlock) {
      for (int k = 0; k < args.dk; k += kTileK, to += kTileBytes) {
        __m512i pairs[16];
        for (int r = 0; r < kRowBlock; ++r) {
          pairs[r] = first + r < args.rows
                         ? load_row(q + (size(first + r) * args.q_stride + size(k)) * sizeof(bf16),
                                    args.dk - k)
                         : _mm512_setzero_si512();
        }
        transpose16(pairs);
        for (int r = 0; r < 16; ++r) _mm512_store_si512(to + 64 * r, pairs[r]);
      }
    }
  }

  static const std::byte* key_row(const std::byte* const* pages, std::size_t stride, int key) {
    return pages[key / kAttendPage] + size(key % kAttendPage) * stride;
  }

  static void pad_keys(const AttendArgs& args, std::byte* to) {
    const int keys = ceil_div(args.num_keys, kTileRows) * kTileRows;
    for (int key = 0; key < keys; ++key) {
      const std::byte* row = key_row(args.k_pages, args.k_stride, key);
      for (int k = 0; k < args.dk; k += kTileK, to += 64) {
        _mm512_store_si512(to, load_row(row + size(k) * sizeof(bf16), args.dk - k));
      }
    }
  }

  // Rows of values, two keys interleaved; keys from num_keys on count as zero.
  static void pair_values(const AttendArgs& args, std::byte* to) {
    const int tiles = ceil_div(args.num_keys, kTileK);
    for (int pair = 0; pair < tiles * 16; ++pair) {
      const std::byte* row[2];
      for (int i = 0; i < 2; ++i) {
        const int key = 2 * pair + i;
        row[i] = key < args.num_keys ? key_row(args.v_pages, args.v_stride, key) : nullptr;
      }
      std::byte* out = to + size(pair / 16) * kTileBytes + size(pair % 16) * 64;
      for (int d = 0; d < args.dv; d += 16, out += kKeyTiles * kTileBytes) {
        const auto mask =
            static_cast<__mmask16>(args.dv - d >= 16 ? 0xffffu : (1u << (args.dv - d)) - 1u);
        __m512i v[2];
        for (int i = 0; i < 2; ++i) {
          v[i] = row[i] == nullptr ? _mm512_setzero_si512()
                                   : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                         mask, row[i] + size(d) * sizeof(bf16)));
        }
        _mm512_store_si512(out, _mm512_or_si512(v[0], _mm512_slli_epi32(v[1], 16)));
      }
    }
  }

  // scores[key][row] of one block of sixteen query rows.
  static void score(const AttendArgs& args, const Scratch& s, const std::byte* q) {
    const int steps = ceil_div(args.dk, kTileK);
    const bool direct = args.dk % kTileK == 0;
    for (int key = 0; key < args.num_keys; key += 2 * kTileRows) {
      const bool second = key + kTileRows < args.num_keys;
      const std::size_t stride = direct ? args.k_stride : padded(args.dk);
      const std::byte* a =
          direct ? key_row(args.k_pages, stride, key) : s.keys + size(key) * stride;
      const std::byte* b = a + (second ? size(kTileRows) * stride : 0);
      T::template zero<0>();
      T::template zero<1>();
      for (int k = 0; k < steps; ++k) {
        T::template load<6>(q + size(k) * kTileBytes, 64);
        T::template load<4>(a + 64 * k, stride);
        T::template multiply_add<0, 4, 6>();
        T::template load<5>(b + 64 * k, stride);
        T::template multiply_add<1, 5, 6>();
      }
      T::template store<0>(s.scores + key * 16, 64);
      T::template store<1>(s.scores + (key + kTileRows) * 16, 64);
    }
  }

  // Softmax down the keys, a query row per lane; weights become tiles of [16 rows][32 keys].
  // Returns the sums and maxima.
  static void weigh(const AttendArgs& args, const Scratch& s, int first) {
    const int count = args.rows - first < kRowBlock ? args.rows - first : kRowBlock;
    const auto lanes = Vec512::first(count);
    const __m512i visible = _mm512_maskz_loadu_epi32(lanes, args.visible + first);
    const __m512 scale = _mm512_set1_ps(args.scale), nothing = _mm512_set1_ps(-kInfinity);
    __m512 max[4] = {nothing, nothing, nothing, nothing};
    const int keys = ceil_div(args.num_keys, kTileK) * kTileK;
    for (int key = 0; key < keys; key += 4) {
      GLINT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const __mmask16 seen = _mm512_cmpgt_epi32_mask(visible, _mm512_set1_epi32(key + i));
        const __m512 v =
            _mm512_mask_mul_ps(nothing, seen, _mm512_load_ps(s.scores + (key + i) * 16), scale);
        _mm512_store_ps(s.scores + (key + i) * 16, v);
        max[i] = _mm512_max_ps(v, max[i]);
      }
    }
    const __m512 top = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
    // A row that sees nothing would subtract infinities.
    const __m512 shift =
        _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, nothing, _CMP_EQ_OQ), _mm512_setzero_ps());
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                     _mm512_setzero_ps()};
    for (int tile = 0; tile < keys / kTileK; ++tile) {
      __m512i pairs[16];
      for (int pair = 0; pair < 16; ++pair) {
        __m512 p[2];
        for (int i = 0; i < 2; ++i) {
          const int key = tile * kTileK + 2 * pair + i;
          p[i] = exp<Vec512>(_mm512_sub_ps(_mm512_load_ps(s.scores + key * 16), shift));
          sum[(2 * pair + i) % 4] = _mm512_add_ps(sum[(2 * pair + i) % 4], p[i]);
        }
        pairs[pair] = pair_rows(p[0], p[1]);
      }
      transpose16(pairs);
      for (int r = 0; r < 16; ++r)
        _mm512_store_si512(s.weights + size(tile) * kTileBytes + 64 * r, pairs[r]);
    }
    T::written();
    _mm512_mask_storeu_ps(args.max + first, lanes, top);
    const __m512 total =
        _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    _mm512_mask_storeu_ps(args.sum + first, lanes, total);
  }

  static void write_out(const AttendArgs& args, const float* tile, int first, int d) {
    const int width = args.dv - d < 16 ? args.dv - d : 16;
    const int count = args.rows - first < kRowBlock ? args.rows - first : kRowBlock;
    for (int r = 0; r < count; ++r) {
      Vec512::store_first(args.out + size(first + r) * args.out_stride + d, width,
                          _mm512_load_ps(tile + 16 * r));
    }
  }

  // out = weights x values for one block of query rows, 64 columns at a time.
  static void combine(const AttendArgs& args, const Scratch& s, int first) {
    const int tiles = ceil_div(args.num_keys, kTileK);
    constexpr std::size_t kColumn = kKeyTiles * kTileBytes;  // between column blocks of 16
    const int blocks = ceil_div(args.dv, 16);
    for (int block = 0; block < blocks; block += 4) {
      const std::byte* v = s.values + size(block) * kColumn;
      const int count = blocks - block < 4 ? blocks - block : 4;
      // Absent columns read the block's first ones and are not written.
      const std::size_t second = count > 1 ? kColumn : 0, third = count > 2 ? 2 * kColumn : 0,
                        fourth = count > 3 ? 3 * kColumn : 0;
      T::template zero<0>();
      T::template zero<1>();
      T::template zero<2>();
      T::template zero<3>();
      for (int t = 0; t < tiles; ++t, v += kTileBytes) {
        T::template load<4>(s.weights + size(t) * kTileBytes, 64);
        T::template load<5>(v, 64);
        T::template multiply_add<0, 4, 5>();
        T::template load<6>(v + second, 64);
        T::template multiply_add<1, 4, 6>();
        T::template load<5>(v + third, 64);
        T::template multiply_add<2, 4, 5>();
        T::template load<6>(v + fourth, 64);
        T::template multiply_add<3, 4, 6>();
      }
      T::template store<0>(s.tile, 64);
      T::template store<1>(s.tile + 256, 64);
      T::template store<2>(s.tile + 512, 64);
      T::template store<3>(s.tile + 768, 64);
      for (int i = 0; i < count; ++i) write_out(args, s.tile + 256 * i, first, 16 * (block + i));
    }
  }

  static void attend(const AttendArgs& args) noexcept {
    T::start();
    if (args.num_keys == 0) {
      for (int r = 0; r < args.rows; ++r) {
        args.max[r] = -kInfinity;
        args.sum[r] = 0;
        std::memset(args.out + size(r) * args.out_stride, 0, size(args.dv) * sizeof(float));
      }
      return;
    }
    const Scratch s = split(args.scratch, args.rows, args.dk, args.dv);
    pack_queries(args, s.q);
    if (args.dk % kTileK != 0) pad_keys(args, s.keys);
    pair_values(args, s.values);
    T::written();
    const std::size_t q_block = size(ceil_div(args.dk, kTileK)) * kTileBytes;
    for (int first = 0; first < args.rows; first += kRowBlock) {
      score(args, s, s.q + size(first / kRowBlock) * q_block);
      weigh(args, s, first);
      combine(args, s, first);
    }
  }

  static AttendKernels kernels() { return {attend, scratch_bytes}; }
};

}  // namespace
}  // namespace glint
