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

  static constexpr int kScores = kAttendSpan * kRowBlock;  // scores of one row block

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
    s.weights = next + 2 * kScores * sizeof(float);
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

  // Rows of values, two keys interleaved; keys before first_key and from num_keys on count as zero.
  // One tile of 32 keys
  // after the other, so that its rows stay in the first-level cache while all their columns are
  // taken, and the rows of the next tile are asked for meanwhile: memory is what a decode waits
  // for.
  static void pair_values(const AttendArgs& args, std::byte* to) {
    const int tiles = ceil_div(args.num_keys, kTileK);
    const int columns = ceil_div(args.dv, 16);
    for (int tile = 0; tile < tiles; ++tile) {
      const std::byte* row[kTileK];
      for (int i = 0; i < kTileK; ++i) {
        const int key = tile * kTileK + i;
        const bool seen = key >= args.first_key && key < args.num_keys;
        row[i] = seen ? key_row(args.v_pages, args.v_stride, key) : nullptr;
      }
      const int next = (tile + 1) * kTileK;
      const std::byte* ahead =
          next < args.num_keys ? key_row(args.v_pages, args.v_stride, next) : nullptr;
      const std::size_t lines = ahead == nullptr ? 0 : kTileK * args.v_stride / 64;
      std::size_t asked = 0;
      for (int d = 0; d < columns; ++d) {
        const std::size_t stop = lines * size(d + 1) / size(columns);
        for (; asked < stop; ++asked)
          _mm_prefetch(reinterpret_cast<const char*>(ahead + 64 * asked), _MM_HINT_T1);
        const int width = args.dv - 16 * d < 16 ? args.dv - 16 * d : 16;
        const auto mask = static_cast<__mmask16>((1u << width) - 1u);
        std::byte* out = to + size(d * kKeyTiles + tile) * kTileBytes;
        for (int pair = 0; pair < 16; ++pair, out += 64) {
          __m512i v[2];
          GLINT_UNROLL
          for (int i = 0; i < 2; ++i) {
            const std::byte* from = row[2 * pair + i];
            v[i] = from == nullptr ? _mm512_setzero_si512()
                                   : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                         mask, from + size(d) * 16 * sizeof(bf16)));
          }
          _mm512_store_si512(out, _mm512_or_si512(v[0], _mm512_slli_epi32(v[1], 16)));
        }
      }
    }
  }

  // scores[key][row] of one or two blocks of sixteen query rows.
  template <bool kTwoBlocks>
  static void score(const AttendArgs& args, const Scratch& s, const std::byte* q, int num_keys) {
    const int steps = ceil_div(args.dk, kTileK);
    const bool direct = args.dk % kTileK == 0;
    const std::size_t stride = direct ? args.k_stride : padded(args.dk);
    const std::byte* q1 = q + size(steps) * kTileBytes;
    for (int key = 0; key < num_keys; key += 2 * kTileRows) {
      const bool second = key + kTileRows < num_keys;
      const std::byte* a =
          direct ? key_row(args.k_pages, stride, key) : s.keys + size(key) * stride;
      const std::byte* b = a + (second ? size(kTileRows) * stride : 0);
      T::template zero<0>();
      T::template zero<2>();
      if constexpr (kTwoBlocks) {
        T::template zero<1>();
        T::template zero<3>();
      }
      for (int k = 0; k < steps; ++k) {
        T::template load<4>(a + 64 * k, stride);
        T::template load<6>(q + size(k) * kTileBytes, 64);
        T::template multiply_add<0, 4, 6>();
        T::template load<5>(b + 64 * k, stride);
        T::template multiply_add<2, 5, 6>();
        if constexpr (kTwoBlocks) {
          T::template load<7>(q1 + size(k) * kTileBytes, 64);
          T::template multiply_add<1, 4, 7>();
          T::template multiply_add<3, 5, 7>();
        }
      }
      T::template store<0>(s.scores + key * 16, 64);
      T::template store<2>(s.scores + (key + kTileRows) * 16, 64);
      if constexpr (kTwoBlocks) {
        T::template store<1>(s.scores + kScores + key * 16, 64);
        T::template store<3>(s.scores + kScores + (key + kTileRows) * 16, 64);
      }
    }
  }

  // 2^x for x <= 0 within 2 units in the last place. Minimax polynomial of 2^r on |r| <= 1/2.
  static __m512 exp2(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.5c08e4p-10f), r, _mm512_set1_ps(0x1.3d0c52p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c6b6e4p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebf918p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e428p-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.000002p+0f));
    return _mm512_scalef_ps(p, n);
  }

  // The lanes that see a key, both counted from first_key: a key before it is, without its sign,
  // larger than any count.
  static __mmask16 seen_by(__m512i visible, int key) {
    return _mm512_cmpgt_epu32_mask(visible, _mm512_set1_epi32(key));
  }

  // Softmax down the keys, a query row per lane; weights become tiles of [16 rows][32 keys].
  static void weigh(const AttendArgs& args, const float* scores, std::byte* weights, int first,
                    int num_keys) {
    const int count = args.rows - first < kRowBlock ? args.rows - first : kRowBlock;
    const auto lanes = Vec512::first(count);
    const __m512i visible =
        _mm512_max_epi32(_mm512_sub_epi32(_mm512_maskz_loadu_epi32(lanes, args.visible + first),
                                          _mm512_set1_epi32(args.first_key)),
                         _mm512_setzero_si512());
    const int keys = ceil_div(num_keys, kTileK) * kTileK;
    const __m512 nothing = _mm512_set1_ps(-kInfinity);
    __m512 max[4] = {nothing, nothing, nothing, nothing};
    for (int key = 0; key < keys; key += 4) {
      GLINT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const __mmask16 seen = seen_by(visible, key + i - args.first_key);
        max[i] = _mm512_mask_max_ps(max[i], seen, _mm512_load_ps(scores + (key + i) * 16), max[i]);
      }
    }
    const __m512 top = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
    // e^(scale (s - top)) = 2^(c s - c top); rows that see nothing keep no weight at all.
    const __m512 c = _mm512_set1_ps(args.scale * 0x1.715476p+0f);  // log2(e)
    const __m512 shift = _mm512_mul_ps(top, c);
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                     _mm512_setzero_ps()};
    for (int tile = 0; tile < keys / kTileK; ++tile) {
      __m512i pairs[16];
      for (int pair = 0; pair < 16; pair += 2) {
        __m512 p[4];
        GLINT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = tile * kTileK + 2 * pair + i;
          const __mmask16 seen = seen_by(visible, key - args.first_key);
          const __m512 x = _mm512_fmsub_ps(_mm512_load_ps(scores + key * 16), c, shift);
          p[i] = _mm512_maskz_mov_ps(seen, exp2(x));
          sum[i] = _mm512_add_ps(sum[i], p[i]);
        }
        pairs[pair] = pair_rows(p[0], p[1]);
        pairs[pair + 1] = pair_rows(p[2], p[3]);
      }
      transpose16(pairs);
      for (int r = 0; r < 16; ++r) {
        _mm512_store_si512(weights + size(tile) * kTileBytes + 64 * r, pairs[r]);
      }
    }
    T::written();
    _mm512_mask_storeu_ps(args.max + first, lanes, _mm512_mul_ps(top, _mm512_set1_ps(args.scale)));
    const __m512 total =
        _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    _mm512_mask_storeu_ps(args.sum + first, lanes, total);
  }

  // A result tile to its place: columns [d, d + 16) of rows [first, first + 16).
  template <int D>
  static void write_out(const AttendArgs& args, float* tile, int first, int d) {
    const int width = args.dv - d < 16 ? args.dv - d : 16;
    const int count = args.rows - first < kRowBlock ? args.rows - first : kRowBlock;
    float* out = args.out + size(first) * args.out_stride + d;
    if (width == 16 && count == kRowBlock) {
      T::template store<D>(out, args.out_stride * sizeof(float));
      return;
    }
    T::template store<D>(tile, 64);
    for (int r = 0; r < count; ++r) {
      Vec512::store_first(out + size(r) * args.out_stride, width, _mm512_load_ps(tile + 16 * r));
    }
  }

  // out = weights x values for one block of query rows, 64 columns at a time.
  static void combine(const AttendArgs& args, const Scratch& s, int first, int num_keys) {
    const int tiles = ceil_div(num_keys, kTileK);
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
      write_out<0>(args, s.tile, first, 16 * block);
      if (count > 1) write_out<1>(args, s.tile, first, 16 * (block + 1));
      if (count > 2) write_out<2>(args, s.tile, first, 16 * (block + 2));
      if (count > 3) write_out<3>(args, s.tile, first, 16 * (block + 3));
    }
  }

  // The most keys that any of rows [first, first + 32) sees; what lies beyond cannot matter.
  static int keys_of(const AttendArgs& args, int first) {
    int keys = 1;
    for (int r = first; r < args.rows && r < first + 2 * kRowBlock; ++r) {
      keys = args.visible[r] > keys ? args.visible[r] : keys;
    }
    return keys;
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
    for (int first = 0; first < args.rows; first += 2 * kRowBlock) {
      const std::byte* q = s.q + size(first / kRowBlock) * q_block;
      const bool two = first + kRowBlock < args.rows;
      const int num_keys = keys_of(args, first);
      if (two) {
        score<true>(args, s, q, num_keys);
      } else {
        score<false>(args, s, q, num_keys);
      }
      weigh(args, s.scores, s.weights, first, num_keys);
      combine(args, s, first, num_keys);
      if (!two) continue;
      weigh(args, s.scores + kScores, s.weights, first + kRowBlock, num_keys);
      combine(args, s, first + kRowBlock, num_keys);
    }
  }

  static AttendKernels kernels() { return {attend, scratch_bytes}; }
};

}  // namespace
}  // namespace glint
