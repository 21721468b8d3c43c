#include "kernels/scalar/kda.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void short_conv(const ShortConvArgs& a) noexcept {
  for (int i = 0; i < a.n; ++i) {
    std::array<float, kKdaTaps> taps;
    for (std::size_t t = 0; t + 1 < kKdaTaps; ++t)
      taps[t] = a.history[t * a.history_stride + size(i)];
    for (int row = 0; row < a.rows; ++row) {
      const float x = a.x[size(row) * a.x_stride + size(i)];
      taps[kKdaTaps - 1] = a.round ? bf16::from_float(x).to_float() : x;
      float sum = 0;
      for (std::size_t t = 0; t < kKdaTaps; ++t) sum += a.w[t * a.w_stride + size(i)] * taps[t];
      a.y[size(row) * a.y_stride + size(i)] = sum * sigmoid(sum);
      std::rotate(taps.begin(), taps.begin() + 1, taps.end());
    }
    for (std::size_t t = 0; t + 1 < kKdaTaps; ++t)
      a.history[t * a.history_stride + size(i)] = taps[t];
  }
}

void l2_norm(const float* x, int n, float factor, float* y) noexcept {
  const float scale = factor / std::sqrt(dot(x, x, n) + kKdaNormEps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale;
}

void bounded_decay(const float* x, const float* bias, int n, float rate, float bound,
                   float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = std::exp(bound * sigmoid(rate * (x[i] + bias[i])));
}

void softplus_decay(const float* x, const float* bias, int n, float rate, float* y) noexcept {
  for (int i = 0; i < n; ++i) {
    const float u = x[i] + bias[i];
    y[i] = std::exp(-rate * (u > kKdaSoftplusLinear ? u : std::log1p(std::exp(u))));
  }
}

void sigmoid_times(const float* gate, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] *= sigmoid(gate[i]);
}

std::size_t scratch_bytes(int head_dim) noexcept {
  return 2 * size(kda_width(head_dim)) * sizeof(float);
}

// x S, in order of the key channels.
void state_product(const float* x, const float* s, int head_dim, float* y) {
  const int width = kda_width(head_dim);
  std::fill_n(y, width, 0.0f);
  for (int c = 0; c < head_dim; ++c) {
    for (int i = 0; i < width; ++i) y[i] += x[c] * s[size(c) * size(width) + size(i)];
  }
}

void rows(const KdaRowsArgs& a) noexcept {
  const int width = kda_width(a.head_dim);
  const std::size_t stride = size(width);
  auto* k = reinterpret_cast<float*>(a.scratch);  // k_i D_ij, on the way to j = -1
  float* q = k + stride;
  for (int row = 0; row < a.count; ++row) {
    const int i = a.first + row;
    const float beta = a.beta[row];
    std::copy_n(a.k + size(i) * stride, stride, k);
    std::copy_n(a.q + size(row) * stride, stride, q);
    float products[kKdaBlock], reads[kKdaBlock];  // A_ij, P_ij
    for (int j = i; j >= 0; --j) {
      products[j] = beta * dot(k, a.k + size(j) * stride, width);
      reads[j] = dot(q, a.k + size(j) * stride, width);
      for (std::size_t c = 0; c < stride; ++c) {
        k[c] *= a.decay[size(j) * stride + c];
        q[c] *= a.decay[size(j) * stride + c];
      }
    }
    float* u = a.u + size(i) * stride;
    float* o = a.o + size(row) * stride;
    state_product(k, a.s, a.head_dim, u);
    state_product(q, a.s, a.head_dim, o);
    for (std::size_t c = 0; c < stride; ++c) {
      u[c] = beta * (a.v[size(row) * stride + c] - u[c]);
      for (int j = 0; j < i; ++j) u[c] -= products[j] * a.u[size(j) * stride + c];
      for (int j = 0; j <= i; ++j) o[c] += reads[j] * a.u[size(j) * stride + c];
    }
  }
}

void fold(const KdaFoldArgs& a) noexcept {
  const std::size_t stride = size(kda_width(a.head_dim));
  for (int c = 0; c < a.head_dim; ++c) {
    float weights[kKdaBlock];
    float decay = 1.0f;
    for (int j = kKdaBlock - 1; j >= 0; --j) {
      weights[j] = a.k[size(j) * stride + size(c)] * decay;
      decay *= a.decay[size(j) * stride + size(c)];
    }
    for (std::size_t i = 0; i < stride; ++i) {
      float sum = decay * a.s[size(c) * stride + i];
      for (int j = 0; j < kKdaBlock; ++j) sum += weights[j] * a.u[size(j) * stride + i];
      a.out[size(c) * stride + i] = sum;
    }
  }
}

}  // namespace

KdaKernels scalar_kda() {
  KdaKernels kernels;
  kernels.short_conv = short_conv;
  kernels.l2_norm = l2_norm;
  kernels.bounded_decay = bounded_decay;
  kernels.softplus_decay = softplus_decay;
  kernels.sigmoid_times = sigmoid_times;
  kernels.rows = rows;
  kernels.fold = fold;
  kernels.scratch_bytes = scratch_bytes;
  return kernels;
}

}  // namespace glint
