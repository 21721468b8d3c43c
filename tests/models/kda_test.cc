// Kimi delta attention as a layer: against transformers' numbers, and against itself under every
// way to cut a sequence into steps, to guess ahead and take back, and to start from a snapshot.
#include "models/layers/kda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "base/aligned.h"
#include "golden.h"
#include "kernels/isa.h"
#include "kernels/kda.h"
#include "models/tensor_binder.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

struct Layer {
  KdaDims dims;
  KdaWeights weights;
  std::vector<float> input_norm;
  float input_eps = 1e-5f;
};

// A layer's part of the states does not start where they start, nor end where they end.
constexpr std::size_t kStateOffset = 192, kSnapshotOffset = 64, kBehind = 64;

AlignedBuffer filled(std::size_t n) {
  AlignedBuffer buffer(n);
  std::memset(buffer.data(), 0xff, n);  // NaN, where it is read as floats
  return buffer;
}

struct Sequence {
  AlignedBuffer state;
  int length = 0;

  Sequence(const Layer& layer, Compute compute, int at = 0, const std::byte* snapshot = nullptr)
      : state(filled(kStateOffset + kda_state_bytes(layer.dims, compute) + kBehind)), length(at) {
    start_kda_state(layer.dims, compute, at, snapshot, state.data() + kStateOffset);
  }
  ~Sequence() {
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (i == kStateOffset) i = state.size() - kBehind;
      EXPECT_EQ(state.data()[i], std::byte{0xff}) << "beside the layer's state";
    }
  }
};

struct Part {
  Sequence& sequence;
  const float* x;  // rows from sequence.length on
  int count;
  int guesses = 0;
  std::vector<StateSnapshot> snapshots = {};
};

struct Team {
  ThreadPool pool;
  Workspace workspace;
  Exec exec;
  Team(Isa isa, int threads) : pool(threads), exec{kernel_table(isa), pool, workspace} {}
};

// One step over all parts, whose outputs follow each other. Lengths are the caller's to move on.
std::vector<float> step(Team& team, const Layer& layer, Compute compute,
                        const std::vector<Part>& parts) {
  const std::size_t d = size(layer.dims.hidden_size);
  std::vector<SequenceSpan> spans;
  std::vector<float> x;
  int rows = 0;
  for (const Part& part : parts) {
    SequenceSpan span;
    span.begin = rows;
    span.count = part.count;
    span.start = part.sequence.length;
    span.guesses = part.guesses;
    span.state = part.sequence.state.data();
    span.snapshots = part.snapshots;
    spans.push_back(span);
    x.insert(x.end(), part.x, part.x + size(part.count) * d);
    rows += part.count;
  }
  const std::vector<std::int32_t> tokens(size(rows), 0);
  const Batch batch{tokens, spans, {}};
  std::vector<float> y(size(rows) * d, std::nanf(""));
  kda_attention(team.exec, layer.dims, layer.weights, layer.input_norm, layer.input_eps,
                {batch, compute, kStateOffset, kSnapshotOffset}, x.data(), y.data());
  return y;
}

// The bytes of a snapshot, and nothing beside them.
struct Snapshot {
  AlignedBuffer bytes;
  explicit Snapshot(const Layer& layer, Compute compute)
      : bytes(kSnapshotOffset + kda_snapshot_bytes(layer.dims, compute)) {
    std::memset(bytes.data(), 0, bytes.size());  // some of them are padding
  }
  const std::byte* of_layer() const { return bytes.data() + kSnapshotOffset; }
  bool operator==(const Snapshot& other) const {
    return std::memcmp(bytes.data(), other.bytes.data(), bytes.size()) == 0;
  }
};

constexpr int kTokens = 320;

struct Outcome {
  std::vector<float> y;             // [kTokens, hidden]
  std::vector<Snapshot> snapshots;  // at every page's end
};

// All tokens, `chunk` at a time.
Outcome run(Team& team, const Layer& layer, Compute compute, const std::vector<float>& x,
            int chunk) {
  Outcome outcome;
  Sequence sequence(layer, compute);
  for (int page = 0; page < kTokens / kPageSize; ++page)
    outcome.snapshots.emplace_back(layer, compute);
  for (; sequence.length < kTokens;) {
    const int count = std::min(chunk, kTokens - sequence.length);
    Part part{sequence, x.data() + size(sequence.length * layer.dims.hidden_size), count};
    for (int end = kPageSize; end <= kTokens; end += kPageSize) {
      if (end > sequence.length && end <= sequence.length + count)
        part.snapshots.push_back({end, outcome.snapshots[size(end / kPageSize - 1)].bytes.data()});
    }
    const std::vector<float> y = step(team, layer, compute, {part});
    outcome.y.insert(outcome.y.end(), y.begin(), y.end());
    sequence.length += count;
  }
  return outcome;
}

class Fixture {
 public:
  Layer layer;
  std::vector<float> x;  // [kTokens, hidden]

  // `bounded`: the gate of GLM-5.3-Flash; else that of Kimi-Linear.
  explicit Fixture(int head_dim, bool bounded) {
    KdaDims& d = layer.dims;
    d.hidden_size = 40;
    d.num_heads = 3;
    d.head_dim = head_dim;
    if (bounded) d.gate_lower_bound = -5.0f;
    d.o_norm_eps = 1e-5f;
    const int width = d.width();
    KdaWeights& w = layer.weights;
    for (Weight* weight : {&w.q_proj, &w.k_proj, &w.v_proj}) *weight = matrix(width, 40);
    for (Weight* weight : {&w.f_a_proj, &w.g_a_proj}) *weight = matrix(head_dim, 40);
    for (Weight* weight : {&w.f_b_proj, &w.g_b_proj}) *weight = matrix(width, head_dim);
    w.b_proj = matrix(3, 40);
    w.o_proj = matrix(40, width);
    w.conv1d = floats(kKdaTaps * 3 * width, 0.5f);
    w.decay_rate = {0.5f, 1.0f, 2.0f};
    w.dt_bias = floats(width, 2.0f);
    w.o_norm = floats(head_dim, 1.0f);
    layer.input_norm = floats(40, 1.0f);
    x = floats(kTokens * 40, 1.0f);
  }

  std::vector<float> floats(int n, float scale) {
    std::uniform_real_distribution<float> value(-scale, scale);
    std::vector<float> out(size(n));
    for (float& v : out) v = value(engine_);
    return out;
  }

 private:
  Weight matrix(int rows, int cols) {
    const auto values = floats(rows * cols, 2.0f / std::sqrt(static_cast<float>(cols)));
    AlignedBuffer buffer(values.size() * sizeof(bf16));
    for (std::size_t i = 0; i < values.size(); ++i)
      buffer.as<bf16>()[i] = bf16::from_float(values[i]);
    return Weight::own(QuantFormat::kBf16, size(rows), size(cols), std::move(buffer));
  }
  std::mt19937 engine_{11};
};

class Kda : public testing::TestWithParam<Isa> {
 protected:
  Team team{GetParam(), 3};
  Team one{GetParam(), 1};  // for hundreds of steps, on machines that have other things to do too
};

Layer golden_layer(TensorBinder& binder, int index) {
  Layer layer;
  layer.dims = {.hidden_size = 64,
                .num_heads = 3,
                .head_dim = 16,
                .gate_lower_bound = -5.0f,
                .o_norm_eps = 1e-5f};
  const std::string prefix = "model.language_model.layers." + std::to_string(index) + ".";
  layer.input_norm = binder.vector(prefix + "input_layernorm.weight", 64);
  layer.weights = bind_kda(binder, prefix + "self_attn.", layer.dims);
  return layer;
}

TEST_P(Kda, layers_agree_with_transformers) {
  const std::filesystem::path folder =
      std::filesystem::path(GLINT_TEST_DATA) / "golden" / "glm5_next";
  const auto expected = golden::read_expected(folder / "expected.safetensors");
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.has_value());
  LoadOptions options;
  options.compute = Compute::kF32;
  TensorBinder binder(**checkpoint, options);
  std::vector<std::pair<int, Layer>> layers;
  for (const int index : {0, 1, 2, 4}) layers.emplace_back(index, golden_layer(binder, index));
  binder.load();
  for (const auto& [index, layer] : layers) {
    const std::string name = "prompt2.layer" + std::to_string(index);
    const std::vector<float>& x = expected.at(name + ".attn_hc.collapsed").values;
    const std::vector<float>& want = expected.at(name + ".attn").values;
    const int tokens = static_cast<int>(x.size()) / 64;
    for (const int chunk : {tokens, 7, 1}) {
      Sequence sequence(layer, Compute::kF32);
      std::vector<float> y;
      for (; sequence.length < tokens; sequence.length += chunk) {
        const int count = std::min(chunk, tokens - sequence.length);
        const auto part = step(chunk == tokens ? team : one, layer, Compute::kF32,
                               {{sequence, x.data() + size(sequence.length * 64), count}});
        y.insert(y.end(), part.begin(), part.end());
      }
      ASSERT_EQ(y.size(), want.size());
      EXPECT_LT(golden::max_difference(y, want), 1e-4) << "layer " << index << ", chunk " << chunk;
    }
  }
}

TEST_P(Kda, results_and_states_have_the_same_bits_however_the_work_is_cut) {
  for (const bool bounded : {true, false}) {
    const Fixture f(bounded ? 24 : 16, bounded);
    for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
      const Outcome whole = run(team, f.layer, compute, f.x, kTokens);
      for (const int chunk : {64, 63, 1}) {
        const Outcome cut = run(chunk == 1 ? one : team, f.layer, compute, f.x, chunk);
        EXPECT_EQ(cut.y, whole.y) << chunk;
        EXPECT_EQ(cut.snapshots, whole.snapshots) << chunk;
      }
    }
  }
}

TEST_P(Kda, a_snapshot_goes_on_where_it_was_taken) {
  const Fixture f(24, true);
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    const Outcome whole = run(team, f.layer, compute, f.x, kTokens);
    for (const int page : {1, 3}) {
      const int at = page * kPageSize;
      Sequence sequence(f.layer, compute, at, whole.snapshots[size(page - 1)].of_layer());
      const std::vector<float> y =
          step(team, f.layer, compute, {{sequence, f.x.data() + size(at * 40), kTokens - at}});
      EXPECT_TRUE(std::equal(y.begin(), y.end(), whole.y.begin() + at * 40)) << at;
    }
  }
}

// A sequence whose steps end with guesses, of which any number may stand.
class Guesser {
 public:
  Guesser(Fixture& f, Compute compute, const Outcome& want, unsigned seed)
      : fixture_(f), compute_(compute), want_(want), sequence_(f.layer, compute), engine_(seed) {}

  bool done() const { return sequence_.length >= kTokens; }

  // The next step: right tokens, then wrong ones.
  Part next() {
    sequence_.length = next_start_;
    guesses_ = below(kMaxGuesses + 1);
    const int left = kTokens - sequence_.length;
    const int count = std::min(left, std::max(guesses_, 1) + below(4) * below(30));
    guesses_ = std::min(guesses_, count);
    right_ = count - guesses_ + below(guesses_ + 1);
    x_.assign(fixture_.x.begin() + sequence_.length * 40,
              fixture_.x.begin() + (sequence_.length + count) * 40);
    const std::vector<float> wrong = fixture_.floats((count - right_) * 40, 1.0f);
    std::copy(wrong.begin(), wrong.end(), x_.begin() + right_ * 40);
    Part part{sequence_, x_.data(), count, guesses_};
    const int stands = sequence_.length + count - guesses_;
    snapshot_at_ = stands / kPageSize * kPageSize;
    if (snapshot_at_ > std::max(0, sequence_.length - kMaxGuesses)) {
      snapshot_ = std::make_unique<Snapshot>(fixture_.layer, compute_);
      part.snapshots.push_back({snapshot_at_, snapshot_->bytes.data()});
    }
    return part;
  }

  void check(const float* y) {
    const float* want = want_.y.data() + sequence_.length * 40;
    ASSERT_TRUE(std::equal(y, y + right_ * 40, want))
        << right_ << " rows at " << sequence_.length << ", " << guesses_ << " guesses";
    if (snapshot_ != nullptr) {
      ASSERT_EQ(*snapshot_, want_.snapshots[size(snapshot_at_ / kPageSize - 1)]);
      late_ += snapshot_at_ <= sequence_.length ? 1 : 0;
    }
    snapshot_.reset();
    next_start_ = sequence_.length + right_;
    taken_back_ += right_ < static_cast<int>(x_.size()) / 40 ? 1 : 0;
    if (next_start_ == kTokens) sequence_.length = kTokens;
  }
  int late() const { return late_; }
  int taken_back() const { return taken_back_; }

 private:
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  Fixture& fixture_;
  Compute compute_;
  const Outcome& want_;
  Sequence sequence_;
  std::mt19937 engine_;
  int next_start_ = 0, guesses_ = 0, right_ = 0, snapshot_at_ = 0;
  int late_ = 0, taken_back_ = 0;
  std::vector<float> x_;
  std::unique_ptr<Snapshot> snapshot_;
};

TEST_P(Kda, guesses_taken_back_leave_nothing_behind) {
  Fixture f(16, true);
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    const Outcome want = run(team, f.layer, compute, f.x, kTokens);
    int late = 0, taken_back = 0;
    for (unsigned seed = 0; seed < 12; seed += 2) {
      // Two sequences share the steps until one ends.
      Guesser a(f, compute, want, seed), b(f, compute, want, seed + 1);
      while (!a.done() && !b.done()) {
        const std::vector<Part> parts{a.next(), b.next()};
        const std::vector<float> y = step(seed == 0 ? team : one, f.layer, compute, parts);
        a.check(y.data());
        b.check(y.data() + parts[0].count * 40);
        if (HasFatalFailure()) return;
      }
      late += a.late() + b.late();
      taken_back += a.taken_back() + b.taken_back();
    }
    EXPECT_GT(late, 3);
    EXPECT_GT(taken_back, 50);
  }
}

TEST(KdaState, sizes_of_the_released_model) {
  KdaDims dims;
  dims.hidden_size = 4096;
  dims.num_heads = 64;
  dims.head_dim = 128;
  EXPECT_EQ(34 * kda_snapshot_bytes(dims, Compute::kBf16), 147'619'840u);
  EXPECT_EQ(kda_state_bytes(dims, Compute::kBf16) % 64, 0u);
}

TEST_P(Kda, the_norms_of_queries_and_keys_have_an_epsilon_of_their_own) {
  Fixture f(16, true);
  // Projections of about 1e-4: there an epsilon of 1e-5 would be most of a norm.
  for (float& tap : f.layer.weights.conv1d) tap *= 1e-3f;
  const std::vector<float> x(f.x.begin(), f.x.begin() + 20 * 40);
  Sequence before(f.layer, Compute::kF32);
  const auto want = step(team, f.layer, Compute::kF32, {{before, x.data(), 20}});
  // The state knows nothing of the output's norm, which the config's epsilon belongs to.
  f.layer.dims.o_norm_eps = 1e-2f;
  Sequence after(f.layer, Compute::kF32);
  const auto got = step(team, f.layer, Compute::kF32, {{after, x.data(), 20}});
  EXPECT_NE(got, want);
  EXPECT_EQ(std::memcmp(before.state.data() + kStateOffset, after.state.data() + kStateOffset, 64),
            0);
  const std::size_t s_bytes = 3 * 16 * 16 * sizeof(float);
  EXPECT_EQ(std::memcmp(before.state.data() + kStateOffset + 64,
                        after.state.data() + kStateOffset + 64, s_bytes),
            0);
}

std::string param_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

INSTANTIATE_TEST_SUITE_P(Isas, Kda, testing::ValuesIn(golden::tested_isas()), param_name);

}  // namespace
}  // namespace glint
