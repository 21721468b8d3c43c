// Matrix products of whole steps: packs activations once, splits the work over the pool, calls the
// table. Results do not depend on how the work is split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/exec.h"
#include "tensor/weight.h"

namespace glint {

// kBf16: bf16 weights meet activations rounded to bf16, low-bit weights activations rounded to
// int8. kF32: every weight is widened, activations stay float32.
enum class Compute { kBf16, kF32 };

// The kernels that multiply a weight of this format.
const MatmulKernels& matmul_kernels(const KernelTable& table, QuantFormat format, Compute compute);
// Has `args` read `weight` by `kernels`, which are of this table.
void set_weight(const KernelTable& table, const MatmulKernels& kernels, const Weight& weight,
                MatmulArgs& args);
// How `kernels` of the table read `weight`: empty unless it is of low bits.
PanelSource panel_source(const KernelTable& table, const MatmulKernels& kernels,
                         const Weight& weight);

// Rows in the layout one MatmulKernels reads. Borrows workspace memory: valid until the enclosing
// scope ends.
struct Activations {
  const MatmulKernels* kernels = nullptr;
  std::byte* data = nullptr;
  int rows = 0;
  int k = 0;

  // Rows [row, ...), row a multiple of kRowBlock.
  const std::byte* block(int row) const { return data + kernels->packed_bytes(row, k); }
};

// Workspace memory for `rows` packed rows, not filled.
Activations allocate_activations(Exec& exec, const MatmulKernels& kernels, int rows, int k);

// Packs x [rows, k], x_stride floats between rows.
Activations pack(Exec& exec, const MatmulKernels& kernels, const float* x, std::size_t x_stride,
                 int rows, int k);

// RMSNorm of each row, then pack. When `normed` is not null the float32 result goes there too
// ([rows, k], dense).
Activations rms_norm_pack(Exec& exec, const MatmulKernels& kernels, const float* x,
                          std::size_t x_stride, const float* weight, float eps, int rows, int k,
                          float* normed = nullptr);

// One product y = x w^T.
struct MatmulJob {
  Activations x;
  const Weight* weight = nullptr;  // [n, x.k]
  float* y = nullptr;              // [x.rows, n]
  std::size_t y_stride = 0;
};

// All the products, in one parallel region.
void matmul(Exec& exec, std::span<const MatmulJob> jobs);
inline void matmul(Exec& exec, const MatmulJob& job) {
  matmul(exec, std::span(&job, 1));
}

// One of the products that read the same input.
struct Projection {
  const Weight* weight = nullptr;  // [n, k]
  float* y = nullptr;              // [rows, n]
  std::size_t y_stride = 0;
};

// y = rms_norm(x) w^T for each weight, in whatever forms they are stored; x [rows, k].
void norm_project(Exec& exec, Compute compute, const float* x, std::size_t x_stride,
                  const float* norm_weight, float eps, int rows, int k,
                  std::span<const Projection> projections);

// The largest scratch that any kernel needs, one block per worker, taken from the workspace.
class WorkerScratch {
 public:
  WorkerScratch(Exec& exec, std::size_t bytes_per_worker);
  std::byte* of(int worker) const { return base_ + static_cast<std::size_t>(worker) * stride_; }

 private:
  std::size_t stride_;
  std::byte* base_;
};

// Rows of one task, so that its packed block stays in a core's second-level cache: a multiple of 2
// * kRowBlock.
int rows_per_task(int rows, int k);
// Columns of one task, a multiple of kColumnBlock: few enough tasks to stream, enough for the team.
int columns_per_task(int columns, int row_tasks, int num_threads);

}  // namespace glint
