// Speed of one thread's kernels, per instruction set of this machine: bytes per second where memory
// is the limit (one row), operations per second where arithmetic is (many rows, attention).
//
//   cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DGLINT_BENCH=ON && cmake --build
//   build/bench --target kernels_bench build/bench/kernels_bench --benchmark_repetitions=5
//   --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "kernels/table.h"
#include "tensor/panel.h"

namespace glint {
namespace {

constexpr std::size_t kBeyondCaches = 768u << 20;

// Small numbers of either sign, quickly: what they are does not matter, that they are ordinary
// floats and bfloat16 does.
AlignedBuffer fill(std::size_t nbytes) {
  AlignedBuffer buffer(nbytes);
  std::uint32_t state = 1;
  auto* out = buffer.as<std::uint32_t>();
  for (std::size_t i = 0; i < nbytes / 4; ++i) {
    state = state * 1664525u + 1013904223u;
    // Sign and fraction are random, the exponent makes the size 1/64 to 1/32.
    out[i] = (state & 0x807f807fu) | 0x3c803c80u;
  }
  return buffer;
}

void read_memory(benchmark::State& state, const AlignedBuffer& memory) {
  const auto* words = memory.as<std::uint64_t>();
  const std::size_t count = memory.size() / 8;
  for (auto _ : state) {
    std::uint64_t sums[16] = {};
    for (std::size_t i = 0; i + 16 <= count; i += 16) {
      for (std::size_t lane = 0; lane < 16; ++lane) sums[lane] += words[i + lane];
    }
    benchmark::DoNotOptimize(sums);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(memory.size()));
}

struct Product {
  MatmulKernels KernelTable::* kernels = nullptr;
  DType weights = DType::kBf16;  // a block type: as panels
  int rows = 1;
  int k = 0;
  int n = 0;
  bool from_memory = false;  // another matrix each time; else the same one
};

void matmul(benchmark::State& state, Isa isa, const Product& p, const AlignedBuffer& weights) {
  const KernelTable& table = kernel_table(isa);
  const MatmulKernels& kernels = table.*p.kernels;
  const bool low_bit = is_block_type(p.weights);
  const auto k = static_cast<std::size_t>(p.k);
  const std::size_t stride =
      low_bit ? panel_format(p.weights).panel_bytes(k) : k * dtype_bytes(p.weights);
  const std::size_t matrix_bytes =
      stride * static_cast<std::size_t>(low_bit ? p.n / kPanelRows : p.n);
  const std::size_t matrices = p.from_memory ? weights.size() / matrix_bytes : 1;
  const AlignedBuffer x =
      fill(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.k) * 4);
  AlignedBuffer packed(kernels.packed_bytes(p.rows, p.k));
  AlignedBuffer y(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.n) * 4);
  AlignedBuffer scratch(std::max<std::size_t>(64, kernels.scratch_bytes(p.k)));
  kernels.pack(x.as<float>(), static_cast<std::size_t>(p.k), nullptr, p.rows, p.k, packed.data());
  MatmulArgs a;
  a.x = packed.data();
  a.rows = p.rows;
  a.k = p.k;
  a.w_stride = stride;
  const std::vector<float> scales(k / 128 * static_cast<std::size_t>((p.n + 127) / 128), 0.01f);
  a.grid = {scales.data(), 128, 128, k / 128};
  if (low_bit) {
    a.source.product =
        table.panel_int8[static_cast<int>(p.weights) - static_cast<int>(kFirstBlockType)];
  }
  a.n1 = p.n;
  a.y = y.as<float>();
  a.y_stride = static_cast<std::size_t>(p.n);
  a.scratch = scratch.data();
  std::size_t next = 0;
  for (auto _ : state) {
    a.w = weights.data() + matrix_bytes * (next++ % matrices);
    kernels.matmul(a);
    benchmark::ClobberMemory();
  }
  const double operations = 2.0 * p.rows * p.k * p.n * static_cast<double>(state.iterations());
  state.counters["flop/s"] = benchmark::Counter(operations, benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(matrix_bytes));
}

// One token of latent attention: all heads against one cache of `keys` latents, span after span.
void attend(benchmark::State& state, Isa isa, bool is_bf16, int rows, int keys, int dk, int dv) {
  const KernelTable& table = kernel_table(isa);
  const AttendKernels& kernels = is_bf16 ? table.attend_bf16 : table.attend_f32;
  const std::size_t element = is_bf16 ? 2 : 4;
  const std::size_t stride = static_cast<std::size_t>(dk) * element;
  const AlignedBuffer cache = fill(stride * static_cast<std::size_t>(keys));
  const AlignedBuffer q = fill(stride * static_cast<std::size_t>(rows));
  std::vector<const std::byte*> pages;
  for (int key = 0; key < keys; key += 64)
    pages.push_back(cache.data() + static_cast<std::size_t>(key) * stride);
  AlignedBuffer scratch(std::max<std::size_t>(64, kernels.scratch_bytes(rows, dk, dv)));
  const auto n = static_cast<std::size_t>(rows);
  std::vector<float> max(2 * n), sum(2 * n), out(2 * n * static_cast<std::size_t>(dv));
  const std::vector<std::int32_t> visible(n, kAttendSpan);
  AttendArgs a;
  a.q = q.data();
  a.q_stride = static_cast<std::size_t>(dk);
  a.rows = rows;
  a.visible = visible.data();
  a.num_keys = kAttendSpan;
  a.k_stride = a.v_stride = stride;
  a.dk = dk;
  a.dv = dv;
  a.scale = 0.0625f;
  a.out_stride = static_cast<std::size_t>(dv);
  a.scratch = scratch.data();
  for (auto _ : state) {
    for (int span = 0; span < keys / kAttendSpan; ++span) {
      const std::size_t half = span == 0 ? 0 : 1;
      a.k_pages = a.v_pages = pages.data() + span * (kAttendSpan / 64);
      a.max = max.data() + half * n;
      a.sum = sum.data() + half * n;
      a.out = out.data() + half * n * a.out_stride;
      kernels.attend(a);
      if (span > 0) {
        table.attend_merge(rows, dv, max.data(), sum.data(), out.data(), a.out_stride, a.max, a.sum,
                           a.out, a.out_stride);
      }
    }
    benchmark::ClobberMemory();
  }
  const double operations = 2.0 * rows * keys * (dk + dv) * static_cast<double>(state.iterations());
  state.counters["flop/s"] = benchmark::Counter(operations, benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(cache.size()));
}

// Delta attention of `heads` heads of 128: `rows` tokens from the start of a block on, folded after
// a whole one. The states of many layers, so that they come from memory.
void delta_attention(benchmark::State& state, Isa isa, int heads, int rows) {
  constexpr int kDim = 128;
  constexpr std::size_t kBlockFloats = std::size_t{kKdaBlock} * kDim, kStateFloats = kDim * kDim;
  const KdaKernels& kernels = kernel_table(isa).kda;
  const std::size_t num_states = std::size_t{16} * static_cast<std::size_t>(heads);
  AlignedBuffer states = fill(num_states * kStateFloats * 4);
  const AlignedBuffer inputs = fill(5 * kBlockFloats * 4);
  AlignedBuffer u = fill(kBlockFloats * 4), o(kBlockFloats * 4),
                scratch(kernels.scratch_bytes(kDim));
  const float* in = inputs.as<float>();
  KdaRowsArgs a;
  a.head_dim = kDim;
  a.first = rows == 1 ? kKdaBlock / 2 : 0;
  a.count = rows;
  a.k = in;
  a.decay = in + kBlockFloats;
  a.q = in + 2 * kBlockFloats;
  a.v = in + 3 * kBlockFloats;
  a.beta = in + 4 * kBlockFloats;
  a.u = u.as<float>();
  a.o = o.as<float>();
  a.scratch = scratch.data();
  std::size_t next = 0;
  for (auto _ : state) {
    for (int head = 0; head < heads; ++head) {
      float* s = states.as<float>() + kStateFloats * (next++ % num_states);
      a.s = s;
      kernels.rows(a);
      if (rows == kKdaBlock) kernels.fold({kDim, s, a.k, a.decay, a.u, s, scratch.data()});
    }
    benchmark::ClobberMemory();
  }
  const double products = rows == kKdaBlock ? 3 : 2;  // of every row with a state's values
  state.counters["flop/s"] = benchmark::Counter(
      2 * products * rows * heads * kStateFloats * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * heads * static_cast<std::int64_t>(kStateFloats * 4));
}

void register_isa(Isa isa, const AlignedBuffer& weights) {
  const std::string name(isa_name(isa));
  const auto add = [&](const std::string& what, const Product& p) {
    benchmark::RegisterBenchmark(
        (what + "/" + name).c_str(),
        [isa, p, &weights](benchmark::State& state) { matmul(state, isa, p, weights); });
  };
  add("one_row_bf16_2048x1536_in_cache", {&KernelTable::bf16, DType::kBf16, 1, 2048, 1536, false});
  add("one_row_bf16_2048x1536_from_memory",
      {&KernelTable::bf16, DType::kBf16, 1, 2048, 1536, true});
  add("one_row_bf16_1536x2048_from_memory",
      {&KernelTable::bf16, DType::kBf16, 1, 1536, 2048, true});
  add("one_row_bf16_2048x154880_from_memory",
      {&KernelTable::bf16, DType::kBf16, 1, 2048, 154880, true});
  add("one_row_f32_2048x1536_from_memory", {&KernelTable::f32, DType::kF32, 1, 2048, 1536, true});
  constexpr DType kStored[] = {DType::kBf16,   DType::kF8E4M3, DType::kInt4B, DType::kUint4H,
                               DType::kUint4F, DType::kInt8B,  DType::kNVFP4, DType::kQ4_0};
  for (const DType type : kStored) {
    const std::string what = std::string(dtype_name(type)) + "_2048x4096";
    const auto kernels = type == DType::kBf16     ? &KernelTable::bf16
                         : type == DType::kF8E4M3 ? &KernelTable::f8
                                                  : &KernelTable::int8;
    add("stored_1_" + what, {kernels, type, 1, 2048, 4096, true});
    for (const int rows : {2, 4, 8, 16, 32, 512})
      add("stored_" + std::to_string(rows) + "_" + what,
          {kernels, type, rows, 2048, 4096, rows < 64});
  }
  for (const int rows : {2, 4, 8, 16, 64, 512}) {
    add("rows_" + std::to_string(rows) + "_bf16_2048x1536",
        {&KernelTable::bf16, DType::kBf16, rows, 2048, 1536, false});
  }
  add("rows_64_bf16_f32_2048x1536", {&KernelTable::bf16_f32, DType::kBf16, 64, 2048, 1536, false});
  add("rows_64_f32_2048x1536", {&KernelTable::f32, DType::kF32, 64, 2048, 1536, false});
  for (const int rows : {1, kKdaBlock}) {
    benchmark::RegisterBenchmark(
        ("delta_attention_64_heads_" + std::to_string(rows) + "_rows/" + name).c_str(),
        [isa, rows](benchmark::State& s) { delta_attention(s, isa, 64, rows); });
  }
  for (const bool is_bf16 : {true, false}) {
    const std::string type = is_bf16 ? "bf16" : "f32";
    benchmark::RegisterBenchmark(
        ("attend_latent_20_rows_4096_keys_" + type + "/" + name).c_str(),
        [isa, is_bf16](benchmark::State& s) { attend(s, isa, is_bf16, 20, 4096, 576, 512); });
    benchmark::RegisterBenchmark(
        ("attend_heads_64_rows_4096_keys_" + type + "/" + name).c_str(),
        [isa, is_bf16](benchmark::State& s) { attend(s, isa, is_bf16, 64, 4096, 256, 256); });
  }
}

}  // namespace
}  // namespace glint

int main(int argc, char** argv) {
  const glint::AlignedBuffer memory = glint::fill(glint::kBeyondCaches);
  benchmark::RegisterBenchmark(
      "read_memory", [&memory](benchmark::State& state) { glint::read_memory(state, memory); });
  for (const glint::Isa isa : glint::available_isas()) glint::register_isa(isa, memory);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
