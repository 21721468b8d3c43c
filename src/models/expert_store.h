// The routed experts of a model that is larger than memory: they stay in the checkpoint's files,
// and a bounded part of them is in memory. A few threads read, the engine's thread asks and waits.
// What it gets is what a model with all experts in memory has, bit for bit.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/direct_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "models/expert_usage.h"
#include "models/model.h"
#include "models/streamed_expert.h"
#include "ops/gated_mlp.h"

namespace glint {

// What chooses the experts of a layer, kept for a look ahead from the layer before.
struct ExpertRouter {
  Weight gate;              // [experts, hidden]
  std::vector<float> bias;  // [experts]
  std::vector<float> norm;  // [hidden], in front of the router
};

// What a history of the experts' use calls this checkpoint.
std::string expert_history_name(const Checkpoint& checkpoint);

class ExpertStore final : public ExpertSource {
 public:
  // `options` of the model that is loaded; its streamed_experts are enabled.
  static Result<std::shared_ptr<ExpertStore>> create(std::shared_ptr<const Checkpoint> checkpoint,
                                                     const LoadOptions& options);
  ~ExpertStore() override;

  // ---- While the model is bound

  // Takes the experts of the next sparse layer; returns its number.
  int add_layer(std::vector<StreamedExpert> experts, int experts_per_token);
  void set_router(int layer, ExpertRouter router);
  // Once all layers are known: gets memory, reads the history, and begins to read the experts that
  // were used most.
  Status start();

  // ---- While it runs, from one thread

  struct Want {
    int expert = 0;
    int tokens = 0;  // of the step, that chose it
  };
  // The experts that a step of `tokens` tokens needs of a layer, ascending. They are read from now
  // on; one Use at a time.
  class Use {
   public:
    Use(ExpertStore& store, int layer, int tokens, std::span<const Want> wanted);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // The next of the wanted experts, in their order: those that are in memory, of which there is
    // one at least, for this waits. Valid until the next call. Empty: there are none left, or
    // reading failed.
    std::span<const GatedMlp* const> next();

   private:
    void let_go();
    ExpertStore& store_;
    std::vector<const GatedMlp*> ready_;
    std::vector<int> slots_;  // theirs
  };
  // Null behind the last layer, and where nothing is read ahead.
  const ExpertRouter* router_after(int layer) const;
  // Experts that the next layer will likely need: read when there is nothing better to do, into
  // memory that is likely needed later than they are.
  void expect(int layer, std::span<const std::int32_t> experts);

  ExpertStats stats() const override;
  Status take_failure() override;

 private:
  enum class State { kFree, kReading, kReady };
  struct Load;
  struct Slot {
    State state = State::kFree;
    int layer = -1, expert = -1;
    bool in_use = false;  // of the experts that next() gave
    bool unused = false;  // read ahead, and not asked for since
    std::byte* memory = nullptr;
    GatedMlp mlp;
  };
  // Slots of one size, for the layers whose experts take about that.
  struct Pool {
    std::size_t slot_bytes = 0;
    int first = 0, count = 0;  // of slots_
    AlignedBuffer memory = {};
  };
  struct Layer {
    std::vector<StreamedExpert> experts;
    std::vector<int> slot_of;  // -1: in none
    ExpertRouter router;
    bool has_router = false;
    int pool = 0;
  };
  struct Wish {
    int layer = 0, expert = 0;
  };
  enum class Reason { kWanted, kExpected, kUsedOften };

  ExpertStore(std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options);
  Status open_files();
  void make_pools();
  void read_history();

  void read_until_stopped();
  // All of these with mutex_ held.
  Load* next_load();
  Load* start_load(Wish wish, Reason reason);
  int free_slot(Wish wish, Reason reason);
  int worst_slot(const Pool& pool, int now, bool spare_expected, double* steps) const;
  int position_of(const Slot& slot) const;
  void fail(Error error);
  void drop(Slot& slot);

  Status read_piece(const Load& load, std::size_t extent, std::uint64_t begin, std::uint64_t end);
  void finish(std::unique_lock<std::mutex>& lock, Load& load);

  std::shared_ptr<const Checkpoint> checkpoint_;
  LoadOptions options_;
  QuantConfig quantisation_;
  std::map<const MappedFile*, std::unique_ptr<DirectFile>> files_;
  std::vector<Layer> layers_;
  std::vector<Pool> pools_;
  std::vector<Slot> slots_;
  int experts_per_token_ = 1;
  std::vector<AlignedBuffer> staging_;

  mutable std::mutex mutex_;
  std::condition_variable work_;   // for readers
  std::condition_variable ready_;  // for the engine's thread
  bool stopped_ = false;
  std::vector<std::unique_ptr<Load>> loads_;  // being read, those wanted now first
  std::vector<std::byte*> free_staging_;
  std::unique_ptr<ExpertUsage> usage_;
  // The use at work: its layer, its experts, how many of them next() has passed, and the place of
  // each expert of the layer among them.
  int now_ = 0;
  std::vector<int> wanted_;
  std::size_t cursor_ = 0;
  std::vector<int> position_;  // -1: not wanted, or passed
  std::deque<Wish> expected_;  // ahead of their layer
  int expected_layer_ = -1;
  std::vector<char> is_expected_;
  std::deque<Wish> preload_;  // into slots that are free
  Status failure_;
  ExpertStats stats_;
  double reading_since_ = 0;
  std::vector<std::thread> readers_;
};

}  // namespace glint
