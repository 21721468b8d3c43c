// Low-bit weights on int8 tiles. A panel (tensor/panel.h) expanded to signed bytes is the B side as
// it lies; packed activations are the A side as they lie. One product covers one group of a scale,
// its whole-number result is scaled into float32 sums outside the tiles, in the order of
// kernels/int8_rows.h: the same bits as every other table. Few rows go to VNNI.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/amx/panel.h"
#include "kernels/amx/tiles-inl.h"
#include "kernels/avx512/panel512-inl.h"
#include "kernels/int8_rows.h"
#include "kernels/table.h"

namespace glint {
namespace {

template <typename T, DType kType>
struct TilePanel {
  using Vnni = VnniPanel<kType>;
  using Codes = Codes512<kType>;
  static constexpr PanelFormat kFormat = Codes::kFormat;
  static constexpr int kGroup = kFormat.group;
  static constexpr TileShape kShape = kGroup == 32 ? TileShape::k32 : TileShape::k16;
  static constexpr int kBlockGroups = kInt8Block / kGroup;  // 4 or 8
  static constexpr std::size_t kGroupBytes = static_cast<std::size_t>(kGroup) * kPanelRows;

  static constexpr bool kHasMins = kFormat.has_min || kFormat.has_zeros;

  static constexpr int kUnitGroups = 4;  // products between two visits of a tile register
  static constexpr int kBlockUnits = kBlockGroups / kUnitGroups;

  // Scratch: the panel as signed bytes, scales and minima or zeros as floats, all padded to whole
  // blocks with zeros, and two sets of results, half a page apart in their addresses so that loads
  // from one are not taken for loads from the other.
  struct Scratch {
    std::byte* codes;
    float* scales;
    float* mins;
    std::byte* results[2];

    Scratch(std::byte* base, int k) {
      const std::size_t padded = size(int8_blocks(k)) * kInt8Block;
      codes = base;
      scales = reinterpret_cast<float*>(codes + padded * kPanelRows);
      mins = scales + padded / kGroup * kPanelRows;
      results[0] =
          reinterpret_cast<std::byte*>(mins + (kHasMins ? padded / kGroup * kPanelRows : 0));
      results[1] = results[0] + kUnitGroups * kTileBytes + 2048;
    }
  };

  static void expand(const PanelArgs& a, const Scratch& s) {
    const Scales512<kType> scales(a.panel, a.k);
    const int steps = a.k / kPanelStep;
    const std::byte* codes = a.panel;
    for (int step = 0; step < steps; ++step, codes += kFormat.step_bytes()) {
      __m512i u[8];
      Codes::load_signed(codes, u);
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) _mm512_store_si512(s.codes + size(8 * step + v) * 64, u[v]);
    }
    const int groups = a.k / kGroup;
    for (int g = 0; g < groups; ++g) {
      _mm512_store_ps(s.scales + g * kPanelRows, scales.scale(g));
      if constexpr (kFormat.has_min) _mm512_store_ps(s.mins + g * kPanelRows, scales.minimum(g));
      if constexpr (kFormat.has_zeros) {
        _mm512_store_ps(s.mins + g * kPanelRows, scales.template zero<kFormat.signed_zero()>(g));
      }
    }
    for (int g = groups; g < int8_blocks(a.k) * kBlockGroups; ++g) {
      std::memset(s.codes + size(g) * kGroupBytes, 0, kGroupBytes);
      _mm512_store_ps(s.scales + g * kPanelRows, _mm512_setzero_ps());
      if constexpr (kHasMins) _mm512_store_ps(s.mins + g * kPanelRows, _mm512_setzero_ps());
    }
    T::written();
  }

  // Where a unit of work stands: four groups of one block and one row tile. All row tiles pass a
  // block before the next one, so that its codes stay in the first-level cache.
  struct Unit {
    int block = 0;
    int row_tile = 0;
    int part = 0;  // which four groups of the block

    void advance(int row_tiles) {
      if (++part < kBlockUnits) return;
      part = 0;
      if (++row_tile < row_tiles) return;
      row_tile = 0;
      ++block;
    }
    int first_group() const { return block * kBlockGroups + part * kUnitGroups; }
  };

  // Everything of a call that the pipeline needs.
  struct Pipeline {
    const PanelArgs& args;
    Scratch scratch;
    int row_tiles;
    int turns;

    explicit Pipeline(const PanelArgs& a)
        : args(a),
          scratch(a.scratch, a.k),
          row_tiles(ceil_div(a.rows, kTileRows)),
          turns(row_tiles * int8_blocks(a.k) * kBlockUnits) {}
    const Int8Chunk& chunk(const Unit& unit) const {
      return int8_chunk(args.x, args.k, unit.row_tile * kTileRows, unit.block);
    }
  };

  // What one turn of the pipeline reads and writes.
  struct Turn {
    const std::byte* x;      // to multiply; null: nothing is left
    const std::byte* ahead;  // what the turn after multiplies
    const std::byte* w;
    std::byte* stored;       // results of the turn before; null: there are none
    const std::byte* ready;  // results to scale
    const float* factors;
    const float* minima;
    const std::int32_t* sums;
    const float* row_scales;  // of the columns that group 0 belongs to
  };

  // Starts the product of group I of a unit in tile I.
  template <int I>
  [[gnu::always_inline]] static void multiply(const std::byte* x, const std::byte* w) {
    constexpr int kA = 4 + I % 2, kB = 6 + I % 2;
    T::template zero<I>();
    T::template load<kB>(w + size(I) * kGroupBytes, 64);
    T::template load<kA>(x + I * kGroup, kInt8Block);
    T::template multiply_add_int8<I, kA, kB>();
  }

  // The part of a turn that belongs to group I.
  template <int I>
  [[gnu::always_inline]] static void move(const Turn& t) {
    if (t.stored != nullptr) T::template store<I>(t.stored + size(I) * kTileBytes, 64);
    if (t.x != nullptr) {
      constexpr int kLines = kTileRows * kInt8Block / 64 / kUnitGroups / kBlockUnits;
      GLINT_UNROLL
      for (int i = 0; i < kLines; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(t.ahead + (kLines * I + i) * 64), _MM_HINT_T0);
      }
      multiply<I>(t.x, t.w);
    }
  }
  // Where I is the last of the groups that share a scale of x: scales their results and adds them
  // to the totals.
  template <int I>
  [[gnu::always_inline]] static void scale(const Turn& t, __m512 (&total)[kTileRows]) {
    constexpr int kShare = kInt8Group / kGroup;
    if constexpr ((I + 1) % kShare != 0) return;
    constexpr int kFirst = I / kShare * kShare;
    const float* row_scales = t.row_scales + I / kShare * kTileRows;
    __m512 factor[kShare], minimum[kShare];
    GLINT_UNROLL
    for (int g = 0; g < kShare; ++g) {
      factor[g] = _mm512_load_ps(t.factors + (kFirst + g) * kPanelRows);
      if constexpr (kHasMins) minimum[g] = _mm512_load_ps(t.minima + (kFirst + g) * kPanelRows);
    }
    GLINT_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      __m512 part = _mm512_setzero_ps();
      GLINT_UNROLL
      for (int g = 0; g < kShare; ++g) {
        const std::byte* result = t.ready + size(kFirst + g) * kTileBytes + 64 * r;
        __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(result));
        if constexpr (kFormat.has_zeros) {
          const __m512i sum = _mm512_set1_epi32(t.sums[(kFirst + g) * kTileRows + r]);
          whole = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum), minimum[g], whole);
        }
        part = g == 0 ? _mm512_mul_ps(whole, factor[g]) : _mm512_fmadd_ps(whole, factor[g], part);
        if constexpr (kFormat.has_min) {
          const __m512i sum = _mm512_set1_epi32(t.sums[(kFirst + g) * kTileRows + r]);
          part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), minimum[g], part);
        }
      }
      total[r] = _mm512_fmadd_ps(part, _mm512_set1_ps(row_scales[r]), total[r]);
    }
  }

  // Turn `index` of the pipeline: the products of unit `index` start, results of the one before are
  // stored, those of the one before that are scaled. In this order neither waits for the other: a
  // tile's result is ready some fifty cycles after its product.
  [[gnu::always_inline]] static Turn turn(const Pipeline& p, int index, const Unit& multiplied,
                                          const Unit& scaled) {
    Turn t;
    t.x = nullptr;
    t.ahead = nullptr;
    if (index < p.turns) {
      t.x = reinterpret_cast<const std::byte*>(p.chunk(multiplied).q) +
            multiplied.part * kUnitGroups * kGroup;
      Unit next = multiplied;
      next.part = kBlockUnits - 1;
      next.advance(p.row_tiles);
      if (next.block == int8_blocks(p.args.k)) next = multiplied;
      t.ahead = reinterpret_cast<const std::byte*>(p.chunk(next).q) +
                multiplied.part * (kTileRows * kInt8Block / kBlockUnits);
    }
    t.w = p.scratch.codes + size(multiplied.first_group()) * kGroupBytes;
    t.stored = index >= 1 && index <= p.turns ? p.scratch.results[(index & 1) ^ 1] : nullptr;
    t.ready = p.scratch.results[index & 1];
    const std::size_t first = size(scaled.first_group()) * kPanelRows;
    t.factors = p.scratch.scales + first;
    t.minima = p.scratch.mins + first;
    const Int8Chunk& x = p.chunk(scaled);
    t.sums = (kGroup == 32 ? x.sum32[0] : x.sum16[0]) + scaled.part * kUnitGroups * kTileRows;
    t.row_scales = x.scale[scaled.part * kUnitGroups * kGroup / kInt8Group];
    return t;
  }

  // Asks for the cache lines of the panel that comes next, some in every turn: memory then works
  // while tiles multiply.
  class Ahead {
   public:
    Ahead(const PanelArgs& a, int turns)
        : at_(reinterpret_cast<const char*>(a.next)),
          end_(at_ == nullptr ? nullptr : at_ + kFormat.panel_bytes(size(a.k))),
          step_(size(ceil_div(static_cast<int>((end_ - at_) / 64), turns)) * 64) {}
    [[gnu::always_inline]] void ask() {
      const char* stop = static_cast<std::size_t>(end_ - at_) > step_ ? at_ + step_ : end_;
      for (; at_ != stop; at_ += 64) _mm_prefetch(at_, _MM_HINT_T1);
    }

   private:
    const char* at_;
    const char* end_;
    std::size_t step_;
  };

  [[gnu::noinline]] static void run(const PanelArgs& a) {
    const Pipeline p(a);
    Ahead ahead(a, p.turns);
    Unit multiplied, scaled;
    for (int i = 0; i < 2; ++i, multiplied.advance(p.row_tiles)) {
      const Turn t = turn(p, i, multiplied, scaled);
      move<0>(t);
      move<1>(t);
      move<2>(t);
      move<3>(t);
    }
    for (int i = 2; i < p.turns + 2; i += kBlockUnits) {
      float* out = a.out + scaled.row_tile * kTileRows * kPanelRows;
      const bool first = scaled.block == 0;
      __m512 total[kTileRows];
      GLINT_UNROLL
      for (int r = 0; r < kTileRows; ++r)
        total[r] = first ? _mm512_setzero_ps() : _mm512_load_ps(out + r * kPanelRows);
      GLINT_UNROLL
      for (int u = 0; u < kBlockUnits; ++u) {
        const Turn t = turn(p, i + u, multiplied, scaled);
        ahead.ask();
        move<0>(t);
        scale<0>(t, total);
        move<1>(t);
        scale<1>(t, total);
        move<2>(t);
        scale<2>(t, total);
        move<3>(t);
        scale<3>(t, total);
        multiplied.advance(p.row_tiles);
        scaled.advance(p.row_tiles);
      }
      GLINT_UNROLL
      for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(out + r * kPanelRows, total[r]);
    }
  }

  static void product(const PanelArgs& a) noexcept {
    if (a.rows < kFewTileRows) return Vnni::product(a);
    T::start(kShape);
    expand(a, Scratch(a.scratch, a.k));
    run(a);
  }
};

// Enough for every format.
inline std::size_t tile_panel_scratch(int k) {
  const std::size_t padded = size(int8_blocks(k)) * kInt8Block;
  return padded * kPanelRows + 2 * (padded / 16) * kPanelRows * sizeof(float) + 8 * kTileBytes +
         2048;
}

}  // namespace
}  // namespace glint
