#include "models/layers/kda.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/kda.h"

namespace glint {
namespace {

static_assert(kPageSize % kKdaBlock == 0 && kMaxGuesses < kKdaBlock);

constexpr int kHistory = kKdaTaps - 1;
// Rows since the last fold: those of an unfinished block that stand, and guesses behind them.
constexpr int kPendingRows = kKdaBlock + kMaxGuesses;
// Positions whose raw projections are kept: a snapshot may be asked for up to kMaxGuesses tokens
// late, of a step that went up to kMaxGuesses further.
constexpr int kRawRows = kHistory + 2 * kMaxGuesses;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}
std::size_t round_to_64(std::size_t n) {
  return (n + 63) / 64 * 64;
}

// Where things lie in a layer's state and snapshot.
struct Layout {
  std::size_t row;          // floats from one row of a head to the next
  std::size_t s_floats;     // S of a head
  std::size_t rows_floats;  // pending keys (or decays, or values) of a head
  std::size_t heads;
  std::size_t raw_width;  // q, k and v of all heads
  std::size_t raw_bytes;  // of one position

  Layout(const KdaDims& d, Compute compute)
      : row(size(kda_width(d.head_dim))),
        s_floats(size(d.head_dim) * row),
        rows_floats(kPendingRows * row),
        heads(size(d.num_heads)),
        raw_width(3 * size(d.num_heads) * size(d.head_dim)),
        raw_bytes(raw_width * (compute == Compute::kF32 ? sizeof(float) : sizeof(bf16))) {}

  // The state: a cache line with the position of S and the number of tokens computed; S of each
  // head; rows of each head; raw projections of position p at p % kRawRows.
  std::size_t s_at(std::size_t head) const { return 64 + head * s_floats * sizeof(float); }
  std::size_t rows_at(std::size_t head) const {
    return s_at(heads) + head * 3 * rows_floats * sizeof(float);
  }
  std::size_t raw_at(int position) const {
    return rows_at(heads) + size(position % kRawRows) * raw_bytes;
  }
  std::size_t state_bytes() const { return round_to_64(rows_at(heads) + kRawRows * raw_bytes); }

  // A snapshot: S of each head, then the raw projections of the last kHistory positions.
  std::size_t snapshot_s_at(std::size_t head) const { return head * s_floats * sizeof(float); }
  std::size_t snapshot_raw_at(int i) const { return snapshot_s_at(heads) + size(i) * raw_bytes; }
  std::size_t snapshot_bytes() const { return round_to_64(snapshot_raw_at(kHistory)); }
};

struct Header {
  std::int32_t base;      // S is the state after so many tokens, a multiple of kKdaBlock
  std::int32_t computed;  // tokens that were computed, guesses included
};

Header read_header(const std::byte* state) {
  Header header;
  std::memcpy(&header, state, sizeof header);
  return header;
}

// Everything one call passes between its steps.
struct Kda {
  Exec& exec;
  const KdaDims& dims;
  const KdaWeights& weights;
  const KdaStep& step;
  Layout layout;
  float* raw;    // [tokens, 3 * width]: q, k and v as projected
  float* beta;   // [tokens, heads], before the sigmoid
  float* decay;  // [tokens, width], before the activation; then the outputs
  float* gate;   // [tokens, width], before the sigmoid

  std::size_t tokens() const { return step.batch.tokens.size(); }
  std::size_t width() const { return size(dims.width()); }
  bool wide() const { return step.compute == Compute::kF32; }
  std::byte* state(const SequenceSpan& sequence) const {
    return sequence.state + step.state_offset;
  }
};

void project(const Kda& kda, const std::vector<float>& input_norm, float input_eps,
             const float* x) {
  Workspace::Scope scope(kda.exec.workspace);
  const KdaDims& d = kda.dims;
  const KdaWeights& w = kda.weights;
  const std::size_t rank = size(d.head_dim), raw = kda.layout.raw_width;
  const int tokens = static_cast<int>(kda.tokens());
  auto* f_a = kda.exec.workspace.array<float>(kda.tokens() * rank);
  auto* g_a = kda.exec.workspace.array<float>(kda.tokens() * rank);
  const Projection projections[] = {{&w.q_proj, kda.raw, raw},
                                    {&w.k_proj, kda.raw + kda.width(), raw},
                                    {&w.v_proj, kda.raw + 2 * kda.width(), raw},
                                    {&w.b_proj, kda.beta, size(d.num_heads)},
                                    {&w.f_a_proj, f_a, rank},
                                    {&w.g_a_proj, g_a, rank}};
  norm_project(kda.exec, kda.step.compute, x, size(d.hidden_size), input_norm.data(), input_eps,
               tokens, d.hidden_size, projections);
  const auto packed = [&](const Weight& weight, const float* from) {
    const MatmulKernels& kernels =
        matmul_kernels(kda.exec.kernels, weight.format(), kda.step.compute);
    return pack(kda.exec, kernels, from, rank, tokens, d.head_dim);
  };
  const MatmulJob jobs[] = {{packed(w.f_b_proj, f_a), &w.f_b_proj, kda.decay, kda.width()},
                            {packed(w.g_b_proj, g_a), &w.g_b_proj, kda.gate, kda.width()}};
  matmul(kda.exec, jobs);
}

// Memory of one worker: rows of a block on their way through the kernels.
struct BlockRows {
  float* history;      // [kHistory, 3 * head_dim]: q, k and v of the positions before
  float* q;            // [kKdaBlock, row]
  float* v;            // [kKdaBlock, row]
  float* o;            // [kKdaBlock, row]
  float* beta;         // [kKdaBlock]
  float* folded;       // S after a block that may be taken back
  std::byte* scratch;  // of the kernels

  static std::size_t floats(const Layout& l, int head_dim) {
    return size(kda_width(kHistory * 3 * head_dim)) + 3 * kKdaBlock * l.row + kKdaBlock +
           l.s_floats;
  }
  BlockRows(const Layout& l, int head_dim, std::byte* memory) {
    history = reinterpret_cast<float*>(memory);
    q = history + kda_width(kHistory * 3 * head_dim);
    v = q + kKdaBlock * l.row;
    o = v + kKdaBlock * l.row;
    beta = o + kKdaBlock * l.row;
    folded = beta + kKdaBlock;
    scratch = memory + floats(l, head_dim) * sizeof(float);
    // What lies between a row's end and the next row stays zero.
    if (l.row != size(head_dim)) std::fill_n(q, 2 * kKdaBlock * l.row, 0.0f);
  }
};

// One head of one sequence in one step.
class HeadRun {
 public:
  HeadRun(const Kda& kda, const SequenceSpan& sequence, std::size_t head, std::byte* memory)
      : kda_(kda),
        kernels_(kda.exec.kernels.kda),
        layout_(kda.layout),
        sequence_(sequence),
        head_(head),
        dim_(kda.dims.head_dim),
        block_(layout_, dim_, memory),
        base_(read_header(kda.state(sequence)).base),
        s_(reinterpret_cast<float*>(kda.state(sequence) + layout_.s_at(head))),
        k_(reinterpret_cast<float*>(kda.state(sequence) + layout_.rows_at(head))),
        decay_(k_ + layout_.rows_floats),
        u_(decay_ + layout_.rows_floats) {}

  void run() {
    const int end = sequence_.start + sequence_.count, stands = end - sequence_.guesses;
    load_history();
    write_snapshot();
    const float* s = s_;
    int block = base_;
    for (int at = sequence_.start; at < end || block + kKdaBlock <= stands;) {
      if (at - block >= kKdaBlock) {
        block += kKdaBlock;
        if (block <= stands) {
          fold(s_);
          keep_rows_behind(at);
        } else {
          fold(block_.folded);
          s = block_.folded;
        }
        continue;
      }
      const int count = std::min(end, block + kKdaBlock) - at;
      compute(s, block, at, count);
      at += count;
    }
  }

 private:
  // The raw projections before the step; zeros before the sequence.
  void load_history() {
    const std::byte* state = kda_.state(sequence_);
    for (int i = 0; i < kHistory; ++i) {
      const int position = sequence_.start - kHistory + i;
      for (std::size_t part = 0; part < 3; ++part) {
        float* to = block_.history + (size(i) * 3 + part) * size(dim_);
        const std::size_t column = part * kda_.width() + head_ * size(dim_);
        if (position < 0) {
          std::fill_n(to, dim_, 0.0f);
        } else if (kda_.wide()) {
          std::memcpy(to, state + layout_.raw_at(position) + column * sizeof(float),
                      size(dim_) * sizeof(float));
        } else {
          const std::byte* from = state + layout_.raw_at(position) + column * sizeof(bf16);
          kda_.exec.kernels.widen_bf16(reinterpret_cast<const bf16*>(from), dim_, to);
        }
      }
    }
  }

  float* row_of(float* rows, int position) const {
    return rows + size(position - base_) * layout_.row;
  }

  // Rows [at, at + count) of the block that starts at `block`, S before it being `s`.
  void compute(const float* s, int block, int at, int count) {
    const std::size_t token = size(sequence_.begin + at - sequence_.start);
    prepare(token, at, count);
    KdaRowsArgs rows;
    rows.head_dim = dim_;
    rows.first = at - block;
    rows.count = count;
    rows.s = s;
    rows.k = row_of(k_, block);
    rows.decay = row_of(decay_, block);
    rows.q = block_.q;
    rows.v = block_.v;
    rows.beta = block_.beta;
    rows.u = row_of(u_, block);
    rows.o = block_.o;
    rows.scratch = block_.scratch;
    kernels_.rows(rows);
    finish(token, count);
  }

  // Queries and values of tokens [token, token + count) go to the block, keys and decays to the
  // state.
  void prepare(std::size_t token, int at, int count) {
    const std::size_t column = head_ * size(dim_);
    float* const outputs[] = {block_.q, row_of(k_, at), block_.v};
    for (std::size_t part = 0; part < 3; ++part) {
      const std::size_t channel = part * kda_.width() + column;
      ShortConvArgs conv;
      conv.x = kda_.raw + token * layout_.raw_width + channel;
      conv.x_stride = layout_.raw_width;
      conv.rows = count;
      conv.n = dim_;
      conv.round = !kda_.wide();
      conv.w = kda_.weights.conv1d.data() + channel;
      conv.w_stride = layout_.raw_width;
      conv.history = block_.history + part * size(dim_);
      conv.history_stride = 3 * size(dim_);
      conv.y = outputs[part];
      conv.y_stride = layout_.row;
      kernels_.short_conv(conv);
    }
    const float query_factor = 1.0f / std::sqrt(static_cast<float>(dim_));
    const float rate = kda_.weights.decay_rate[head_];
    const float* bias = kda_.weights.dt_bias.data() + column;
    for (int r = 0; r < count; ++r) {
      const std::size_t t = token + size(r);
      float* q = block_.q + size(r) * layout_.row;
      float* k = row_of(k_, at + r);
      float* decay = row_of(decay_, at + r);
      kernels_.l2_norm(q, dim_, query_factor, q);
      kernels_.l2_norm(k, dim_, 1.0f, k);
      const float* u = kda_.decay + t * kda_.width() + column;
      if (kda_.dims.gate_lower_bound) {
        kernels_.bounded_decay(u, bias, dim_, rate, *kda_.dims.gate_lower_bound, decay);
      } else {
        kernels_.softplus_decay(u, bias, dim_, rate, decay);
      }
      for (float* row : {k, decay}) std::fill(row + dim_, row + layout_.row, 0.0f);
      block_.beta[r] = kda_.beta[t * layout_.heads + head_];
    }
    kda_.exec.kernels.sigmoid(block_.beta, count);
  }

  // The outputs normed and gated, in place of the decays that they were made with.
  void finish(std::size_t token, int count) {
    for (int r = 0; r < count; ++r) {
      const std::size_t to = (token + size(r)) * kda_.width() + head_ * size(dim_);
      kda_.exec.kernels.rms_norm(block_.o + size(r) * layout_.row, kda_.weights.o_norm.data(), dim_,
                                 kda_.dims.o_norm_eps, kda_.decay + to);
      kernels_.sigmoid_times(kda_.gate + to, dim_, kda_.decay + to);
    }
  }

  // S after the block at base_.
  void fold(float* out) {
    KdaFoldArgs args;
    args.head_dim = dim_;
    args.s = s_;
    args.k = k_;
    args.decay = decay_;
    args.u = u_;
    args.out = out;
    args.scratch = block_.scratch;
    kernels_.fold(args);
  }

  // After S took in a block: the rows from there to `end` become the first.
  void keep_rows_behind(int end) {
    base_ += kKdaBlock;
    for (float* rows : {k_, decay_, u_})
      std::copy_n(rows + kKdaBlock * layout_.row, size(end - base_) * layout_.row, rows);
    write_snapshot();
  }

  // S where somebody wants it as it is now.
  void write_snapshot() {
    for (const StateSnapshot& snapshot : sequence_.snapshots) {
      if (snapshot.length != base_) continue;
      std::memcpy(snapshot.out + kda_.step.snapshot_offset + layout_.snapshot_s_at(head_), s_,
                  layout_.s_floats * sizeof(float));
    }
  }

  const Kda& kda_;
  const KdaKernels& kernels_;
  const Layout& layout_;
  const SequenceSpan& sequence_;
  const std::size_t head_;
  const int dim_;
  BlockRows block_;
  int base_;  // the position of the state's S
  float* s_;
  float *k_, *decay_, *u_;  // [kPendingRows, row] from base_ on
};

// The raw projections of a position, as the state keeps them.
void store_raw(const Kda& kda, const SequenceSpan& sequence, int position, std::byte* to) {
  if (position < sequence.start) {
    std::memcpy(to, kda.state(sequence) + kda.layout.raw_at(position), kda.layout.raw_bytes);
    return;
  }
  const float* from =
      kda.raw + size(sequence.begin + position - sequence.start) * kda.layout.raw_width;
  const int n = static_cast<int>(kda.layout.raw_width);
  if (kda.wide()) {
    std::memcpy(to, from, kda.layout.raw_bytes);
  } else {
    kda.exec.kernels.scale_to_bf16(from, 1.0f, n, reinterpret_cast<bf16*>(to));
  }
}

// What is left to do when all heads are through.
void finish_sequence(const Kda& kda, const SequenceSpan& sequence) {
  for (const StateSnapshot& snapshot : sequence.snapshots) {
    for (int i = 0; i < kHistory; ++i) {
      store_raw(kda, sequence, snapshot.length - kHistory + i,
                snapshot.out + kda.step.snapshot_offset + kda.layout.snapshot_raw_at(i));
    }
  }
  std::byte* state = kda.state(sequence);
  const int end = sequence.start + sequence.count;
  for (int position = std::max(sequence.start, end - kRawRows); position < end; ++position)
    store_raw(kda, sequence, position, state + kda.layout.raw_at(position));
  const Header header{(end - sequence.guesses) / kKdaBlock * kKdaBlock, end};
  std::memcpy(state, &header, sizeof header);
}

void check_span(const Kda& kda, const SequenceSpan& sequence) {
  GLINT_CHECK(sequence.state != nullptr);
  const Header header = read_header(kda.state(sequence));
  GLINT_CHECK(sequence.guesses >= 0 && sequence.guesses <= std::min(sequence.count, kMaxGuesses));
  GLINT_CHECK(sequence.start >= header.base && sequence.start <= header.computed &&
              sequence.start >= header.computed - kMaxGuesses);
  for (const StateSnapshot& snapshot : sequence.snapshots) {
    GLINT_CHECK(snapshot.length > 0 && snapshot.length % kPageSize == 0 &&
                snapshot.length >= header.base && snapshot.length > sequence.start - kMaxGuesses &&
                snapshot.length <= sequence.start + sequence.count - sequence.guesses);
  }
}

}  // namespace

KdaWeights bind_kda(TensorBinder& binder, const std::string& prefix, const KdaDims& d) {
  const auto matrix = [&](const char* name, int rows, int cols) {
    return binder.matrix(prefix + name + ".weight", rows, cols, MatrixUse::kAttention);
  };
  KdaWeights w;
  w.q_proj = matrix("q_proj", d.width(), d.hidden_size);
  w.k_proj = matrix("k_proj", d.width(), d.hidden_size);
  w.v_proj = matrix("v_proj", d.width(), d.hidden_size);
  const std::size_t width = size(d.width());
  std::size_t column = 0;
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    const std::vector<float> taps = binder.values(prefix + name, {d.width(), kKdaTaps});
    if (!taps.empty()) w.conv1d.resize(kKdaTaps * 3 * width);
    for (std::size_t i = 0; i < taps.size(); ++i)
      w.conv1d[i % kKdaTaps * 3 * width + column + i / kKdaTaps] = taps[i];
    column += width;
  }
  w.f_a_proj = matrix("f_a_proj", d.head_dim, d.hidden_size);
  w.f_b_proj = matrix("f_b_proj", d.width(), d.head_dim);
  // Either what is trained, or what GGUF files make of it: its exponential, negated or not.
  const bool has_exponential = binder.has(prefix + "A");
  w.decay_rate = binder.values(prefix + (has_exponential ? "A" : "A_log"), {d.num_heads});
  for (float& rate : w.decay_rate) rate = has_exponential ? std::abs(rate) : std::exp(rate);
  w.dt_bias = binder.values(prefix + "dt_bias", {d.width()});
  w.b_proj = matrix("b_proj", d.num_heads, d.hidden_size);
  w.g_a_proj = matrix("g_a_proj", d.head_dim, d.hidden_size);
  w.g_b_proj = matrix("g_b_proj", d.width(), d.head_dim);
  w.o_norm = binder.vector(prefix + "o_norm.weight", d.head_dim);
  w.o_proj = matrix("o_proj", d.hidden_size, d.width());
  return w;
}

std::size_t kda_state_bytes(const KdaDims& dims, Compute compute) {
  return Layout(dims, compute).state_bytes();
}

std::size_t kda_snapshot_bytes(const KdaDims& dims, Compute compute) {
  return Layout(dims, compute).snapshot_bytes();
}

void start_kda_state(const KdaDims& dims, Compute compute, int length, const std::byte* snapshot,
                     std::byte* state) {
  GLINT_CHECK(length % kPageSize == 0 && (length == 0) == (snapshot == nullptr));
  const Layout layout(dims, compute);
  const Header header{length, length};
  std::memcpy(state, &header, sizeof header);
  const std::size_t s_bytes = layout.s_at(layout.heads) - layout.s_at(0);
  if (snapshot == nullptr) {
    std::memset(state + layout.s_at(0), 0, s_bytes);
    return;
  }
  std::memcpy(state + layout.s_at(0), snapshot + layout.snapshot_s_at(0), s_bytes);
  for (int i = 0; i < kHistory; ++i) {
    std::memcpy(state + layout.raw_at(length - kHistory + i), snapshot + layout.snapshot_raw_at(i),
                layout.raw_bytes);
  }
}

void kda_attention(Exec& exec, const KdaDims& dims, const KdaWeights& weights,
                   const std::vector<float>& input_norm, float input_eps, const KdaStep& step,
                   const float* x, float* y) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t tokens = step.batch.tokens.size(), values = tokens * size(dims.width());
  Kda kda{exec,
          dims,
          weights,
          step,
          Layout(dims, step.compute),
          exec.workspace.array<float>(3 * values),
          exec.workspace.array<float>(tokens * size(dims.num_heads)),
          exec.workspace.array<float>(values),
          exec.workspace.array<float>(values)};
  for (const SequenceSpan& sequence : step.batch.sequences) check_span(kda, sequence);
  project(kda, input_norm, input_eps, x);
  {
    Workspace::Scope inner(exec.workspace);
    const std::span<const SequenceSpan> sequences = step.batch.sequences;
    WorkerScratch workers(exec, BlockRows::floats(kda.layout, dims.head_dim) * sizeof(float) +
                                    exec.kernels.kda.scratch_bytes(dims.head_dim));
    const std::size_t heads = kda.layout.heads;
    exec.pool.run(sequences.size() * heads, [&](std::size_t task, int worker) {
      HeadRun(kda, sequences[task / heads], task % heads, workers.of(worker)).run();
    });
    exec.pool.run(sequences.size(),
                  [&](std::size_t i, int) { finish_sequence(kda, sequences[i]); });
  }
  const MatmulKernels& kernels =
      matmul_kernels(exec.kernels, weights.o_proj.format(), step.compute);
  const Activations out =
      pack(exec, kernels, kda.decay, kda.width(), static_cast<int>(tokens), dims.width());
  matmul(exec, {out, &weights.o_proj, y, size(dims.hidden_size)});
}

}  // namespace glint
