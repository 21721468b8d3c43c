#include "tools/inspect_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/cache_format.h"
#include "models/registry.h"
#include "serviceability/model_files.h"
#include "tools/flags.h"
#include "tools/machine_probe.h"
#include "tools/text_source.h"

namespace glint {
namespace {

constexpr std::size_t kProbeBytes = 256u << 20;

void inspect_text(const Checkpoint& checkpoint, InspectReport* report) {
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
void inspect_plan(const Checkpoint& checkpoint, const InspectOptions& options,
                  InspectReport* report) {
  MemoryRequest request = memory_request(options.session, report->threads);
  request.context = std::min(options.context, report->info->max_position_embeddings);
  request.num_sequences = options.parallel;
  auto memory = plan_memory(*report->info, report->cache(), request, report->memory);
  if (!memory) {
    report->shortage = memory.error().message;
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

void choose_context(const InspectOptions& options, std::int64_t most, InspectReport* report) {
  report->context = options.context > 0
                        ? options.context
                        : static_cast<int>(std::clamp<std::int64_t>(most, 1, 1 << 30));
  if (most > 0 && report->context > most) {
    report->notes.push_back(fmt::format(
        "{} tokens are more than the {} positions the model was made for", report->context, most));
  }
}

// Of a model that glint does not run.
void choose_format(const InspectOptions& options, InspectReport* report) {
  report->format = load_options(options.session).cache_format;
  if (report->layout() == nullptr) report->format = CacheFormat::kBf16;  // nothing is cached
}

// Whether glint runs it, and what that costs.
void inspect_model(const Checkpoint& checkpoint, const InspectOptions& options,
                   InspectReport* report) {
  report->has_weights = checkpoint.has_weights();
  auto info = describe_model(checkpoint);
  if (!info) {
    report->refusal = info.error().message;
    return;
  }
  report->info = std::move(*info);
  report->notes = checkpoint.notes();
  report->notes.insert(report->notes.end(), report->info->notes.begin(), report->info->notes.end());
  choose_context(options, report->info->max_position_embeddings, report);
  const CacheFormat asked = load_options(options.session).cache_format;
  if (const Status has = check_cache_format(*report->info, asked); !has) {
    report->refusal = has.error().message;
    return;
  }
  report->format = asked;
  if (!report->has_weights) {
    report->notes.push_back("there are no weights here: only what config.json says is reported");
    return;
  }
  if (const Status checked = check_model(checkpoint, DraftLayer::kIfPresent); !checked) {
    report->refusal = checked.error().message;
    return;
  }
  report->weights = place_weights(*report->info, load_options(options.session));
  inspect_text(checkpoint, report);
  inspect_plan(checkpoint, options, report);
}

// What glint's own registry says, in the form of the others' answers.
EngineAnswer own_answer(const InspectReport& report) {
  EngineAnswer answer{"glint", "glint"};
  if (!report.refusal.empty()) {
    answer.verdict = Verdict::kNo;
    answer.rules.push_back({nullptr, Verdict::kNo, report.refusal});
    return answer;
  }
  answer.verdict = report.shortage.empty() ? Verdict::kYes : Verdict::kConditional;
  if (!report.shortage.empty())
    answer.rules.push_back({nullptr, Verdict::kConditional, report.shortage});
  answer.rules.push_back(
      {nullptr, Verdict::kYes,
       report.has_weights ? "every key of the config and every tensor was checked"
                          : "every key of the config was checked; there are no tensors to check"});
  return answer;
}

Status join_engines(const InspectOptions& options, const ModelFiles& files, InspectReport* report) {
  GLINT_TRY(auto table, EngineTable::built_in());
  report->table = std::make_shared<const EngineTable>(std::move(table));
  std::vector<std::string_view> known{"glint"};
  for (const EngineName& engine : report->table->engines()) known.push_back(engine.id);
  if (!options.engine.empty() && std::ranges::find(known, options.engine) == known.end()) {
    return invalid_argument(
        fmt::format("--engine: '{}' is none of {}", options.engine, fmt::join(known, "|")));
  }
  report->engines.push_back(own_answer(*report));
  if (!report->profile) return {};
  report->facts = facts_of(*report->profile, files.facts, options.gpu);
  for (EngineAnswer& answer : report->table->join(report->facts))
    report->engines.push_back(std::move(answer));
  report->traps = report->table->traps_of(report->facts);
  std::erase_if(report->engines, [&](const EngineAnswer& answer) {
    return !options.engine.empty() && answer.engine != options.engine;
  });
  return {};
}

}  // namespace

std::uint64_t InspectReport::bytes_per_token() const {
  if (info) return cache().bytes_per_token();
  return layout() != nullptr ? static_cast<std::uint64_t>(layout()->bytes_per_token) : 0;
}

const CacheLayout* InspectReport::layout() const {
  if (!profile) return nullptr;
  const auto found =
      std::ranges::find(profile->layouts, cache_format_name(format), &CacheLayout::name);
  return found == profile->layouts.end() ? nullptr : &*found;
}

double InspectReport::weight_bytes_per_token() const {
  if (!weights.empty()) return bytes_read(*info, weights, 1);
  return profile ? static_cast<double>(profile->active_weight_bytes.value()) : 0;
}

std::uint64_t InspectReport::bytes_per_sequence() const {
  return bytes_per_token() * static_cast<std::uint64_t>(context);
}

std::uint64_t InspectReport::tokens(std::uint64_t per_token) const {
  return per_token * static_cast<std::uint64_t>(context) * static_cast<std::uint64_t>(parallel);
}

std::uint64_t InspectReport::state_bytes() const {
  std::uint64_t each = 0;
  if (info) {
    each = cache().state_stride();
  } else if (profile) {
    each = profile->state_bytes.value() + profile->window_bytes.value();
  }
  return each * static_cast<std::uint64_t>(parallel);
}

std::uint64_t InspectReport::cache_bytes() const {
  return bytes_per_sequence() * static_cast<std::uint64_t>(parallel);
}

Result<InspectReport> inspect(const std::filesystem::path& path, const InspectOptions& options,
                              Isa isa) {
  InspectReport report;
  report.isa = isa_name(isa);
  report.cpus = cpu_budget();
  report.threads = options.session.threads > 0 ? options.session.threads : report.cpus.threads;
  report.memory = available_memory();
  report.parallel = options.parallel;
  const auto checkpoint = Checkpoint::open(path, false);
  std::optional<ModelFiles> files;
  if (checkpoint) {
    inspect_model(**checkpoint, options, &report);
    files = model_files_of(**checkpoint);
  } else {
    report.refusal = checkpoint.error().message;
    // A profile needs no more than the config, whatever is wrong with the rest.
    if (auto read = read_model_files(path)) files = std::move(*read);
  }
  if (files) {
    if (const Json* type = files->config.find("model_type"); type && type->is_string())
      report.model_type = type->as_string();
    auto profile = read_profile(files->config, files->hf_quant_config);
    if (profile) {
      report.profile = std::move(*profile);
      if (!report.info) {
        choose_context(options, report.profile->context.positions, &report);
        choose_format(options, &report);
      }
    } else if (report.refusal != profile.error().message) {
      report.notes.push_back("no profile: " + profile.error().message);
    }
  }
  GLINT_TRY_VOID(join_engines(options, files.value_or(ModelFiles{}), &report));
  return report;
}

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

Result<int> parse_gpu(std::string_view text) {
  struct Name {
    std::string_view name;
    int capability;
  };
  // developer.nvidia.com/cuda-gpus
  static constexpr std::array kNames = {
      Name{"a100", 80},  Name{"l40s", 89},   Name{"rtx4090", 89},  Name{"h100", 90},
      Name{"h200", 90},  Name{"gh200", 90},  Name{"b200", 100},    Name{"gb200", 100},
      Name{"b300", 103}, Name{"gb300", 103}, Name{"rtx5090", 120}, Name{"rtxpro6000", 120},
      Name{"gb10", 121},
  };
  std::string word;
  for (const char letter : text) {
    if (letter >= 'A' && letter <= 'Z') word += static_cast<char>(letter - 'A' + 'a');
    if ((letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9')) word += letter;
  }
  const auto named = std::ranges::find(kNames, word, &Name::name);
  if (named != kNames.end()) return named->capability;
  const std::string_view digits = std::string_view(word).substr(word.starts_with("sm") ? 2 : 0);
  const auto number = parse_integer(digits);
  if (number && *number >= 50 && *number < 200) return static_cast<int>(*number);
  return invalid_argument(fmt::format(
      "'{}' is no GPU that is known here: give its compute capability, for example sm90, sm100 or "
      "sm120",
      text));
}

}  // namespace glint
