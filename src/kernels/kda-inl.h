// Kimi delta attention over a vector type V. Included inside a target region.
//
// Where the time goes: the products of decayed keys and queries with the state, and folding a
// block into it. Both keep a tile of results in registers; a column panel of the state stays in
// the first-level cache while all rows of a block pass over it.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/kda.h"
#include "kernels/math-inl.h"

namespace glint {
namespace {

template <typename V>
struct Kda {
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kVectors = 4;  // of a column panel
  static constexpr int kTileRows = V::kTileRows;
  static constexpr int kPairs = kKdaBlock * 2;  // A_ij and P_ij of a row

  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  // Calls Step<N>::run(column, args...) for panels of kVectors vectors, then for single ones.
  template <template <int> typename Step, typename... Args>
  static void by_panels(int width, Args... args) {
    int c = 0;
    for (; c + kVectors * kLanes <= width; c += kVectors * kLanes) Step<kVectors>::run(c, args...);
    for (; c < width; c += kLanes) Step<1>::run(c, args...);
  }

  static void short_conv(const ShortConvArgs& a) noexcept {
    // Rows of whole projections are far apart: no prefetcher follows, and a page each.
    for (int row = 0; row < a.rows; ++row) {
      for (int c = 0; c < a.n; c += kLanes)
        _mm_prefetch(reinterpret_cast<const char*>(a.x + size(row) * a.x_stride + c), _MM_HINT_T0);
    }
    for (int c = 0; c < a.n; c += kLanes) {
      const int n = a.n - c < kLanes ? a.n - c : kLanes;
      const auto w = [&](int tap) { return V::load_first(a.w + size(tap) * a.w_stride + c, n); };
      const Reg w0 = w(0), w1 = w(1), w2 = w(2), w3 = w(3);
      float* history = a.history + c;
      Reg x0 = V::load_first(history, n);
      Reg x1 = V::load_first(history + a.history_stride, n);
      Reg x2 = V::load_first(history + 2 * a.history_stride, n);
      for (int row = 0; row < a.rows; ++row) {
        Reg x3 = V::load_first(a.x + size(row) * a.x_stride + c, n);
        if (a.round) x3 = V::round_to_bf16(x3);
        const Reg sum = V::fma(w3, x3, V::fma(w2, x2, V::fma(w1, x1, V::mul(w0, x0))));
        V::store_first(a.y + size(row) * a.y_stride + c, n,
                       V::div(sum, one_plus_exp_minus<V>(sum)));
        x0 = x1;
        x1 = x2;
        x2 = x3;
      }
      V::store_first(history, n, x0);
      V::store_first(history + a.history_stride, n, x1);
      V::store_first(history + 2 * a.history_stride, n, x2);
    }
  }

  static void l2_norm(const float* x, int n, float factor, float* y) noexcept {
    Reg sums = V::zero();
    for (int i = 0; i < n; i += kLanes) {
      const Reg v = V::load_first(x + i, n - i < kLanes ? n - i : kLanes);
      sums = V::fma(v, v, sums);
    }
    const Reg scale = V::set1(factor / std::sqrt(sum_of<V>(sums) + kKdaNormEps));
    for (int i = 0; i < n; i += kLanes) {
      const int count = n - i < kLanes ? n - i : kLanes;
      V::store_first(y + i, count, V::mul(V::load_first(x + i, count), scale));
    }
  }

  static void bounded_decay(const float* x, const float* bias, int n, float rate, float bound,
                            float* y) noexcept {
    for (int i = 0; i < n; i += kLanes) {
      const int count = n - i < kLanes ? n - i : kLanes;
      const Reg sum = V::add(V::load_first(x + i, count), V::load_first(bias + i, count));
      const Reg u = V::mul(V::set1(rate), sum);
      V::store_first(y + i, count, exp<V>(V::div(V::set1(bound), one_plus_exp_minus<V>(u))));
    }
  }

  static void softplus_decay(const float* x, const float* bias, int n, float rate,
                             float* y) noexcept {
    for (int i = 0; i < n; ++i) {
      const float u = x[i] + bias[i];
      y[i] = std::exp(-rate * (u > kKdaSoftplusLinear ? u : std::log1p(std::exp(u))));
    }
  }

  static void sigmoid_times(const float* gate, int n, float* y) noexcept {
    for (int i = 0; i < n; i += kLanes) {
      const int count = n - i < kLanes ? n - i : kLanes;
      const Reg g = V::load_first(gate + i, count);
      V::store_first(y + i, count, V::div(V::load_first(y + i, count), one_plus_exp_minus<V>(g)));
    }
  }

  // Of rows(): the decayed k_i E_i and q_i E_i of each row in turn, then A_ij and P_ij. Of fold():
  // E_15, then k_j D_15,j.
  static std::size_t scratch_bytes(int head_dim) noexcept {
    return (size(kPairs) * size(kda_width(head_dim)) + size(kKdaBlock * kPairs)) * sizeof(float);
  }

  static void rows(const KdaRowsArgs& a) noexcept {
    const int width = kda_width(a.head_dim);
    auto* decayed = reinterpret_cast<float*>(a.scratch);
    float* pairs = decayed + size(kPairs) * size(width);
    for (int row = 0; row < a.count; ++row)
      row_pairs(a, row, width, decayed + size(2 * row) * size(width), pairs + row * kPairs);
    if (kLanes == 16 && a.count == 1 && width % (2 * kVectors * kLanes) == 0) {
      // The state comes from memory: whole lines of a page one after another.
      for (int c = 0; c < width; c += 2 * kVectors * kLanes)
        state_tile<2, 2 * kVectors>(a, decayed, width, 0, c);
    } else {
      by_panels<StateProducts>(width, a, static_cast<const float*>(decayed), width);
    }
    by_panels<Substitute>(width, a, static_cast<const float*>(pairs), width);
  }

  // A_ij and P_ij of one row, and what its key and query are when they meet the state.
  static void row_pairs(const KdaRowsArgs& a, int row, int width, float* decayed, float* pairs) {
    const int i = a.first + row;
    PairSums sums;
    for (int j = 0; j < kKdaBlock; ++j) sums.k[j] = sums.q[j] = V::zero();
    by_panels<PairProducts>(width, a, row, width, decayed, &sums);
    const __m128 beta = _mm_set1_ps(a.beta[row]);
    for (int j = 0; j <= i; j += 4) {
      const Reg* k = sums.k + j;
      const Reg* q = sums.q + j;
      _mm_storeu_ps(pairs + j, _mm_mul_ps(beta, V::sum4(k[0], k[1], k[2], k[3])));
      _mm_storeu_ps(pairs + kKdaBlock + j, V::sum4(q[0], q[1], q[2], q[3]));
    }
  }

  struct PairSums {
    Reg k[kKdaBlock], q[kKdaBlock];
  };

  template <int N>
  struct PairProducts {
    static void run(int c, const KdaRowsArgs& a, int row, int width, float* decayed,
                    PairSums* sums) {
      const int i = a.first + row;
      Reg k[N], q[N];
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) {
        k[n] = V::load(a.k + size(i) * size(width) + c + n * kLanes);
        q[n] = V::load(a.q + size(row) * size(width) + c + n * kLanes);
      }
      for (int j = i; j >= 0; --j) {
        const float* key = a.k + size(j) * size(width) + c;
        const float* decay = a.decay + size(j) * size(width) + c;
        Reg sum_k = sums->k[j], sum_q = sums->q[j];
        GLINT_UNROLL
        for (int n = 0; n < N; ++n) {
          const Reg other = V::load(key + n * kLanes);
          const Reg factor = V::load(decay + n * kLanes);
          sum_k = V::fma(k[n], other, sum_k);
          sum_q = V::fma(q[n], other, sum_q);
          k[n] = V::mul(k[n], factor);
          q[n] = V::mul(q[n], factor);
        }
        sums->k[j] = sum_k;
        sums->q[j] = sum_q;
      }
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) {
        V::store(decayed + c + n * kLanes, k[n]);
        V::store(decayed + width + c + n * kLanes, q[n]);
      }
    }
  };

  template <int N>
  struct StateProducts {
    static void run(int c, const KdaRowsArgs& a, const float* decayed, int width) {
      int x = 0;
      for (; x + kTileRows <= 2 * a.count; x += kTileRows)
        state_tile<kTileRows, N>(a, decayed, width, x, c);
      for (; x + 2 <= 2 * a.count; x += 2) state_tile<2, N>(a, decayed, width, x, c);
      if (x < 2 * a.count) state_tile<1, N>(a, decayed, width, x, c);
    }
  };

  // Decayed rows [x, x + R) times N vectors of the state's columns: those of keys go to u, those
  // of queries to o.
  template <int R, int N>
  static void state_tile(const KdaRowsArgs& a, const float* decayed, int width, int x, int c) {
    Reg sums[R][N];
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) sums[r][n] = V::zero();
    }
    const float* s = a.s + c;
    const float* from = decayed + size(x) * size(width);
    for (int channel = 0; channel < a.head_dim; ++channel, s += width) {
      Reg values[N];
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) values[n] = V::load(s + n * kLanes);
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const Reg factor = V::set1(from[r * width + channel]);
        GLINT_UNROLL
        for (int n = 0; n < N; ++n) sums[r][n] = V::fma(factor, values[n], sums[r][n]);
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      const int row = (x + r) / 2;
      float* to = (x + r) % 2 == 0 ? a.u + size(a.first + row) * size(width)
                                   : a.o + size(row) * size(width);
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) V::store(to + c + n * kLanes, sums[r][n]);
    }
  }

  template <int N>
  struct Substitute {
    static void run(int c, const KdaRowsArgs& a, const float* pairs, int width) {
      for (int row = 0; row < a.count; ++row, pairs += kPairs) {
        const int i = a.first + row;
        float* u_row = a.u + size(i) * size(width) + c;
        float* o_row = a.o + size(row) * size(width) + c;
        const Reg beta = V::set1(a.beta[row]);
        Reg u[N], o[N];
        GLINT_UNROLL
        for (int n = 0; n < N; ++n) {
          const Reg v = V::load(a.v + size(row) * size(width) + c + n * kLanes);
          u[n] = V::mul(beta, V::sub(v, V::load(u_row + n * kLanes)));
          o[n] = V::load(o_row + n * kLanes);
        }
        for (int j = 0; j < i; ++j) {
          const float* before = a.u + size(j) * size(width) + c;
          const Reg product = V::set1(pairs[j]), read = V::set1(pairs[kKdaBlock + j]);
          GLINT_UNROLL
          for (int n = 0; n < N; ++n) {
            const Reg value = V::load(before + n * kLanes);
            u[n] = V::negate_fma(product, value, u[n]);
            o[n] = V::fma(read, value, o[n]);
          }
        }
        const Reg read = V::set1(pairs[kKdaBlock + i]);
        GLINT_UNROLL
        for (int n = 0; n < N; ++n) {
          V::store(u_row + n * kLanes, u[n]);
          V::store(o_row + n * kLanes, V::fma(read, u[n], o[n]));
        }
      }
    }
  };

  static void fold(const KdaFoldArgs& a) noexcept {
    const int width = kda_width(a.head_dim);
    auto* weights = reinterpret_cast<float*>(a.scratch);  // E_15, then [kKdaBlock, width]
    for (int c = 0; c < width; c += kLanes) {
      Reg decay = V::set1(1.0f);
      for (int j = kKdaBlock - 1; j >= 0; --j) {
        const std::size_t at = size(j) * size(width) + size(c);
        V::store(weights + size(width) + at, V::mul(V::load(a.k + at), decay));
        decay = V::mul(decay, V::load(a.decay + at));
      }
      V::store(weights + c, decay);
    }
    by_panels<FoldPanel>(width, a, static_cast<const float*>(weights), width);
  }

  template <int N>
  struct FoldPanel {
    static void run(int c, const KdaFoldArgs& a, const float* weights, int width) {
      int channel = 0;
      for (; channel + kTileRows <= a.head_dim; channel += kTileRows)
        fold_tile<kTileRows, N>(a, weights, width, channel, c);
      for (; channel < a.head_dim; ++channel) fold_tile<1, N>(a, weights, width, channel, c);
    }
  };

  template <int R, int N>
  static void fold_tile(const KdaFoldArgs& a, const float* weights, int width, int channel, int c) {
    const std::size_t at = size(channel) * size(width) + size(c);
    Reg sums[R][N];
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      const Reg decay = V::set1(weights[channel + r]);
      GLINT_UNROLL
      for (int n = 0; n < N; ++n)
        sums[r][n] = V::mul(decay, V::load(a.s + at + size(r) * size(width) + n * kLanes));
    }
    const float* u = a.u + c;
    const float* weight = weights + width + channel;
    for (int j = 0; j < kKdaBlock; ++j, u += width, weight += width) {
      Reg values[N];
      GLINT_UNROLL
      for (int n = 0; n < N; ++n) values[n] = V::load(u + n * kLanes);
      GLINT_UNROLL
      for (int r = 0; r < R; ++r) {
        const Reg factor = V::set1(weight[r]);
        GLINT_UNROLL
        for (int n = 0; n < N; ++n) sums[r][n] = V::fma(factor, values[n], sums[r][n]);
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int n = 0; n < N; ++n)
        V::store(a.out + at + size(r) * size(width) + n * kLanes, sums[r][n]);
    }
  }

  static KdaKernels kernels() {
    return {short_conv,    l2_norm, bounded_decay, softplus_decay,
            sigmoid_times, rows,    fold,          scratch_bytes};
  }
};

}  // namespace
}  // namespace glint
