// What every program that runs a model builds from its flags: kernels, threads, checkpoint, model,
// cache, text, engine. Planned first, reading headers only, so that a model is refused before any
// port opens or any weight is read; then opened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cpu.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "cache/cache.h"
#include "chat/chat.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "kernels/isa.h"
#include "models/model.h"
#include "ops/exec.h"
#include "text/tokenizer.h"
#include "tools/memory_plan.h"
#include "tools/prefix_plan.h"

namespace glint {

// Whether the draft layer guesses ahead. `required`: a model without one is refused.
struct MtpOptions {
  DraftMode mode = DraftMode::kAuto;
  int num_drafts = 0;  // with kFixed
  bool required = false;
};

// The options that mean the same in every command.
struct SessionOptions {
  std::string model;  // empty or "demo": the embedded demo model
  std::string isa = "auto";
  int threads = 0;  // 0: cpu_budget().threads
  // 0: min(max_position_embeddings, 32768, what fits memory); MemoryRequest::kLargest: without the
  // 32768.
  int context = 0;
  int max_sequences = 1;
  int max_queue = 256;
  int chunk = 0;                  // tokens of one step; 0: kSharedChunk, or kAloneChunk (below)
  std::string compute = "bf16";   // or "f32"
  std::string kv_cache = "auto";  // or "bf16", "fp8", "fp4"
  std::string dsa = "on";         // or "off": sparse attention is dense
  bool deterministic = false;
  PrefixCacheOptions prefix_cache;
  int snapshots = -1;  // of recurrent states that are kept; -1: what plan_states() says
  MtpOptions mtp;
  bool vision = true;                   // a vision tower is loaded where there is one
  bool mapped_weights = false;          // weights stay in the file instead of memory of their own
  std::string weights = "as-is";        // or "q8", "q4"
  std::string repack = "auto";          // or "off"
  std::string numa = "none";            // or "interleave"
  std::string weights_cache;            // a folder for packed weights; empty: they are not kept
  std::uint64_t memory_limit = 0;       // bytes; 0: what is available
  bool serves = false;                  // requests come from outside
  std::uint64_t body_bytes = 0;         // their longest body; 0: what memory allows
  std::string stream_experts = "auto";  // or "on", "off": are they read from disk as needed
  bool read_ahead = true;               // of those
  // Which experts were used, for the next start: a file; empty: one in the user's cache; "off".
  std::string expert_history;
  bool keeps_expert_history = true;
  std::string chat_template;  // a file that replaces the checkpoint's; empty: none
  TextOptions text_options;   // its chat_template comes from that file
  bool by_priority = false;   // requests' priority orders who waits
  bool text = true;           // false: no tokenizer or template is read
  bool engine = true;         // false: the caller drives the model itself
};

// How these options load a model; without kernels, threads and progress.
LoadOptions load_options(const SessionOptions& options);

// Tokens of a step that others wait for, and of one that is all there is to do.
inline constexpr int kSharedChunk = 512;
inline constexpr int kAloneChunk = 2048;

// Everything checked, nothing loaded.
struct SessionPlan {
  SessionOptions options;         // resolved: no zeros, no "auto" but of mtp
  int alone_chunk = kAloneChunk;  // tokens of a step that is all there is to do
  LoadOptions load;               // what they mean for the weights, as load_options()
  std::shared_ptr<const Checkpoint> checkpoint;
  ModelInfo info;
  std::shared_ptr<const TextAssets> text;  // null unless asked for
  Isa isa = Isa::kScalar;
  CpuBudget cpus;
  MemoryPlan memory;
  std::shared_ptr<PageStore> store;  // of the prefix cache; null: nothing is kept on disk
};

// What such a session asks of plan_memory(), with what this process has by now.
MemoryRequest memory_request(const SessionOptions& options, int threads);
// What --stream-experts says.
ExpertStreaming streaming_of(const SessionOptions& options);
// Where the use of a model's experts is kept: what --expert-history says; empty: nowhere.
std::filesystem::path expert_history_path(const std::string& wanted, const Checkpoint& checkpoint);

// What the cache of such a session keeps for a token.
const CacheSpec& cache_spec(const SessionPlan& plan);
// How its engine runs.
EngineOptions engine_options(const SessionPlan& plan);

// Owns everything, in an order that destroys safely. Not to be moved: its parts borrow each other.
struct Session {
  SessionPlan plan;
  std::unique_ptr<ThreadPool> pool;
  Workspace workspace;
  std::unique_ptr<Exec> exec;
  std::unique_ptr<Model> model;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Engine> engine;  // null unless asked for
};

// The checkpoint that a MODEL argument names; unpacks the demo model. `weights_required` as in
// Checkpoint::open.
Result<std::shared_ptr<const Checkpoint>> open_checkpoint(const std::string& model,
                                                          bool weights_required);

// The tokenizer of a MODEL argument alone.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& model);

// Errors: kInvalidArgument for a wrong flag, any other code for a model that is refused, with the
// reason and the fix.
Result<SessionPlan> plan_session(SessionOptions options);
// `progress` gets bytes done and in all while the weights are bound; may be empty.
Result<std::unique_ptr<Session>> load_session(
    SessionPlan plan, std::function<void(std::uint64_t, std::uint64_t)> progress);
// Both, with a progress bar when stderr is a terminal.
Result<std::unique_ptr<Session>> open_session(SessionOptions options);

// 2 for kInvalidArgument, else 3: what a failure of the functions above means.
int refusal_exit_code(const Error& error);
// The same of commands that read the model and do their work in one call: 1 for what failed on the
// way.
int work_exit_code(const Error& error);

}  // namespace glint
