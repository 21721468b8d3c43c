// Decode attention over the cache's formats: one query of some heads over latents that lie layer
// after layer in memory, more of them than any processor cache holds. The formats take turns with
// --benchmark_enable_random_interleaving=true --benchmark_repetitions=7.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/isa.h"
#include "ops/attention.h"

namespace glint {
namespace {

constexpr int kKeys = 32768, kHeads = 20, kKeyWidth = 576, kValueWidth = 512;  // GLM-4.7-Flash
constexpr int kLayers = 7;                                                     // 264 MB in bf16
constexpr int kDifferentRows = 512;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

std::vector<std::byte> random_rows(const KernelTable& table, const CacheRows& rows) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const std::size_t bytes = rows.bytes(kKeyWidth);
  std::vector<std::byte> out(bytes * size(kKeys * kLayers) + 64);
  std::vector<float> x(kKeyWidth);
  for (int row = 0; row < kKeys * kLayers; ++row) {
    std::byte* to = out.data() + size(row) * bytes;
    if (row >= kDifferentRows) {
      std::memcpy(to, out.data() + size(row % kDifferentRows) * bytes, bytes);
      continue;
    }
    for (float& value : x) value = normal(random);
    rows.store(table, x.data(), kKeyWidth, to);
  }
  return out;
}

void decode(benchmark::State& state, Isa isa, RowFormat format) {
  const KernelTable& table = kernel_table(isa);
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  Workspace workspace;
  Exec exec{table, pool, workspace};
  const CacheRows rows{format, Compute::kBf16};
  const std::size_t bytes = rows.bytes(kKeyWidth);
  const std::vector<std::byte> memory = random_rows(table, rows);
  std::vector<const std::byte*> pages;
  for (int row = 0; row < kKeys * kLayers; row += kAttendPage)
    pages.push_back(memory.data() + size(row) * bytes);
  const std::vector<bf16> q(size(kHeads * kKeyWidth), bf16::from_float(0.1f));
  std::vector<float> out(size(kHeads * kValueWidth));
  for (auto unused : state) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::span of_layer =
          std::span(pages).subspan(size(layer * kKeys / kAttendPage), size(kKeys / kAttendPage));
      AttentionJob job;
      job.q = q.data();
      job.q_row_stride = kKeyWidth;
      job.q_stride = q.size();
      job.num_queries = 1;
      job.rows_per_query = kHeads;
      job.start = kKeys - 1;
      job.kv = {of_layer, bytes, of_layer, bytes};
      job.dk = kKeyWidth;
      job.dv = kValueWidth;
      job.scale = 0.05f;
      job.out = out.data();
      job.out_row_stride = kValueWidth;
      job.out_stride = out.size();
      attend(exec, rows, {&job, 1});
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(memory.size()));
}

}  // namespace
}  // namespace glint

int main(int argc, char** argv) {
  using namespace glint;
  for (const Isa isa : available_isas()) {
    if (isa == Isa::kScalar) continue;
    for (const RowFormat format : {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kFp4}) {
      benchmark::RegisterBenchmark(
          fmt::format("decode_7_layers_20_heads_32768_keys/{}/{}", isa_name(isa),
                      row_format_name(format))
              .c_str(),
          [isa, format](benchmark::State& state) { decode(state, isa, format); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
