#include "tools/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/numa.h"
#include "checkpoint/gguf.h"
#include "models/cache_format.h"
#include "models/registry.h"
#include "tools/demo_model.h"
#include "tools/flags.h"
#include "tools/plan_report.h"
#include "tools/prefix_store.h"
#include "tools/program.h"
#include "tools/progress_bar.h"
#include "tools/text_source.h"

namespace glint {
namespace {

constexpr std::size_t kMaxTemplateBytes = 4u << 20;

// A model is refused with any code but kInvalidArgument, which is kept for the user's own flags.
Error as_refusal(Error error) {
  if (error.code == ErrorCode::kInvalidArgument) error.code = ErrorCode::kCorrupt;
  return error;
}

#define GLINT_TRY_MODEL(declaration, expression)                     \
  auto&& GLINT_CONCAT(glint_model_, __LINE__) = (expression);        \
  if (!GLINT_CONCAT(glint_model_, __LINE__).has_value()) {           \
    return as_refusal(GLINT_CONCAT(glint_model_, __LINE__).error()); \
  }                                                                  \
  declaration = std::move(*GLINT_CONCAT(glint_model_, __LINE__))

Result<std::shared_ptr<const TextAssets>> load_text(const Checkpoint& checkpoint,
                                                    const std::string& template_file,
                                                    TextOptions options) {
  if (!template_file.empty()) {
    auto text = read_text_file(template_file, kMaxTemplateBytes);
    if (!text) return invalid_argument("--chat-template: " + text.error().message);
    options.chat_template = std::move(*text);
  }
  GLINT_TRY_MODEL(auto assets, load_text_assets(checkpoint, options));
  return assets;
}

Result<Isa> pick_isa(const std::string& name) {
  auto isa = choose_isa(name);
  if (!isa) return invalid_argument("--isa: " + isa.error().message);
  return *isa;
}

int pick_threads(int wanted, const CpuBudget& cpus) {
  if (wanted == 0) return cpus.threads;
  if (wanted > cpus.logical) {
    log_warn(fmt::format("--threads {} is more than the {} processors this process may use: {}",
                         wanted, cpus.logical, cpus.why));
  }
  return wanted;
}

// Pins one worker per core only where this process has the whole machine's cores to itself: two
// processes with a quota each would otherwise meet on the first cores.
std::vector<int> cores_to_pin(int threads, const CpuBudget& cpus) {
  if (static_cast<std::size_t>(threads) != cpus.cores.size()) return {};
  return cpus.cores;
}

Status check_numa(const SessionOptions& options) {
  if (options.numa != "interleave") return {};
  const auto nodes = numa_nodes();
  if (!nodes) return invalid_argument("--numa interleave: " + nodes.error().message);
  if (*nodes < 2) log_debug("--numa interleave: this machine has one node, nothing to spread over");
  if (options.mapped_weights)
    log_warn(
        "--numa interleave: weights that --mmap leaves in the file are where the system put "
        "its pages");
  return {};
}

// What `load` does about the draft layer. Nothing of the weights is read yet.
Status plan_drafts(const ModelInfo& info, MtpOptions& mtp, LoadOptions& load) {
  if (mtp.mode == DraftMode::kOff) return {};
  const bool can_load = info.draft.cache.bf16.num_layers > 0;
  if (info.mtp_present && can_load) {
    load.draft = mtp.required ? DraftLayer::kRequired : DraftLayer::kIfPresent;
    return {};
  }
  const std::string why =
      info.mtp_present ? "this version knows no draft layer of such models"
      : info.mtp_layers > 0
          ? fmt::format(
                "the model declares {} draft layer{} (num_nextn_predict_layers), but its "
                "files hold no tensors of {}",
                info.mtp_layers, info.mtp_layers == 1 ? "" : "s",
                info.mtp_layers == 1 ? "it" : "them")
          : "the model has no draft layer";
  if (mtp.required) {
    return unsupported(fmt::format("--mtp: {}; start with --mtp off or auto", why));
  }
  const std::string line = why + ": nothing is guessed ahead (MTP is off)";
  if (info.mtp_layers > 0 && !info.mtp_present) {
    log_warn(line);
  } else {
    log_info(line);
  }
  mtp.mode = DraftMode::kOff;
  return {};
}

// Guessing ahead is given up before a model is refused for lack of memory, or before its experts
// are left on disk.
Result<MemoryPlan> plan_with_drafts(const ModelInfo& info, MemoryRequest request, MtpOptions& mtp,
                                    LoadOptions& load) {
  const AvailableMemory available = available_memory();
  request.load = load;
  const CacheSpec& cache = *info.cache.find(load.cache_format);
  if (load.draft == DraftLayer::kOff) return plan_memory(info, cache, request, available);
  const CacheSpec& draft_cache = *info.draft.cache.find(load.cache_format);
  if (request.streaming == ExpertStreaming::kAuto && !mtp.required) {
    MemoryRequest apart = request;
    apart.streaming = ExpertStreaming::kOff;
    auto with = plan_memory(info, draft_cache, apart, available);
    if (with.has_value() || with.error().code != ErrorCode::kExhausted) return with;
    apart.load.draft = DraftLayer::kOff;
    if (plan_memory(info, cache, apart, available)) request.streaming = ExpertStreaming::kOff;
  }
  auto with = plan_memory(info, draft_cache, request, available);
  if (with.has_value() || with.error().code != ErrorCode::kExhausted || mtp.required) return with;
  request.load.draft = DraftLayer::kOff;
  GLINT_TRY(MemoryPlan without, plan_memory(info, cache, request, available));
  log_warn(
      fmt::format("MTP is off: the draft layer does not fit memory ({})", with.error().message));
  load.draft = DraftLayer::kOff;
  mtp.mode = DraftMode::kOff;
  return without;
}

// What nobody asked for is cut where memory is short, but never without a word.
void warn_of_cut_context(const MemoryPlan& memory, const ModelInfo& info, int asked) {
  if (memory.context_reason != ContextReason::kMemory) return;
  const int whole = info.max_position_embeddings;
  log_warn(fmt::format(
      "the context is {} tokens instead of {}: more does not fit {} ({}) with {} "
      "sequence{}; more memory{} allow more",
      memory.context, asked == MemoryRequest::kLargest ? whole : std::min(whole, kDefaultContext),
      memory.limit_source, format_bytes(static_cast<double>(memory.limit)), memory.sequences,
      memory.sequences == 1 ? "" : "s",
      memory.sequences == 1 ? "" : " or fewer sequences (--parallel)"));
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_checkpoint(const std::string& model,
                                                          bool weights_required) {
  GLINT_TRY_MODEL(const ModelFolder folder, model_folder(model));
  GLINT_TRY_MODEL(auto checkpoint, Checkpoint::open(folder.path(), weights_required));
  return checkpoint;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& model) {
  GLINT_TRY_MODEL(const ModelFolder folder, model_folder(model));
  GLINT_TRY_MODEL(auto tokenizer, load_tokenizer(folder.path()));
  return tokenizer;
}

LoadOptions load_options(const SessionOptions& options) {
  LoadOptions load;
  load.compute = options.compute == "f32" ? Compute::kF32 : Compute::kBf16;
  load.cache_format =
      cache_format_from_name(options.kv_cache).value_or(CacheFormat::kBf16);  // of "auto"
  if (options.deterministic) load.latent_form = LatentForm::kAbsorbed;
  load.placement = options.mapped_weights ? WeightPlacement::kMapped : WeightPlacement::kResident;
  if (options.weights == "q8") load.quant = WeightQuant::kQ8;
  if (options.weights == "q4") load.quant = WeightQuant::kQ4;
  load.sparse_attention = options.dsa != "off";
  load.repack = options.repack != "off";
  load.interleave = options.numa == "interleave";
  load.packed_cache = options.weights_cache;
  load.streamed_experts.read_ahead = options.read_ahead;
  load.streamed_experts.keeps_history = options.keeps_expert_history;
  load.vision = options.vision;
  return load;
}

MemoryRequest memory_request(const SessionOptions& options, int threads) {
  MemoryRequest request;
  request.context = options.context;
  request.num_sequences = options.max_sequences;
  request.prefix = options.prefix_cache;
  request.num_snapshots = options.prefix_cache.enabled ? options.snapshots : 0;
  request.load = load_options(options);
  request.limit = options.memory_limit;
  request.streaming = streaming_of(options);
  request.fixed_chunk = options.chunk != 0;
  request.chunk = request.fixed_chunk ? options.chunk : kAloneChunk;
  request.threads = threads;
  request.resident = resident_now();
  request.body_bytes = options.body_bytes;
  request.serves = options.serves;
  if (options.text_options.max_image_tokens > 0)
    request.image_tokens = options.text_options.max_image_tokens;
  return request;
}

Result<SessionPlan> plan_session(SessionOptions options) {
  SessionPlan plan;
  GLINT_TRY(plan.isa, pick_isa(options.isa));
  plan.cpus = cpu_budget();
  if (options.memory_limit > 0) keep_heap_small();
  GLINT_TRY_VOID(check_numa(options));
  GLINT_TRY_MODEL(const ModelFolder folder, model_folder(options.model));
  GLINT_TRY_MODEL(plan.checkpoint, Checkpoint::open(folder.path()));
  for (const std::string& note : plan.checkpoint->notes()) log_warn(note);
  GLINT_TRY_MODEL(plan.info, describe_model(*plan.checkpoint));
  if (const Status checked = check_model(*plan.checkpoint); !checked) {
    return as_refusal(checked.error());
  }
  if (options.text) {
    if (options.vision) options.text_options.images = plan.info.images;
    GLINT_TRY(plan.text, load_text(*plan.checkpoint, options.chat_template, options.text_options));
  }
  plan.load = load_options(options);
  GLINT_TRY_VOID(check_cache_format(plan.info, plan.load.cache_format));
  GLINT_TRY_VOID(plan_drafts(plan.info, options.mtp, plan.load));
  const MemoryRequest request =
      memory_request(options, options.threads > 0 ? options.threads : plan.cpus.threads);
  GLINT_TRY(plan.memory, plan_with_drafts(plan.info, request, options.mtp, plan.load));
  warn_of_cut_context(plan.memory, plan.info, options.context);
  if (const AvailableMemory left = available_memory();
      plan.memory.total() > left.bytes + resident_now()) {
    log_warn(fmt::format("{} are planned, but {} leaves {}: the system may end this process",
                         format_bytes(static_cast<double>(plan.memory.total())), left.source,
                         format_bytes(static_cast<double>(left.bytes))));
  }
  if (plan.memory.streams) {
    plan.load.streamed_experts.enabled = true;
    plan.load.streamed_experts.cache_bytes = plan.memory.expert_cache;
    plan.load.streamed_experts.history =
        expert_history_path(options.expert_history, *plan.checkpoint);
  }

  options.isa = isa_name(plan.isa);
  options.kv_cache = cache_format_name(plan.load.cache_format);
  options.threads = pick_threads(options.threads, plan.cpus);
  options.context = plan.memory.context;
  plan.alone_chunk = plan.memory.chunk;
  if (options.chunk == 0) options.chunk = std::min(kSharedChunk, plan.alone_chunk);
  plan.options = std::move(options);
  GLINT_TRY(plan.store, open_prefix_store(plan.options.prefix_cache,
                                          prefix_identity(*plan.checkpoint, plan.info, plan.load,
                                                          cache_spec(plan), plan.isa)));
  return plan;
}

ExpertStreaming streaming_of(const SessionOptions& options) {
  if (options.stream_experts == "on") return ExpertStreaming::kOn;
  return options.stream_experts == "off" ? ExpertStreaming::kOff : ExpertStreaming::kAuto;
}

std::filesystem::path expert_history_path(const std::string& wanted, const Checkpoint& checkpoint) {
  if (wanted == "off") return {};
  if (!wanted.empty()) return wanted;
  const auto cache = user_cache_folder();
  if (!cache) return {};
  std::error_code ignored;
  const std::string name =
      checkpoint.gguf() != nullptr
          ? checkpoint.gguf()->path().stem().string()
          : std::filesystem::canonical(checkpoint.folder(), ignored).filename().string();
  return *cache / "glint" / (name + ".experts.json");
}

const CacheSpec& cache_spec(const SessionPlan& plan) {
  const CacheSpecs& specs =
      plan.load.draft == DraftLayer::kOff ? plan.info.cache : plan.info.draft.cache;
  return *specs.find(plan.load.cache_format);
}

EngineOptions engine_options(const SessionPlan& plan) {
  const SessionOptions& options = plan.options;
  EngineOptions engine;
  engine.context = options.context;
  engine.max_sequences = options.max_sequences;
  engine.max_batch_tokens = std::max(options.chunk, options.max_sequences);
  engine.max_alone_tokens = plan.alone_chunk;
  engine.max_queue = options.max_queue;
  engine.by_priority = options.by_priority;
  engine.prefix_reuse = options.prefix_cache.enabled;
  engine.draft_mode = options.mtp.mode;
  engine.num_drafts = options.mtp.num_drafts;
  return engine;
}

Result<std::unique_ptr<Session>> load_session(
    SessionPlan plan, std::function<void(std::uint64_t, std::uint64_t)> progress) {
  auto session = std::make_unique<Session>();
  session->plan = std::move(plan);
  const SessionOptions& options = session->plan.options;
  session->workspace.reserve(session->plan.memory.scratch);
  session->pool = std::make_unique<ThreadPool>(options.threads,
                                               cores_to_pin(options.threads, session->plan.cpus));
  session->exec = std::make_unique<Exec>(
      Exec{kernel_table(session->plan.isa), *session->pool, session->workspace});
  LoadOptions load = session->plan.load;
  load.kernels = &kernel_table(session->plan.isa);
  load.pool = session->pool.get();
  load.progress = std::move(progress);
  GLINT_TRY_MODEL(session->model, load_model(session->plan.checkpoint, load));
  const StateRoom states{.num_states = static_cast<std::size_t>(options.max_sequences),
                         .num_snapshots = session->plan.memory.states.num_snapshots};
  const PrefixPlan& prefix = session->plan.memory.prefix;
  session->cache = std::make_unique<Cache>(session->model->cache_spec(),
                                           session->plan.memory.num_pages + prefix.num_pages,
                                           options.prefix_cache.enabled, states);
  session->cache->limit_cached(prefix.max_cached);
  if (session->plan.store != nullptr) session->cache->attach(session->plan.store);
  if (options.engine) {
    session->engine = std::make_unique<Engine>(*session->model, *session->exec, *session->cache,
                                               engine_options(session->plan));
  }
  if (const ExpertSource* experts = session->model->experts(); experts != nullptr) {
    const ExpertStats stats = experts->stats();
    const MemoryPlan& memory = session->plan.memory;
    const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
    log_info(fmt::format(
        "{} of {} experts are streamed from disk: {} fit memory at once ({}); {} of other weights "
        "are resident",
        text(memory.streamed), stats.num_experts, stats.num_slots, text(stats.memory_bytes),
        text(memory.weights)));
  }
  log_info(fmt::format("{}: {} parameters, {}, {} threads, {}, context {} x {}, {} cache",
                       session->plan.info.family, session->plan.info.total_parameters, options.isa,
                       options.threads, options.compute, options.context, options.max_sequences,
                       row_format_name(row_format(load.cache_format, load.compute))));
  log_info(plan_summary(session->plan.memory));
  log_info(describe_prefix(options.prefix_cache, prefix));
  return session;
}

Result<std::unique_ptr<Session>> open_session(SessionOptions options) {
  GLINT_TRY(SessionPlan plan, plan_session(std::move(options)));
  if (isatty(STDERR_FILENO) == 0) return load_session(std::move(plan), {});
  ProgressBar bar("loading");
  return load_session(std::move(plan),
                      [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
}

int refusal_exit_code(const Error& error) {
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitRefused;
}

int work_exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
    case ErrorCode::kCancelled:
      return kExitFailed;
    default:
      return refusal_exit_code(error);
  }
}

}  // namespace glint
