#include "models/expert_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/numa.h"
#include "models/packed_cache.h"

namespace glint {
namespace {

// Requests that a disk has at a time, and bytes of each: what its bandwidth takes.
constexpr int kReaders = 4;
constexpr std::uint64_t kPieceBytes = 1 << 20;
// Buffers for experts that are packed on their way: one is filled while others are packed.
constexpr int kStagingBuffers = 3;
// An expert that is needed and one that is read meanwhile.
constexpr int kFewestSlots = 2;
// Layers whose experts take more than so much less get slots of their own.
constexpr double kSameSize = 0.8;
// Memory is given to a guess only where it is not needed for a round of all layers.
constexpr double kSpareSteps = 1.0;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::byte* aligned(AlignedBuffer& buffer) {
  return reinterpret_cast<std::byte*>(
      round_up(reinterpret_cast<std::uintptr_t>(buffer.data()), kDirectAlignment));
}

}  // namespace

// An expert on its way into a slot.
struct ExpertStore::Load {
  int slot = -1;
  const StreamedExpert* expert = nullptr;
  std::byte* read = nullptr;     // gets the extents
  std::byte* staging = nullptr;  // that is, unless they stay in the slot
  std::size_t extent = 0;        // the next piece
  std::uint64_t offset = 0;      // of it, in the file
  int pieces_in_flight = 0;
  bool ahead = false;
  Status status;

  bool all_taken() const { return extent == expert->extents().size(); }
};

Result<std::shared_ptr<ExpertStore>> ExpertStore::create(
    std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options) {
  GLINT_TRY(QuantConfig quantisation, read_quant_config(*checkpoint));
  std::shared_ptr<ExpertStore> store(new ExpertStore(std::move(checkpoint), options));
  store->quantisation_ = std::move(quantisation);
  return store;
}

ExpertStore::ExpertStore(std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options)
    : checkpoint_(std::move(checkpoint)), options_(options) {
  options_.expert_store = nullptr;  // this
  options_.pool = nullptr;
  options_.progress = {};
}

ExpertStore::~ExpertStore() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
  const auto& streamed = options_.streamed_experts;
  if (streamed.history.empty() || !streamed.keeps_history || stats_.steps == 0) return;
  const Status saved = usage_->save(streamed.history, expert_history_name(*checkpoint_));
  if (!saved) log_warn(fmt::format("the expert history is not kept: {}", saved.error().message));
}

int ExpertStore::add_layer(std::vector<StreamedExpert> experts, int experts_per_token) {
  experts_per_token_ = experts_per_token;
  Layer layer;
  layer.slot_of.assign(experts.size(), -1);
  layer.experts = std::move(experts);
  layers_.push_back(std::move(layer));
  return static_cast<int>(layers_.size()) - 1;
}

void ExpertStore::set_router(int layer, ExpertRouter router) {
  layers_[size(layer)].router = std::move(router);
  layers_[size(layer)].has_router = true;
}

const ExpertRouter* ExpertStore::router_after(int layer) const {
  if (!options_.streamed_experts.read_ahead || layer + 1 == static_cast<int>(layers_.size()))
    return nullptr;
  const Layer& next = layers_[size(layer + 1)];
  return next.has_router ? &next.router : nullptr;
}

Status ExpertStore::start() {
  std::vector<int> num_experts;
  for (const Layer& layer : layers_) {
    num_experts.push_back(static_cast<int>(layer.experts.size()));
    stats_.num_experts += layer.experts.size();
  }
  usage_ = std::make_unique<ExpertUsage>(num_experts, experts_per_token_);
  if (layers_.empty()) return {};
  GLINT_TRY_VOID(open_files());
  make_pools();
  read_history();
  for (int i = 0; i < kReaders; ++i) readers_.emplace_back([this] { read_until_stopped(); });
  return {};
}

Status ExpertStore::open_files() {
  for (const Layer& layer : layers_) {
    for (const StreamedExpert& expert : layer.experts) {
      for (const FileExtent& extent : expert.extents()) {
        auto& file = files_[extent.file.get()];
        if (file != nullptr) continue;
        GLINT_TRY(file, DirectFile::open(extent.file->path()));
        if (!file->is_direct())
          log_info(
              fmt::format("{}: the file system has no direct reads; those of experts go "
                          "through its cache",
                          file->path().string()));
      }
    }
  }
  return {};
}

void ExpertStore::make_pools() {
  // Bytes of the largest expert of each layer, and of all of them.
  std::vector<std::pair<std::size_t, int>> sizes;
  std::size_t staging_bytes = 0;
  for (int l = 0; l < static_cast<int>(layers_.size()); ++l) {
    std::size_t most = 0;
    for (const StreamedExpert& expert : layers_[size(l)].experts) {
      most = std::max(most, expert.slot_bytes());
      if (!expert.in_place()) staging_bytes = std::max(staging_bytes, expert.read_bytes());
    }
    sizes.emplace_back(round_up(most, kDirectAlignment), l);
  }
  std::ranges::sort(sizes, std::greater());
  std::vector<std::uint64_t> num_experts;  // of each pool
  std::uint64_t total = 0;
  for (const auto& [slot_bytes, l] : sizes) {
    if (pools_.empty() || static_cast<double>(slot_bytes) <
                              kSameSize * static_cast<double>(pools_.back().slot_bytes)) {
      pools_.push_back({.slot_bytes = slot_bytes});
      num_experts.push_back(0);
    }
    layers_[size(l)].pool = static_cast<int>(pools_.size()) - 1;
    num_experts.back() += layers_[size(l)].experts.size();
    total += layers_[size(l)].experts.size() * pools_.back().slot_bytes;
  }
  for (int i = 0; staging_bytes > 0 && i < kStagingBuffers; ++i) {
    staging_.emplace_back(staging_bytes + kDirectAlignment);
    stats_.memory_bytes += staging_.back().size();
    free_staging_.push_back(aligned(staging_.back()));
  }
  const std::uint64_t budget = options_.streamed_experts.cache_bytes;
  const std::uint64_t room = budget - std::min<std::uint64_t>(budget, stats_.memory_bytes);
  for (std::size_t p = 0; p < pools_.size(); ++p) {
    Pool& pool = pools_[p];
    const double share = static_cast<double>(num_experts[p] * pool.slot_bytes) /
                         static_cast<double>(total) * static_cast<double>(room);
    const auto fit = static_cast<std::uint64_t>(share) / pool.slot_bytes;
    pool.first = static_cast<int>(slots_.size());
    pool.count =
        static_cast<int>(std::min(num_experts[p], std::max<std::uint64_t>(kFewestSlots, fit)));
    pool.memory = AlignedBuffer(size(pool.count) * pool.slot_bytes + kDirectAlignment);
    if (options_.interleave) {
      const Status spread = interleave_memory(pool.memory.data(), pool.memory.size());
      if (!spread) log_warn(spread.error().message);
    }
    for (int i = 0; i < pool.count; ++i) {
      slots_.emplace_back();
      slots_.back().memory = aligned(pool.memory) + size(i) * pool.slot_bytes;
    }
    stats_.memory_bytes += pool.memory.size();
  }
  stats_.num_slots = slots_.size();
}

std::string expert_history_name(const Checkpoint& checkpoint) {
  PackedKeyBuilder builder;
  builder.add(checkpoint.config().dump());
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    builder.add(name);
    builder.add(tensor.bytes.size());
  }
  const PackedKey key = builder.key();
  return fmt::format("{:016x}{:016x}", key.first, key.second);
}

void ExpertStore::read_history() {
  const std::filesystem::path& path = options_.streamed_experts.history;
  if (path.empty()) return;
  const Status loaded = usage_->load(path, expert_history_name(*checkpoint_));
  if (!loaded) {
    if (loaded.error().code != ErrorCode::kNotFound)
      log_info(fmt::format("the expert history is not used: {}", loaded.error().message));
    return;
  }
  std::vector<int> room;
  for (const Pool& pool : pools_) room.push_back(pool.count);
  for (const ExpertUsage::Place& place : usage_->by_share()) {
    if (room[size(layers_[size(place.layer)].pool)]-- > 0)
      preload_.push_back({place.layer, place.expert});
  }
}

// ---- Who stays in memory

// Its place among the wanted ones that are still to come, or none.
int ExpertStore::position_of(const Slot& slot) const {
  if (slot.layer != now_ || slot.expert < 0 || position_.empty()) return -1;
  return position_[size(slot.expert)];
}

// The slot whose expert is needed last, but for those of the step at work; -1: there is none.
int ExpertStore::worst_slot(const Pool& pool, int now, bool spare_expected, double* steps) const {
  int worst = -1;
  *steps = -1;
  for (int i = pool.first; i < pool.first + pool.count; ++i) {
    const Slot& slot = slots_[size(i)];
    if (slot.state != State::kReady || slot.in_use || position_of(slot) >= 0) continue;
    if (spare_expected && slot.layer == expected_layer_ && is_expected_[size(slot.expert)] != 0)
      continue;
    const double until = usage_->steps_to_next_use(slot.layer, slot.expert, now);
    if (until <= *steps) continue;
    *steps = until;
    worst = i;
  }
  return worst;
}

// A slot for the expert, whose present one is given up; -1: it is not worth that, or has to wait.
int ExpertStore::free_slot(Wish wish, Reason reason) {
  const Pool& pool = pools_[size(layers_[size(wish.layer)].pool)];
  for (int i = pool.first; i < pool.first + pool.count; ++i) {
    if (slots_[size(i)].state == State::kFree) return i;
  }
  if (reason == Reason::kUsedOften) return -1;
  double steps = 0;
  int found = worst_slot(pool, now_, true, &steps);
  if (reason == Reason::kExpected) return steps > kSpareSteps ? found : -1;
  if (found < 0) found = worst_slot(pool, now_, false, &steps);
  if (found >= 0) return found;
  // Only wanted ones are left: the last of them, unless that would come first.
  int last = position_[size(wish.expert)];
  for (int i = pool.first; i < pool.first + pool.count; ++i) {
    const Slot& slot = slots_[size(i)];
    if (slot.state != State::kReady || slot.in_use || position_of(slot) <= last) continue;
    last = position_of(slot);
    found = i;
  }
  return found;
}

void ExpertStore::drop(Slot& slot) {
  if (slot.expert >= 0) layers_[size(slot.layer)].slot_of[size(slot.expert)] = -1;
  slot.layer = slot.expert = -1;
  slot.state = State::kFree;
  slot.unused = false;
}

// ---- Reading

ExpertStore::Load* ExpertStore::start_load(Wish wish, Reason reason) {
  Layer& layer = layers_[size(wish.layer)];
  const StreamedExpert& expert = layer.experts[size(wish.expert)];
  if (!expert.in_place() && free_staging_.empty()) return nullptr;
  const int index = free_slot(wish, reason);
  if (index < 0) return nullptr;
  Slot& slot = slots_[size(index)];
  drop(slot);
  slot.state = State::kReading;
  slot.layer = wish.layer;
  slot.expert = wish.expert;
  layer.slot_of[size(wish.expert)] = index;

  auto load = std::make_unique<Load>();
  load->slot = index;
  load->expert = &expert;
  load->ahead = reason == Reason::kExpected;
  load->offset = expert.extents().front().begin;
  if (expert.in_place()) {
    load->read = slot.memory + expert.made_bytes();
  } else {
    load->staging = free_staging_.back();
    free_staging_.pop_back();
    load->read = load->staging;
  }
  if (loads_.empty()) reading_since_ = now_seconds();
  ++stats_.reads;
  if (load->ahead) ++stats_.reads_ahead;
  if (reason == Reason::kWanted) ++stats_.misses;
  loads_.push_back(std::move(load));
  return loads_.back().get();
}

// What to read next: the rest of what is wanted and begun, then what is wanted, the rest of
// guesses, what is expected, what was used often.
ExpertStore::Load* ExpertStore::next_load() {
  constexpr int kLast = std::numeric_limits<int>::max();
  Load* best = nullptr;
  int best_position = 0;
  for (const auto& load : loads_) {
    if (load->all_taken()) continue;
    int position = position_of(slots_[size(load->slot)]);
    if (position < 0) position = kLast;
    if (best != nullptr && position >= best_position) continue;
    best = load.get();
    best_position = position;
  }
  if (best != nullptr && best_position < kLast) return best;
  const auto is_absent = [this](int layer, int expert) {
    return layers_[size(layer)].slot_of[size(expert)] < 0;
  };
  for (std::size_t i = cursor_; i < wanted_.size(); ++i) {
    if (!is_absent(now_, wanted_[i])) continue;
    Load* load = start_load({now_, wanted_[i]}, Reason::kWanted);
    return load != nullptr ? load : best;  // those behind it wait
  }
  if (best != nullptr) return best;
  for (const Reason reason : {Reason::kExpected, Reason::kUsedOften}) {
    std::deque<Wish>& wishes = reason == Reason::kExpected ? expected_ : preload_;
    for (; !wishes.empty(); wishes.pop_front()) {
      const Wish wish = wishes.front();
      if (!is_absent(wish.layer, wish.expert)) continue;
      if (!staging_.empty() && free_staging_.empty()) return nullptr;  // later
      Load* load = start_load(wish, reason);
      if (load != nullptr) return load;
    }
  }
  return nullptr;
}

void ExpertStore::read_until_stopped() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    Load* load = next_load();
    if (load == nullptr) {
      work_.wait(lock);
      continue;
    }
    const std::size_t extent = load->extent;
    const std::uint64_t begin = load->offset;
    const std::uint64_t end = std::min(begin + kPieceBytes, load->expert->extents()[extent].end);
    load->offset = end;
    if (end == load->expert->extents()[extent].end &&
        ++load->extent != load->expert->extents().size())
      load->offset = load->expert->extents()[load->extent].begin;
    ++load->pieces_in_flight;
    lock.unlock();
    Status read = read_piece(*load, extent, begin, end);
    lock.lock();
    if (!read && load->status) load->status = std::move(read);
    stats_.bytes_read += end - begin;
    if (--load->pieces_in_flight == 0 && load->all_taken()) finish(lock, *load);
  }
}

Status ExpertStore::read_piece(const Load& load, std::size_t extent_index, std::uint64_t begin,
                               std::uint64_t end) {
  const FileExtent& extent = load.expert->extents()[extent_index];
  const DirectFile& file = *files_.at(extent.file.get());
  const auto got = file.read(begin, static_cast<std::size_t>(end - begin),
                             load.read + extent.at + (begin - extent.begin));
  if (!got) {
    return io_error(
        fmt::format("tensor {}: {}", load.expert->tensor_at(extent, begin), got.error().message));
  }
  const std::uint64_t there = std::min<std::uint64_t>(end, extent.file->bytes().size());
  if (begin + *got >= there) return {};
  return corrupt(fmt::format("{} ends inside tensor {}: was it truncated? Fetch it again",
                             file.path().string(), load.expert->tensor_at(extent, begin + *got)));
}

// Makes the weights of what was read.
void ExpertStore::finish(std::unique_lock<std::mutex>& lock, Load& load) {
  Slot& slot = slots_[size(load.slot)];
  Status status = std::move(load.status);
  if (status) {
    lock.unlock();
    auto made = load.expert->make(quantisation_, options_, load.read, slot.memory);
    lock.lock();
    if (made) {
      slot.mlp = std::move(*made);
      slot.state = State::kReady;
      slot.unused = load.ahead;
    } else {
      status = made.error();
    }
  }
  if (!status) {
    // A guess that fails is nobody's loss: who needs the expert will try again.
    if (position_of(slot) >= 0) fail(std::move(status).error());
    drop(slot);
  }
  if (load.staging != nullptr) free_staging_.push_back(load.staging);
  std::erase_if(loads_, [&](const auto& other) { return other.get() == &load; });
  if (loads_.empty()) stats_.read_seconds += now_seconds() - reading_since_;
  work_.notify_all();
  ready_.notify_all();
}

// The use at work ends.
void ExpertStore::fail(Error error) {
  log_error(fmt::format("reading experts failed: {}", error.message));
  if (failure_) failure_ = std::move(error);
  cursor_ = wanted_.size();
}

// ---- Asking

ExpertStore::Use::Use(ExpertStore& store, int layer, int tokens, std::span<const Want> wanted)
    : store_(store) {
  ready_.reserve(wanted.size());
  {
    const std::lock_guard lock(store.mutex_);
    store.now_ = layer;
    store.cursor_ = 0;
    store.wanted_.clear();
    store.position_.assign(store.layers_[size(layer)].experts.size(), -1);
    store.usage_->begin_step(layer, tokens);
    for (const Want& want : wanted) {
      store.position_[size(want.expert)] = static_cast<int>(store.wanted_.size());
      store.wanted_.push_back(want.expert);
      store.usage_->use(layer, want.expert, want.tokens);
    }
    store.expected_.clear();
    store.expected_layer_ = -1;
    if (layer == 0) ++store.stats_.steps;
  }
  store.work_.notify_all();
}

ExpertStore::Use::~Use() {
  const std::lock_guard lock(store_.mutex_);
  let_go();
  store_.wanted_.clear();
  store_.position_.clear();
  store_.cursor_ = 0;
}

void ExpertStore::Use::let_go() {
  for (const int slot : slots_) store_.slots_[size(slot)].in_use = false;
  slots_.clear();
  ready_.clear();
}

std::span<const GatedMlp* const> ExpertStore::Use::next() {
  std::unique_lock lock(store_.mutex_);
  let_go();
  store_.work_.notify_all();
  Layer& layer = store_.layers_[size(store_.now_)];
  const auto slot_at = [&](std::size_t position) -> Slot* {
    const int index = layer.slot_of[size(store_.wanted_[position])];
    if (index < 0 || store_.slots_[size(index)].state != State::kReady) return nullptr;
    return &store_.slots_[size(index)];
  };
  const auto is_there = [&] {
    return store_.cursor_ == store_.wanted_.size() || slot_at(store_.cursor_) != nullptr;
  };
  if (!is_there()) {
    const double began = now_seconds();
    store_.ready_.wait(lock, is_there);
    store_.stats_.wait_seconds += now_seconds() - began;
  }
  // Half of the memory is for those that are read meanwhile.
  const auto most = size(std::max(1, store_.pools_[size(layer.pool)].count / 2));
  for (std::size_t& at = store_.cursor_; at < store_.wanted_.size() && ready_.size() < most; ++at) {
    Slot* slot = slot_at(at);
    if (slot == nullptr) break;
    slot->in_use = true;
    if (slot->unused) ++store_.stats_.reads_ahead_used;
    slot->unused = false;
    store_.position_[size(slot->expert)] = -1;
    ready_.push_back(&slot->mlp);
    slots_.push_back(static_cast<int>(slot - store_.slots_.data()));
    ++store_.stats_.uses;
  }
  return ready_;
}

void ExpertStore::expect(int layer, std::span<const std::int32_t> experts) {
  {
    const std::lock_guard lock(mutex_);
    const Layer& next = layers_[size(layer)];
    expected_layer_ = layer;
    is_expected_.assign(next.experts.size(), 0);
    expected_.clear();
    for (const std::int32_t expert : experts) {
      if (std::exchange(is_expected_[size(expert)], 1) == 0 && next.slot_of[size(expert)] < 0)
        expected_.push_back({layer, expert});
    }
  }
  work_.notify_all();
}

ExpertStats ExpertStore::stats() const {
  const std::lock_guard lock(mutex_);
  ExpertStats stats = stats_;
  if (!loads_.empty()) stats.read_seconds += now_seconds() - reading_since_;
  return stats;
}

Status ExpertStore::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, Status());
}

}  // namespace glint
