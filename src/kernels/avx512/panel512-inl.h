// Low-bit weights with AVX-512: panels of sixteen rows (tensor/panel.h), a row in each dword lane.
// Included inside a target region with VNNI.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/avx512/vec512-inl.h"
#include "kernels/formats-inl.h"
#include "kernels/int8_rows.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "tensor/panel.h"

namespace glint {
namespace {

// What the codes of one format are made of, register by register.
template <DType kType>
struct Codes512 {
  static constexpr PanelFormat kFormat = make_panel_format(kType);
  static constexpr int kBits = kFormat.code_bits;

  // value << left, or >> right for a negative count, of each dword.
  template <int kLeft>
  static __m512i shifted(__m512i v) {
    if constexpr (kLeft > 0) return _mm512_slli_epi32(v, kLeft);
    if constexpr (kLeft < 0) return _mm512_srli_epi32(v, -kLeft);
    return v;
  }
  static __m512i bytes(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
  // low | (bits of the plane moved by kLeft, under mask).
  template <int kLeft>
  static __m512i with_plane(__m512i low, __m512i plane, __m512i mask) {
    return _mm512_ternarylogic_epi32(low, shifted<kLeft>(plane), mask, 0xf8);  // a | (b & c)
  }

  // The codes of one step, 0 .. 2^bits - 1, a byte each.
  [[gnu::always_inline]] static void load(const std::byte* at, __m512i (&u)[8]) {
    const auto plane = [&](int i) { return _mm512_load_si512(at + 64 * i); };
    if constexpr (kBits == 8) {
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) u[v] = plane(v);
    } else if constexpr (kBits >= 4) {
      const __m512i low = bytes(0x0f);
      GLINT_UNROLL
      for (int j = 0; j < 4; ++j) {
        const __m512i pair = plane(j);
        u[j] = _mm512_and_si512(pair, low);
        u[j + 4] = _mm512_and_si512(_mm512_srli_epi32(pair, 4), low);
      }
      if constexpr (kBits == 5) {
        const __m512i top = plane(4), mask = bytes(0x10);
        u[0] = with_plane<4>(u[0], top, mask);
        u[1] = with_plane<3>(u[1], top, mask);
        u[2] = with_plane<2>(u[2], top, mask);
        u[3] = with_plane<1>(u[3], top, mask);
        u[4] = with_plane<0>(u[4], top, mask);
        u[5] = with_plane<-1>(u[5], top, mask);
        u[6] = with_plane<-2>(u[6], top, mask);
        u[7] = with_plane<-3>(u[7], top, mask);
      }
      if constexpr (kBits == 6) {
        const __m512i mask = bytes(0x30);
        GLINT_UNROLL
        for (int j = 0; j < 2; ++j) {
          const __m512i top = plane(4 + j);
          u[4 * j] = with_plane<4>(u[4 * j], top, mask);
          u[4 * j + 1] = with_plane<2>(u[4 * j + 1], top, mask);
          u[4 * j + 2] = with_plane<0>(u[4 * j + 2], top, mask);
          u[4 * j + 3] = with_plane<-2>(u[4 * j + 3], top, mask);
        }
      }
    } else {
      const __m512i low = bytes(0x03);
      GLINT_UNROLL
      for (int j = 0; j < 2; ++j) {
        const __m512i four = plane(j);
        u[4 * j] = _mm512_and_si512(four, low);
        u[4 * j + 1] = _mm512_and_si512(_mm512_srli_epi32(four, 2), low);
        u[4 * j + 2] = _mm512_and_si512(_mm512_srli_epi32(four, 4), low);
        u[4 * j + 3] = _mm512_and_si512(_mm512_srli_epi32(four, 6), low);
      }
      if constexpr (kBits == 3) {
        const __m512i top = plane(2), mask = bytes(0x04);
        u[0] = with_plane<2>(u[0], top, mask);
        u[1] = with_plane<1>(u[1], top, mask);
        u[2] = with_plane<0>(u[2], top, mask);
        u[3] = with_plane<-1>(u[3], top, mask);
        u[4] = with_plane<-2>(u[4], top, mask);
        u[5] = with_plane<-3>(u[5], top, mask);
        u[6] = with_plane<-4>(u[6], top, mask);
        u[7] = with_plane<-5>(u[7], top, mask);
      }
    }
  }

  static __m512i table(int plus) {
    alignas(16) std::int8_t entries[16];
    for (int i = 0; i < 16; ++i) {
      entries[i] = static_cast<std::int8_t>(kFormat.table[static_cast<std::size_t>(i)] + plus);
    }
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(entries)));
  }

  // The unsigned bytes that VNNI takes stand for value + 2^kUnsignedZeroLog2 (or the value itself).
  static constexpr int kUnsignedZeroLog2 = kFormat.has_table ? 7 : kFormat.zero_log2;
  [[gnu::always_inline]] static void load_unsigned(const std::byte* at, __m512i (&u)[8]) {
    load(at, u);
    if constexpr (kFormat.has_table) {
      const __m512i entries = table(128);
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) u[v] = _mm512_shuffle_epi8(entries, u[v]);
    }
  }
  // The values themselves, as signed bytes.
  [[gnu::always_inline]] static void load_signed(const std::byte* at, __m512i (&u)[8]) {
    load(at, u);
    if constexpr (kFormat.has_table) {
      const __m512i entries = table(0);
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) u[v] = _mm512_shuffle_epi8(entries, u[v]);
    } else if constexpr (kFormat.signed_zero() != 0) {
      const __m512i zero = bytes(kFormat.signed_zero());
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) u[v] = _mm512_sub_epi8(u[v], zero);
    }
  }
};

// The scales and minima of a panel's groups, sixteen rows to a register.
template <DType kType>
class Scales512 {
 public:
  static constexpr PanelFormat kFormat = make_panel_format(kType);

  Scales512(const std::byte* panel, int k)
      : d_(panel + kFormat.d_at(static_cast<std::size_t>(k))),
        dmin_(panel + kFormat.dmin_at(static_cast<std::size_t>(k))),
        scales_(panel + kFormat.scales_at(static_cast<std::size_t>(k))),
        mins_(panel + kFormat.mins_at(static_cast<std::size_t>(k))),
        zeros_(panel + kFormat.zeros_at(static_cast<std::size_t>(k))) {}

  static __m512 halves(const std::byte* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m128i bytes(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }

  [[gnu::always_inline]] __m512 scale(int group) const {
    const auto g = static_cast<std::size_t>(group);
    if constexpr (kFormat.scale == PanelScale::kHalf) {
      return halves(scales_ + 32 * g);
    } else if constexpr (kFormat.scale == PanelScale::kFloat) {
      return _mm512_load_ps(scales_ + 64 * g);
    } else if constexpr (kFormat.scale == PanelScale::kBf16) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales_ + 32 * g));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    } else {
      __m512 d = halves(d_ + 32 * (g * kFormat.group / 256));
      if constexpr (kFormat.unit != 1.0f) d = _mm512_mul_ps(d, _mm512_set1_ps(kFormat.unit));
      __m128i s = bytes(scales_ + 16 * g);
      if constexpr (kFormat.scale == PanelScale::kSuperNibbles)
        s = _mm_and_si128(s, _mm_set1_epi8(0x0f));
      const __m512i wide =
          kFormat.scale == PanelScale::kSuperS8 ? _mm512_cvtepi8_epi32(s) : _mm512_cvtepu8_epi32(s);
      return _mm512_mul_ps(d, _mm512_cvtepi32_ps(wide));
    }
  }

  [[gnu::always_inline]] __m512 minimum(int group) const {
    const auto g = static_cast<std::size_t>(group);
    if constexpr (kFormat.scale == PanelScale::kHalf) return halves(mins_ + 32 * g);
    const __m512 dmin = halves(dmin_ + 32 * (g * kFormat.group / 256));
    __m128i m;
    if constexpr (kFormat.scale == PanelScale::kSuperNibbles) {
      m = _mm_and_si128(_mm_srli_epi16(bytes(scales_ + 16 * g), 4), _mm_set1_epi8(0x0f));
    } else {
      m = bytes(mins_ + 16 * g);
    }
    const __m512 product = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(m)));
    return _mm512_xor_ps(product, _mm512_set1_ps(-0.0f));
  }

  // The zeros of a group, less kOffset.
  template <int kOffset>
  [[gnu::always_inline]] __m512 zero(int group) const {
    const __m512i z = _mm512_cvtepu8_epi32(bytes(zeros_ + 16 * static_cast<std::size_t>(group)));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(z, _mm512_set1_epi32(kOffset)));
  }

 private:
  const std::byte* d_;
  const std::byte* dmin_;
  const std::byte* scales_;
  const std::byte* mins_;
  const std::byte* zeros_;
};

// Int8Rows (panel-inl.h), sixteen values at a time, with the same results.
struct Int8Rows512 {
  static constexpr int kBlock = kInt8Block;

  static std::size_t packed_bytes(int rows, int k) { return int8_rows_bytes(rows, k); }

  static void pack_block(const float* x, int count, int block, int k, void* packed, int row) {
    Int8Chunk& chunk = int8_chunk(packed, k, row, block);
    const int lane = row % kInt8Rows;
    for (int g = 0; g < kBlock / kInt8Group; ++g) {
      __m512 v[2];
      __m512 largest = _mm512_setzero_ps();
      GLINT_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int first = g * kInt8Group + 16 * h;
        const int left = count - first;
        v[h] = left <= 0 ? Vec512::zero() : Vec512::load_first(x + first, left < 16 ? left : 16);
        largest = _mm512_max_ps(_mm512_abs_ps(v[h]), largest);  // NaN is passed over
      }
      const float most = _mm512_reduce_max_ps(largest);
      const bool none = most < kInt8Smallest;
      const __m512 factor = _mm512_set1_ps(none ? 0.0f : 127.0f / most);
      chunk.scale[g][lane] = none ? 0.0f : most / 127.0f;
      std::int32_t sums[2];
      GLINT_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __m512 rounded = Vec512::round(_mm512_mul_ps(v[h], factor));
        const __m512i q = _mm512_cvtps_epi32(
            _mm512_min_ps(_mm512_max_ps(rounded, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f)));
        _mm_store_si128(reinterpret_cast<__m128i*>(chunk.q[lane] + g * kInt8Group + 16 * h),
                        _mm512_cvtsepi32_epi8(q));
        sums[h] = _mm512_reduce_add_epi32(q);
        chunk.sum16[2 * g + h][lane] = sums[h];
      }
      chunk.sum32[g][lane] = sums[0] + sums[1];
    }
  }
};

[[gnu::always_inline]] inline __m512i broadcast_dword(const void* at) {
  std::int32_t value;
  std::memcpy(&value, at, sizeof value);
  return _mm512_set1_epi32(value);
}

template <DType kType>
struct VnniPanel {
  using Codes = Codes512<kType>;
  static constexpr PanelFormat kFormat = Codes::kFormat;
  static constexpr int kTileRows = 6;
  static constexpr int kGroupsPerStep = kPanelStep / kFormat.group;
  static constexpr int kVectorsPerGroup = kFormat.group / 4;
  static constexpr std::size_t kAhead = 4096;  // bytes of codes fetched before they are needed

  // Fetches what is read a little later: the rest of this panel, then the start of the next one and
  // of its scales, wherever it lies. The processor foresees neither.
  class Ahead {
   public:
    explicit Ahead(const PanelArgs& a)
        : at_(a.panel + kAhead),
          end_(a.panel + kFormat.panel_bytes(static_cast<std::size_t>(a.k))),
          next_(a.next),
          scales_(kFormat.d_at(static_cast<std::size_t>(a.k))) {}
    [[gnu::always_inline]] void ask() {
      if (at_ >= end_ && next_ != nullptr) {
        at_ = next_ + (at_ - end_);
        end_ = next_ + kAhead + kFormat.step_bytes();
        for (int line = 0; line < 4; ++line) prefetch(next_ + scales_ + 64 * line);
        next_ = nullptr;
      }
      GLINT_UNROLL
      for (int line = 0; line < kFormat.code_bits; ++line) prefetch(at_ + 64 * line);
      at_ += kFormat.step_bytes();
    }

   private:
    static void prefetch(const std::byte* at) {
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
    }
    const std::byte* at_;
    const std::byte* end_;
    const std::byte* next_;
    std::size_t scales_;
  };

  // Adds step `step` of the block, whose columns share a scale of x, to `total`; rows from lane
  // `first` on.
  template <int R>
  [[gnu::always_inline]] static void add_step(const std::byte* codes,
                                              const Scales512<kType>& scales, int first_group,
                                              const Int8Chunk& x, int first, int step,
                                              __m512 (&total)[R]) {
    __m512i u[8];
    Codes::load_unsigned(codes, u);
    static_assert(kPanelStep == kInt8Group);
    __m512 part[R];
    GLINT_UNROLL
    for (int h = 0; h < kGroupsPerStep; ++h) {
      const int group = step * kGroupsPerStep + h;  // of the block
      const __m512 s = scales.scale(first_group + group);
      const std::int32_t* sums = kFormat.group == 32 ? x.sum32[group] : x.sum16[group];
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const std::int8_t* q = x.q[first + r] + step * kPanelStep + h * kFormat.group;
        __m512i sum = _mm512_setzero_si512();
        GLINT_UNROLL
        for (int v = 0; v < kVectorsPerGroup; ++v) {
          sum = _mm512_dpbusd_epi32(sum, u[h * kVectorsPerGroup + v], broadcast_dword(q + 4 * v));
        }
        if constexpr (Codes::kUnsignedZeroLog2 >= 0) {
          sum = _mm512_sub_epi32(
              sum, _mm512_slli_epi32(_mm512_set1_epi32(sums[first + r]), Codes::kUnsignedZeroLog2));
        }
        __m512 whole = _mm512_cvtepi32_ps(sum);
        if constexpr (kFormat.has_zeros) {
          whole = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(sums[first + r])),
                                   scales.template zero<0>(first_group + group), whole);
        }
        part[r] = h == 0 ? _mm512_mul_ps(whole, s) : _mm512_fmadd_ps(whole, s, part[r]);
        if constexpr (kFormat.has_min) {
          part[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(sums[first + r])),
                                    scales.minimum(first_group + group), part[r]);
        }
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r)
      total[r] = _mm512_fmadd_ps(part[r], _mm512_set1_ps(x.scale[step][first + r]), total[r]);
  }

  template <int R>
  struct Tile {
    [[gnu::noinline]] static void run(const PanelArgs& a, int row) {
      constexpr int kSteps = kInt8Block / kPanelStep;
      const Int8Chunk* x = &int8_chunk(a.x, a.k, row, 0);
      const int first = row % kInt8Rows;
      const Scales512<kType> scales(a.panel, a.k);
      __m512 total[R];
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
      const std::byte* codes = a.panel;
      Ahead ahead(a);
      int left = a.k / kPanelStep;
      for (int group = 0; left > 0; left -= kSteps, group += kSteps * kGroupsPerStep, ++x) {
        for (int step = 0; step < kSteps && step < left; ++step, codes += kFormat.step_bytes()) {
          if (row == 0) ahead.ask();  // the first rows to pass bring the codes in
          add_step<R>(codes, scales, group, *x, first, step, total);
        }
      }
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) _mm512_store_ps(a.out + (row + r) * kPanelRows, total[r]);
    }
  };

  static void product(const PanelArgs& a) noexcept {
    for (int row = 0; row < a.rows;) {
      const int in_chunk = kInt8Rows - row % kInt8Rows;
      const int left = a.rows - row < in_chunk ? a.rows - row : in_chunk;
      const int rows = next_rows(left, kTileRows);
      with_rows<Tile, kTileRows>(rows, a, row);
      row += rows;
    }
  }
};

// Float32 activations with weights widened: one chain over k for each output.
template <DType kType>
struct WidePanel512 {
  using Codes = Codes512<kType>;
  static constexpr PanelFormat kFormat = Codes::kFormat;
  static constexpr int kTileRows = 6;

  // The 32 columns of a step as floats, to[column * 16 + row].
  static void widen(const std::byte* codes, const Scales512<kType>& scales, int step, float* to) {
    __m512i u[8];
    Codes::load_signed(codes, u);
    for (int v = 0; v < 8; ++v) {
      const int group = (step * kPanelStep + 4 * v) / kFormat.group;
      const __m512 s = scales.scale(group);
      GLINT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const __m512i value =
            _mm512_srai_epi32(_mm512_sllv_epi32(u[v], _mm512_set1_epi32(24 - 8 * i)), 24);
        __m512 w = _mm512_cvtepi32_ps(value);
        if constexpr (kFormat.has_zeros)
          w = _mm512_sub_ps(w, scales.template zero<kFormat.signed_zero()>(group));
        w = _mm512_mul_ps(w, s);
        if constexpr (kFormat.has_min) w = _mm512_add_ps(w, scales.minimum(group));
        _mm512_store_ps(to + (4 * v + i) * kPanelRows, w);
      }
    }
  }

  template <int R>
  struct Tile {
    static void run(const float* x, std::size_t x_stride, const float* w, int k, float* out) {
      __m512 sums[R];
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) sums[r] = _mm512_load_ps(out + r * kPanelRows);
      for (int i = 0; i < k; ++i) {
        const __m512 value = _mm512_load_ps(w + i * kPanelRows);
        GLINT_UNROLL
        for (int r = 0; r < R; ++r) {
          sums[r] = _mm512_fmadd_ps(
              _mm512_set1_ps(
                  x[static_cast<std::size_t>(r) * x_stride + static_cast<std::size_t>(i)]),
              value, sums[r]);
        }
      }
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) _mm512_store_ps(out + r * kPanelRows, sums[r]);
    }
  };

  static void product(const PanelArgs& a) noexcept {
    const Scales512<kType> scales(a.panel, a.k);
    const auto x_stride = static_cast<std::size_t>((a.k + 31) / 32 * 32);
    std::memset(a.out, 0, static_cast<std::size_t>(a.rows * kPanelRows) * sizeof(float));
    alignas(64) float w[kPanelStep * kPanelRows];
    for (int step = 0; step < a.k / kPanelStep; ++step) {
      widen(a.panel + static_cast<std::size_t>(step) * kFormat.step_bytes(), scales, step, w);
      for (int row = 0; row < a.rows;) {
        const int rows = next_rows(a.rows - row, kTileRows);
        const float* x = reinterpret_cast<const float*>(a.x) +
                         static_cast<std::size_t>(row) * x_stride +
                         static_cast<std::size_t>(step) * kPanelStep;
        with_rows<Tile, kTileRows>(rows, x, x_stride, static_cast<const float*>(w), kPanelStep,
                                   a.out + row * kPanelRows);
        row += rows;
      }
    }
  }
};

}  // namespace
}  // namespace glint
