// Whole operations against naive loops, and against themselves under other cuts: every table, odd
// shapes, several spans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/attention.h"
#include "ops/gated_mlp.h"
#include "ops/matmul.h"
#include "tensor/panel.h"

namespace glint {
namespace {

std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> value(-scale, scale);
  std::vector<float> out(n);
  for (float& v : out) v = value(engine);
  return out;
}

// A float32 weight, or the same rounded to bf16.
Weight make_weight(QuantFormat format, int rows, int cols, unsigned seed) {
  const auto values = random_floats(static_cast<std::size_t>(rows * cols), seed);
  const std::size_t element = format == QuantFormat::kBf16 ? 2 : 4;
  AlignedBuffer buffer(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (format == QuantFormat::kBf16) {
      buffer.as<bf16>()[i] = bf16::from_float(values[i]);
    } else {
      buffer.as<float>()[i] = values[i];
    }
  }
  return Weight::own(format, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols),
                     std::move(buffer));
}

// e4m3 under scales of 16 rows and 32 columns; values up to 1.
Weight make_f8_weight(int rows, int cols, unsigned seed) {
  struct Stored {
    std::vector<std::byte> bytes;
    std::vector<float> scales;
  };
  const auto stored = std::make_shared<Stored>();
  std::mt19937 engine(seed);
  for (int i = 0; i < rows * cols; ++i) {
    const auto bits = static_cast<unsigned>(engine() % 0x60);  // up to 60
    stored->bytes.push_back(static_cast<std::byte>(bits | (engine() & 0x80)));
  }
  const int across = (cols + 31) / 32;
  stored->scales =
      random_floats(static_cast<std::size_t>((rows + 15) / 16 * across), seed, 1.0f / 60);
  return Weight::borrow_f8(
      static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), stored->bytes.data(),
      {stored->scales.data(), 16, 32, static_cast<std::size_t>(across)}, stored);
}

// Random blocks of NVFP4 as panels, or of UINT4 as rows of blocks.
Weight make_block_weight(QuantFormat format, int rows, int cols, unsigned seed) {
  const DType type = format == QuantFormat::kPanels ? DType::kNVFP4 : DType::kUint4H;
  const BlockSize block = block_size(type);
  const std::size_t stride = static_cast<std::size_t>(cols) / block.elements * block.bytes;
  const auto count = static_cast<std::size_t>(rows);
  const auto bytes = std::make_shared<AlignedBuffer>(count * stride);
  std::mt19937 engine(seed);
  for (std::size_t i = 0; i < count * stride; ++i)
    bytes->data()[i] = static_cast<std::byte>(engine());
  for (std::size_t at = 0; at < count * stride; at += block.bytes) {
    std::byte* scale = bytes->data() + at;
    if (type == DType::kNVFP4) {
      for (int g = 0; g < 4; ++g) scale[g] = static_cast<std::byte>(0x10 + engine() % 8);
    } else {
      const std::uint16_t half = f16_from_float(0.1f);
      std::memcpy(scale, &half, 2);
      scale[2] = static_cast<std::byte>(engine() % 16);
    }
  }
  if (format == QuantFormat::kBlocks) {
    return Weight::borrow(format, type, count, static_cast<std::size_t>(cols), bytes->data(),
                          bytes);
  }
  const auto panels = std::make_shared<AlignedBuffer>(
      Weight::bytes_of(format, type, count, static_cast<std::size_t>(cols)));
  for (std::size_t row = 0; row < count; row += kPanelRows) {
    pack_panel(type, bytes->data() + row * stride, stride,
               static_cast<int>(std::min<std::size_t>(kPanelRows, count - row)),
               static_cast<std::size_t>(cols),
               panels->data() + row / kPanelRows *
                                    panel_format(type).panel_bytes(static_cast<std::size_t>(cols)));
  }
  return Weight::borrow(format, type, count, static_cast<std::size_t>(cols), panels->data(),
                        panels);
}

Weight make_any_weight(QuantFormat format, int rows, int cols, unsigned seed) {
  if (format == QuantFormat::kF8) return make_f8_weight(rows, cols, seed);
  if (format == QuantFormat::kPanels || format == QuantFormat::kBlocks)
    return make_block_weight(format, rows, cols, seed);
  return make_weight(format, rows, cols, seed);
}

std::vector<double> times(const std::vector<double>& x, const Weight& w) {
  std::vector<float> row(w.cols());
  std::vector<double> y(w.rows(), 0.0);
  for (std::size_t n = 0; n < w.rows(); ++n) {
    decode_row(w, n, row);
    for (std::size_t k = 0; k < w.cols(); ++k) y[n] += x[k] * static_cast<double>(row[k]);
  }
  return y;
}

std::vector<double> naive_mlp(const GatedMlp& mlp, const float* x) {
  const std::vector<double> in(x, x + mlp.gate.cols());
  std::vector<double> gate = times(in, mlp.gate);
  const std::vector<double> up = times(in, mlp.up);
  for (std::size_t i = 0; i < gate.size(); ++i)
    gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return times(gate, mlp.down);
}

// Everything an op runs with.
struct Machine {
  Machine(Isa isa, int threads) : pool(threads), exec{kernel_table(isa), pool, workspace} {}
  ThreadPool pool;
  Workspace workspace;
  Exec exec;
};

class Ops : public testing::TestWithParam<Isa> {};

TEST_P(Ops, gated_mlp_sums_its_groups_in_order_whatever_the_team) {
  constexpr int kD = 72, kRows = 37;
  for (const auto& [format, compute] : {std::pair{QuantFormat::kF32, Compute::kF32},
                                        {QuantFormat::kBf16, Compute::kF32},
                                        {QuantFormat::kBf16, Compute::kBf16}}) {
    std::vector<GatedMlp> mlps;
    for (unsigned i = 0; i < 4; ++i) {
      const int f = i == 0 ? 56 : 40;
      mlps.push_back({make_weight(format, f, kD, 10 * i + 1),
                      make_weight(format, f, kD, 10 * i + 2),
                      make_weight(format, kD, f, 10 * i + 3)});
    }
    const auto x = random_floats(kRows * kD, 7);
    const std::vector<std::int32_t> odd = {1, 3, 5, 33}, one = {36}, most = [] {
      std::vector<std::int32_t> rows(34);
      std::iota(rows.begin(), rows.end(), 2);
      return rows;
    }();
    const auto scales = random_floats(64, 8);
    const std::vector<MlpGroup> with_shared = {{&mlps[0], {}, nullptr},
                                               {&mlps[1], odd, scales.data()},
                                               {&mlps[2], one, scales.data() + 7},
                                               {&mlps[3], most, scales.data() + 11}};
    for (const bool shared : {true, false}) {
      const auto groups = std::span(with_shared).subspan(shared ? 0 : 1);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 3}) {
        Machine machine(GetParam(), threads);
        results.emplace_back(kRows * kD, 99.0f);
        gated_mlp(machine.exec, compute, x.data(), kRows, kD, groups, results.back().data());
        EXPECT_EQ(results.back(), results.front());
      }
      std::vector<double> want(kRows * kD, 0.0);
      for (const MlpGroup& group : groups) {
        const std::size_t count = group.rows.empty() ? kRows : group.rows.size();
        for (std::size_t i = 0; i < count; ++i) {
          const auto row = group.rows.empty() ? i : static_cast<std::size_t>(group.rows[i]);
          const auto y = naive_mlp(*group.mlp, x.data() + row * kD);
          const double scale = group.scale == nullptr ? 1.0 : static_cast<double>(group.scale[i]);
          for (std::size_t n = 0; n < kD; ++n) want[row * kD + n] += scale * y[n];
        }
      }
      // Outputs are of order 50; bf16 rounds inputs and hidden values by 2^-9 each.
      const double tolerance = compute == Compute::kF32 ? 1e-3 : 2.0;
      double worst = 0, size = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs(want[i] - static_cast<double>(results.front()[i])));
        size = std::max(size, std::abs(want[i]));
      }
      EXPECT_GT(size, 20.0);
      EXPECT_LT(worst, tolerance);
    }
  }
}

// Every mixture of formats, each matrix under a factor of its own.
TEST_P(Ops, gated_mlp_multiplies_by_the_factors_of_its_weights) {
  constexpr int kD = 128, kF = 64, kRows = 5;
  using enum QuantFormat;
  const QuantFormat mixtures[][3] = {{kF8, kF8, kF8},       {kPanels, kPanels, kPanels},
                                     {kBf16, kBf16, kBf16}, {kF8, kBf16, kF32},
                                     {kBlocks, kF8, kF8},   {kF8, kF8, kPanels},
                                     {kF32, kF32, kF32},    {kBlocks, kPanels, kBlocks}};
  const auto x = random_floats(kRows * kD, 7);
  for (const auto& mixture : mixtures) {
    const GatedMlp mlp = {make_any_weight(mixture[0], kF, kD, 1).with_factor(0.3f),
                          make_any_weight(mixture[1], kF, kD, 2).with_factor(1.9f),
                          make_any_weight(mixture[2], kD, kF, 3).with_factor(-0.7f)};
    const MlpGroup group = {&mlp, {}, nullptr};
    for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
      Machine machine(GetParam(), 2);
      std::vector<float> y(kRows * kD);
      gated_mlp(machine.exec, compute, x.data(), kRows, kD, {&group, 1}, y.data());
      double error = 0, size = 0;
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::vector<double> want = naive_mlp(mlp, x.data() + row * kD);
        for (std::size_t i = 0; i < kD; ++i) {
          error += std::pow(want[i] - static_cast<double>(y[row * kD + i]), 2);
          size += want[i] * want[i];
        }
      }
      // Activations are rounded to 2^-9, or to 2^-8 of the largest of 32.
      EXPECT_LT(std::sqrt(error / size), compute == Compute::kF32 ? 1e-5 : 0.03)
          << static_cast<int>(mixture[0]) << static_cast<int>(mixture[1])
          << static_cast<int>(mixture[2]);
      EXPECT_GT(size, 1e-3);
    }
  }
}

TEST_P(Ops, projections_of_one_input_may_be_stored_in_any_form) {
  constexpr int kD = 128, kRows = 3, kN = 70;
  using enum QuantFormat;
  const Weight weights[] = {
      make_any_weight(kF8, kN, kD, 1).with_factor(0.5f), make_any_weight(kBf16, kN, kD, 2),
      make_any_weight(kPanels, kN, kD, 3).with_factor(3.0f),
      make_any_weight(kF8, kN, kD, 4).slice_rows(5, 25), make_any_weight(kBlocks, kN, kD, 5)};
  const auto x = random_floats(kRows * kD, 7);
  const auto norm = random_floats(kD, 8);
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    Machine machine(GetParam(), 2);
    std::vector<std::vector<float>> y(5, std::vector<float>(kRows * kN));
    std::vector<Projection> projections;
    for (std::size_t i = 0; i < 5; ++i) projections.push_back({&weights[i], y[i].data(), kN});
    norm_project(machine.exec, compute, x.data(), kD, norm.data(), 1e-5f, kRows, kD, projections);
    for (std::size_t i = 0; i < 5; ++i) {
      double error = 0, size = 0;
      for (std::size_t row = 0; row < kRows; ++row) {
        std::vector<float> normed(kD);
        machine.exec.kernels.rms_norm(x.data() + row * kD, norm.data(), kD, 1e-5f, normed.data());
        const std::vector<double> want =
            times(std::vector<double>(normed.begin(), normed.end()), weights[i]);
        for (std::size_t n = 0; n < want.size(); ++n) {
          error += std::pow(want[n] - static_cast<double>(y[i][row * kN + n]), 2);
          size += want[n] * want[n];
        }
      }
      EXPECT_LT(std::sqrt(error / size), compute == Compute::kF32 ? 1e-5 : 0.02) << i;
    }
  }
}

TEST_P(Ops, products_in_one_region_equal_products_alone) {
  const Weight a = make_weight(QuantFormat::kBf16, 70, 96, 1),
               b = make_weight(QuantFormat::kBf16, 9, 96, 2);
  const auto x = random_floats(50 * 96, 3);
  std::vector<float> together_a(50 * 70), together_b(50 * 9), alone_a(50 * 70), alone_b(50 * 9);
  Machine machine(GetParam(), 3);
  Workspace::Scope scope(machine.workspace);
  const Activations packed = pack(machine.exec, machine.exec.kernels.bf16, x.data(), 96, 50, 96);
  const MatmulJob jobs[] = {{packed, &a, together_a.data(), 70},
                            {packed, &b, together_b.data(), 9}};
  matmul(machine.exec, jobs);
  matmul(machine.exec, {packed, &a, alone_a.data(), 70});
  matmul(machine.exec, {packed, &b, alone_b.data(), 9});
  EXPECT_EQ(together_a, alone_a);
  EXPECT_EQ(together_b, alone_b);
}

// One sequence of 600 keys in pages, its values the first columns of its keys as a latent cache has
// them.
struct Paged {
  static constexpr int kKeys = 600, kDk = 40, kDv = 32, kHeads = 3;
  std::vector<std::vector<float>> pages;
  std::vector<const std::byte*> pointers;
  std::vector<float> q = random_floats(kKeys * kHeads * kDk, 5);

  Paged() {
    for (int p = 0; p * kAttendPage < kKeys; ++p) {
      pages.push_back(random_floats(kAttendPage * kDk, 100 + static_cast<unsigned>(p)));
    }
    for (const auto& page : pages)
      pointers.push_back(reinterpret_cast<const std::byte*>(page.data()));
  }
  AttentionJob job(int first, int count, float* out) const {
    AttentionJob job;
    job.q = q.data() + static_cast<std::size_t>(first * kHeads * kDk);
    job.q_row_stride = kDk;
    job.q_stride = kHeads * kDk;
    job.num_queries = count;
    job.rows_per_query = kHeads;
    job.start = first;
    job.kv = {pointers, kDk * sizeof(float), pointers, kDk * sizeof(float)};
    job.dk = kDk;
    job.dv = kDv;
    job.scale = 0.3f;
    job.out = out + static_cast<std::size_t>(first * kHeads * kDv);
    job.out_row_stride = kDv;
    job.out_stride = kHeads * kDv;
    return job;
  }
  float key(int position, int column) const {
    return pages[static_cast<std::size_t>(position / kAttendPage)]
                [static_cast<std::size_t>(position % kAttendPage * kDk + column)];
  }
  std::vector<double> naive(int query, int head, int first_key = 0) const {
    std::vector<double> score(static_cast<std::size_t>(query) + 1), out(kDv, 0.0);
    double top = -1e300, sum = 0;
    for (int p = first_key; p <= query; ++p) {
      double s = 0;
      for (int i = 0; i < kDk; ++i) {
        s += static_cast<double>(q[static_cast<std::size_t>((query * kHeads + head) * kDk + i)]) *
             static_cast<double>(key(p, i));
      }
      score[static_cast<std::size_t>(p)] = s * 0.3;
      top = std::max(top, s * 0.3);
    }
    for (int p = first_key; p <= query; ++p) {
      double& s = score[static_cast<std::size_t>(p)];
      sum += (s = std::exp(s - top));
    }
    for (int p = first_key; p <= query; ++p) {
      for (int i = 0; i < kDv; ++i) {
        out[static_cast<std::size_t>(i)] +=
            score[static_cast<std::size_t>(p)] / sum * static_cast<double>(key(p, i));
      }
    }
    return out;
  }
};

TEST_P(Ops, attention_over_several_spans_equals_a_naive_loop) {
  const Paged paged;
  std::vector<float> out(Paged::kKeys * Paged::kHeads * Paged::kDv);
  Machine machine(GetParam(), 2);
  const AttentionJob job = paged.job(0, Paged::kKeys, out.data());
  attend(machine.exec, {RowFormat::kF32, Compute::kF32}, {&job, 1});
  for (const int query : {0, 1, 63, 64, 65, 254, 255, 256, 257, 511, 512, 513, 599}) {
    for (int head = 0; head < Paged::kHeads; ++head) {
      const auto want = paged.naive(query, head);
      for (int i = 0; i < Paged::kDv; ++i) {
        EXPECT_NEAR(out[static_cast<std::size_t>((query * Paged::kHeads + head) * Paged::kDv + i)],
                    want[static_cast<std::size_t>(i)], 2e-6)
            << "query " << query << " head " << head;
      }
    }
  }
}

TEST_P(Ops, attention_leaves_out_what_lies_before_the_first_key) {
  Paged paged;
  for (const int first_key : {1, 70, 256, 300}) {
    std::fill_n(paged.pages[0].begin(), Paged::kDk, std::numeric_limits<float>::quiet_NaN());
    for (const int chunk : {1, 9, 200}) {
      std::vector<float> out(Paged::kKeys * Paged::kHeads * Paged::kDv);
      Machine machine(GetParam(), 2);
      for (int first = first_key; first < Paged::kKeys; first += chunk) {
        AttentionJob job = paged.job(first, std::min(chunk, Paged::kKeys - first), out.data());
        job.first_key = first_key;
        attend(machine.exec, {RowFormat::kF32, Compute::kF32}, {&job, 1});
      }
      for (const int query : {first_key, first_key + 1, 513, 599}) {
        const auto want = paged.naive(query, 1, first_key);
        for (int i = 0; i < Paged::kDv; ++i) {
          EXPECT_NEAR(out[static_cast<std::size_t>((query * Paged::kHeads + 1) * Paged::kDv + i)],
                      want[static_cast<std::size_t>(i)], 2e-6)
              << "query " << query << " first key " << first_key << " chunk " << chunk;
        }
      }
    }
  }
}

TEST_P(Ops, attention_has_the_same_bits_for_every_chunk_team_and_neighbour) {
  const Paged paged;
  const std::size_t floats = Paged::kKeys * Paged::kHeads * Paged::kDv;
  std::vector<float> want(floats);
  {
    Machine machine(GetParam(), 1);
    const AttentionJob job = paged.job(0, Paged::kKeys, want.data());
    attend(machine.exec, {RowFormat::kF32, Compute::kF32}, {&job, 1});
  }
  for (const int threads : {1, 2, 4}) {
    Machine machine(GetParam(), threads);
    for (const int chunk : {1, 7, 64, 250, Paged::kKeys}) {
      std::vector<float> got(floats);
      // Several chunks a call, so that few and many blocks are met: both ways of sharing the work.
      std::vector<AttentionJob> jobs;
      for (int first = 0; first < Paged::kKeys; first += chunk) {
        jobs.push_back(paged.job(first, std::min(chunk, Paged::kKeys - first), got.data()));
      }
      for (std::size_t first = 0; first < jobs.size(); first += 3) {
        attend(machine.exec, {RowFormat::kF32, Compute::kF32},
               std::span(jobs).subspan(first, std::min<std::size_t>(3, jobs.size() - first)));
      }
      EXPECT_EQ(got, want) << "threads " << threads << " chunk " << chunk;
    }
  }
}

TEST(Attention, deep_contexts_need_bounded_scratch_and_have_the_same_bits) {
  constexpr int kRows = 128, kDk = 32, kDv = 512, kSpans = 80;
  const std::vector<float> q = random_floats(2 * kRows * kDk, 1);
  const std::vector<float> keys = random_floats(kAttendPage * kDk, 2);
  const std::vector<float> values = random_floats(kAttendPage * kDv, 3);
  constexpr std::size_t kPages = kSpans * kAttendSpan / kAttendPage;
  const std::vector k_pages(kPages, reinterpret_cast<const std::byte*>(keys.data()));
  const std::vector v_pages(kPages, reinterpret_cast<const std::byte*>(values.data()));
  const auto run = [&](int threads, std::vector<float>& out) {
    std::vector<AttentionJob> jobs(2);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      AttentionJob& job = jobs[i];
      job.q = q.data() + i * kRows * kDk;
      job.q_row_stride = kDk;
      job.num_queries = 1;
      job.rows_per_query = kRows;
      job.start = kSpans * kAttendSpan - 1;
      job.kv = {k_pages, kDk * sizeof(float), v_pages, kDv * sizeof(float)};
      job.dk = kDk;
      job.dv = kDv;
      job.scale = 0.3f;
      job.out = out.data() + i * kRows * kDv;
      job.out_row_stride = kDv;
    }
    Machine machine(available_isas().back(), threads);
    attend(machine.exec, {RowFormat::kF32, Compute::kF32}, jobs);
    return machine.workspace.peak();
  };
  std::vector<float> want(2 * kRows * kDv), got(want.size());
  run(1, want);
  const std::size_t peak = run(2, got);
  EXPECT_EQ(got, want);
  const std::size_t of_one = std::size_t{kSpans} * kRows * (kDv + 2) * sizeof(float);
  EXPECT_GT(peak, of_one);
  EXPECT_LT(peak, 2 * of_one) << "the two are computed in turn";
}

INSTANTIATE_TEST_SUITE_P(Isas, Ops, testing::ValuesIn(available_isas()),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

TEST(Workspace, scopes_give_their_memory_back) {
  Workspace workspace;
  std::byte* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    Workspace::Scope scope(workspace);
    std::byte* block = workspace.bytes(1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    if (first == nullptr) first = block;
    EXPECT_EQ(block, first);
    workspace.bytes(std::size_t{5} << 20);
  }
  const std::size_t capacity = workspace.capacity();
  {
    Workspace::Scope scope(workspace);
    workspace.bytes(1000);
    workspace.bytes(std::size_t{5} << 20);
  }
  EXPECT_EQ(workspace.capacity(), capacity);
}

TEST(Workspace, blocks_within_what_was_reserved_lie_together) {
  Workspace workspace;
  workspace.reserve(3000 * 64);
  {
    Workspace::Scope scope(workspace);
    const std::byte* first = workspace.bytes(1000 * 64);
    EXPECT_EQ(workspace.bytes(2000 * 64 - 1), first + 1000 * 64);
  }
  workspace.bytes(64);
  EXPECT_EQ(workspace.capacity(), 3000u * 64);
  EXPECT_EQ(workspace.peak(), 3000u * 64);
  workspace.bytes(3000 * 64);
  EXPECT_EQ(workspace.peak(), 3001u * 64);
}

}  // namespace
}  // namespace glint
