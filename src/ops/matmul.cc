#include "ops/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "base/integers.h"
#include "ops/task_ranges.h"

namespace glint {
namespace {

constexpr int kCacheBudget = 1 << 20;  // bytes of packed activations a task keeps hot
constexpr int kTasksPerThread = 4;

// How one product is cut: row tasks x column tasks.
struct Split {
  int rows = 0, columns = 0;
  int row_tasks = 0, column_tasks = 0;
  int tasks() const { return row_tasks * column_tasks; }
};

Split split_product(int rows, int columns, int k, int num_threads) {
  Split split;
  split.rows = rows_per_task(rows, k);
  split.row_tasks = ceil_div(rows, split.rows);
  split.columns = columns_per_task(columns, split.row_tasks, num_threads);
  split.column_tasks = ceil_div(columns, split.columns);
  return split;
}

}  // namespace

const MatmulKernels& matmul_kernels(const KernelTable& table, QuantFormat format, Compute compute) {
  const bool wide = compute == Compute::kF32;
  switch (format) {
    case QuantFormat::kF32:
      return table.f32;
    case QuantFormat::kBf16:
      return wide ? table.bf16_f32 : table.bf16;
    case QuantFormat::kF16:
      return wide ? table.f16_f32 : table.f16;
    case QuantFormat::kF8:
      return wide ? table.f8_f32 : table.f8;
    case QuantFormat::kBlocks:
    case QuantFormat::kPanels:
      return wide ? table.panel_f32 : table.int8;
  }
  GLINT_CHECK(false);
}

PanelSource panel_source(const KernelTable& table, const MatmulKernels& kernels,
                         const Weight& weight) {
  if (!is_block_type(weight.type())) return {};
  const auto type =
      static_cast<std::size_t>(weight.type()) - static_cast<std::size_t>(kFirstBlockType);
  PanelSource source;
  source.product = &kernels == &table.panel_f32 ? table.panel_wide[type] : table.panel_int8[type];
  if (weight.format() == QuantFormat::kBlocks) source.pack = table.pack_panel[type];
  return source;
}

void set_weight(const KernelTable& table, const MatmulKernels& kernels, const Weight& weight,
                MatmulArgs& args) {
  args.w = weight.data();
  args.w_stride = weight.stride();
  args.source = panel_source(table, kernels, weight);
  args.grid = weight.grid();
  args.factor = weight.factor();
}

int rows_per_task(int rows, int k) {
  const int fit = kCacheBudget / (2 * std::max(k, 1)) / (2 * kRowBlock) * (2 * kRowBlock);
  return std::clamp(fit, 2 * kRowBlock, std::max(2 * kRowBlock, round_up(rows, 2 * kRowBlock)));
}

int columns_per_task(int columns, int row_tasks, int num_threads) {
  const int wanted = std::max(1, ceil_div(kTasksPerThread * num_threads, std::max(row_tasks, 1)));
  return std::max(kColumnBlock, round_up(ceil_div(columns, wanted), kColumnBlock));
}

WorkerScratch::WorkerScratch(Exec& exec, std::size_t bytes_per_worker)
    : stride_((bytes_per_worker + 63) / 64 * 64),
      base_(exec.workspace.bytes(stride_ * static_cast<std::size_t>(exec.pool.num_threads()))) {}

Activations allocate_activations(Exec& exec, const MatmulKernels& kernels, int rows, int k) {
  return {&kernels, exec.workspace.bytes(kernels.packed_bytes(round_up(rows, kRowBlock), k)), rows,
          k};
}

Activations pack(Exec& exec, const MatmulKernels& kernels, const float* x, std::size_t x_stride,
                 int rows, int k) {
  Activations packed = allocate_activations(exec, kernels, rows, k);
  exec.pool.run(static_cast<std::size_t>(ceil_div(rows, kRowBlock)), [&](std::size_t task, int) {
    const int first = static_cast<int>(task) * kRowBlock;
    kernels.pack(x + static_cast<std::size_t>(first) * x_stride, x_stride, nullptr,
                 std::min(kRowBlock, rows - first), k,
                 packed.data + kernels.packed_bytes(first, k));
  });
  return packed;
}

Activations rms_norm_pack(Exec& exec, const MatmulKernels& kernels, const float* x,
                          std::size_t x_stride, const float* weight, float eps, int rows, int k,
                          float* normed) {
  Activations packed = allocate_activations(exec, kernels, rows, k);
  const std::size_t width = static_cast<std::size_t>(k);
  if (normed == nullptr)
    normed = exec.workspace.array<float>(static_cast<std::size_t>(rows) * width);
  exec.pool.run(static_cast<std::size_t>(ceil_div(rows, kRowBlock)), [&](std::size_t task, int) {
    const int first = static_cast<int>(task) * kRowBlock;
    const int count = std::min(kRowBlock, rows - first);
    for (int r = first; r < first + count; ++r) {
      exec.kernels.rms_norm(x + static_cast<std::size_t>(r) * x_stride, weight, k, eps,
                            normed + static_cast<std::size_t>(r) * width);
    }
    kernels.pack(normed + static_cast<std::size_t>(first) * width, width, nullptr, count, k,
                 packed.data + kernels.packed_bytes(first, k));
  });
  return packed;
}

void matmul(Exec& exec, std::span<const MatmulJob> jobs) {
  Workspace::Scope scope(exec.workspace);
  const int num_threads = exec.pool.num_threads();
  auto* splits = exec.workspace.array<Split>(jobs.size());
  TaskRanges tasks(exec.workspace, jobs.size());
  std::size_t scratch = 0;
  // Many jobs share the region's tasks, so each is cut less finely.
  const int share =
      std::max(1, ceil_div(num_threads, static_cast<int>(std::min<std::size_t>(jobs.size(), 64))));
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const MatmulJob& job = jobs[j];
    GLINT_CHECK(job.weight->cols() == static_cast<std::size_t>(job.x.k));
    splits[j] = split_product(job.x.rows, static_cast<int>(job.weight->rows()), job.x.k, share);
    tasks.add(splits[j].tasks());
    scratch = std::max(scratch, job.x.kernels->scratch_bytes(job.x.k));
  }
  WorkerScratch workers(exec, scratch);
  exec.pool.run(tasks.total(), [&](std::size_t task, int worker) {
    const auto [j, local] = tasks.find(task);
    const MatmulJob& job = jobs[j];
    const Split& split = splits[j];
    // Column tasks of one row block are neighbours: a core that takes several in turn finds its
    // rows in cache.
    const int row = local / split.column_tasks * split.rows;
    const int column = local % split.column_tasks * split.columns;
    MatmulArgs args;
    args.x = job.x.block(row);
    args.rows = std::min(split.rows, job.x.rows - row);
    args.k = job.x.k;
    set_weight(exec.kernels, *job.x.kernels, *job.weight, args);
    args.n0 = column;
    args.n1 = std::min(column + split.columns, static_cast<int>(job.weight->rows()));
    args.y = job.y + static_cast<std::size_t>(row) * job.y_stride;
    args.y_stride = job.y_stride;
    args.scratch = workers.of(worker);
    job.x.kernels->matmul(args);
  });
}

void norm_project(Exec& exec, Compute compute, const float* x, std::size_t x_stride,
                  const float* norm_weight, float eps, int rows, int k,
                  std::span<const Projection> projections) {
  Workspace::Scope scope(exec.workspace);
  const auto width = static_cast<std::size_t>(k);
  auto* normed = exec.workspace.array<float>(static_cast<std::size_t>(rows) * width);
  auto* jobs = exec.workspace.array<MatmulJob>(projections.size());
  for (std::size_t i = 0; i < projections.size(); ++i) {
    const MatmulKernels& kernels =
        matmul_kernels(exec.kernels, projections[i].weight->format(), compute);
    Activations packed;
    for (std::size_t j = 0; j < i; ++j) {
      if (jobs[j].x.kernels == &kernels) packed = jobs[j].x;
    }
    if (i == 0) {
      packed = rms_norm_pack(exec, kernels, x, x_stride, norm_weight, eps, rows, k, normed);
    } else if (packed.kernels == nullptr) {
      packed = pack(exec, kernels, normed, width, rows, k);
    }
    jobs[i] = {packed, projections[i].weight, projections[i].y, projections[i].y_stride};
  }
  matmul(exec, {jobs, projections.size()});
}

}  // namespace glint
