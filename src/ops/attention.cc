#include "ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/integers.h"
#include "ops/task_ranges.h"

namespace glint {
namespace {

constexpr int kRowsPerTask = 128;  // query rows that share each span while it is in cache
constexpr std::size_t kPartialBytes = std::size_t{16} << 20;  // bounds memory, not results
constexpr int kPagesPerSpan = kAttendSpan / kAttendPage;

// A block of queries of one job.
struct Block {
  const AttentionJob* job = nullptr;
  int first = 0, queries = 0;  // queries [first, first + queries)
  int spans = 0;               // that its last query sees
  int rows() const { return queries * job->rows_per_query; }
};

// The partial result of some rows: what attend() writes and attend_merge() adds.
struct Partial {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
};

std::size_t partial_floats(int rows, int dv) {
  return static_cast<std::size_t>(rows) * (static_cast<std::size_t>(dv) + 2);
}

Partial partial_at(float* memory, int rows) {
  return {memory, memory + rows, memory + 2 * rows};
}

void clear(const Partial& partial, int rows, int dv) {
  std::fill_n(partial.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.sum, rows, 0.0f);
  std::fill_n(partial.out, static_cast<std::size_t>(rows) * static_cast<std::size_t>(dv), 0.0f);
}

// Scratch of one task: dense query rows, the visible counts, two partials, and what the kernel
// wants.
struct TaskScratch {
  std::byte* q = nullptr;
  std::int32_t* visible = nullptr;
  Partial total, part;
  std::byte* kernel = nullptr;
};

class Layout {
 public:
  Layout(int rows, int dk, int dv, std::size_t element_bytes, std::size_t kernel_bytes)
      : rows_(rows) {
    q_ = align(static_cast<std::size_t>(rows) * static_cast<std::size_t>(dk) * element_bytes);
    visible_ = align(static_cast<std::size_t>(rows) * sizeof(std::int32_t));
    partial_ = align(partial_floats(rows, dv) * sizeof(float));
    kernel_ = align(kernel_bytes);
  }
  std::size_t bytes() const { return q_ + visible_ + 2 * partial_ + kernel_; }
  TaskScratch at(std::byte* base) const {
    TaskScratch scratch;
    scratch.q = base;
    scratch.visible = reinterpret_cast<std::int32_t*>(base + q_);
    scratch.total = partial_at(reinterpret_cast<float*>(base + q_ + visible_), rows_);
    scratch.part = partial_at(reinterpret_cast<float*>(base + q_ + visible_ + partial_), rows_);
    scratch.kernel = base + q_ + visible_ + 2 * partial_;
    return scratch;
  }

 private:
  static std::size_t align(std::size_t n) { return (n + 63) / 64 * 64; }
  int rows_;
  std::size_t q_ = 0, visible_ = 0, partial_ = 0, kernel_ = 0;
};

void gather_queries(const Block& block, std::size_t element_bytes, std::byte* out) {
  const AttentionJob& job = *block.job;
  const auto* q = static_cast<const std::byte*>(job.q);
  const std::size_t row_bytes = static_cast<std::size_t>(job.dk) * element_bytes;
  for (int query = block.first; query < block.first + block.queries; ++query) {
    for (int row = 0; row < job.rows_per_query; ++row) {
      std::memcpy(out,
                  q + (static_cast<std::size_t>(query) * job.q_stride +
                       static_cast<std::size_t>(row) * job.q_row_stride) *
                          element_bytes,
                  row_bytes);
      out += row_bytes;
    }
  }
}

// The partial result of `block` over span `span`.
void attend_span(const AttendKernels& kernels, const Block& block, int span,
                 const TaskScratch& scratch, const Partial& out) {
  const AttentionJob& job = *block.job;
  AttendArgs args;
  args.q = scratch.q;
  args.first_key = std::clamp(job.first_key - span * kAttendSpan, 0, kAttendSpan);
  args.q_stride = static_cast<std::size_t>(job.dk);
  args.rows = block.rows();
  args.visible = scratch.visible;
  std::int32_t* visible = scratch.visible;
  for (int query = block.first; query < block.first + block.queries; ++query) {
    const int keys = std::clamp(job.start + query + 1 - span * kAttendSpan, 0, kAttendSpan);
    for (int row = 0; row < job.rows_per_query; ++row) *visible++ = keys;
    args.num_keys = std::max(args.num_keys, keys);
  }
  args.k_pages = job.kv.k_pages.data() + static_cast<std::ptrdiff_t>(span) * kPagesPerSpan;
  args.k_stride = job.kv.k_stride;
  args.v_pages = job.kv.v_pages.data() + static_cast<std::ptrdiff_t>(span) * kPagesPerSpan;
  args.v_stride = job.kv.v_stride;
  args.dk = job.dk;
  args.dv = job.dv;
  args.scale = job.scale;
  args.max = out.max;
  args.sum = out.sum;
  args.out = out.out;
  args.out_stride = static_cast<std::size_t>(job.dv);
  args.scratch = scratch.kernel;
  kernels.attend(args);
}

void merge(const KernelTable& table, int rows, int dv, const Partial& into, const Partial& from) {
  const auto stride = static_cast<std::size_t>(dv);
  table.attend_merge(rows, dv, into.max, into.sum, into.out, stride, from.max, from.sum, from.out,
                     stride);
}

void write_out(const KernelTable& table, const Block& block, const Partial& total) {
  const AttentionJob& job = *block.job;
  int r = 0;
  for (int query = block.first; query < block.first + block.queries; ++query) {
    for (int row = 0; row < job.rows_per_query; ++row, ++r) {
      float* out = job.out + static_cast<std::size_t>(query) * job.out_stride +
                   static_cast<std::size_t>(row) * job.out_row_stride;
      table.scale_to_f32(total.out + static_cast<std::size_t>(r) * static_cast<std::size_t>(job.dv),
                         1.0f / total.sum[r], job.dv, out);
    }
  }
}

}  // namespace

void attend(Exec& exec, const AttendKernels& kernels, std::size_t element_bytes,
            std::span<const AttentionJob> jobs) {
  if (jobs.empty()) return;
  Workspace::Scope scope(exec.workspace);
  const int dk = jobs[0].dk, dv = jobs[0].dv;
  std::size_t num_blocks = 0;
  int max_rows = 0;
  const auto queries_per_block = [](const AttentionJob& job) {
    return std::max(1, kRowsPerTask / job.rows_per_query);
  };
  for (const AttentionJob& job : jobs) {
    GLINT_CHECK(job.dk == dk && job.dv == dv && job.first_key <= job.start);
    num_blocks += static_cast<std::size_t>(ceil_div(job.num_queries, queries_per_block(job)));
    max_rows =
        std::max(max_rows, std::min(queries_per_block(job), job.num_queries) * job.rows_per_query);
  }
  auto* blocks = exec.workspace.array<Block>(num_blocks);
  std::size_t b = 0;
  for (const AttentionJob& job : jobs) {
    for (int first = 0; first < job.num_queries; first += queries_per_block(job)) {
      const int queries = std::min(queries_per_block(job), job.num_queries - first);
      blocks[b++] = {&job, first, queries, ceil_div(job.start + first + queries, kAttendSpan)};
    }
  }
  const Layout layout(max_rows, dk, dv, element_bytes, kernels.scratch_bytes(max_rows, dk, dv));
  WorkerScratch workers(exec, layout.bytes());

  const auto run_block = [&](const Block& block, int worker) {
    const TaskScratch scratch = layout.at(workers.of(worker));
    gather_queries(block, element_bytes, scratch.q);
    clear(scratch.total, block.rows(), dv);
    for (int span = 0; span < block.spans; ++span) {
      attend_span(kernels, block, span, scratch, scratch.part);
      merge(exec.kernels, block.rows(), dv, scratch.total, scratch.part);
    }
    write_out(exec.kernels, block, scratch.total);
  };
  // Enough blocks for the team: each walks its spans. Few (decode): a task per span, then a merge
  // in the same order.
  const auto threads = static_cast<std::size_t>(exec.pool.num_threads());
  if (threads == 1 || num_blocks >= 4 * threads) {
    // Later blocks see more keys: the longest first leaves no straggler.
    exec.pool.run(num_blocks, [&](std::size_t task, int worker) {
      run_block(blocks[num_blocks - 1 - task], worker);
    });
    return;
  }
  // As many blocks at a time as kPartialBytes hold the results of, at least one.
  const auto partial_bytes = [&](const Block& block) {
    return partial_floats(block.rows(), dv) * static_cast<std::size_t>(block.spans) * sizeof(float);
  };
  for (std::size_t begin = 0, end = 0; begin < num_blocks; begin = end) {
    std::size_t bytes = 0;
    for (end = begin; end < num_blocks; ++end) {
      bytes += partial_bytes(blocks[end]);
      if (end > begin && bytes > kPartialBytes) break;
    }
    Workspace::Scope batch_scope(exec.workspace);
    const std::size_t count = end - begin;
    const Block* batch = blocks + begin;
    TaskRanges tasks(exec.workspace, count);
    auto* partials = exec.workspace.array<float*>(count);
    for (std::size_t i = 0; i < count; ++i) {
      tasks.add(batch[i].spans);
      partials[i] = exec.workspace.array<float>(partial_bytes(batch[i]) / sizeof(float));
    }
    const auto partial_of = [&](std::size_t block, int span) {
      const int rows = batch[block].rows();
      return partial_at(partials[block] + partial_floats(rows, dv) * static_cast<std::size_t>(span),
                        rows);
    };
    exec.pool.run(tasks.total(), [&](std::size_t task, int worker) {
      const auto [i, span] = tasks.find(task);
      const TaskScratch scratch = layout.at(workers.of(worker));
      gather_queries(batch[i], element_bytes, scratch.q);
      attend_span(kernels, batch[i], span, scratch, partial_of(i, span));
    });
    exec.pool.run(count, [&](std::size_t i, int worker) {
      const TaskScratch scratch = layout.at(workers.of(worker));
      clear(scratch.total, batch[i].rows(), dv);
      for (int span = 0; span < batch[i].spans; ++span) {
        merge(exec.kernels, batch[i].rows(), dv, scratch.total, partial_of(i, span));
      }
      write_out(exec.kernels, batch[i], scratch.total);
    });
  }
}

void attend_selected(Exec& exec, const AttendKernels& kernels, std::size_t element_bytes,
                     const SelectedShape& shape, std::span<const SelectedJob> jobs) {
  if (jobs.empty()) return;
  Workspace::Scope scope(exec.workspace);
  const std::size_t key_bytes = static_cast<std::size_t>(shape.dk) * element_bytes;
  const Layout layout(shape.rows, shape.dk, shape.dv, element_bytes,
                      kernels.scratch_bytes(shape.rows, shape.dk, shape.dv));
  const std::size_t keys_bytes = (kAttendSpan * key_bytes + 63) / 64 * 64;
  WorkerScratch workers(exec, keys_bytes + layout.bytes());
  const auto scratch_of = [&](int worker) { return layout.at(workers.of(worker) + keys_bytes); };
  const auto num_spans = [](const SelectedJob& job) {
    return ceil_div(static_cast<int>(job.positions.size()), kAttendSpan);
  };
  const auto span_of = [&](const SelectedJob& job, int span, int worker, const Partial& out) {
    const std::size_t first = static_cast<std::size_t>(span) * kAttendSpan;
    const std::size_t count =
        std::min(job.positions.size() - first, static_cast<std::size_t>(kAttendSpan));
    std::byte* keys = workers.of(worker);
    for (std::size_t i = 0; i < count; ++i) {
      const auto position = static_cast<std::size_t>(job.positions[first + i]);
      std::memcpy(keys + i * key_bytes,
                  job.pages[position / kAttendPage] + position % kAttendPage * shape.k_stride,
                  key_bytes);
    }
    const std::byte* pages[kPagesPerSpan];
    for (std::size_t page = 0; page < kPagesPerSpan; ++page)
      pages[page] = keys + page * kAttendPage * key_bytes;
    const TaskScratch scratch = scratch_of(worker);
    std::fill_n(scratch.visible, shape.rows, static_cast<std::int32_t>(count));
    AttendArgs args;
    args.q = job.q;
    args.q_stride = static_cast<std::size_t>(shape.dk);
    args.rows = shape.rows;
    args.visible = scratch.visible;
    args.num_keys = static_cast<int>(count);
    args.k_pages = pages;
    args.k_stride = key_bytes;
    args.v_pages = pages;
    args.v_stride = key_bytes;
    args.dk = shape.dk;
    args.dv = shape.dv;
    args.scale = shape.scale;
    args.max = out.max;
    args.sum = out.sum;
    args.out = out.out;
    args.out_stride = static_cast<std::size_t>(shape.dv);
    args.scratch = scratch.kernel;
    kernels.attend(args);
  };
  const auto finish = [&](const SelectedJob& job, const Partial& total) {
    for (int row = 0; row < shape.rows; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(shape.dv);
      exec.kernels.scale_to_f32(total.out + at, 1.0f / total.sum[row], shape.dv, job.out + at);
    }
  };

  const auto threads = static_cast<std::size_t>(exec.pool.num_threads());
  if (threads == 1 || jobs.size() >= 4 * threads) {
    exec.pool.run(jobs.size(), [&](std::size_t i, int worker) {
      const TaskScratch scratch = scratch_of(worker);
      clear(scratch.total, shape.rows, shape.dv);
      for (int span = 0; span < num_spans(jobs[i]); ++span) {
        span_of(jobs[i], span, worker, scratch.part);
        merge(exec.kernels, shape.rows, shape.dv, scratch.total, scratch.part);
      }
      finish(jobs[i], scratch.total);
    });
    return;
  }
  TaskRanges tasks(exec.workspace, jobs.size());
  auto* partials = exec.workspace.array<float*>(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    tasks.add(num_spans(jobs[i]));
    partials[i] = exec.workspace.array<float>(partial_floats(shape.rows, shape.dv) *
                                              static_cast<std::size_t>(num_spans(jobs[i])));
  }
  const auto partial_of = [&](std::size_t job, int span) {
    return partial_at(
        partials[job] + partial_floats(shape.rows, shape.dv) * static_cast<std::size_t>(span),
        shape.rows);
  };
  exec.pool.run(tasks.total(), [&](std::size_t task, int worker) {
    const auto [i, span] = tasks.find(task);
    span_of(jobs[i], span, worker, partial_of(i, span));
  });
  exec.pool.run(jobs.size(), [&](std::size_t i, int worker) {
    const TaskScratch scratch = scratch_of(worker);
    clear(scratch.total, shape.rows, shape.dv);
    for (int span = 0; span < num_spans(jobs[i]); ++span)
      merge(exec.kernels, shape.rows, shape.dv, scratch.total, partial_of(i, span));
    finish(jobs[i], scratch.total);
  });
}

}  // namespace glint
