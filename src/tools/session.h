// What every program that runs a model builds from its flags: kernels, threads, checkpoint, model,
// cache, text, engine.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "cache/cache.h"
#include "chat/chat.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "kernels/isa.h"
#include "models/model.h"
#include "ops/exec.h"

namespace glint {

// The options that mean the same in every command.
struct SessionOptions {
  std::string model;  // empty: the embedded demo model
  std::string isa = "auto";
  int threads = 0;  // 0: cpu_budget().threads
  int context = 0;  // 0: min(max_position_embeddings, what fits memory, 32768)
  int max_sequences = 8;
  int chunk = 512;               // tokens of one step
  std::string compute = "bf16";  // or "f32"
  bool deterministic = false;
  bool prefix_cache = true;
  bool quiet = false;         // no progress bar
  std::string chat_template;  // a file that replaces the checkpoint's
};

// Owns everything, in an order that destroys safely.
struct Session {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  std::shared_ptr<const TextAssets> text;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Workspace> workspace;
  std::unique_ptr<Exec> exec;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Engine> engine;  // null when not asked for
  SessionOptions options;          // resolved: no zeros, no "auto"
};

// Validates everything before the first weight is read. Errors: kInvalidArgument for a wrong flag,
// otherwise the model is refused with the reason and the fix.
Result<std::unique_ptr<Session>> open_session(SessionOptions options, bool with_engine);

// 0 fine, 1 failed at run time, 2 wrong usage, 3 model refused.
int exit_code(const Error& error, bool while_loading);

}  // namespace glint
