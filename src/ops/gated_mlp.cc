#include "ops/gated_mlp.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/integers.h"
#include "ops/task_ranges.h"

namespace glint {
namespace {

// One group, ready to compute: packed inputs, room for the packed hidden values.
struct Prepared {
  const MlpGroup* group = nullptr;
  const MatmulKernels* kernels = nullptr;
  Activations x, hidden;
  int rows = 0;
  int f = 0;
  int row_block = 0, column_block = 0, column_tasks = 0;
};

Prepared prepare(Exec& exec, Compute compute, const MlpGroup& group, int num_rows, int d,
                 int threads_per_group) {
  const GatedMlp& mlp = *group.mlp;
  GLINT_CHECK(mlp.gate.format() == mlp.down.format() && mlp.gate.format() == mlp.up.format());
  GLINT_CHECK(mlp.gate.cols() == static_cast<std::size_t>(d) &&
              mlp.down.rows() == static_cast<std::size_t>(d));
  Prepared p;
  p.group = &group;
  p.kernels = &matmul_kernels(exec.kernels, mlp.gate.format(), compute);
  p.rows = group.rows.empty() ? num_rows : static_cast<int>(group.rows.size());
  p.f = static_cast<int>(mlp.gate.rows());
  p.x = allocate_activations(exec, *p.kernels, p.rows, d);
  p.hidden = allocate_activations(exec, *p.kernels, p.rows, p.f);
  p.row_block = rows_per_task(p.rows, d);
  const int row_tasks = ceil_div(p.rows, p.row_block);
  p.column_block = columns_per_task(p.f, row_tasks, threads_per_group);
  p.column_tasks = ceil_div(p.f, p.column_block);
  return p;
}

}  // namespace

void gated_mlp(Exec& exec, Compute compute, const float* x, int num_rows, int d,
               std::span<const MlpGroup> groups, float* y) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t count = groups.size();
  const int num_threads = exec.pool.num_threads();
  const int threads_per_group =
      std::max(1, ceil_div(num_threads, std::max<int>(1, static_cast<int>(count) / 4)));
  auto* prepared = exec.workspace.array<Prepared>(count);
  TaskRanges packs(exec.workspace, count), products(exec.workspace, count);
  std::size_t scratch = 0;
  for (std::size_t g = 0; g < count; ++g) {
    prepared[g] = prepare(exec, compute, groups[g], num_rows, d, threads_per_group);
    const Prepared& p = prepared[g];
    packs.add(ceil_div(p.rows, kRowBlock));
    products.add(p.column_tasks * ceil_div(p.rows, p.row_block));
    scratch = std::max({scratch, p.kernels->scratch_bytes(d), p.kernels->scratch_bytes(p.f)});
  }
  WorkerScratch workers(exec, scratch);

  exec.pool.run(packs.total(), [&](std::size_t task, int) {
    const auto [g, block] = packs.find(task);
    const Prepared& p = prepared[g];
    const int first = block * kRowBlock;
    const bool all = p.group->rows.empty();
    p.kernels->pack(all ? x + static_cast<std::size_t>(first) * static_cast<std::size_t>(d) : x,
                    static_cast<std::size_t>(d), all ? nullptr : p.group->rows.data() + first,
                    std::min(kRowBlock, p.rows - first), d,
                    p.x.data + p.kernels->packed_bytes(first, d));
  });

  exec.pool.run(products.total(), [&](std::size_t task, int worker) {
    const auto [g, local] = products.find(task);
    const Prepared& p = prepared[g];
    const int row = local / p.column_tasks * p.row_block;
    const int column = local % p.column_tasks * p.column_block;
    GateUpArgs args;
    args.x = p.x.block(row);
    args.rows = std::min(p.row_block, p.rows - row);
    args.k = d;
    args.w_gate = p.group->mlp->gate.data();
    args.w_up = p.group->mlp->up.data();
    args.w_stride = p.group->mlp->gate.row_bytes();
    args.n0 = column;
    args.n1 = std::min(column + p.column_block, p.f);
    args.n_total = p.f;
    args.z = p.hidden.data + p.kernels->packed_bytes(row, p.f);
    args.scratch = workers.of(worker);
    p.kernels->gate_up(args);
  });

  // Every task owns some columns of y for all groups, so the order of the sums is that of the
  // groups.
  const int columns = columns_per_task(d, 2, num_threads);
  exec.pool.run(static_cast<std::size_t>(ceil_div(d, columns)), [&](std::size_t task, int worker) {
    MatmulArgs args;
    args.n0 = static_cast<int>(task) * columns;
    args.n1 = std::min(args.n0 + columns, d);
    args.y_stride = static_cast<std::size_t>(d);
    args.scratch = workers.of(worker);
    const bool first_writes_all = count > 0 && groups[0].rows.empty();
    if (!first_writes_all) {
      for (int r = 0; r < num_rows; ++r) {
        std::memset(y + static_cast<std::size_t>(r) * args.y_stride + args.n0, 0,
                    static_cast<std::size_t>(args.n1 - args.n0) * sizeof(float));
      }
    }
    for (std::size_t g = 0; g < count; ++g) {
      const Prepared& p = prepared[g];
      args.k = p.f;
      args.w = p.group->mlp->down.data();
      args.w_stride = p.group->mlp->down.row_bytes();
      args.accumulate = g > 0 || !first_writes_all;
      const int block = rows_per_task(p.rows, p.f);
      for (int row = 0; row < p.rows; row += block) {
        args.x = p.hidden.block(row);
        args.rows = std::min(block, p.rows - row);
        args.y_rows = p.group->rows.empty() ? nullptr : p.group->rows.data() + row;
        args.y = p.group->rows.empty() ? y + static_cast<std::size_t>(row) * args.y_stride : y;
        args.row_scale = p.group->scale == nullptr ? nullptr : p.group->scale + row;
        p.kernels->matmul(args);
      }
    }
  });
}

}  // namespace glint
