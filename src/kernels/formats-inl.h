// How the products of one weight format read their operands, over a vector type V. Included inside
// a target region.
//
// A format F works along K in steps of kStep elements, each step being kVectors registers of
// weights and as many of packed activations, which may hold the elements of a step in another
// order. The last step is padded with zeros, in packed activations by pack_row and in weights on
// the fly, so nothing beyond a row is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/math-inl.h"
#include "kernels/target.h"

namespace glint {
namespace {

inline int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// float32 weights and activations.
template <typename V>
struct F32Format {
  using Vec = V;
  using Reg = typename V::Reg;
  using Stored = float;  // an element of a weight, key or value
  using Packed = float;  // an element of packed activations
  static constexpr int kVectors = 1;
  static constexpr int kStep = V::kLanes;

  // Register `vector` of the step at w.
  static Reg load_stored(const std::byte* w, int) { return V::load(w); }
  static Reg load_packed(const Packed* x, int) { return V::load(x); }
  static Reg multiply_add(Reg x, Reg w, Reg sum) { return V::fma(x, w, sum); }
  static void store_packed(Packed* x, int, Reg v) { V::store(x, v); }
  // Packs n floats, padding them to whole steps.
  static void pack_row(const float* from, int n, Packed* to) {
    for (int i = 0; i < n; i += kStep) {
      V::store(to + i, V::load_first(from + i, n - i < kStep ? n - i : kStep));
    }
  }
  // Undoes the order of a step held as kVectors registers.
  static void store_in_order(const Reg* step, float* to) { V::store(to, step[0]); }
};

// bfloat16 weights widened to float32, whose even places make one register and odd places another:
// that is one instruction each. Activations are kept as float32 in the same order, rounded to
// bfloat16 first if kRound.
template <typename V, bool kRound>
struct Bf16Format {
  using Vec = V;
  using Reg = typename V::Reg;
  using Stored = std::uint16_t;
  using Packed = float;
  static constexpr int kVectors = 2;
  static constexpr int kStep = 2 * V::kLanes;

  static Reg load_stored(const std::byte* w, int vector) {
    return vector == 0 ? V::load_bf16_even(w) : V::load_bf16_odd(w);
  }
  static Reg load_packed(const Packed* x, int vector) { return V::load(x + vector * V::kLanes); }
  static Reg multiply_add(Reg x, Reg w, Reg sum) { return V::fma(x, w, sum); }
  static void store_packed(Packed* x, int vector, Reg v) { V::store(x + vector * V::kLanes, v); }
  static void pack_row(const float* from, int n, Packed* to) {
    for (int i = 0; i < n; i += kStep) {
      Reg low = load_up_to(from + i, n - i);
      Reg high = load_up_to(from + i + V::kLanes, n - i - V::kLanes);
      if constexpr (kRound) {
        low = V::round_to_bf16(low);
        high = V::round_to_bf16(high);
      }
      V::store(to + i, V::even_of(low, high));
      V::store(to + i + V::kLanes, V::odd_of(low, high));
    }
  }
  static Reg load_up_to(const float* from, int n) {
    if (n <= 0) return V::zero();
    return V::load_first(from, n < V::kLanes ? n : V::kLanes);
  }
  static void store_in_order(const Reg* step, float* to) {
    V::store(to, V::low_of(step[0], step[1]));
    V::store(to + V::kLanes, V::high_of(step[0], step[1]));
  }
};

// float16 weights widened to float32; activations float32, rounded to bfloat16 first if kRound.
template <typename V, bool kRound>
struct F16Format : F32Format<V> {
  using Reg = typename V::Reg;
  using Stored = std::uint16_t;

  static Reg load_stored(const std::byte* w, int) { return V::load_f16(w); }
  static void pack_row(const float* from, int n, float* to) {
    for (int i = 0; i < n; i += V::kLanes) {
      const Reg v = V::load_first(from + i, n - i < V::kLanes ? n - i : V::kLanes);
      V::store(to + i, kRound ? V::round_to_bf16(v) : v);
    }
  }
};

// Products of R rows of packed activations with C rows of stored elements over k elements, added to
// `sums`. Each sum adds the steps in order in one register, whatever R and C are.
template <typename F, int R, int C>
[[gnu::always_inline]] inline void add_products(const typename F::Packed* x, std::size_t x_stride,
                                                const std::byte* w, std::size_t w_stride, int k,
                                                typename F::Reg (&sums)[R][C]) {
  constexpr std::size_t kStepBytes = F::kStep * sizeof(typename F::Stored);
  int i = 0;
  for (; i + F::kStep <= k; i += F::kStep, x += F::kStep, w += kStepBytes) {
    // The same place of the rows that most callers take next: they begin on other pages, which the
    // processor does not foresee. Past the last row that is a harmless hint.
    GLINT_UNROLL
    for (int c = 0; c < C; ++c) {
      _mm_prefetch(reinterpret_cast<const char*>(w + static_cast<std::size_t>(C + c) * w_stride),
                   _MM_HINT_T1);
    }
    GLINT_UNROLL
    for (int vector = 0; vector < F::kVectors; ++vector) {
      typename F::Reg xs[R];
      GLINT_UNROLL
      for (int r = 0; r < R; ++r)
        xs[r] = F::load_packed(x + static_cast<std::size_t>(r) * x_stride, vector);
      GLINT_UNROLL
      for (int c = 0; c < C; ++c) {
        const typename F::Reg ws =
            F::load_stored(w + static_cast<std::size_t>(c) * w_stride, vector);
        GLINT_UNROLL
        for (int r = 0; r < R; ++r) sums[r][c] = F::multiply_add(xs[r], ws, sums[r][c]);
      }
    }
  }
  if (i == k) return;
  GLINT_UNROLL
  for (int c = 0; c < C; ++c) {
    alignas(64) std::byte padded[kStepBytes] = {};
    std::memcpy(padded, w + static_cast<std::size_t>(c) * w_stride,
                static_cast<std::size_t>(k - i) * sizeof(typename F::Stored));
    GLINT_UNROLL
    for (int vector = 0; vector < F::kVectors; ++vector) {
      const typename F::Reg ws = F::load_stored(padded, vector);
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const typename F::Reg xs =
            F::load_packed(x + static_cast<std::size_t>(r) * x_stride, vector);
        sums[r][c] = F::multiply_add(xs, ws, sums[r][c]);
      }
    }
  }
}

// The same from zero, summed up: out[r][c] at out + r * out_stride + c. Never inlined (nor are the
// other loops that fill the register file): their callers' variables would take the registers that
// the sums need.
template <typename F, int R, int C>
[[gnu::noinline]] void products(const typename F::Packed* x, std::size_t x_stride,
                                const std::byte* w, std::size_t w_stride, int k, float* out,
                                std::size_t out_stride) {
  using V = typename F::Vec;
  typename F::Reg sums[R][C];
  GLINT_UNROLL
  for (int r = 0; r < R; ++r) {
    GLINT_UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = V::zero();
  }
  add_products<F, R, C>(x, x_stride, w, w_stride, k, sums);
  GLINT_UNROLL
  for (int r = 0; r < R; ++r) {
    float* to = out + static_cast<std::size_t>(r) * out_stride;
    if constexpr (C % 4 == 0) {
      GLINT_UNROLL
      for (int c = 0; c < C; c += 4) {
        _mm_storeu_ps(to + c, V::sum4(sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]));
      }
    } else {
      GLINT_UNROLL
      for (int c = 0; c < C; ++c) to[c] = sum_of<V>(sums[r][c]);
    }
  }
}

// Calls Function<R>::run(arguments...) for R = rows, 1 <= rows <= kMost.
template <template <int> typename Function, int kMost, typename... Arguments>
[[gnu::always_inline]] inline void with_rows(int rows, const Arguments&... arguments) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<Function, kMost - 1>(rows, arguments...);
  }
  Function<kMost>::run(arguments...);
}

// Rows of the next tile when `rows` are left: as even as can be, since a tile of few rows wastes
// the loads of weights.
inline int next_rows(int rows, int most) {
  const int tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

}  // namespace
}  // namespace glint
