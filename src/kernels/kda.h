// Kimi delta attention (arXiv 2510.26692): what one head of one sequence computes. A state S of
// head_dim x head_dim is decayed per key channel by a = e^g, corrected towards the value and read:
//
//   S = diag(a) S;  u = beta (v - k S);  S = S + k^T u;  o = q S
//
// S is written once per block of kKdaBlock tokens. Within a block, row i follows from S as it was
// before the block and from the rows before it, with D_ij = a_i a_(i-1) ... a_(j+1), a running
// product that never needs the exponential of a difference, and E_i = a_i ... a_0:
//
//   A_ij = beta_i sum_c k_ic D_ijc k_jc,  P_ij = sum_c q_ic D_ijc k_jc  (j < i),  P_ii = q_i . k_i
//   u_i = beta_i (v_i - (k_i E_i) S) - sum_(j<i) A_ij u_j
//   o_i = (q_i E_i) S + sum_(j<=i) P_ij u_j
//   and after the block S' = diag(E_15) S + sum_j (k_j D_15,j)^T u_j
//
// In order of j; sums over key channels in the table's order. A row's bits depend on itself and the
// rows before it, not on how many are computed at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace glint {

inline constexpr int kKdaBlock = 16;  // tokens; blocks start at multiples of it
inline constexpr int kKdaTaps = 4;    // tokens that a short convolution sees

// Floats from one row of a head to the next: head_dim, then zeros up to a multiple of 16. A state
// is head_dim such rows.
constexpr int kda_width(int head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// y[r, c] = silu(sum_t w[t, c] x[r + t - 3, c]), depthwise and causal: tap 3 is the row itself.
struct ShortConvArgs {
  const float* x = nullptr;  // [rows, n], x_stride floats between rows
  std::size_t x_stride = 0;
  int rows = 0;
  int n = 0;
  // x is rounded to bf16 as it is read.
  bool round = false;
  const float* w = nullptr;  // [kKdaTaps, n], w_stride floats between taps
  std::size_t w_stride = 0;
  // [kKdaTaps - 1, n], history_stride floats between rows: the rows before x, rounded already.
  // Afterwards the last rows of x.
  float* history = nullptr;
  std::size_t history_stride = 0;
  float* y = nullptr;  // [rows, n], y_stride floats between rows
  std::size_t y_stride = 0;
};

// Rows [first, first + count) of a block. All rows are kda_width(head_dim) floats apart, 64-byte
// aligned, and zero beyond head_dim.
struct KdaRowsArgs {
  int head_dim = 0;
  int first = 0, count = 0;      // first + count <= kKdaBlock
  const float* s = nullptr;      // [head_dim, width]: the state before the block
  const float* k = nullptr;      // [first + count, width]
  const float* decay = nullptr;  // [first + count, width]: a
  const float* q = nullptr;      // [count, width]: of the rows to compute
  const float* v = nullptr;      // [count, width]
  const float* beta = nullptr;   // [count]
  float* u = nullptr;            // [first + count, width]: given before `first`, then written
  float* o = nullptr;            // [count, width]
  std::byte* scratch = nullptr;  // scratch_bytes(head_dim), 64-byte aligned
};

// The state after a whole block.
struct KdaFoldArgs {
  int head_dim = 0;
  const float* s = nullptr;                                  // [head_dim, width]
  const float *k = nullptr, *decay = nullptr, *u = nullptr;  // [kKdaBlock, width]
  float* out = nullptr;                                      // [head_dim, width]; may be s
  std::byte* scratch = nullptr;
};

struct KdaKernels {
  void (*short_conv)(const ShortConvArgs&) noexcept = nullptr;
  // y = x * factor / sqrt(sum x^2 + 1e-6), n values. The epsilon is the architecture's, whatever
  // the epsilon of its other norms.
  void (*l2_norm)(const float* x, int n, float factor, float* y) noexcept = nullptr;
  // e^(bound * sigmoid(rate * (x + bias))), n values: a bound is no clamp, but another function.
  void (*bounded_decay)(const float* x, const float* bias, int n, float rate, float bound,
                        float* y) noexcept = nullptr;
  // e^(-rate * softplus(x + bias)), n values.
  void (*softplus_decay)(const float* x, const float* bias, int n, float rate,
                         float* y) noexcept = nullptr;
  // y *= sigmoid(gate), n values.
  void (*sigmoid_times)(const float* gate, int n, float* y) noexcept = nullptr;
  void (*rows)(const KdaRowsArgs&) noexcept = nullptr;
  void (*fold)(const KdaFoldArgs&) noexcept = nullptr;
  std::size_t (*scratch_bytes)(int head_dim) noexcept = nullptr;  // a multiple of 64
};

inline constexpr float kKdaNormEps = 1e-6f;
// Beyond it softplus(x) is x, as in the reference.
inline constexpr float kKdaSoftplusLinear = 20.0f;

}  // namespace glint
