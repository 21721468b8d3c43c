// `glint inspect` for people: what it is, what it costs, whether it runs here, other engines,
// traps.
#include <fmt/format.h>

#include <algorithm>

#include "models/cache_format.h"
#include "tools/flags.h"
#include "tools/inspect_report.h"
#include "tools/plan_report.h"
#include "tools/text_sheet.h"

namespace glint {
namespace {

std::string bytes(std::uint64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string millions(std::uint64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e12) return fmt::format("{:.2f} T", number / 1e12);
  return number >= 1e9 ? fmt::format("{:.2f} B", number / 1e9)
                       : fmt::format("{:.2f} M", number / 1e6);
}

std::string plural(std::int64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

// ---- what it is

void say_heads(const InspectReport& report, TextSheet& sheet) {
  std::string text;
  if (report.info) {
    text = fmt::format("{} heads", report.info->num_heads);
    for (const ModelInfo::HeadDim& dim : report.info->head_dims)
      text += fmt::format(", {} {}{}", dim.name, dim.value, dim.derived ? " (derived)" : "");
  } else {
    text = fmt::format("{} heads", report.profile->heads);
    for (const ProfileDim& dim : report.profile->dims)
      text +=
          fmt::format(", {} {}{}", dim.name, dim.value, dim.derived.empty() ? "" : " (derived)");
  }
  sheet.line("Heads", text);
  if (!report.profile) return;
  std::string how;
  for (const ProfileDim& dim : report.profile->dims) {
    if (!dim.derived.empty())
      how += fmt::format("{}{} = {}", how.empty() ? "" : "; ", dim.name, dim.derived);
  }
  if (!how.empty()) sheet.line("", how);
}

void say_experts(const ModelProfile& p, TextSheet& sheet) {
  if (p.experts == 0) return;
  std::string text = fmt::format("{}, {} per token, {} shared, {} router", p.experts,
                                 p.experts_per_token, p.shared_experts, p.router);
  if (p.dense_layers > 0) text += fmt::format("; {} without", plural(p.dense_layers, "layer"));
  sheet.line("Experts", text);
}

void say_mtp(const InspectReport& report, TextSheet& sheet) {
  if (!report.info) {
    sheet.line("MTP", report.profile->mtp_layers == 0
                          ? "none"
                          : plural(report.profile->mtp_layers, "layer") + " declared");
    return;
  }
  const ModelInfo& info = *report.info;
  sheet.line("MTP", info.mtp_layers == 0
                        ? "none"
                        : fmt::format("{} {}{}", plural(info.mtp_layers, "layer"),
                                      info.mtp_present ? "present" : "declared, without weights",
                                      report.can_guess() ? ", guesses ahead (--mtp)" : ""));
}

void say_context(const InspectReport& report, TextSheet& sheet) {
  const std::int64_t most =
      report.info ? report.info->max_position_embeddings : report.profile->context.positions;
  std::string text = most > 0 ? fmt::format("up to {} tokens", most) : "the config does not say";
  if (report.profile && report.profile->context.factor > 1) {
    const ContextLimits& c = report.profile->context;
    text += fmt::format("; rope scaled by {} ({}{})", c.factor, c.rope,
                        c.original > 0 ? fmt::format(", from {}", c.original) : "");
  }
  sheet.line("Context", text);
}

void say_what(const InspectReport& report, TextSheet& sheet) {
  sheet.title("What it is");
  if (!report.info && !report.profile) {
    sheet.line("Model", report.model_type);
    return;
  }
  if (report.info) {
    const ModelInfo& info = *report.info;
    sheet.line("Model", fmt::format("{} ({})", info.family, info.model_type));
    sheet.line("Layers", fmt::format("{} of width {}, vocabulary {}", info.num_layers,
                                     info.hidden_size, info.vocab_size));
    sheet.line("Attention", fmt::format("{}: {}", info.attention_class, info.attention_why));
  } else {
    const ModelProfile& p = *report.profile;
    sheet.line("Model", fmt::format("{} ({}){}", p.name, p.model_type,
                                    p.guessed ? ": a guess by generic rules" : ""));
    sheet.line("Layers",
               fmt::format("{} of width {}, vocabulary {}", p.layers, p.hidden_size, p.vocab_size));
    sheet.line("Attention", fmt::format("{}: {}", p.attention_class, p.attention_why));
  }
  say_heads(report, sheet);
  if (report.profile) say_experts(*report.profile, sheet);
  say_mtp(report, sheet);
  if (report.info && report.info->images && report.has_weights) {
    const ImageInput& images = *report.info->images;
    sheet.line("Vision",
               fmt::format("{} parameters in {}: images become a token for {} x {} pixels",
                           millions(images.parameters), bytes(images.weight_bytes),
                           images.patch_size * images.merge, images.patch_size * images.merge));
  } else if (report.profile && report.profile->vision) {
    const std::uint64_t count = report.profile->vision_parameters.value();
    sheet.line("Vision", count > 0 ? fmt::format("a tower of {} parameters", millions(count))
                                   : "there is a tower");
  }
  say_context(report, sheet);
}

// ---- what it costs

void say_parts(const InspectReport& report, TextSheet& sheet) {
  const std::vector<PartUse> parts = parts_of(report.weights);
  std::size_t width = 8;
  for (const PartUse& use : parts) width = std::max(width, use.storage.size());
  for (const PartUse& use : parts) {
    std::string loaded;
    if (use.stored != use.form.type)
      loaded = fmt::format(", {} when loaded", dtype_name(use.form.type));
    sheet.line("", fmt::format("{:<17} {:<{}} {:>10} in {}{}", part_name(use.part), use.storage,
                               width, millions(use.parameters), bytes(use.stored_bytes), loaded));
  }
  if (report.weights.empty()) return;
  sheet.line("Loaded", fmt::format("{} for the weights; {} of weights read per token at batch 1",
                                   bytes(resident_bytes(report.weights)),
                                   format_bytes(report.weight_bytes_per_token())));
}

void say_parameters(const InspectReport& report, TextSheet& sheet) {
  const ModelProfile* p = report.profile ? &*report.profile : nullptr;
  const std::uint64_t total =
      report.info ? report.info->total_parameters : p->total_parameters.value();
  const std::uint64_t active =
      report.info ? report.info->active_parameters : p->active_parameters.value();
  std::uint64_t mtp = report.info ? report.info->mtp_parameters : p->mtp_parameters.value();
  if (mtp == 0 && p != nullptr) mtp = p->mtp_parameters.value();
  sheet.line("Parameters",
             fmt::format("{} in all, {} active per token{}", millions(total), millions(active),
                         mtp > 0 ? fmt::format("; MTP {} more", millions(mtp)) : ""));
}

void say_weights(const InspectReport& report, TextSheet& sheet) {
  if (report.info && report.has_weights) {
    sheet.line("Weights",
               fmt::format("{}, {}", report.info->weight_format, bytes(report.info->weight_bytes)));
    say_parts(report, sheet);
    return;
  }
  if (!report.profile) return;
  const ModelProfile& p = *report.profile;
  sheet.line("Weights",
             fmt::format("about {}, of which a token reads {} ({})", bytes(p.weight_bytes.value()),
                         bytes(p.active_weight_bytes.value()),
                         p.quantisation.scheme.empty() ? "no quantisation is declared: as bf16"
                                                       : "declared: " + p.quantisation.scheme));
}

// The other formats; where glint has one, its own bytes, which may differ: it keeps the keys of
// indexers in bf16.
void say_layouts(const InspectReport& report, TextSheet& sheet) {
  for (const CacheLayout& layout : report.profile->layouts) {
    if (layout.name == cache_format_name(report.format)) continue;
    const auto format = cache_format_from_name(layout.name);
    const CacheSpec* spec = report.info && format ? report.info->cache.find(*format) : nullptr;
    const std::string how =
        spec != nullptr ? layout.layout.substr(0, layout.layout.find(';')) : layout.layout;
    const double each =
        spec != nullptr ? static_cast<double>(spec->bytes_per_token()) : layout.bytes_per_token;
    sheet.line("", fmt::format("{}: {} bytes per token, {} for all that ({} a row: {}){}",
                               layout.name, fact_text(number_json(each)),
                               format_bytes(each * static_cast<double>(report.tokens(1))),
                               fact_text(number_json(layout.row_bytes)), how,
                               spec != nullptr ? fmt::format("; --kv-cache {}", layout.name) : ""));
  }
}

void say_cache(const InspectReport& report, TextSheet& sheet) {
  std::string drafts;
  if (report.format == CacheFormat::kBf16 && report.profile && !report.profile->mtp_cache.empty()) {
    drafts = fmt::format(" ({} with MTP)",
                         fact_text(number_json(report.profile->layouts.front().with_mtp)));
  }
  sheet.line("KV cache",
             fmt::format("{}, {} bytes per token{}; {} of {} tokens: {}",
                         cache_format_name(report.format), grouped_number(report.bytes_per_token()),
                         drafts, plural(report.parallel, "sequence"), report.context,
                         bytes(report.cache_bytes())));
  if (report.profile) say_layouts(report, sheet);
  if (report.info && report.cache().state_bytes > 0) {
    sheet.line("States", fmt::format("{} a sequence, {} in all; {} for each that is kept "
                                     "(--snapshots)",
                                     bytes(report.cache().state_bytes), bytes(report.state_bytes()),
                                     bytes(report.cache().snapshot_bytes)));
  } else if (report.state_bytes() > 0) {
    const ModelProfile& p = *report.profile;
    sheet.line("States", fmt::format("{} a sequence however long it is ({}), {} in all",
                                     bytes(p.state_bytes.value() + p.window_bytes.value()),
                                     p.hybrid ? "recurrent states" : "the sliding window, in bf16",
                                     bytes(report.state_bytes())));
  }
  if (report.profile) {
    sheet.line("Per token",
               fmt::format("{} of weights and {} of a bf16 cache and states are read at {} tokens",
                           format_bytes(report.weight_bytes_per_token()),
                           format_bytes(cache_read_bytes(*report.profile, report.context)),
                           report.context));
  }
  if (report.profile && !report.has_weights) {
    sheet.line("Together", fmt::format("about {}, without the program's own",
                                       bytes(report.profile->weight_bytes.value() +
                                             report.cache_bytes() + report.state_bytes())));
  }
}

void say_costs(const InspectReport& report, TextSheet& sheet) {
  if (!report.info && !report.profile) return;
  sheet.title("What it costs");
  say_parameters(report, sheet);
  say_weights(report, sheet);
  say_cache(report, sheet);
}

// ---- whether it runs here

void say_plan(const PlanReport& plan, TextSheet& sheet) {
  const MemoryPlan& memory = plan.memory;
  sheet.line("Plan", memory.streams ? "experts are streamed from disk" : "all in memory");
  for (const PlanLine& line : plan_lines(memory)) sheet.line(line.name, line.value);
  if (!memory.streams) return;
  sheet.line("Speed", fmt::format("a token reads {} from memory and {} from disk, if {:.0f} % of "
                                  "its experts are in memory ({})",
                                  format_bytes(plan.forecast.memory_bytes),
                                  format_bytes(plan.forecast.disk_bytes), 100 * plan.hits.rate,
                                  plan.hits.source));
  if (plan.tokens_per_s() == 0) return;
  sheet.line(
      "",
      fmt::format("measured here: memory {:.1f} GB/s, these files {:.2f} GB/s; expected: "
                  "{:.3g} tok/s",
                  plan.memory_bytes_per_s / 1e9, plan.disk_bytes_per_s / 1e9, plan.tokens_per_s()));
}

void say_here(const InspectReport& report, TextSheet& sheet) {
  sheet.title("Will it run here, with glint");
  sheet.line("Machine",
             fmt::format("{}, {} threads ({}), {} of memory ({})", report.isa, report.threads,
                         report.cpus.why, bytes(report.memory.bytes), report.memory.source));
  if (report.plan) say_plan(*report.plan, sheet);
  for (const std::string& note : report.notes) sheet.line("Note", note);
  if (!report.info && report.profile) {
    for (const std::string& note : report.profile->notes) sheet.line("Note", note);
  }
  std::string verdict = report.refusal.empty() ? "ok" : "refused: " + report.refusal;
  if (!report.shortage.empty()) verdict = "ok, but not here as asked: " + report.shortage;
  sheet.line("Verdict", verdict);
}

// ---- other engines

std::string with_source(const DecidedRule& decided) {
  return fmt::format("{} [{}; {}, {}]", decided.text, decided.rule->aspect, decided.rule->source,
                     decided.rule->date);
}

// What decides a cell: without sources only what is more than a plain yes.
void say_rules(const EngineAnswer& answer, bool with_sources, TextSheet& sheet) {
  const bool plain = answer.verdict == Verdict::kYes;
  for (const DecidedRule& decided : answer.rules) {
    if (decided.rule == nullptr) continue;
    if (with_sources) {
      sheet.item(fmt::format("{}: {}", verdict_name(decided.verdict), with_source(decided)));
    } else if (decided.verdict == Verdict::kNo || decided.verdict == Verdict::kConditional ||
               (plain && decided.verdict == Verdict::kYes)) {
      sheet.item(decided.text);
    }
  }
}

void say_engines(const InspectReport& report, bool with_sources, TextSheet& sheet) {
  if (!report.profile) return;
  const bool any = std::ranges::any_of(
      report.engines, [](const EngineAnswer& answer) { return answer.engine != "glint"; });
  if (any) {
    sheet.title(fmt::format("Other engines, as of {}{}", report.table->as_of(),
                            with_sources ? "" : " (--engine NAME: all rules with their sources)"));
  }
  for (const EngineAnswer& answer : report.engines) {
    if (answer.engine == "glint") continue;
    sheet.line(answer.name, std::string(verdict_words(answer.verdict)) +
                                (answer.rules.empty() ? ": no row of the table is about it" : ""));
    say_rules(answer, with_sources, sheet);
  }
  if (report.traps.empty()) return;
  sheet.title("Traps");
  for (const DecidedRule& trap : report.traps)
    sheet.item(with_sources ? with_source(trap) : trap.text);
}

}  // namespace

std::string report_text(const InspectReport& report, bool with_sources, int width) {
  TextSheet sheet(width);
  say_what(report, sheet);
  say_costs(report, sheet);
  say_here(report, sheet);
  say_engines(report, with_sources, sheet);
  return sheet.text();
}

}  // namespace glint
