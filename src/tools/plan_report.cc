#include "tools/plan_report.h"

#include <fmt/format.h>

#include "cache/cache.h"
#include "tools/flags.h"

namespace glint {
namespace {

std::string text(std::uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string plural(std::uint64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string of_sequences(const MemoryPlan& plan) {
  return fmt::format("{} x {} tokens", plan.sequences, plan.context);
}

// The classes of memory beside weights, those that there are; `name` starts a line of a table.
struct Class {
  std::string name;
  std::string key;
  std::uint64_t bytes = 0;
  std::string note = {};
};

std::vector<Class> classes(const MemoryPlan& plan) {
  std::vector<Class> all = {
      {"cache", "kv_cache_bytes", plan.cache, of_sequences(plan)},
      {"prefix cache", "prefix_cache_bytes", plan.prefix.bytes,
       plan.prefix.max_bytes == 0
           ? ""
           : fmt::format("with what is idle at most {}", text(plan.prefix.max_bytes))},
      {plural(static_cast<std::uint64_t>(plan.sequences), "recurrent state"), "state_bytes",
       plan.states.states},
      {plural(plan.states.num_snapshots, "snapshot"), "snapshots_bytes", plan.states.snapshots},
      {"logits", "logits_bytes", plan.logits},
      {"steps", "scratch_bytes", plan.scratch, fmt::format("of {} tokens", plan.chunk)},
      {"images", "image_bytes", plan.images},
      {"requests", "request_bytes", plan.requests},
      {"the program", "program_bytes", plan.program},
      {"expert cache", "expert_cache_bytes", plan.expert_cache}};
  std::erase_if(all, [](const Class& one) { return one.bytes == 0; });
  return all;
}

std::vector<Class> weight_classes(const WeightBytes& use) {
  std::vector<Class> all = {{"embedding and head", "embedding_and_head", use.embedding},
                            {"attention", "attention", use.attention},
                            {"dense layers and shared experts", "dense", use.dense},
                            {"routed experts", "experts", use.experts},
                            {"norms and routers", "small", use.small},
                            {"draft layer", "draft", use.draft},
                            {"vision tower", "vision", use.vision}};
  std::erase_if(all, [](const Class& one) { return one.bytes == 0; });
  return all;
}

std::string why_context(const MemoryPlan& plan) {
  switch (plan.context_reason) {
    case ContextReason::kModel:
      return "the most that the model was made for";
    case ContextReason::kDefault:
      return "the default; --ctx takes more";
    case ContextReason::kMemory:
      return fmt::format("more does not fit {}", plan.limit_source);
    case ContextReason::kAsked:
      break;
  }
  return "as asked";
}

}  // namespace

std::string plan_sum(const MemoryPlan& plan) {
  std::string sum =
      fmt::format("{} {}", plan.streams ? "other weights" : "weights", text(plan.weights));
  for (const Class& one : classes(plan)) {
    sum += fmt::format(" + {} {}", one.name, text(one.bytes));
    if (!one.note.empty()) sum += fmt::format(" ({})", one.note);
  }
  return sum;
}

std::vector<PlanLine> plan_lines(const MemoryPlan& plan) {
  std::vector<PlanLine> lines;
  lines.push_back({"Memory", fmt::format("{} of {} ({})", text(plan.total()), text(plan.limit),
                                         plan.limit_source)});
  const auto add = [&lines](const Class& one) {
    const std::string note = one.note.empty() ? "" : fmt::format(" ({})", one.note);
    lines.push_back({"", fmt::format("{:>11}  {}{}", text(one.bytes), one.name, note)});
  };
  for (const Class& one : weight_classes(plan.parts)) add(one);
  for (const Class& one : classes(plan)) add(one);
  if (plan.streams) {
    lines.push_back(
        {"", fmt::format("{:>11}  on disk: {} experts, of which {} fit the expert cache",
                         text(plan.streamed), plan.num_experts, plan.num_slots)});
  }
  std::string each = fmt::format("a token {} of cache", text(plan.bytes_per_token));
  if (plan.bytes_per_sequence > 0)
    each += fmt::format(", a sequence {} of state", text(plan.bytes_per_sequence));
  lines.push_back(
      {"Fits", fmt::format("{}; with {} up to --ctx {}", each,
                           plural(static_cast<std::uint64_t>(plan.sequences), "sequence"),
                           plan.largest_context)});
  lines.push_back(
      {"", fmt::format("with {} tokens up to --parallel {}", plan.context, plan.most_sequences)});
  return lines;
}

Json plan_json(const MemoryPlan& plan) {
  Json json;
  json.set("limit", plan.limit);
  json.set("limit_source", plan.limit_source);
  json.set("total_bytes", plan.total());
  Json weights;
  for (const Class& one : weight_classes(plan.parts)) weights.set(one.key, one.bytes);
  weights.set("total", plan.weights);
  json.set("weights", std::move(weights));
  for (const Class& one : classes(plan)) json.set(one.key, one.bytes);
  json.set("prefix_cache_limit_bytes", plan.prefix.max_bytes);
  json.set("bytes_per_token", plan.bytes_per_token);
  if (plan.bytes_per_sequence > 0) {
    json.set("bytes_per_sequence", plan.bytes_per_sequence);
    json.set("snapshots", static_cast<std::uint64_t>(plan.states.num_snapshots));
  }
  json.set("context", plan.context);
  json.set("context_reason", why_context(plan));
  json.set("sequences", plan.sequences);
  json.set("chunk", plan.chunk);
  json.set("largest_context", plan.largest_context);
  json.set("most_sequences", plan.most_sequences);
  json.set("streams", plan.streams);
  if (!plan.streams) return json;
  json.set("streamed_bytes", plan.streamed);
  json.set("experts", plan.num_experts);
  json.set("experts_in_memory", plan.num_slots);
  return json;
}

std::string plan_summary(const MemoryPlan& plan) {
  return fmt::format("memory: {} of {} ({}): {}; context {}: {}", text(plan.total()),
                     text(plan.limit), plan.limit_source, plan_sum(plan), plan.context,
                     why_context(plan));
}

}  // namespace glint
