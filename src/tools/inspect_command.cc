// `glint inspect`: what a model is, what it costs, and whether it will run. Reads headers only.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "models/registry.h"
#include "models/weight_form.h"
#include "tools/commands.h"
#include "tools/demo_model.h"
#include "tools/machine_probe.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/streaming_forecast.h"
#include "tools/text_source.h"

namespace glint {
namespace {

constexpr std::size_t kProbeBytes = 256u << 20;

struct InspectOptions {
  std::string model;
  bool json = false;
  int context = 0;
  int parallel = 1;
  SessionOptions session;  // for --isa, --threads and what --weights would cost
  LogOptions log;
};

// How the model would lie in memory, and what streaming would make of its speed.
struct PlanReport {
  MemoryPlan memory;
  ExpectedHits hits;
  StreamingForecast forecast;
  double memory_bytes_per_s = 0, disk_bytes_per_s = 0;  // 0: not measured

  double tokens_per_s() const {
    return forecast.tokens_per_s(memory_bytes_per_s, disk_bytes_per_s);
  }
};

struct Report {
  std::string model_type = "unknown";
  std::optional<ModelInfo> info;
  std::vector<PlacedGroup> weights;  // empty unless they are all there and right
  std::vector<std::string> notes;
  std::string refusal;  // empty: it runs
  std::string isa;
  int threads = 0;
  CpuBudget cpus;
  AvailableMemory memory;
  int context = 0;
  int parallel = 1;
  bool has_weights = false;
  std::optional<PlanReport> plan;

  double weight_bytes_per_token() const { return bytes_read(*info, weights, 1); }
  std::uint64_t bytes_per_token() const { return info ? info->cache.bytes_per_token() : 0; }
  std::uint64_t bytes_per_sequence() const {
    return bytes_per_token() * static_cast<std::uint64_t>(context);
  }
  std::uint64_t state_bytes() const {
    return info ? info->cache.state_stride() * static_cast<std::uint64_t>(parallel) : 0;
  }
  std::uint64_t cache_bytes() const {
    return bytes_per_sequence() * static_cast<std::uint64_t>(parallel);
  }
};

void declare(Flags& flags, InspectOptions* options) {
  flags.positional("MODEL", &options->model,
                   "a Hugging Face folder, a GGUF file, a bare config.json, or demo (the default)");
  flags.group("Options");
  flags.toggle("--json", &options->json, "one object for machines");
  flags.integer("-c,--context,--ctx", &options->context, "N",
                "what the cache costs for N tokens (default: the model's longest)", 1);
  flags.integer("--parallel", &options->parallel, "N", "times N sequences, also -np (default 1)",
                1);
  flags.text("--isa", &options->session.isa, "NAME", "as in the other commands");
  flags.integer("-t,--threads", &options->session.threads, "N", "as in the other commands", 1,
                4096);
  declare_memory(flags, &options->session);
  declare_weights(flags, &options->session);
  declare_log(flags, &options->log);
}

void inspect_text(const Checkpoint& checkpoint, Report* report) {
  if (!has_tokenizer(checkpoint)) {
    report->notes.push_back(
        "there is no tokenizer.json, and no GGUF vocabulary: chat, run, serve and tokenize will "
        "refuse this model; score --ids and bench work");
    return;
  }
  const auto text = load_text_assets(checkpoint);
  if (!text) {
    report->refusal = text.error().message;
  } else if (!(*text)->has_template()) {
    report->notes.push_back(
        "there is no chat template: chat needs --chat-template FILE, run --raw works without");
  }
}

// What the other commands would plan, with the context and the sequences asked for here.
void inspect_plan(const Checkpoint& checkpoint, const InspectOptions& options, Report* report) {
  MemoryRequest request = memory_request(options.session, report->threads);
  request.context = std::min(options.context, report->info->max_position_embeddings);
  request.num_sequences = options.parallel;
  auto memory = plan_memory(*report->info, report->info->cache, request, report->memory);
  if (!memory) {
    report->notes.push_back(memory.error().message);
    return;
  }
  PlanReport plan;
  plan.memory = std::move(*memory);
  if (plan.memory.streams) {
    plan.hits = expected_hits(checkpoint, *report->info, plan.memory,
                              expert_history_path(options.session.expert_history, checkpoint));
    plan.forecast = forecast_streaming(*report->info, report->weights, plan.hits.rate);
    ThreadPool pool(report->threads);
    plan.memory_bytes_per_s = read_bandwidth(pool, kProbeBytes);
    const auto disk = disk_bandwidth(checkpoint, plan.forecast.disk_burst);
    if (disk) {
      plan.disk_bytes_per_s = *disk;
    } else {
      report->notes.push_back("the disk was not measured: " + disk.error().message);
    }
  }
  report->plan = std::move(plan);
}

void inspect_memory(const Report& report, std::vector<std::string>* notes) {
  if (report.plan) return;
  const std::uint64_t needed =
      resident_bytes(report.weights) + report.cache_bytes() + report.state_bytes();
  if (!report.has_weights || needed <= report.memory.bytes) return;
  notes->push_back(fmt::format(
      "weights and this cache need {}, but {} gives {}: choose a smaller --ctx or fewer sequences",
      format_bytes(static_cast<double>(needed)), report.memory.source,
      format_bytes(static_cast<double>(report.memory.bytes))));
}

void inspect_model(const std::filesystem::path& path, const InspectOptions& options,
                   Report* report) {
  const auto checkpoint = Checkpoint::open(path, false);
  if (!checkpoint) {
    report->refusal = checkpoint.error().message;
    return;
  }
  if (const Json* type = (*checkpoint)->config().find("model_type"); type && type->is_string()) {
    report->model_type = type->as_string();
  }
  report->has_weights = (*checkpoint)->has_weights();
  auto info = describe_model(**checkpoint);
  if (!info) {
    report->refusal = info.error().message;
    return;
  }
  report->info = std::move(*info);
  report->notes = (*checkpoint)->notes();
  report->notes.insert(report->notes.end(), report->info->notes.begin(), report->info->notes.end());
  report->context = options.context > 0 ? options.context : report->info->max_position_embeddings;
  if (report->context > report->info->max_position_embeddings) {
    report->notes.push_back(
        fmt::format("{} tokens are more than the {} positions the model was made for",
                    report->context, report->info->max_position_embeddings));
  }
  if (!report->has_weights) {
    report->notes.push_back("there are no weights here: only what config.json says is reported");
    return;
  }
  if (const Status checked = check_model(**checkpoint); !checked) {
    report->refusal = checked.error().message;
    return;
  }
  report->weights = place_weights(*report->info, load_options(options.session));
  inspect_text(**checkpoint, report);
  const bool fits =
      resident_bytes(report->weights) + report->cache_bytes() + report->state_bytes() <=
      report->memory.bytes;
  if (options.session.memory_limit > 0 || options.session.stream_experts == "on" || !fits)
    inspect_plan(**checkpoint, options, report);
  inspect_memory(*report, &report->notes);
}

// What one part of the network is stored as, in the checkpoint and in memory.
struct PartUse {
  WeightPart part;
  DType stored;
  std::string storage;
  WeightForm form;
  std::uint64_t parameters = 0, stored_bytes = 0, bytes = 0;
};

std::vector<PartUse> parts_of(const std::vector<PlacedGroup>& weights) {
  std::vector<PartUse> parts;
  for (const PlacedGroup& group : weights) {
    const WeightGroup& stored = group.stored;
    auto same = std::ranges::find_if(parts, [&](const PartUse& use) {
      return use.part == stored.part && use.storage == stored.storage &&
             use.form.type == group.form.type;
    });
    if (same == parts.end())
      same = parts.insert(same, PartUse{stored.part, stored.type, stored.storage, group.form});
    same->parameters += stored.parameters();
    same->stored_bytes += stored.nbytes * stored.count;
    same->bytes += group.bytes;
  }
  std::ranges::stable_sort(parts, {}, &PartUse::part);
  return parts;
}

Json parts_json(const std::vector<PlacedGroup>& weights) {
  Json list(Json::Array{});
  for (const PartUse& use : parts_of(weights)) {
    Json json;
    json.set("part", part_name(use.part));
    json.set("type", dtype_name(use.stored));
    json.set("storage", use.storage);
    json.set("parameters", use.parameters);
    json.set("bytes", use.stored_bytes);
    json.set("loaded_type", dtype_name(use.form.type));
    json.set("loaded_bytes", use.bytes);
    list.push_back(std::move(json));
  }
  return list;
}

Json heads_json(const ModelInfo& info) {
  Json heads;
  heads.set("num_heads", info.num_heads);
  heads.set("num_kv_heads", info.num_kv_heads);
  for (const ModelInfo::HeadDim& dim : info.head_dims) heads.set(dim.name, dim.value);
  return heads;
}

bool can_guess(const ModelInfo& info) {
  return info.mtp_present && info.draft.cache.num_layers > 0;
}

void add_model_json(const Report& report, Json* json) {
  const ModelInfo& info = *report.info;
  Json attention, cache, parameters, weights, mtp;
  attention.set("class", info.attention_class);
  attention.set("why", info.attention_why);
  cache.set("format", "bf16");
  cache.set("bytes_per_token", report.bytes_per_token());
  cache.set("bytes_per_sequence", report.bytes_per_sequence());
  cache.set("total_bytes", report.cache_bytes());
  cache.set("tokens", report.context);
  cache.set("sequences", report.parallel);
  parameters.set("total", info.total_parameters);
  parameters.set("active", info.active_parameters);
  parameters.set("mtp", info.mtp_parameters);
  weights.set("format", info.weight_format);
  weights.set("bytes", info.weight_bytes);
  weights.set("active_bytes", info.active_weight_bytes);
  if (!report.weights.empty()) {
    weights.set("loaded_bytes", resident_bytes(report.weights));
    weights.set("loaded_active_bytes", report.weight_bytes_per_token());
    weights.set("parts", parts_json(report.weights));
  }
  mtp.set("layers", info.mtp_layers);
  mtp.set("present", info.mtp_present);
  mtp.set("used", can_guess(info));
  json->set("family", info.family);
  json->set("layers", info.num_layers);
  json->set("hidden_size", info.hidden_size);
  json->set("vocab_size", info.vocab_size);
  json->set("attention", std::move(attention));
  json->set("heads", heads_json(info));
  Json derived(Json::Array{});
  for (const ModelInfo::HeadDim& dim : info.head_dims) {
    if (dim.derived) derived.push_back(dim.name);
  }
  json->set("heads_derived", std::move(derived));
  json->set("kv_cache", std::move(cache));
  if (info.cache.state_bytes > 0) {
    Json states;
    states.set("bytes_per_sequence", info.cache.state_bytes);
    states.set("total_bytes", report.state_bytes());
    states.set("snapshot_bytes", info.cache.snapshot_bytes);
    json->set("recurrent_states", std::move(states));
  }
  json->set("parameters", std::move(parameters));
  json->set("quantization", info.weight_format.empty() ? Json() : Json(info.weight_format));
  json->set("weights", std::move(weights));
  json->set("mtp", std::move(mtp));
  if (info.images) {
    Json vision;
    vision.set("parameters", info.images->parameters);
    vision.set("bytes", info.images->weight_bytes);
    vision.set("patch_size", info.images->patch_size);
    vision.set("image_token", info.images->image_token);
    json->set("vision", std::move(vision));
  }
  json->set("context", info.max_position_embeddings);
}

Json plan_json(const PlanReport& plan) {
  const MemoryPlan& memory = plan.memory;
  Json json;
  json.set("limit", memory.limit);
  json.set("total_bytes", memory.total());
  json.set("resident_bytes", memory.weights);
  json.set("kv_cache_bytes", memory.cache);
  if (memory.states.total() > 0) {
    json.set("state_bytes", memory.states.states);
    json.set("snapshots", static_cast<std::uint64_t>(memory.states.num_snapshots));
    json.set("snapshots_bytes", memory.states.snapshots);
  }
  json.set("context", memory.context);
  json.set("streams", memory.streams);
  if (!memory.streams) return json;
  json.set("scratch_bytes", memory.scratch + memory.logits);
  json.set("chunk", memory.chunk);
  json.set("streamed_bytes", memory.streamed);
  json.set("expert_cache_bytes", memory.expert_cache);
  json.set("experts", memory.num_experts);
  json.set("experts_in_memory", memory.num_slots);
  json.set("assumed_hit_rate", plan.hits.rate);
  json.set("hit_rate_source", plan.hits.source);
  json.set("memory_bytes_per_token", plan.forecast.memory_bytes);
  json.set("disk_bytes_per_token", plan.forecast.disk_bytes);
  if (plan.tokens_per_s() == 0) return json;
  json.set("memory_bytes_per_s", plan.memory_bytes_per_s);
  json.set("disk_bytes_per_s", plan.disk_bytes_per_s);
  json.set("expected_tokens_per_s", plan.tokens_per_s());
  return json;
}

void print_json(const Report& report) {
  Json json;
  json.set("model_type", report.model_type);
  if (report.info) add_model_json(report, &json);
  Json machine;
  machine.set("isa", report.isa);
  machine.set("threads", report.threads);
  machine.set("available_memory", report.memory.bytes);
  json.set("machine", std::move(machine));
  if (report.plan) json.set("plan", plan_json(*report.plan));
  json.set("verdict", report.refusal.empty() ? "ok" : "refused");
  if (!report.refusal.empty()) json.set("reason", report.refusal);
  Json notes(Json::Array{});
  for (const std::string& note : report.notes) notes.push_back(note);
  json.set("notes", std::move(notes));
  std::puts(json.dump(2).c_str());
}

void print_line(std::string_view name, const std::string& value) {
  std::puts(fmt::format("{:<12} {}", name, value).c_str());
}

std::string millions(std::uint64_t count) {
  const auto number = static_cast<double>(count);
  return number >= 1e9 ? fmt::format("{:.2f} B", number / 1e9)
                       : fmt::format("{:.2f} M", number / 1e6);
}

std::string grouped(std::uint64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

void print_parts(const Report& report) {
  const std::vector<PartUse> parts = parts_of(report.weights);
  std::size_t width = 8;
  for (const PartUse& use : parts) width = std::max(width, use.storage.size());
  for (const PartUse& use : parts) {
    std::string loaded;
    if (use.stored != use.form.type)
      loaded = fmt::format(", {} when loaded", dtype_name(use.form.type));
    print_line("", fmt::format("{:<17} {:<{}} {:>10} in {}{}", part_name(use.part), use.storage,
                               width, millions(use.parameters),
                               format_bytes(static_cast<double>(use.stored_bytes)), loaded));
  }
  if (report.weights.empty()) return;
  print_line("Memory",
             fmt::format("{} for the weights; {} of weights read per token at batch 1",
                         format_bytes(static_cast<double>(resident_bytes(report.weights))),
                         format_bytes(report.weight_bytes_per_token())));
}

void print_model(const Report& report) {
  const ModelInfo& info = *report.info;
  print_line("Model", fmt::format("{} ({})", info.family, info.model_type));
  print_line("Parameters",
             fmt::format("{} in all, {} active per token{}", millions(info.total_parameters),
                         millions(info.active_parameters),
                         info.mtp_parameters > 0
                             ? fmt::format("; MTP {} more", millions(info.mtp_parameters))
                             : ""));
  print_line("Layers", fmt::format("{} of width {}, vocabulary {}", info.num_layers,
                                   info.hidden_size, info.vocab_size));
  print_line("Attention", fmt::format("{}: {}", info.attention_class, info.attention_why));
  std::string dims = fmt::format("{} heads", info.num_heads);
  for (const ModelInfo::HeadDim& dim : info.head_dims) {
    dims += fmt::format(", {} {}{}", dim.name, dim.value, dim.derived ? " (derived)" : "");
  }
  print_line("Heads", dims);
  if (report.has_weights) {
    print_line("Weights", fmt::format("{}, {}", info.weight_format,
                                      format_bytes(static_cast<double>(info.weight_bytes))));
    print_parts(report);
  }
  print_line("KV cache", fmt::format("bf16, {} bytes per token; {} sequence{} of {} tokens: {}",
                                     grouped(report.bytes_per_token()), report.parallel,
                                     report.parallel == 1 ? "" : "s", report.context,
                                     format_bytes(static_cast<double>(report.cache_bytes()))));
  if (info.cache.state_bytes > 0) {
    const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
    print_line("States", fmt::format("{} a sequence, {} in all; {} for each that is kept "
                                     "(--snapshots)",
                                     text(info.cache.state_bytes), text(report.state_bytes()),
                                     text(info.cache.snapshot_bytes)));
  }
  print_line("MTP",
             info.mtp_layers == 0
                 ? "none"
                 : fmt::format("{} layer{} {}{}", info.mtp_layers, info.mtp_layers == 1 ? "" : "s",
                               info.mtp_present ? "present" : "declared, without weights",
                               can_guess(info) ? ", guesses ahead (--mtp)" : ""));
  if (info.images) {
    print_line("Vision",
               fmt::format("{} parameters in {}: images become a token for {} x {} pixels",
                           millions(info.images->parameters),
                           format_bytes(static_cast<double>(info.images->weight_bytes)),
                           info.images->patch_size * info.images->merge,
                           info.images->patch_size * info.images->merge));
  }
  print_line("Context", fmt::format("up to {} tokens", info.max_position_embeddings));
}

void print_plan(const Report& report, const PlanReport& plan) {
  const MemoryPlan& memory = plan.memory;
  const auto text = [](double bytes) { return format_bytes(bytes); };
  const auto count = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::string states = describe_states(report.info->cache, report.parallel, memory.states);
  if (!states.empty()) states = " + " + states;
  if (!memory.streams) {
    print_line("Plan",
               fmt::format("all in memory: weights {} + cache {} ({} tokens){} + logits {} = "
                           "{} of {}",
                           count(memory.weights), count(memory.cache), memory.context, states,
                           count(memory.logits), count(memory.total()), count(memory.limit)));
    return;
  }
  print_line("Plan", fmt::format("experts are streamed from disk: {} of {}", count(memory.total()),
                                 count(memory.limit)));
  print_line("", fmt::format("resident: weights {} + cache {} ({} tokens){}, {} for the program "
                             "and steps of {} tokens",
                             count(memory.weights), count(memory.cache), memory.context, states,
                             count(memory.scratch + memory.logits), memory.chunk));
  print_line("", fmt::format("on disk: {} experts, {}; {} of them fit the expert cache of {}",
                             memory.num_experts, count(memory.streamed), memory.num_slots,
                             count(memory.expert_cache)));
  print_line("", fmt::format("a token reads {} from memory and {} from disk, if {:.0f} % of its "
                             "experts are in memory ({})",
                             text(plan.forecast.memory_bytes), text(plan.forecast.disk_bytes),
                             100 * plan.hits.rate, plan.hits.source));
  if (plan.tokens_per_s() == 0) return;
  print_line(
      "",
      fmt::format("measured here: memory {:.1f} GB/s, these files {:.2f} GB/s; expected: "
                  "{:.3g} tok/s",
                  plan.memory_bytes_per_s / 1e9, plan.disk_bytes_per_s / 1e9, plan.tokens_per_s()));
}

void print_text(const Report& report) {
  if (report.info) {
    print_model(report);
  } else {
    print_line("Model", report.model_type);
  }
  print_line("Machine",
             fmt::format("{}, {} threads ({}), {} of memory ({})", report.isa, report.threads,
                         report.cpus.why, format_bytes(static_cast<double>(report.memory.bytes)),
                         report.memory.source));
  if (report.plan) print_plan(report, *report.plan);
  for (const std::string& note : report.notes) print_line("Note", note);
  print_line("Verdict", report.refusal.empty() ? "ok" : "refused: " + report.refusal);
}

int run(const InspectOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  Report report;
  const auto isa = choose_isa(options.session.isa);
  if (!isa) return complain("--isa: " + isa.error().message, kExitUsage);
  report.isa = isa_name(*isa);
  report.cpus = cpu_budget();
  report.threads = options.session.threads > 0 ? options.session.threads : report.cpus.threads;
  report.memory = available_memory();
  report.parallel = options.parallel;
  const auto folder = model_folder(options.model);
  if (!folder) return complain(folder.error().message, kExitRefused);
  inspect_model(folder->path(), options, &report);
  if (options.json) {
    print_json(report);
  } else {
    print_text(report);
  }
  if (report.refusal.empty()) return kExitOk;
  return options.json ? complain(report.refusal, kExitRefused) : kExitRefused;
}

}  // namespace

Command inspect_command() {
  auto options = std::make_shared<InspectOptions>();
  return {.name = "inspect",
          .summary = "what a model is, what it costs, and whether it will run",
          .usage = "[MODEL] [options]",
          .notes = "The exit code is 3 when the model would be refused.",
          .examples = {"glint inspect ./GLM-4.7-Flash --context 32768 --parallel 4",
                       "glint inspect config.json --json"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
