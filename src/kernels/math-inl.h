// Functions of a vector type V (avx2/vec256-inl.h, avx512/vec512-inl.h): exponentials, sums, and
// the element-wise members of the table. Included inside a target region.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/table.h"
#include "kernels/target.h"

namespace glint {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename V>
float sum_of(typename V::Reg v) {
  return _mm_cvtss_f32(V::sum4(v, v, v, v));
}

template <typename V>
float max_of(typename V::Reg v) {
  float lanes[V::kLanes];
  V::store(lanes, v);
  float max = lanes[0];
  for (int i = 1; i < V::kLanes; ++i) max = lanes[i] > max ? lanes[i] : max;
  return max;
}

// e^x within 1.1 units in the last place: 0 and infinity beyond the range of a float, NaN stays
// NaN. x = n ln 2 + r, e^r = 1 + r + r^2 p(r), where p is the minimax polynomial on |r| <= ln(2) /
// 2 (relative error below 2^-29).
template <typename V>
typename V::Reg exp(typename V::Reg x) {
  using Reg = typename V::Reg;
  // Past these bounds the answer is 0 or infinity, and n stays small. NaN passes: it is the second
  // operand.
  x = V::min(V::set1(150.0f), V::max(V::set1(-150.0f), x));
  const Reg n = V::round(V::mul(x, V::set1(1.44269504f)));
  Reg r = V::negate_fma(n, V::set1(0x1.62e43p-1f),
                        x);  // ln 2 rounded to a float, then what that leaves
  r = V::negate_fma(n, V::set1(-1.90465430e-9f), r);
  Reg p = V::set1(0x1.a12528p-13f);
  p = V::fma(p, r, V::set1(0x1.6d4362p-10f));
  p = V::fma(p, r, V::set1(0x1.1110e0p-7f));
  p = V::fma(p, r, V::set1(0x1.5554e8p-5f));
  p = V::fma(p, r, V::set1(0x1.555556p-3f));
  p = V::fma(p, r, V::set1(0.5f));
  const Reg e = V::add(V::fma(V::mul(r, r), p, r), V::set1(1.0f));
  return V::scale(e, n);
}

// 1 + e^-x.
template <typename V>
typename V::Reg one_plus_exp_minus(typename V::Reg x) {
  return V::add(V::set1(1.0f), exp<V>(V::sub(V::zero(), x)));
}

// silu(min(gate, limit)) * clamp(up, -limit, limit). min and max return their second operand where
// one is no number, so that stays one.
template <typename V>
typename V::Reg gated(typename V::Reg gate, typename V::Reg up, typename V::Reg limit) {
  gate = V::min(limit, gate);
  up = V::max(V::sub(V::zero(), limit), V::min(limit, up));
  return V::mul(V::div(gate, one_plus_exp_minus<V>(gate)), up);
}

// One vector at a time; the last, short one reads and writes only what is there.
template <typename V>
struct Elementwise {
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;

  static void attend_merge(int rows, int dv, float* max_a, float* sum_a, float* out_a,
                           std::size_t stride_a, const float* max_b, const float* sum_b,
                           const float* out_b, std::size_t stride_b) noexcept {
    for (int row = 0; row < rows; ++row) {
      const float max = max_a[row] > max_b[row] ? max_a[row] : max_b[row];
      const float weight_a = merge_weight(max_a[row], max);
      const float weight_b = merge_weight(max_b[row], max);
      float* a = out_a + static_cast<std::size_t>(row) * stride_a;
      const float* b = out_b + static_cast<std::size_t>(row) * stride_b;
      const Reg factor_a = V::set1(weight_a);
      const Reg factor_b = V::set1(weight_b);
      int i = 0;
      for (; i + kLanes <= dv; i += kLanes) {
        V::store(a + i, V::fma(V::load(a + i), factor_a, V::mul(V::load(b + i), factor_b)));
      }
      if (i < dv) {
        const Reg scaled = V::mul(V::load_first(b + i, dv - i), factor_b);
        V::store_first(a + i, dv - i, V::fma(V::load_first(a + i, dv - i), factor_a, scaled));
      }
      sum_a[row] = sum_a[row] * weight_a + sum_b[row] * weight_b;
      max_a[row] = max;
    }
  }

  static float merge_weight(float value, float max) {
    if (value == -kInfinity) return 0.0f;
    float lanes[kLanes];
    V::store(lanes, exp<V>(V::set1(value - max)));
    return lanes[0];
  }

  static void rms_norm(const float* x, const float* w, int n, float eps, float* y) noexcept {
    // Four sums hide the latency of the addition; which one an element joins depends on its place
    // alone.
    Reg sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      GLINT_UNROLL
      for (int s = 0; s < 4; ++s) {
        const Reg v = V::load(x + i + s * kLanes);
        sums[s] = V::fma(v, v, sums[s]);
      }
    }
    for (; i < n; i += kLanes) {
      const Reg v = V::load_first(x + i, n - i < kLanes ? n - i : kLanes);
      sums[0] = V::fma(v, v, sums[0]);
    }
    const float sum = sum_of<V>(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
    const Reg factors = V::set1(factor);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      V::store(y + i, V::mul(V::load(w + i), V::mul(V::load(x + i), factors)));
    }
    if (i < n) {
      const Reg scaled = V::mul(V::load_first(x + i, n - i), factors);
      V::store_first(y + i, n - i, V::mul(V::load_first(w + i, n - i), scaled));
    }
  }

  static void rope_interleaved(float* x, const float* cos, const float* sin, int n) noexcept {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const Reg v = V::load(x + i);
      const Reg turned = V::mul(V::swap_pairs(v), V::load_twice(sin + i / 2));
      V::store(x + i, V::fma_sub_add(v, V::load_twice(cos + i / 2), turned));
    }
    for (; i + 2 <= n; i += 2) {
      const float even = x[i];
      const float odd = x[i + 1];
      x[i] = even * cos[i / 2] - odd * sin[i / 2];
      x[i + 1] = odd * cos[i / 2] + even * sin[i / 2];
    }
  }

  static void rope_half(float* x, const float* cos, const float* sin, int n) noexcept {
    float* upper = x + n / 2;
    for (int j = 0; j < n / 2; j += kLanes) {
      const int count = n / 2 - j < kLanes ? n / 2 - j : kLanes;
      const Reg a = V::load_first(x + j, count);
      const Reg b = V::load_first(upper + j, count);
      const Reg c = V::load_first(cos + j, count);
      const Reg s = V::load_first(sin + j, count);
      V::store_first(x + j, count, V::negate_fma(b, s, V::mul(a, c)));
      V::store_first(upper + j, count, V::fma(a, s, V::mul(b, c)));
    }
  }

  static void silu_times(const float* up, int n, float limit, float* gate) noexcept {
    const Reg bound = V::set1(limit);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
      V::store(gate + i, gated<V>(V::load(gate + i), V::load(up + i), bound));
    if (i < n) {
      V::store_first(gate + i, n - i,
                     gated<V>(V::load_first(gate + i, n - i), V::load_first(up + i, n - i), bound));
    }
  }

  static void add(const float* x, int n, float* y) noexcept {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) V::store(y + i, V::add(V::load(y + i), V::load(x + i)));
    if (i < n)
      V::store_first(y + i, n - i,
                     V::add(V::load_first(y + i, n - i), V::load_first(x + i, n - i)));
  }

  static void weighted_sum(const float* const* x, const float* w, int count, int n,
                           float* y) noexcept {
    for (int i = 0; i < n; i += kLanes) {
      const int lanes = n - i < kLanes ? n - i : kLanes;
      Reg sums = V::zero();
      for (int row = 0; row < count; ++row)
        sums = V::fma(V::set1(w[row]), V::load_first(x[row] + i, lanes), sums);
      V::store_first(y + i, lanes, sums);
    }
  }

  static void weighted_relu(const float* x, std::size_t x_stride, const float* w, int rows, int n,
                            float* y) noexcept {
    for (int i = 0; i < n; i += kLanes) {
      const int lanes = n - i < kLanes ? n - i : kLanes;
      Reg sums = V::zero();
      for (int row = 0; row < rows; ++row) {
        const float* values = x + static_cast<std::size_t>(row) * x_stride + i;
        sums = V::fma(V::set1(w[row]), V::max(V::load_first(values, lanes), V::zero()), sums);
      }
      V::store_first(y + i, lanes, sums);
    }
  }

  static void scale_to_bf16(const float* x, float factor, int n, glint::bf16* y) noexcept {
    const Reg factors = V::set1(factor);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const Reg rounded = V::round_to_bf16(V::mul(V::load(x + i), factors));
      V::store_upper_halves(reinterpret_cast<std::uint16_t*>(y + i), rounded);
    }
    for (; i < n; ++i) y[i] = glint::bf16::from_float(x[i] * factor);
  }

  static void scale_to_f32(const float* x, float factor, int n, float* y) noexcept {
    const Reg factors = V::set1(factor);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) V::store(y + i, V::mul(V::load(x + i), factors));
    if (i < n) V::store_first(y + i, n - i, V::mul(V::load_first(x + i, n - i), factors));
  }

  static void widen_bf16(const glint::bf16* x, int n, float* y) noexcept {
    int i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const Reg even = V::load_bf16_even(x + i);
      const Reg odd = V::load_bf16_odd(x + i);
      V::store(y + i, V::low_of(even, odd));
      V::store(y + i + kLanes, V::high_of(even, odd));
    }
    for (; i < n; ++i) y[i] = x[i].to_float();
  }

  static void softmax(float* x, int n) noexcept {
    float max = -kInfinity;
    int i = 0;
    if (n >= kLanes) {
      Reg maxima = V::load(x);
      for (i = kLanes; i + kLanes <= n; i += kLanes) maxima = V::max(V::load(x + i), maxima);
      max = max_of<V>(maxima);
    }
    for (; i < n; ++i) max = x[i] > max ? x[i] : max;

    const Reg shift = V::set1(max);
    Reg sums = V::zero();
    float sum = 0;
    for (i = 0; i + kLanes <= n; i += kLanes) {
      const Reg e = exp<V>(V::sub(V::load(x + i), shift));
      V::store(x + i, e);
      sums = V::add(sums, e);
    }
    if (i < n) {
      V::store_first(x + i, n - i, exp<V>(V::sub(V::load_first(x + i, n - i), shift)));
      sums = V::add(sums, V::load_first(x + i, n - i));
    }
    sum = sum_of<V>(sums);
    const Reg divisor = V::set1(sum);
    for (i = 0; i + kLanes <= n; i += kLanes) V::store(x + i, V::div(V::load(x + i), divisor));
    if (i < n) V::store_first(x + i, n - i, V::div(V::load_first(x + i, n - i), divisor));
  }

  static void sigmoid(float* x, int n) noexcept {
    const Reg one = V::set1(1.0f);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      V::store(x + i, V::div(one, one_plus_exp_minus<V>(V::load(x + i))));
    }
    if (i < n)
      V::store_first(x + i, n - i, V::div(one, one_plus_exp_minus<V>(V::load_first(x + i, n - i))));
  }

  static void fill(KernelTable& table) {
    table.attend_merge = attend_merge;
    table.rms_norm = rms_norm;
    table.rope_interleaved = rope_interleaved;
    table.rope_half = rope_half;
    table.silu_times = silu_times;
    table.add = add;
    table.weighted_sum = weighted_sum;
    table.weighted_relu = weighted_relu;
    table.scale_to_bf16 = scale_to_bf16;
    table.scale_to_f32 = scale_to_f32;
    table.widen_bf16 = widen_bf16;
    table.softmax = softmax;
    table.sigmoid = sigmoid;
  }
};

}  // namespace
}  // namespace glint
