#include "kernels/scalar/scalar.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/f8-inl.h"
#include "kernels/scalar/kda.h"
#include "kernels/scalar/panel.h"
#include "kernels/table.h"
#include "tensor/row_format.h"

namespace glint {
namespace {

// Elements are read through memcpy: weights are borrowed from mapped files, where only their bytes
// are aligned.
float load(const float* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
float load(const bf16* p) {
  bf16 value;
  std::memcpy(&value, p, sizeof value);
  return value.to_float();
}
// float16, as a weight is stored.
struct Half {
  std::uint16_t bits;
};
float load(const Half* p) {
  Half value;
  std::memcpy(&value, p, sizeof value);
  return f16_to_float(value.bits);
}
void store(float value, float* p) {
  *p = value;
}
void store(float value, bf16* p) {
  *p = bf16::from_float(value);
}

// SwiGLU with both sides bounded: the gate from above only, before the activation.
float gated(float gate, float up, float limit) {
  gate = std::min(gate, limit);
  return gate / (1.0f + std::exp(-gate)) * std::clamp(up, -limit, limit);
}

// sum_i a[i] b[i], in the order of i.
template <typename A, typename B>
float dot(const A* a, const B* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += load(a + i) * load(b + i);
  return sum;
}

// Weights of type W, activations of type X. Packed activations are rows of k elements, nothing
// more.
template <typename W, typename X>
struct Matmul {
  static std::size_t packed_bytes(int rows, int k) noexcept {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(k) * sizeof(X);
  }

  static void pack(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows,
                   int k, void* out) noexcept {
    auto* to = static_cast<X*>(out);
    for (int row = 0; row < rows; ++row) {
      const float* from = x + static_cast<std::size_t>(row_index ? row_index[row] : row) * x_stride;
      for (int i = 0; i < k; ++i) store(from[i], to++);
    }
  }

  static void matmul(const MatmulArgs& a) noexcept {
    for (int row = 0; row < a.rows; ++row) {
      const X* x = static_cast<const X*>(a.x) +
                   static_cast<std::size_t>(row) * static_cast<std::size_t>(a.k);
      float* y = a.y + static_cast<std::size_t>(a.y_rows ? a.y_rows[row] : row) * a.y_stride;
      for (int n = a.n0; n < a.n1; ++n) {
        float value = dot(x, weight_row(a.w, a.w_stride, n), a.k) * a.factor;
        if (a.row_scale) value *= a.row_scale[row];
        y[n] = a.accumulate ? y[n] + value : value;
      }
    }
  }

  static void gate_up(const GateUpArgs& a) noexcept {
    for (int row = 0; row < a.rows; ++row) {
      const X* x = static_cast<const X*>(a.x) +
                   static_cast<std::size_t>(row) * static_cast<std::size_t>(a.k);
      X* z = static_cast<X*>(a.z) +
             static_cast<std::size_t>(row) * static_cast<std::size_t>(a.n_total);
      for (int n = a.n0; n < a.n1; ++n) {
        const int row_of_w = n - a.w_first;
        const float gate = dot(x, weight_row(a.w_gate, a.w_stride, row_of_w), a.k) * a.gate_factor;
        const float up = dot(x, weight_row(a.w_up, a.w_stride, row_of_w), a.k) * a.up_factor;
        store(gated(gate, up, a.limit), z + n);
      }
    }
  }

  static std::size_t scratch_bytes(int) noexcept { return 0; }

  static const W* weight_row(const std::byte* w, std::size_t stride, int n) {
    return reinterpret_cast<const W*>(w + static_cast<std::size_t>(n) * stride);
  }

  static MatmulKernels kernels() { return {packed_bytes, pack, matmul, gate_up, scratch_bytes}; }
};

// Rows of e4m3 widened to T.
template <typename T>
struct F8To {
  using Stored = T;
  void operator()(const std::byte* from, float scale, int n, T* to) const {
    for (int i = 0; i < n; ++i)
      store(e4m3_to_float(std::to_integer<std::uint8_t>(from[i])) * scale, to + i);
  }
};

// Queries, keys and values of type T.
template <typename T>
struct Attend {
  static const T* row_of(const std::byte* const* pages, std::size_t stride, int key) {
    return reinterpret_cast<const T*>(pages[key / 64] +
                                      static_cast<std::size_t>(key % 64) * stride);
  }

  static void attend(const AttendArgs& a) noexcept {
    for (int row = 0; row < a.rows; ++row) {
      const T* q = static_cast<const T*>(a.q) + static_cast<std::size_t>(row) * a.q_stride;
      float* out = a.out + static_cast<std::size_t>(row) * a.out_stride;
      const int visible = std::min(a.visible[row], a.num_keys);

      float p[kAttendSpan];
      float max = -std::numeric_limits<float>::infinity();
      for (int key = a.first_key; key < visible; ++key) {
        p[key] = a.scale * dot(q, row_of(a.k_pages, a.k_stride, key), a.dk);
        max = std::max(max, p[key]);
      }
      float sum = 0;
      for (int key = a.first_key; key < visible; ++key) {
        p[key] = std::exp(p[key] - max);
        sum += p[key];
      }
      std::fill_n(out, a.dv, 0.0f);
      for (int key = a.first_key; key < visible; ++key) {
        const T* v = row_of(a.v_pages, a.v_stride, key);
        for (int i = 0; i < a.dv; ++i) out[i] += p[key] * load(v + i);
      }
      a.max[row] = max;
      a.sum[row] = sum;
    }
  }

  static std::size_t scratch_bytes(int, int, int) noexcept { return 0; }

  static AttendKernels kernels() { return {attend, scratch_bytes}; }
};

// e^(value - max), where a part that saw no key (both -inf) weighs nothing.
float merge_weight(float value, float max) {
  return value == -std::numeric_limits<float>::infinity() ? 0.0f : std::exp(value - max);
}

void attend_merge(int rows, int dv, float* max_a, float* sum_a, float* out_a, std::size_t stride_a,
                  const float* max_b, const float* sum_b, const float* out_b,
                  std::size_t stride_b) noexcept {
  for (int row = 0; row < rows; ++row) {
    const float max = std::max(max_a[row], max_b[row]);
    const float weight_a = merge_weight(max_a[row], max);
    const float weight_b = merge_weight(max_b[row], max);
    float* a = out_a + static_cast<std::size_t>(row) * stride_a;
    const float* b = out_b + static_cast<std::size_t>(row) * stride_b;
    for (int i = 0; i < dv; ++i) a[i] = a[i] * weight_a + b[i] * weight_b;
    sum_a[row] = sum_a[row] * weight_a + sum_b[row] * weight_b;
    max_a[row] = max;
  }
}

void pack_fp8(const float* x, int width, std::byte* row) noexcept {
  pack_fp8_row(x, width, row);
}
void pack_fp4(const float* x, int width, std::byte* row) noexcept {
  pack_fp4_row(x, width, row);
}

void unpack_fp8(const std::byte* rows, std::size_t stride, int count, int width,
                bf16* out) noexcept {
  for (int i = 0; i < count; ++i, rows += stride, out += width) unpack_fp8_row(rows, width, out);
}
void unpack_fp4(const std::byte* rows, std::size_t stride, int count, int width,
                bf16* out) noexcept {
  for (int i = 0; i < count; ++i, rows += stride, out += width) unpack_fp4_row(rows, width, out);
}

void rms_norm(const float* x, const float* w, int n, float eps, float* y) noexcept {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = w[i] * (x[i] * factor);
}

void rope_interleaved(float* x, const float* cos, const float* sin, int n) noexcept {
  for (int j = 0; j < n / 2; ++j) {
    const float even = x[2 * j];
    const float odd = x[2 * j + 1];
    x[2 * j] = even * cos[j] - odd * sin[j];
    x[2 * j + 1] = odd * cos[j] + even * sin[j];
  }
}

void rope_half(float* x, const float* cos, const float* sin, int n) noexcept {
  float* upper = x + n / 2;
  for (int j = 0; j < n / 2; ++j) {
    const float a = x[j];
    const float b = upper[j];
    x[j] = a * cos[j] - b * sin[j];
    upper[j] = b * cos[j] + a * sin[j];
  }
}

void silu_times(const float* up, int n, float limit, float* gate) noexcept {
  for (int i = 0; i < n; ++i) gate[i] = gated(gate[i], up[i], limit);
}

void add(const float* x, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] += x[i];
}

void weighted_sum(const float* const* x, const float* w, int count, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) {
    float sum = 0;
    for (int row = 0; row < count; ++row) sum += w[row] * x[row][i];
    y[i] = sum;
  }
}

void weighted_relu(const float* x, std::size_t x_stride, const float* w, int rows, int n,
                   float* y) noexcept {
  for (int i = 0; i < n; ++i) {
    float sum = 0;
    for (int row = 0; row < rows; ++row)
      sum += w[row] * std::max(x[static_cast<std::size_t>(row) * x_stride + i], 0.0f);
    y[i] = sum;
  }
}

void scale_to_bf16(const float* x, float factor, int n, bf16* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = bf16::from_float(x[i] * factor);
}

void scale_to_f32(const float* x, float factor, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void widen_bf16(const bf16* x, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = x[i].to_float();
}

void softmax(float* x, int n) noexcept {
  float max = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < n; ++i) max = std::max(max, x[i]);
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - max);
    sum += x[i];
  }
  for (int i = 0; i < n; ++i) x[i] = x[i] / sum;
}

void sigmoid(float* x, int n) noexcept {
  for (int i = 0; i < n; ++i) x[i] = 1.0f / (1.0f + std::exp(-x[i]));
}

KernelTable make_table() {
  KernelTable table;
  table.isa = Isa::kScalar;
  table.bf16 = Matmul<bf16, bf16>::kernels();
  table.bf16_f32 = Matmul<bf16, float>::kernels();
  table.f32 = Matmul<float, float>::kernels();
  table.f16 = Matmul<Half, bf16>::kernels();
  table.f16_f32 = Matmul<Half, float>::kernels();
  table.f8 = F8Matmul<Matmul<bf16, bf16>, F8To<bf16>>::kernels();
  table.f8_f32 = F8Matmul<Matmul<float, float>, F8To<float>>::kernels();
  fill_scalar_panels(table);
  table.attend_bf16 = Attend<bf16>::kernels();
  table.attend_f32 = Attend<float>::kernels();
  table.attend_merge = attend_merge;
  table.fp8_rows = {pack_fp8, unpack_fp8};
  table.fp4_rows = {pack_fp4, unpack_fp4};
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
  table.kda = scalar_kda();
  return table;
}

}  // namespace

const KernelTable& scalar_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace glint
