#include "tools/options.h"

#include <fmt/format.h>

#include <limits>

#include "engine/draft_policy.h"
#include "models/cache_format.h"

namespace glint {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void declare_prefix_cache(Flags& flags, PrefixCacheOptions* options) {
  flags.custom("--prefix-cache", "SIZE|on|off",
               "memory that keeps the cache of finished prompts and answers, so that a prompt that "
               "begins the same is not computed again, for example 4GiB; 0 is off (default on: the "
               "idle cache, and an eighth of the memory left, at most 8GiB)",
               [options](const std::string& value) -> Status {
                 options->enabled = value != "off";
                 options->bytes = 0;
                 if (value == "on" || value == "off") return {};
                 const auto size = parse_bytes(value);
                 if (!size) {
                   return invalid_argument(
                       fmt::format("'{}' is none of on|off, and no size like 4GiB", value));
                 }
                 options->enabled = *size > 0;
                 options->bytes = *size;
                 return {};
               });
}

void declare_prefix_store(Flags& flags, PrefixCacheOptions* options) {
  flags.custom("--prefix-cache-dir", "DIR",
               "keep what leaves the prefix cache in this folder, so that it is found again later "
               "and after a restart (default: it is not kept)",
               [options](const std::string& value) -> Status {
                 if (value.empty()) return invalid_argument("'' is no folder");
                 options->folder = value;
                 return {};
               });
  flags.custom(
      "--prefix-cache-disk", "SIZE",
      "most bytes of that folder: what was not used for longest makes room (default "
      "16GiB)",
      [options](const std::string& value) -> Status {
        GLINT_TRY(options->disk_bytes, parse_bytes(value));
        if (options->disk_bytes == 0) {
          return invalid_argument("'0' keeps nothing: leave --prefix-cache-dir out instead");
        }
        return {};
      });
}

}  // namespace

void declare_model(Flags& flags, std::string* model) {
  flags.positional(
      "MODEL", model,
      "a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file (any shard of "
      "a set), or demo: the small model that ships with glint, which is also the default");
}

void declare_weights(Flags& flags, SessionOptions* options) {
  flags.toggle(
      "--mmap", &options->mapped_weights,
      "leave the weights in the file: starts at once and may exceed memory, but runs slower");
  flags.choice("--weights", &options->weights, {"as-is", "q8", "q4"},
               "what float weights become while they are loaded: q8 has 8 bits and a scale for 32 "
               "weights; q4 has 4 bits in the feed-forward part and 8 in attention and head "
               "(default as-is)");
  flags.choice("--repack", &options->repack, {"auto", "off"},
               "auto: low-bit weights are packed for this machine as they are loaded; off: they "
               "are used as the file has them, slower, but --mmap then copies nothing (default "
               "auto)");
}

void declare_memory(Flags& flags, SessionOptions* options) {
  flags.custom(
      "--memory", "SIZE",
      "the most that this process may take of memory, from its start to its end, for example "
      "20GiB: refuses to start when it needs more, or streams the experts (default: what is free "
      "and what the cgroup allows)",
      [options](const std::string& value) -> Status {
        GLINT_TRY(options->memory_limit, parse_bytes(value));
        if (options->memory_limit == 0) return invalid_argument("'0' leaves no memory at all");
        return {};
      });
  declare_prefix_cache(flags, &options->prefix_cache);
  flags.integer("--snapshots", &options->snapshots, "N",
                "recurrent states that are kept, for models that have them: later prompts start "
                "from these (default: as many as an eighth of the memory left holds, at most 8 and "
                "8 for each sequence)",
                0, 1 << 20);
  flags.choice("--stream-experts", &options->stream_experts, {"auto", "on", "off"},
               "leave the routed experts on disk and read them as they are chosen, into what "
               "memory is left: for models larger than memory; slow without a fast disk. auto: "
               "where the weights do not fit (default auto)");
  flags.custom("--expert-read-ahead", "on|off",
               "of streamed experts: guess what the next layer needs and read it meanwhile "
               "(default on)",
               [options](const std::string& value) -> Status {
                 if (value != "on" && value != "off")
                   return invalid_argument(fmt::format("'{}' is none of on|off", value));
                 options->read_ahead = value == "on";
                 return {};
               });
  flags.text("--expert-history", &options->expert_history, "FILE|off",
             "of streamed experts: which were used, so that the next start reads those first "
             "(default: a file in ~/.cache/glint)");
}

void declare_kv_cache(Flags& flags, SessionOptions* options) {
  flags.custom("--kv-cache,--kv-cache-dtype", "bf16|fp8|fp4|auto",
               "format of the cache: fp8 takes about half of bf16 and fp4 a quarter, so longer "
               "contexts fit and are read faster; fp8 hardly changes answers, fp4 costs some "
               "(docs/numerics.md); auto is bf16 (default auto)",
               [options](const std::string& value) -> Status {
                 // As vLLM spells it.
                 const std::string name = value == "fp8_e4m3" ? "fp8" : value;
                 if (name != "auto" && !cache_format_from_name(name)) {
                   return invalid_argument(fmt::format("'{}' is none of bf16|fp8|fp4|auto", value));
                 }
                 options->kv_cache = name;
                 return {};
               });
}

void declare_session(Flags& flags, SessionOptions* options, bool parallel) {
  flags.group("Context and memory");
  flags.custom(
      "-c,--ctx,--max-model-len", "N|auto",
      "longest prompt + answer in tokens: refused when it does not fit memory. auto: the "
      "most that the model allows and memory holds (default: the same, at most 32768)",
      [options](const std::string& value) -> Status {
        if (value == "auto") {
          options->context = MemoryRequest::kLargest;
          return {};
        }
        const auto number = parse_integer(value);
        constexpr std::int64_t kMost = std::numeric_limits<int>::max();
        if (!number || *number < 1 || *number > kMost)
          return invalid_argument(fmt::format("'{}' is no number of tokens, nor auto", value));
        options->context = static_cast<int>(*number);
        return {};
      });
  if (parallel) {
    flags.integer(
        "--parallel,--max-num-seqs", &options->max_sequences, "N",
        fmt::format("sequences that run at once, also -np (default {})", options->max_sequences), 1,
        4096);
  }
  declare_memory(flags, options);
  declare_prefix_store(flags, &options->prefix_cache);
  declare_kv_cache(flags, options);
  declare_weights(flags, options);
  flags.choice("--numa", &options->numa, {"none", "interleave"},
               "interleave: memory of the weights is spread over the machine's NUMA nodes "
               "(default none)");
  flags.text("--weights-cache", &options->weights_cache, "DIR",
             "keep packed and quantised weights in this folder, so that the next start need not "
             "make them again (default: they are not kept)");
  flags.group("Computation");
  flags.integer("-t,--threads", &options->threads, "N",
                "threads (default: one per physical core that this process may use)", 1, 4096);
  flags.text(
      "--isa", &options->isa, "NAME",
      "auto, scalar, avx2, avx512, avx512bf16 or amx (default auto: the best this machine has)");
  flags.choice("--compute", &options->compute, {"bf16", "f32"},
               "precision of the products; f32 is the slow reference path (default bf16)");
  flags.choice("--dsa", &options->dsa, {"on", "off"},
               "off: models that choose which earlier tokens to attend to (GLM-5.3-Flash) attend "
               "to all of them, which is slower in long contexts (default on)");
  flags.toggle("--deterministic", &options->deterministic,
               "the same bits whatever the chunks and the batch, for a little speed");
  flags.integer(
      "--chunk,--max-num-batched-tokens", &options->chunk, "N",
      fmt::format("most tokens of one step (default: {}, or {} while there is one request)",
                  kSharedChunk, kAloneChunk),
      1, 65536);
}

void declare_mtp(Flags& flags, MtpOptions* mtp) {
  flags.custom(
      "--mtp", "N|auto|on|off",
      fmt::format("tokens that the model's draft layer (MTP) guesses ahead, which one step then "
                  "verifies: the answers are the same, and come sooner where guesses are cheap and "
                  "often right. auto: measures how many pay, if any; on: the same, but refuses a "
                  "model without such a layer (default {})",
                  mtp->mode == DraftMode::kOff ? "off" : "auto"),
      [mtp](const std::string& value) -> Status {
        if (value == "off" || value == "0") {
          *mtp = {.mode = DraftMode::kOff};
          return {};
        }
        if (value == "auto" || value == "on") {
          *mtp = {.mode = DraftMode::kAuto, .required = value == "on"};
          return {};
        }
        const auto number = parse_integer(value);
        if (!number.has_value()) {
          return invalid_argument(fmt::format("'{}' is none of auto|on|off, and no number", value));
        }
        if (*number < 0 || *number > DraftPolicy::kMaxDrafts) {
          return invalid_argument(
              fmt::format("'{}' guesses are not between 0 and {}", value, DraftPolicy::kMaxDrafts));
        }
        *mtp = {
            .mode = DraftMode::kFixed, .num_drafts = static_cast<int>(*number), .required = true};
        return {};
      });
}

void declare_vision(Flags& flags, SessionOptions* options) {
  flags.custom("--vision", "on|off",
               "on: load the vision tower of a model that has one, and take images; off: save its "
               "memory (default on)",
               [options](const std::string& value) -> Status {
                 if (value != "on" && value != "off") {
                   return invalid_argument(fmt::format("'{}' is none of on|off", value));
                 }
                 options->vision = value == "on";
                 return {};
               });
  flags.integer("--image-tokens", &options->text_options.max_image_tokens, "N",
                "most tokens of one image: larger ones are scaled down (default: what the model's "
                "processor allows, 8000)",
                1, 1 << 20);
}

void declare_log(Flags& flags, LogOptions* options) {
  flags.group("Logging");
  flags.choice("--log-level", &options->level, {"debug", "info", "warn", "error", "off"},
               "what to report on stderr");
  flags.choice("--log-format", &options->format, {"text", "json"},
               "lines for people or for machines");
}

void start_log(const LogOptions& options, LogLevel default_level) {
  LogLevel level = default_level;
  if (const auto parsed = parse_log_level(options.level); parsed) level = *parsed;
  configure_log(level, options.format == "json" ? LogFormat::kJson : LogFormat::kText);
}

void declare_sampling(Flags& flags, SamplingOptions* options) {
  flags.group("Sampling (defaults: the checkpoint's generation_config.json)");
  flags.integer("-n,--max-tokens,--n-predict", &options->max_tokens, "N",
                "longest answer in tokens (default: the room left in the context)", 1);
  flags.number("--temp,--temperature", &options->temperature, "T", "0 is greedy", 0, 100);
  flags.integer("--top-k", &options->top_k, "K", "of the K likeliest tokens; 0 is off", 0);
  flags.number("--top-p", &options->top_p, "P", "of the likeliest tokens that sum to P", 0, 1);
  flags.number("--min-p", &options->min_p, "P", "of tokens at least P times as likely as the best",
               0, 1);
  flags.number("--repeat-penalty,--repetition-penalty", &options->repeat_penalty, "R",
               "above 1 discourages tokens seen before", 0.01F, kInfinity);
  flags.number("--presence-penalty", &options->presence_penalty, "X",
               "subtracted once per token used", -2, 2);
  flags.number("--frequency-penalty", &options->frequency_penalty, "X",
               "subtracted per use of a token", -2, 2);
  flags.custom(
      "-s,--seed", "S", "makes the answer repeatable; -1 is random (the default)",
      [options](const std::string& value) -> Status {
        const auto seed = parse_integer(value);
        if (!seed || *seed < -1) {
          return invalid_argument(fmt::format("'{}' is no whole number of at least -1", value));
        }
        options->seed.reset();
        if (*seed >= 0) options->seed = static_cast<std::uint64_t>(*seed);
        return {};
      });
}

void apply_sampling(const SamplingOptions& options, ChatRequest* request) {
  request->temperature = options.temperature;
  request->top_p = options.top_p;
  request->min_p = options.min_p;
  request->repetition_penalty = options.repeat_penalty;
  request->presence_penalty = options.presence_penalty;
  request->frequency_penalty = options.frequency_penalty;
  request->top_k = options.top_k;
  request->max_tokens = options.max_tokens;
  request->seed = options.seed;
}

}  // namespace glint
