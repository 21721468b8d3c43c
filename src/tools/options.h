// The options that several commands share, as groups of flags.
#pragma once

#include <optional>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "chat/chat.h"
#include "tools/flags.h"
#include "tools/session.h"

namespace glint {

void declare_model(Flags& flags, std::string* model);
// --mmap, --weights, --repack: what becomes of the weights.
void declare_weights(Flags& flags, SessionOptions* options);
// --memory, --stream-experts, ...: what may lie in memory, and what stays on disk.
void declare_memory(Flags& flags, SessionOptions* options);
// --kv-cache: how the rows of the cache are stored.
void declare_kv_cache(Flags& flags, SessionOptions* options);
// Those and --ctx, --threads, --isa, --compute, ... With `parallel` also --parallel.
void declare_session(Flags& flags, SessionOptions* options, bool parallel);

// --mtp, with the present value as the default.
void declare_mtp(Flags& flags, MtpOptions* mtp);

// --vision, --image-tokens.
void declare_vision(Flags& flags, SessionOptions* options);

struct LogOptions {
  std::string level;  // empty: the command's own default
  std::string format = "text";
};
void declare_log(Flags& flags, LogOptions* options);
void start_log(const LogOptions& options, LogLevel default_level);

struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k, max_tokens;
  std::optional<std::uint64_t> seed;
};
void declare_sampling(Flags& flags, SamplingOptions* options);
void apply_sampling(const SamplingOptions& options, ChatRequest* request);

}  // namespace glint
