// `glint inspect --json`: docs/inspect.md and docs/inspect.schema.json describe it. Keys are added,
// never renamed.
#include <fmt/format.h>

#include "models/cache_format.h"
#include "tools/inspect_report.h"
#include "tools/plan_report.h"

namespace glint {
namespace {

constexpr int kSchema = 1;

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

// ---- what both kinds of reports have

Json cache_json(const InspectReport& report) {
  Json cache;
  cache.set("format", cache_format_name(report.format));
  cache.set("bytes_per_token", report.bytes_per_token());
  cache.set("bytes_per_sequence", report.bytes_per_sequence());
  cache.set("total_bytes", report.cache_bytes());
  cache.set("tokens", report.context);
  cache.set("sequences", report.parallel);
  return cache;
}

Json parameters_json(std::uint64_t total, std::uint64_t active, std::uint64_t mtp) {
  Json json;
  json.set("total", total);
  json.set("active", active);
  json.set("mtp", mtp);
  return json;
}

Json attention_json(const std::string& name, const std::string& why) {
  Json json;
  json.set("class", name);
  json.set("why", why);
  return json;
}

// ---- of models that glint runs

void add_heads(const ModelInfo& info, Json* json) {
  Json heads, derived(Json::Array{});
  heads.set("num_heads", info.num_heads);
  heads.set("num_kv_heads", info.num_kv_heads);
  for (const ModelInfo::HeadDim& dim : info.head_dims) {
    heads.set(dim.name, dim.value);
    if (dim.derived) derived.push_back(dim.name);
  }
  json->set("heads", std::move(heads));
  json->set("heads_derived", std::move(derived));
}

void add_info(const InspectReport& report, Json* json) {
  const ModelInfo& info = *report.info;
  Json weights, mtp;
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
  mtp.set("used", report.can_guess());
  json->set("family", info.family);
  json->set("layers", info.num_layers);
  json->set("hidden_size", info.hidden_size);
  json->set("vocab_size", info.vocab_size);
  json->set("attention", attention_json(info.attention_class, info.attention_why));
  add_heads(info, json);
  json->set("kv_cache", cache_json(report));
  if (report.cache().state_bytes > 0) {
    Json states;
    states.set("bytes_per_sequence", report.cache().state_bytes);
    states.set("total_bytes", report.state_bytes());
    states.set("snapshot_bytes", report.cache().snapshot_bytes);
    json->set("recurrent_states", std::move(states));
  }
  json->set("parameters",
            parameters_json(info.total_parameters, info.active_parameters, info.mtp_parameters));
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

// ---- of the others

void add_profile_alone(const InspectReport& report, Json* json) {
  const ModelProfile& p = *report.profile;
  Json heads, derived(Json::Array{}), mtp;
  heads.set("num_heads", p.heads);
  heads.set("num_kv_heads", p.kv_heads);
  for (const ProfileDim& dim : p.dims) {
    heads.set(dim.name, dim.value);
    if (!dim.derived.empty()) derived.push_back(dim.name);
  }
  json->set("family", p.name);
  json->set("layers", p.layers);
  json->set("hidden_size", p.hidden_size);
  json->set("vocab_size", p.vocab_size);
  json->set("attention", attention_json(p.attention_class, p.attention_why));
  json->set("heads", std::move(heads));
  json->set("heads_derived", std::move(derived));
  json->set("kv_cache", cache_json(report));
  if (p.state_bytes.value() > 0) {
    Json states;
    states.set("bytes_per_sequence", p.state_bytes.value());
    states.set("total_bytes", p.state_bytes.value() * static_cast<std::uint64_t>(report.parallel));
    json->set("recurrent_states", std::move(states));
  }
  json->set("parameters", parameters_json(p.total_parameters.value(), p.active_parameters.value(),
                                          p.mtp_parameters.value()));
  json->set("quantization", p.quantisation.scheme.empty() ? Json() : Json(p.quantisation.scheme));
  mtp.set("layers", p.mtp_layers);
  mtp.set("present", false);
  mtp.set("used", false);
  json->set("mtp", std::move(mtp));
  json->set("context", p.context.positions);
}

// What only a profile tells, of any model.
void add_profile(const ModelProfile& p, Json* json) {
  json->set("guessed", p.guessed);
  Json layouts(Json::Array{});
  for (const CacheLayout& layout : p.layouts) {
    Json one;
    one.set("name", layout.name);
    one.set("layout", layout.layout);
    one.set("row_bytes", number_json(layout.row_bytes));
    one.set("bytes_per_token", number_json(layout.bytes_per_token));
    one.set("bytes_per_token_with_mtp", number_json(layout.with_mtp));
    layouts.push_back(std::move(one));
  }
  json->set("cache_formats", std::move(layouts));
  Json parts(Json::Array{});
  for (const ParameterPart& part : p.parts) {
    Json one;
    one.set("kind", weight_kind_name(part.kind));
    one.set("total", part.total.value());
    one.set("active", part.active.value());
    parts.push_back(std::move(one));
  }
  json->set("parameter_parts", std::move(parts));
  Json estimate, limits;
  estimate.set("bytes", p.weight_bytes.value());
  estimate.set("active_bytes", p.active_weight_bytes.value());
  json->set("estimated_weights", std::move(estimate));
  limits.set("positions", p.context.positions);
  limits.set("rope", p.context.rope);
  limits.set("factor", number_json(p.context.factor));
  limits.set("original_positions", p.context.original);
  json->set("context_limits", std::move(limits));
  Json derived;
  for (const ProfileDim& dim : p.dims) {
    if (!dim.derived.empty()) derived.set(dim.name, dim.derived);
  }
  json->set("derived_from", derived.is_null() ? Json(Json::Object{}) : std::move(derived));
}

Json plan_json_of(const PlanReport& plan) {
  Json json = plan_json(plan.memory);
  json.set("resident_bytes", plan.memory.weights);
  if (!plan.memory.streams) return json;
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

Json rule_json(const DecidedRule& decided, bool with_verdict) {
  Json json;
  json.set("id", decided.rule != nullptr ? decided.rule->id : "registry");
  if (with_verdict) json.set("verdict", verdict_name(decided.verdict));
  json.set("aspect", decided.rule != nullptr ? decided.rule->aspect : "architecture");
  json.set("text", decided.text);
  if (decided.rule != nullptr) {
    json.set("source", decided.rule->source);
    json.set("date", decided.rule->date);
  }
  return json;
}

Json engines_json_of(const std::vector<EngineAnswer>& answers) {
  Json list(Json::Array{});
  for (const EngineAnswer& answer : answers) {
    Json json, rules(Json::Array{});
    for (const DecidedRule& rule : answer.rules) rules.push_back(rule_json(rule, true));
    json.set("engine", answer.engine);
    json.set("name", answer.name);
    json.set("verdict", verdict_name(answer.verdict));
    json.set("rules", std::move(rules));
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

Json report_json(const InspectReport& report) {
  Json json;
  json.set("schema", kSchema);
  json.set("model_type", report.model_type);
  if (report.info) {
    add_info(report, &json);
  } else if (report.profile) {
    add_profile_alone(report, &json);
  }
  if (report.profile) {
    add_profile(*report.profile, &json);
    Json reads;
    reads.set("weights", number_json(report.weight_bytes_per_token()));
    reads.set("cache", number_json(cache_read_bytes(*report.profile, report.context)));
    json.set("read_per_token", std::move(reads));
  }
  Json machine;
  machine.set("isa", report.isa);
  machine.set("threads", report.threads);
  machine.set("available_memory", report.memory.bytes);
  json.set("machine", std::move(machine));
  if (report.plan) json.set("plan", plan_json_of(*report.plan));
  json.set("verdict", report.refusal.empty() ? "ok" : "refused");
  if (!report.refusal.empty()) json.set("reason", report.refusal);
  if (!report.shortage.empty()) json.set("shortage", report.shortage);
  json.set("engines", engines_json_of(report.engines));
  json.set("engines_as_of", report.table->as_of());
  Json traps(Json::Array{}), notes(Json::Array{}), facts(Json::Object{});
  for (const DecidedRule& trap : report.traps) traps.push_back(rule_json(trap, false));
  json.set("traps", std::move(traps));
  for (const auto& [name, value] : report.facts.values()) facts.set(name, value);
  json.set("facts", std::move(facts));
  for (const std::string& note : report.notes) notes.push_back(note);
  if (!report.info && report.profile) {
    for (const std::string& note : report.profile->notes) notes.push_back(note);
  }
  json.set("notes", std::move(notes));
  return json;
}

}  // namespace glint
