#include "ops/gated_mlp.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/integers.h"
#include "ops/task_ranges.h"

namespace glint {
namespace {

// One group, ready to compute: packed inputs, room for the packed hidden values. `kernels` read x,
// `down` the hidden values.
struct Prepared {
  const MlpGroup* group = nullptr;
  const MatmulKernels* kernels = nullptr;
  const MatmulKernels* down = nullptr;
  Activations x, hidden;
  float* gate = nullptr;  // [rows, f] each, only where the three matrices are not stored alike
  float* up = nullptr;
  int rows = 0;
  int f = 0;
  int row_block = 0, column_block = 0, column_tasks = 0;
};

Prepared prepare(Exec& exec, Compute compute, const MlpGroup& group, int num_rows, int d,
                 int threads_per_group) {
  const GatedMlp& mlp = *group.mlp;
  GLINT_CHECK(mlp.gate.cols() == static_cast<std::size_t>(d) &&
              mlp.down.rows() == static_cast<std::size_t>(d));
  Prepared p;
  p.group = &group;
  p.kernels = &matmul_kernels(exec.kernels, mlp.gate.format(), compute);
  p.rows = group.rows.empty() ? num_rows : static_cast<int>(group.rows.size());
  p.f = static_cast<int>(mlp.gate.rows());
  p.down = &matmul_kernels(exec.kernels, mlp.down.format(), compute);
  p.x = allocate_activations(exec, *p.kernels, p.rows, d);
  p.hidden = allocate_activations(exec, *p.down, p.rows, p.f);
  const bool alike =
      p.kernels == p.down && p.kernels == &matmul_kernels(exec.kernels, mlp.up.format(), compute);
  if (!alike) {
    const std::size_t values = static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.f);
    p.gate = exec.workspace.array<float>(values);
    p.up = exec.workspace.array<float>(values);
  }
  p.row_block = rows_per_task(p.rows, d);
  const int row_tasks = ceil_div(p.rows, p.row_block);
  p.column_block =
      round_up(columns_per_task(p.f, row_tasks, threads_per_group), p.kernels->hidden_block);
  p.column_tasks = ceil_div(p.f, p.column_block);
  return p;
}

// Hidden values of a group whose matrices are not stored alike: each product by itself.
void gate_apart(Exec& exec, Compute compute, const Prepared& p, const float* x, int d) {
  Workspace::Scope scope(exec.workspace);
  const GatedMlp& mlp = *p.group->mlp;
  const auto width = static_cast<std::size_t>(p.f);
  const MatmulKernels& up_kernels = matmul_kernels(exec.kernels, mlp.up.format(), compute);
  Activations up_x = p.x;
  if (&up_kernels != p.kernels) {
    up_x = allocate_activations(exec, up_kernels, p.rows, d);
    up_kernels.pack(x, static_cast<std::size_t>(d),
                    p.group->rows.empty() ? nullptr : p.group->rows.data(), p.rows, d, up_x.data);
  }
  const MatmulJob jobs[] = {{p.x, &mlp.gate, p.gate, width}, {up_x, &mlp.up, p.up, width}};
  matmul(exec, jobs);
  exec.pool.run(static_cast<std::size_t>(ceil_div(p.rows, kRowBlock)), [&](std::size_t task, int) {
    const int first = static_cast<int>(task) * kRowBlock;
    const int count = std::min(kRowBlock, p.rows - first);
    float* gate = p.gate + static_cast<std::size_t>(first) * width;
    exec.kernels.silu_times(p.up + static_cast<std::size_t>(first) * width, count * p.f, mlp.limit,
                            gate);
    p.down->pack(gate, width, nullptr, count, p.f,
                 p.hidden.data + p.down->packed_bytes(first, p.f));
  });
}

}  // namespace

void gated_mlp(Exec& exec, Compute compute, const float* x, int num_rows, int d,
               std::span<const MlpGroup> groups, float* y, bool accumulate) {
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
    scratch = std::max({scratch, p.kernels->scratch_bytes(d), p.down->scratch_bytes(p.f)});
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
    if (p.gate != nullptr) return;
    const GatedMlp& mlp = *p.group->mlp;
    const int row = local / p.column_tasks * p.row_block;
    const int column = local % p.column_tasks * p.column_block;
    GateUpArgs args;
    args.x = p.x.block(row);
    args.rows = std::min(p.row_block, p.rows - row);
    args.k = d;
    args.w_gate = mlp.gate.data();
    args.w_up = mlp.up.data();
    args.w_stride = mlp.gate.stride();
    args.w_up_stride = mlp.up.stride();
    args.gate_source = panel_source(exec.kernels, *p.kernels, mlp.gate);
    args.up_source = panel_source(exec.kernels, *p.kernels, mlp.up);
    args.gate_grid = mlp.gate.grid();
    args.up_grid = mlp.up.grid();
    args.gate_factor = mlp.gate.factor();
    args.up_factor = mlp.up.factor();
    args.limit = mlp.limit;
    args.n0 = column;
    args.n1 = std::min(column + p.column_block, p.f);
    args.n_total = p.f;
    args.z = p.hidden.data + p.kernels->packed_bytes(row, p.f);
    args.scratch = workers.of(worker);
    p.kernels->gate_up(args);
  });
  for (std::size_t g = 0; g < count; ++g) {
    if (prepared[g].gate != nullptr) gate_apart(exec, compute, prepared[g], x, d);
  }

  // Every task owns some columns of y for all groups, so the order of the sums is that of the
  // groups.
  const int columns = columns_per_task(d, 2, num_threads);
  exec.pool.run(static_cast<std::size_t>(ceil_div(d, columns)), [&](std::size_t task, int worker) {
    MatmulArgs args;
    args.n0 = static_cast<int>(task) * columns;
    args.n1 = std::min(args.n0 + columns, d);
    args.y_stride = static_cast<std::size_t>(d);
    args.scratch = workers.of(worker);
    const bool first_writes_all = !accumulate && count > 0 && groups[0].rows.empty();
    if (!accumulate && !first_writes_all) {
      for (int r = 0; r < num_rows; ++r) {
        std::memset(y + static_cast<std::size_t>(r) * args.y_stride + args.n0, 0,
                    static_cast<std::size_t>(args.n1 - args.n0) * sizeof(float));
      }
    }
    for (std::size_t g = 0; g < count; ++g) {
      const Prepared& p = prepared[g];
      args.k = p.f;
      set_weight(exec.kernels, *p.down, p.group->mlp->down, args);
      args.accumulate = g > 0 || !first_writes_all;
      const int block = rows_per_task(p.rows, p.f);
      for (int row = 0; row < p.rows; row += block) {
        args.x = p.hidden.block(row);
        args.rows = std::min(block, p.rows - row);
        args.y_rows = p.group->rows.empty() ? nullptr : p.group->rows.data() + row;
        args.y = p.group->rows.empty() ? y + static_cast<std::size_t>(row) * args.y_stride : y;
        args.row_scale = p.group->scale == nullptr ? nullptr : p.group->scale + row;
        p.down->matmul(args);
      }
    }
  });
}

}  // namespace glint
