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

// The partial result of some rows: what attend() writes and attend_merge() adds.
struct Partial {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
};

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

std::size_t partial_floats(int rows, int dv) {
  return size(rows) * (size(dv) + 2);
}

Partial partial_at(float* memory, int rows) {
  return {memory, memory + rows, memory + 2 * rows};
}

void clear(const Partial& partial, int rows, int dv) {
  std::fill_n(partial.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.sum, rows, 0.0f);
  std::fill_n(partial.out, size(rows) * size(dv), 0.0f);
}

void merge(const KernelTable& table, int rows, int dv, const Partial& into, const Partial& from) {
  table.attend_merge(rows, dv, into.max, into.sum, into.out, size(dv), from.max, from.sum, from.out,
                     size(dv));
}

// What the queries of a call have in common.
struct Shape {
  int max_rows = 0;  // of a block
  int dk = 0, dv = 0;
  float scale = 0;
};

// Scratch of one task: dense query rows, keys and values of a span as elements, the visible counts,
// two partials, and what the kernel wants.
struct TaskScratch {
  std::byte* q = nullptr;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::int32_t* visible = nullptr;
  Partial total, part;
  std::byte* kernel = nullptr;
};

// Which of that a call needs.
struct ScratchParts {
  bool q = false, keys = false, values = false;
};

class Layout {
 public:
  Layout(const Shape& shape, const CacheRows& rows, const AttendKernels& kernels,
         const ScratchParts& parts)
      : max_rows_(shape.max_rows) {
    const std::size_t key = size(shape.dk) * rows.element_bytes();
    if (parts.q) q_ = align(size(max_rows_) * key);
    if (parts.keys) keys_ = align(kAttendSpan * key);
    if (parts.values) values_ = align(kAttendSpan * size(shape.dv) * rows.element_bytes());
    visible_ = align(size(max_rows_) * sizeof(std::int32_t));
    partial_ = align(partial_floats(max_rows_, shape.dv) * sizeof(float));
    kernel_ = align(kernels.scratch_bytes(max_rows_, shape.dk, shape.dv));
  }
  std::size_t bytes() const { return q_ + keys_ + values_ + visible_ + 2 * partial_ + kernel_; }
  TaskScratch at(std::byte* base) const {
    TaskScratch scratch;
    scratch.q = base;
    scratch.keys = scratch.q + q_;
    scratch.values = scratch.keys + keys_;
    scratch.visible = reinterpret_cast<std::int32_t*>(scratch.values + values_);
    std::byte* next = scratch.values + values_ + visible_;
    scratch.total = partial_at(reinterpret_cast<float*>(next), max_rows_);
    scratch.part = partial_at(reinterpret_cast<float*>(next + partial_), max_rows_);
    scratch.kernel = next + 2 * partial_;
    return scratch;
  }

 private:
  static std::size_t align(std::size_t n) { return (n + 63) / 64 * 64; }
  int max_rows_;
  std::size_t q_ = 0, keys_ = 0, values_ = 0, visible_ = 0, partial_ = 0, kernel_ = 0;
};

// Blocks of query rows over their spans. Work has, of block i,
//   rows(i), spans(i)
//   start(i, scratch): makes its queries ready
//   span(i, span, scratch, out): the partial result of one span
//   finish(i, total): takes the sum of them
template <typename Work>
void walk_spans(Exec& exec, const Shape& shape, const Layout& layout, std::size_t num_blocks,
                const Work& work) {
  const int dv = shape.dv;
  WorkerScratch workers(exec, layout.bytes());
  // Enough blocks for the team: each walks its spans. Few (decode): a task per span, then a merge
  // in the same order.
  const auto threads = size(exec.pool.num_threads());
  if (threads == 1 || num_blocks >= 4 * threads) {
    // Later blocks see more keys: the longest first leaves no straggler.
    exec.pool.run(num_blocks, [&](std::size_t task, int worker) {
      const std::size_t i = num_blocks - 1 - task;
      const TaskScratch scratch = layout.at(workers.of(worker));
      work.start(i, scratch);
      clear(scratch.total, work.rows(i), dv);
      for (int span = 0; span < work.spans(i); ++span) {
        work.span(i, span, scratch, scratch.part);
        merge(exec.kernels, work.rows(i), dv, scratch.total, scratch.part);
      }
      work.finish(i, scratch.total);
    });
    return;
  }
  // As many blocks at a time as kPartialBytes hold the results of, at least one.
  const auto partial_bytes = [&](std::size_t i) {
    return partial_floats(work.rows(i), dv) * size(work.spans(i)) * sizeof(float);
  };
  for (std::size_t begin = 0, end = 0; begin < num_blocks; begin = end) {
    std::size_t bytes = 0;
    for (end = begin; end < num_blocks; ++end) {
      bytes += partial_bytes(end);
      if (end > begin && bytes > kPartialBytes) break;
    }
    Workspace::Scope batch_scope(exec.workspace);
    const std::size_t count = end - begin;
    TaskRanges tasks(exec.workspace, count);
    auto* partials = exec.workspace.array<float*>(count);
    for (std::size_t i = 0; i < count; ++i) {
      tasks.add(work.spans(begin + i));
      partials[i] = exec.workspace.array<float>(partial_bytes(begin + i) / sizeof(float));
    }
    const auto partial_of = [&](std::size_t i, int span) {
      const int rows = work.rows(begin + i);
      return partial_at(partials[i] + partial_floats(rows, dv) * size(span), rows);
    };
    exec.pool.run(tasks.total(), [&](std::size_t task, int worker) {
      const auto [i, span] = tasks.find(task);
      const TaskScratch scratch = layout.at(workers.of(worker));
      work.start(begin + i, scratch);
      work.span(begin + i, span, scratch, partial_of(i, span));
    });
    exec.pool.run(count, [&](std::size_t i, int worker) {
      const TaskScratch scratch = layout.at(workers.of(worker));
      clear(scratch.total, work.rows(begin + i), dv);
      for (int span = 0; span < work.spans(begin + i); ++span)
        merge(exec.kernels, work.rows(begin + i), dv, scratch.total, partial_of(i, span));
      work.finish(begin + i, scratch.total);
    });
  }
}

// The arguments of the kernel but for queries, keys and what is visible of them.
AttendArgs span_args(const Shape& shape, int rows, const TaskScratch& scratch, const Partial& out) {
  AttendArgs args;
  args.q_stride = size(shape.dk);
  args.rows = rows;
  args.visible = scratch.visible;
  args.dk = shape.dk;
  args.dv = shape.dv;
  args.scale = shape.scale;
  args.max = out.max;
  args.sum = out.sum;
  args.out = out.out;
  args.out_stride = size(shape.dv);
  args.scratch = scratch.kernel;
  return args;
}

// A span of rows that lie one after the other.
struct DensePages {
  const std::byte* pages[kPagesPerSpan];
  DensePages(const std::byte* rows, std::size_t row_bytes) {
    for (std::size_t page = 0; page < kPagesPerSpan; ++page)
      pages[page] = rows + page * kAttendPage * row_bytes;
  }
};

// The elements of rows [first, end) of a span, to where they belong among those of all its rows.
void load_span(const KernelTable& table, const CacheRows& rows, const std::byte* const* pages,
               std::size_t stride, int first, int end, int width, std::byte* out) {
  const std::size_t bytes = size(width) * rows.element_bytes();
  while (first < end) {
    const int stop = std::min(end, (first / kAttendPage + 1) * kAttendPage);
    rows.load(table, pages[first / kAttendPage] + size(first % kAttendPage) * stride, stride,
              stop - first, width, out + size(first) * bytes);
    first = stop;
  }
}

// A block of queries of one job.
struct Block {
  const AttentionJob* job = nullptr;
  int first = 0, queries = 0;  // queries [first, first + queries)
  int spans = 0;               // that its last query sees
  int rows() const { return queries * job->rows_per_query; }
};

// Every key before a query.
struct DenseWork {
  Exec& exec;
  const CacheRows& cache;
  const AttendKernels& kernels;
  const Shape& shape;
  const Block* blocks;

  int rows(std::size_t i) const { return blocks[i].rows(); }
  int spans(std::size_t i) const { return blocks[i].spans; }

  void start(std::size_t i, const TaskScratch& scratch) const {
    const AttentionJob& job = *blocks[i].job;
    const auto* q = static_cast<const std::byte*>(job.q);
    const std::size_t row_bytes = size(job.dk) * cache.element_bytes();
    std::byte* out = scratch.q;
    for (int query = blocks[i].first; query < blocks[i].first + blocks[i].queries; ++query) {
      for (int row = 0; row < job.rows_per_query; ++row) {
        std::memcpy(
            out,
            q + (size(query) * job.q_stride + size(row) * job.q_row_stride) * cache.element_bytes(),
            row_bytes);
        out += row_bytes;
      }
    }
  }

  void span(std::size_t i, int span, const TaskScratch& scratch, const Partial& out) const {
    const Block& block = blocks[i];
    const AttentionJob& job = *block.job;
    AttendArgs args = span_args(shape, block.rows(), scratch, out);
    args.q = scratch.q;
    args.first_key = std::clamp(job.first_key - span * kAttendSpan, 0, kAttendSpan);
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
    if (!cache.are_packed()) return kernels.attend(args);

    const auto unpack = [&](const std::byte* const* pages, std::size_t stride, int width,
                            std::byte* to) {
      load_span(exec.kernels, cache, pages, stride, args.first_key, args.num_keys, width, to);
      return DensePages(to, size(width) * cache.element_bytes());
    };
    const bool shared = args.k_pages == args.v_pages;
    const DensePages keys = unpack(args.k_pages, args.k_stride, job.dk, scratch.keys);
    const DensePages values =
        shared ? keys : unpack(args.v_pages, args.v_stride, job.dv, scratch.values);
    args.k_pages = keys.pages;
    args.k_stride = size(job.dk) * cache.element_bytes();
    args.v_pages = values.pages;
    args.v_stride = shared ? args.k_stride : size(job.dv) * cache.element_bytes();
    kernels.attend(args);
  }

  void finish(std::size_t i, const Partial& total) const {
    const AttentionJob& job = *blocks[i].job;
    int r = 0;
    for (int query = blocks[i].first; query < blocks[i].first + blocks[i].queries; ++query) {
      for (int row = 0; row < job.rows_per_query; ++row, ++r) {
        float* out = job.out + size(query) * job.out_stride + size(row) * job.out_row_stride;
        exec.kernels.scale_to_f32(total.out + size(r) * size(job.dv), 1.0f / total.sum[r], job.dv,
                                  out);
      }
    }
  }
};

// The keys at a query's positions, gathered.
struct SelectedWork {
  Exec& exec;
  const CacheRows& cache;
  const AttendKernels& kernels;
  const Shape& shape;
  std::size_t k_stride;
  std::span<const SelectedJob> jobs;

  int rows(std::size_t) const { return shape.max_rows; }
  int spans(std::size_t i) const {
    return ceil_div(static_cast<int>(jobs[i].positions.size()), kAttendSpan);
  }
  void start(std::size_t, const TaskScratch&) const {}

  // The elements of keys at some positions: those that lie one after the other at once.
  void gather(const SelectedJob& job, std::span<const std::int32_t> positions,
              std::byte* out) const {
    const std::size_t key_bytes = size(shape.dk) * cache.element_bytes();
    for (std::size_t i = 0; i < positions.size();) {
      const std::int32_t first = positions[i];
      const std::size_t begin = i;
      for (++i; i < positions.size() && positions[i] % kAttendPage != 0 &&
                positions[i] == positions[i - 1] + 1;) {
        ++i;
      }
      cache.load(exec.kernels,
                 job.pages[size(first / kAttendPage)] + size(first % kAttendPage) * k_stride,
                 k_stride, static_cast<int>(i - begin), shape.dk, out + begin * key_bytes);
    }
  }

  void span(std::size_t i, int span, const TaskScratch& scratch, const Partial& out) const {
    const SelectedJob& job = jobs[i];
    const std::size_t first = size(span) * kAttendSpan;
    const std::size_t count = std::min(job.positions.size() - first, size(kAttendSpan));
    gather(job, job.positions.subspan(first, count), scratch.keys);
    std::fill_n(scratch.visible, shape.max_rows, static_cast<std::int32_t>(count));
    AttendArgs args = span_args(shape, shape.max_rows, scratch, out);
    args.q = job.q;
    args.num_keys = static_cast<int>(count);
    args.k_stride = args.v_stride = size(shape.dk) * cache.element_bytes();
    const DensePages keys(scratch.keys, args.k_stride);
    args.k_pages = args.v_pages = keys.pages;
    kernels.attend(args);
  }

  void finish(std::size_t i, const Partial& total) const {
    for (int row = 0; row < shape.max_rows; ++row) {
      const std::size_t at = size(row) * size(shape.dv);
      exec.kernels.scale_to_f32(total.out + at, 1.0f / total.sum[row], shape.dv, jobs[i].out + at);
    }
  }
};

}  // namespace

void attend(Exec& exec, const CacheRows& rows, std::span<const AttentionJob> jobs) {
  if (jobs.empty()) return;
  Workspace::Scope scope(exec.workspace);
  Shape shape{.dk = jobs[0].dk, .dv = jobs[0].dv, .scale = jobs[0].scale};
  std::size_t num_blocks = 0;
  bool apart = false;
  const auto queries_per_block = [](const AttentionJob& job) {
    return std::max(1, kRowsPerTask / job.rows_per_query);
  };
  for (const AttentionJob& job : jobs) {
    GLINT_CHECK(job.dk == shape.dk && job.dv == shape.dv && job.scale == shape.scale &&
                job.first_key <= job.start);
    num_blocks += size(ceil_div(job.num_queries, queries_per_block(job)));
    shape.max_rows = std::max(
        shape.max_rows, std::min(queries_per_block(job), job.num_queries) * job.rows_per_query);
    apart = apart || job.kv.k_pages.data() != job.kv.v_pages.data();
  }
  auto* blocks = exec.workspace.array<Block>(num_blocks);
  std::size_t b = 0;
  for (const AttentionJob& job : jobs) {
    for (int first = 0; first < job.num_queries; first += queries_per_block(job)) {
      const int queries = std::min(queries_per_block(job), job.num_queries - first);
      blocks[b++] = {&job, first, queries, ceil_div(job.start + first + queries, kAttendSpan)};
    }
  }
  const AttendKernels& kernels = rows.attend_kernels(exec.kernels);
  const Layout layout(shape, rows, kernels,
                      {.q = true, .keys = rows.are_packed(), .values = rows.are_packed() && apart});
  walk_spans(exec, shape, layout, num_blocks, DenseWork{exec, rows, kernels, shape, blocks});
}

void attend_selected(Exec& exec, const CacheRows& rows, const SelectedShape& selected,
                     std::span<const SelectedJob> jobs) {
  if (jobs.empty()) return;
  Workspace::Scope scope(exec.workspace);
  const Shape shape{selected.rows, selected.dk, selected.dv, selected.scale};
  const AttendKernels& kernels = rows.attend_kernels(exec.kernels);
  walk_spans(exec, shape, Layout(shape, rows, kernels, {.keys = true}), jobs.size(),
             SelectedWork{exec, rows, kernels, shape, selected.k_stride, jobs});
}

}  // namespace glint
