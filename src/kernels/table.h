// Everything hot, as free functions behind one table per instruction set. Kernels know pointers and
// lengths: no threads, no allocation, no locks, noexcept. Shapes are checked by the callers
// (src/ops). The scalar table is the definition.
//
// Same bits, whatever the batch: the value of one output depends on its own inputs, the shape and
// the table only, never on how many rows, columns or tasks are computed beside it. Callers may
// therefore split rows and columns freely, within the alignments given below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/isa.h"
#include "kernels/kda.h"
#include "tensor/dtype.h"
#include "tensor/panel.h"
#include "tensor/scale_grid.h"

namespace glint {

inline constexpr int kRowBlock = 16;     // rows of packed activations come in blocks of 16
inline constexpr int kColumnBlock = 32;  // matmul tasks start at multiples of 32 output columns
inline constexpr int kAttendPage = 64;   // keys behind one page pointer
inline constexpr int kAttendSpan =
    256;  // most keys of one attend call; spans start at multiples of it

// The products of packed rows with one panel of low-bit weights (tensor/panel.h):
// out[r * kPanelRows + n] = sum_k x[r, k] w[n, k].
struct PanelArgs {
  // Packed by the MatmulKernels that the function belongs to; memory of whole kRowBlocks of rows is
  // readable.
  const std::byte* x = nullptr;
  int rows = 0;
  int k = 0;
  const std::byte* panel = nullptr;  // 64-byte aligned
  const std::byte* next = nullptr;   // where reading goes on afterwards, or null: to fetch ahead
  // [rows, kPanelRows], 64-byte aligned; memory of whole kRowBlocks of rows may be overwritten.
  float* out = nullptr;
  std::byte* scratch = nullptr;  // panel_scratch_bytes(k), 64-byte aligned
};
using PanelProduct = void (*)(const PanelArgs&) noexcept;
// Packs up to kPanelRows rows of blocks of one type (tensor/panel.h, pack_panel).
using PackPanel = void (*)(const std::byte* rows, std::size_t row_bytes, int num_rows,
                           std::size_t k, std::byte* panel) noexcept;

// How weights of panels, or of rows of blocks that become panels on the way, are multiplied.
struct PanelSource {
  PanelProduct product = nullptr;
  PackPanel pack = nullptr;  // set: w holds rows of blocks
};

// y[r, n] = sum_k x[r, k] w[n, k] for n in [n0, n1), float32 accumulation.
struct MatmulArgs {
  const void* x = nullptr;  // packed by the same MatmulKernels: rows x k
  int rows = 0;
  int k = 0;
  const std::byte* w = nullptr;          // row 0; row n is w + n * w_stride; any alignment
  std::size_t w_stride = 0;              // bytes; between panels where w holds panels
  PanelSource source;                    // of low-bit weights
  ScaleGrid grid;                        // of e4m3; its row 0 is row 0 of w
  float factor = 1.0f;                   // multiplies every product, before row_scale
  int n0 = 0, n1 = 0;                    // n0 a multiple of kColumnBlock
  float* y = nullptr;                    // y[y_rows ? y_rows[r] : r][n] at y + row * y_stride + n
  std::size_t y_stride = 0;              // floats
  const std::int32_t* y_rows = nullptr;  // distinct rows, or null
  const float* row_scale = nullptr;      // multiplies row r, or null
  bool accumulate = false;               // y += instead of y =
  std::byte* scratch = nullptr;          // scratch_bytes(k) of the worker's own, 64-byte aligned
};

// z[r, n] = silu(min(gate[r, n], limit)) * clamp(up[r, n], -limit, limit), gate = x Wg^T, up = x
// Wu^T, for n in [n0, n1); z is written as packed activations of `n_total` columns, ready for the
// down projection by the same MatmulKernels. The call that holds the last column also writes the
// padding.
struct GateUpArgs {
  const void* x = nullptr;
  int rows = 0;
  int k = 0;
  const std::byte* w_gate = nullptr;
  const std::byte* w_up = nullptr;
  std::size_t w_stride = 0;     // of w_gate
  std::size_t w_up_stride = 0;  // of w_up
  // The column that row 0 of w_gate and w_up belongs to, at most n0; 0 but where rows of float
  // weights were made on the way.
  int w_first = 0;
  PanelSource gate_source, up_source;
  ScaleGrid gate_grid, up_grid;
  float gate_factor = 1.0f, up_factor = 1.0f;  // multiply every product
  float limit = std::numeric_limits<float>::infinity();
  int n0 = 0, n1 = 0;  // multiples of hidden_block, unless n1 is n_total
  int n_total = 0;
  void* z = nullptr;  // packed, rows x n_total
  std::byte* scratch = nullptr;
};

// Matrix products of one weight format with one activation format.
struct MatmulKernels {
  // Bytes of `rows` packed rows of width k. For rows a multiple of kRowBlock it is linear in rows,
  // so that block b of a packed matrix starts at packed_bytes(b * kRowBlock, k).
  std::size_t (*packed_bytes)(int rows, int k) noexcept = nullptr;
  // Rows row_index[r] (or r) of x, float32 with x_stride floats between rows, into `out`, padding
  // zeroed.
  void (*pack)(const float* x, std::size_t x_stride, const std::int32_t* row_index, int rows, int k,
               void* out) noexcept = nullptr;
  void (*matmul)(const MatmulArgs&) noexcept = nullptr;
  void (*gate_up)(const GateUpArgs&) noexcept = nullptr;
  std::size_t (*scratch_bytes)(int k) noexcept = nullptr;
  int hidden_block = kColumnBlock;  // columns of z that are packed together
};

// Softmax attention of query rows over at most kAttendSpan keys that start at a multiple of
// kAttendSpan: s = scale q.k over the visible keys, max = max s, sum = sum e^(s - max), out = sum
// e^(s - max) v (not divided). A row with no visible key gives max = -inf, sum = 0, out = 0. q, k
// and v are bf16 or float32 by the table's member.
struct AttendArgs {
  const void* q = nullptr;  // [rows, dk], q_stride elements between rows
  std::size_t q_stride = 0;
  int rows = 0;
  const std::int32_t* visible =
      nullptr;        // [rows]: row r sees keys [0, visible[r]) of this span; may be 0
  int num_keys = 0;   // max of visible; keys beyond it are never read as values
  int first_key = 0;  // keys [0, first_key) of the span are seen by no row nor read as values
  const std::byte* const* k_pages =
      nullptr;               // one pointer per 64 keys; a page's 64 rows are always readable memory
  std::size_t k_stride = 0;  // bytes between keys of a page
  const std::byte* const* v_pages = nullptr;
  std::size_t v_stride = 0;
  int dk = 0, dv = 0;
  float scale = 0;
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
  float* out = nullptr;  // [rows, dv], out_stride floats between rows
  std::size_t out_stride = 0;
  std::byte* scratch = nullptr;  // scratch_bytes(rows, dk, dv), 64-byte aligned
};

struct AttendKernels {
  void (*attend)(const AttendArgs&) noexcept = nullptr;
  std::size_t (*scratch_bytes)(int rows, int dk, int dv) noexcept = nullptr;
};

// Rows of one format of tensor/row_format.h, which defines every bit.
struct RowKernels {
  void (*pack)(const float* x, int width, std::byte* row) noexcept = nullptr;
  // `count` rows, `stride` bytes apart, to out [count, width].
  void (*unpack)(const std::byte* rows, std::size_t stride, int count, int width,
                 glint::bf16* out) noexcept = nullptr;
};

struct KernelTable {
  Isa isa = Isa::kScalar;

  MatmulKernels bf16;      // bf16 weights, activations rounded to bf16
  MatmulKernels bf16_f32;  // bf16 weights, float32 activations
  MatmulKernels f32;       // float32 weights and activations
  MatmulKernels f16;       // float16 weights, activations rounded to bf16
  MatmulKernels f16_f32;   // float16 weights, float32 activations
  MatmulKernels f8;        // e4m3 weights times their scales, rounded to bf16, then as bf16
  MatmulKernels f8_f32;    // the same not rounded, then as f32

  // Low-bit weights. Activations are rounded to int8 in blocks of kInt8Block (int8_rows.h), whose
  // products with codes are whole numbers: every table gives the same bits.
  MatmulKernels int8;
  PanelProduct panel_int8[kNumBlockTypes] = {};
  // The same weights widened, activations float32.
  MatmulKernels panel_f32;
  PanelProduct panel_wide[kNumBlockTypes] = {};
  PackPanel pack_panel[kNumBlockTypes] = {};

  AttendKernels attend_bf16;
  AttendKernels attend_f32;
  // Adds the partial result b to a (rows as in AttendArgs): a = a e^(max_a - m) + b e^(max_b - m),
  // m = max of both; where both are -inf the row stays empty.
  void (*attend_merge)(int rows, int dv, float* max_a, float* sum_a, float* out_a,
                       std::size_t stride_a, const float* max_b, const float* sum_b,
                       const float* out_b, std::size_t stride_b) noexcept = nullptr;

  RowKernels fp8_rows;
  RowKernels fp4_rows;

  // y = w * x / sqrt(mean(x^2) + eps), n values; y may be x.
  void (*rms_norm)(const float* x, const float* w, int n, float eps, float* y) noexcept = nullptr;
  // Interleaved pairs (x[2j], x[2j+1]) of n values turned by cos[j], sin[j], in place.
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, int n) noexcept = nullptr;
  // Pairs (x[j], x[n/2 + j]) of n values, an even number, turned by cos[j], sin[j], in place.
  void (*rope_half)(float* x, const float* cos, const float* sin, int n) noexcept = nullptr;
  // gate = silu(min(gate, limit)) * clamp(up, -limit, limit), n values.
  void (*silu_times)(const float* up, int n, float limit, float* gate) noexcept = nullptr;
  // y += x, n values.
  void (*add)(const float* x, int n, float* y) noexcept = nullptr;
  // y = w[0] x[0] + w[1] x[1] + ... in that order, n values of each of `count` rows; y is none of
  // them.
  void (*weighted_sum)(const float* const* x, const float* w, int count, int n,
                       float* y) noexcept = nullptr;
  // y = w[0] max(row 0, 0) + w[1] max(row 1, 0) + ... in that order; x [rows, n], x_stride floats
  // between rows.
  void (*weighted_relu)(const float* x, std::size_t x_stride, const float* w, int rows, int n,
                        float* y) noexcept = nullptr;
  // y = x * factor as bf16 / float32, n values.
  void (*scale_to_bf16)(const float* x, float factor, int n, glint::bf16* y) noexcept = nullptr;
  void (*scale_to_f32)(const float* x, float factor, int n, float* y) noexcept = nullptr;
  // y = x as float32, n values.
  void (*widen_bf16)(const glint::bf16* x, int n, float* y) noexcept = nullptr;
  // In place over n values: e^(x - max) / sum.
  void (*softmax)(float* x, int n) noexcept = nullptr;
  // 1 / (1 + e^-x), in place. The router: accurate to a few units in the last place on every table.
  void (*sigmoid)(float* x, int n) noexcept = nullptr;

  KdaKernels kda;
};

}  // namespace glint
