// The engine: one thread that owns scheduler, sequences and caches, and runs the model step by step
// over whatever is there (continuous batching, chunked prefill). submit() and cancel() are the only
// doors, and are safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "cache/cache.h"
#include "engine/request.h"
#include "models/model.h"

namespace glint {

// Whether a model's draft layer guesses tokens ahead, several of which one step then verifies. What
// is generated is the same with every mode.
enum class DraftMode { kOff, kFixed, kAuto };
std::string_view draft_mode_name(DraftMode mode);  // "off", "fixed", "auto"

struct EngineOptions {
  int context = 4096;          // longest prompt + completion of one sequence
  int max_sequences = 8;       // running at once
  int max_batch_tokens = 512;  // tokens of one step: decode tokens first, then prefill chunks
  // The same while one sequence is all there is, and nobody waits for the step to end; 0:
  // max_batch_tokens. Experts and expanded keys cost less a token in longer chunks.
  int max_alone_tokens = 0;
  int max_queue = 256;       // waiting; beyond it submit() fails with kExhausted
  bool prefix_reuse = true;  // Engine sets it to what its cache does
  bool by_priority = false;  // GenerateRequest::priority orders who waits; else arrival does
  DraftMode draft_mode = DraftMode::kOff;  // Engine makes it kOff for a model that cannot
  int num_drafts = 0;                      // with kFixed, in 1 .. DraftPolicy::kMaxDrafts
};

// Tokens of the steps so far: counts[i] steps had at most kBounds[i], the last one any number.
struct BatchHistogram {
  static constexpr std::array<int, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                  512, 1024, 2048, 4096, 8192, 16384};
  std::array<std::uint64_t, kBounds.size() + 1> counts = {};  // not cumulative
  std::uint64_t sum = 0;
};

// What the draft layer did so far.
struct DraftStats {
  DraftMode mode = DraftMode::kOff;
  int num_drafts = 0;   // guesses of each sequence in the steps to come
  bool paused = false;  // kAuto: they do not pay at present
  std::uint64_t rounds = 0, drafted = 0, accepted = 0;
  std::array<std::uint64_t, 8> accepted_at = {};  // by position, the first guess first
};

struct EngineStats {
  int running = 0, waiting = 0;
  std::uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, cancelled = 0, finished = 0,
                failed = 0, preemptions = 0;
  BatchHistogram batch_tokens;
  DraftStats drafts;
  double step_age_s = 0;  // since the step at work began; 0 while there is nothing to do
  CacheStats cache;
  std::optional<ExpertStats> experts;  // where they are streamed from disk
};

// What can be asked of the prefix cache as a whole: to write to its store what that lacks, to read
// from there into free memory, to drop everything that nobody uses, in memory and there.
enum class CacheAction { kSave, kRestore, kClear };
struct CacheReport {
  CacheAction action = CacheAction::kSave;
  std::uint64_t pages = 0, snapshots = 0, bytes = 0;  // written, read, or dropped from memory
  std::uint64_t present = 0;                          // pages that were where they should go before
  std::uint64_t left_out = 0;                         // entries without room there, or damaged
  std::uint64_t disk_entries = 0, disk_bytes = 0;     // kClear: dropped from the store
};
using CacheSink = std::function<void(Result<CacheReport>)>;

class Engine;

// A submitted request. Destroying it cancels the request: its place in the queue is free at once,
// its pages within one step. Finished requests are not affected.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Ticket&&) noexcept = default;
  Ticket& operator=(Ticket&& other) noexcept;
  ~Ticket();
  void cancel();

 private:
  friend class Engine;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

class Engine {
 public:
  // Borrows all four for its life. `cache` must hold at least one sequence of options.context
  // tokens, and the recurrent states of options.max_sequences.
  Engine(const Model& model, Exec& exec, Cache& cache, EngineOptions options);
  // Cancels everything, writes what is cached to the cache's store, for at most half a minute, and
  // joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors, before anything is queued: kInvalidArgument (empty prompt, token out of vocabulary,
  // prompt leaves no room in the context: both numbers are named), kExhausted (queue full),
  // kCancelled (draining). Any other request fits: the cache holds a whole context.
  Result<Ticket> submit(GenerateRequest request, EventSink sink);
  // Begins, and calls `done` once from the engine's thread. Requests go on meanwhile. Errors:
  // kUnsupported (the cache keeps no prefixes, or has no store for them), kCancelled.
  void control_cache(CacheAction action, CacheSink done);
  EngineStats stats() const;
  const EngineOptions& options() const;
  // Refuses new requests, ends those that never ran with an error of code kCancelled, and waits
  // until the running ones ended or timeout_s passed. True when all ended.
  bool drain(double timeout_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
