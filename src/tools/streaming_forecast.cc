#include "tools/streaming_forecast.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/aligned.h"
#include "base/direct_file.h"
#include "models/expert_store.h"
#include "models/expert_usage.h"

namespace glint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = 1 << 20;
constexpr int kThreads = 4;  // both as the expert store reads
constexpr auto kProbeTime = std::chrono::milliseconds(500);

std::uint64_t num_sparse_layers(const ModelInfo& info, const MemoryPlan& plan) {
  return info.num_experts == 0 ? 0
                               : plan.num_experts / static_cast<std::uint64_t>(info.num_experts);
}

// Places of pieces, all alike.
struct Place {
  const DirectFile* file;
  std::uint64_t offset;
};

}  // namespace

ExpectedHits expected_hits(const Checkpoint& checkpoint, const ModelInfo& info,
                           const MemoryPlan& plan, const std::filesystem::path& history) {
  const auto slots = static_cast<double>(plan.num_slots);
  const ExpectedHits even{plan.num_experts == 0 ? 0 : slots / static_cast<double>(plan.num_experts),
                          "experts chosen alike"};
  if (history.empty()) return even;
  ExpertUsage usage(
      std::vector<int>(static_cast<std::size_t>(num_sparse_layers(info, plan)), info.num_experts),
      info.experts_per_token);
  if (!usage.load(history, expert_history_name(checkpoint)) || !usage.has_history()) return even;
  double all = 0, kept = 0;
  std::uint64_t count = 0;
  for (const ExpertUsage::Place& place : usage.by_share()) {
    const double share = usage.share(place.layer, place.expert);
    all += share;
    if (count++ < plan.num_slots) kept += share;
  }
  if (all == 0) return even;
  return {kept / all, "the history " + history.string()};
}

double StreamingForecast::tokens_per_s(double memory_bytes_per_s, double disk_bytes_per_s) const {
  if (memory_bytes_per_s <= 0 || disk_bytes_per_s <= 0) return 0;
  return 1 / (memory_bytes / memory_bytes_per_s + disk_bytes / disk_bytes_per_s);
}

StreamingForecast forecast_streaming(const ModelInfo& info, const std::vector<PlacedGroup>& weights,
                                     double hit_rate) {
  StreamingForecast forecast;
  double matrices = 0;
  for (const PlacedGroup& group : weights) {
    if (group.stored.part != WeightPart::kExperts) continue;
    matrices += static_cast<double>(group.stored.count);
    forecast.disk_bytes += static_cast<double>(group.stored.nbytes * group.stored.count) *
                           share_read(info, WeightPart::kExperts, 1) * (1 - hit_rate);
  }
  forecast.memory_bytes = bytes_read(info, weights, 1);
  if (info.num_experts > 0 && matrices > 0)
    forecast.disk_burst = forecast.disk_bytes / (matrices / 3 / info.num_experts);
  return forecast;
}

Result<double> disk_bandwidth(const Checkpoint& checkpoint, double burst) {
  std::set<const MappedFile*> mapped;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.file != nullptr) mapped.insert(tensor.file.get());
  }
  std::vector<std::unique_ptr<DirectFile>> files;
  std::vector<std::uint64_t> pieces_of;
  for (const MappedFile* file : mapped) {
    GLINT_TRY(auto direct, DirectFile::open(file->path()));
    files.push_back(std::move(direct));
    pieces_of.push_back(std::max<std::uint64_t>(1, file->bytes().size() / kPiece));
  }
  if (files.empty()) return not_found("there are no weights to read");
  // A burst is a row of pieces, which the threads share; all wait for its end.
  const auto per_burst = static_cast<std::uint64_t>(std::max(1.0, burst / kPiece));
  std::mt19937_64 random(1);
  std::size_t file = 0;
  std::uint64_t first = 0, bytes = 0;
  std::atomic<std::uint64_t> next{0}, read{0};
  bool done = false;
  Status status;
  std::mutex mutex;
  const auto begin_burst = [&]() noexcept {
    file = random() % files.size();
    first = random() % pieces_of[file];
    next = 0;
  };
  const auto began = Clock::now();
  begin_burst();
  std::barrier barrier(kThreads, [&]() noexcept {
    done = Clock::now() - began > kProbeTime || !status;
    begin_burst();
  });
  const auto work = [&] {
    AlignedBuffer buffer(kPiece + kDirectAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    std::byte* to = buffer.data() + (kDirectAlignment - address % kDirectAlignment);
    while (!done) {
      for (std::uint64_t i = next++; i < per_burst; i = next++) {
        const auto got = files[file]->read((first + i) % pieces_of[file] * kPiece, kPiece, to);
        if (got) {
          read += *got;
        } else {
          const std::lock_guard lock(mutex);
          status = got.error();
        }
      }
      barrier.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(work);
  }
  GLINT_TRY_VOID(std::move(status));
  bytes = read;
  return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - began).count();
}

}  // namespace glint
