// `glint inspect --diff A B`: the facts that differ, and what engines say otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/inspect_report.h"
#include "tools/text_sheet.h"

namespace glint {
namespace {

struct FactChange {
  std::string name;
  const Json *a = nullptr, *b = nullptr;  // null: there is no such fact
  std::optional<double> ratio;
};

std::vector<FactChange> changes(const Facts& a, const Facts& b) {
  std::set<std::string_view> names;
  for (const Facts* facts : {&a, &b}) {
    for (const auto& [name, value] : facts->values()) names.insert(name);
  }
  std::vector<FactChange> list;
  for (const std::string_view name : names) {
    FactChange change{std::string(name), a.find(name), b.find(name), {}};
    if (change.a != nullptr && change.b != nullptr) {
      if (*change.a == *change.b) continue;
      if (change.a->is_number() && change.b->is_number() && change.a->as_double() > 0)
        change.ratio = change.b->as_double() / change.a->as_double();
    }
    list.push_back(std::move(change));
  }
  return list;
}

// Whether a fact is about costs rather than about what the model is.
bool is_cost(std::string_view name) {
  return name.ends_with("_bytes") || name.ends_with("_parameters") ||
         name.starts_with("cache_bytes") || name == "per_head_ratio";
}

bool has(const std::vector<DecidedRule>& rules, const DecidedRule& wanted) {
  return std::ranges::any_of(
      rules, [&](const DecidedRule& rule) { return rule.rule->id == wanted.rule->id; });
}

std::vector<const DecidedRule*> only_in(const std::vector<DecidedRule>& these,
                                        const std::vector<DecidedRule>& those) {
  std::vector<const DecidedRule*> list;
  for (const DecidedRule& rule : these) {
    if (!has(those, rule)) list.push_back(&rule);
  }
  return list;
}

std::string name_of(const InspectReport& report) {
  return report.profile ? report.profile->name : report.model_type;
}

std::string shown(const Json* value) {
  if (value == nullptr) return "(none)";
  return value->is_string() && value->as_string().empty() ? "none" : fact_text(*value);
}

void say_changes(const std::vector<FactChange>& list, bool costs, TextSheet& sheet) {
  std::size_t width = 0;
  for (const FactChange& change : list) {
    if (is_cost(change.name) == costs) width = std::max(width, change.name.size());
  }
  for (const FactChange& change : list) {
    if (is_cost(change.name) != costs) continue;
    sheet.item(fmt::format("{:<{}}  {} -> {}{}", change.name, width, shown(change.a),
                           shown(change.b),
                           change.ratio ? fmt::format("  (x {:.3g})", *change.ratio) : ""));
  }
}

Json side_json(const InspectReport& report) {
  Json json;
  json.set("model_type", report.model_type);
  json.set("name", name_of(report));
  return json;
}

Json ids(const std::vector<const DecidedRule*>& rules) {
  Json list(Json::Array{});
  for (const DecidedRule* rule : rules) list.push_back(rule->rule->id);
  return list;
}

}  // namespace

Json diff_json(const InspectReport& a, const InspectReport& b) {
  Json json, facts(Json::Array{}), engines(Json::Array{}), traps;
  json.set("schema", 1);
  json.set("a", side_json(a));
  json.set("b", side_json(b));
  for (const FactChange& change : changes(a.facts, b.facts)) {
    Json one;
    one.set("name", change.name);
    one.set("a", change.a != nullptr ? *change.a : Json());
    one.set("b", change.b != nullptr ? *change.b : Json());
    if (change.ratio) one.set("ratio", *change.ratio);
    facts.push_back(std::move(one));
  }
  json.set("facts", std::move(facts));
  for (std::size_t i = 0; i < std::min(a.engines.size(), b.engines.size()); ++i) {
    if (a.engines[i].verdict == b.engines[i].verdict) continue;
    Json one;
    one.set("engine", a.engines[i].engine);
    one.set("a", verdict_name(a.engines[i].verdict));
    one.set("b", verdict_name(b.engines[i].verdict));
    engines.push_back(std::move(one));
  }
  json.set("engines", std::move(engines));
  traps.set("only_a", ids(only_in(a.traps, b.traps)));
  traps.set("only_b", ids(only_in(b.traps, a.traps)));
  json.set("traps", std::move(traps));
  return json;
}

std::string diff_text(const InspectReport& a, const InspectReport& b, int width) {
  TextSheet sheet(width);
  const std::vector<FactChange> list = changes(a.facts, b.facts);
  sheet.title(fmt::format("{} -> {}", name_of(a), name_of(b)));
  if (list.empty()) sheet.line("", "nothing that is known here differs");
  if (std::ranges::any_of(list, [](const auto& c) { return !is_cost(c.name); })) {
    sheet.title("What it is");
    say_changes(list, false, sheet);
  }
  if (std::ranges::any_of(list, [](const auto& c) { return is_cost(c.name); })) {
    sheet.title("What it costs");
    say_changes(list, true, sheet);
  }
  bool titled = false;
  for (std::size_t i = 0; i < std::min(a.engines.size(), b.engines.size()); ++i) {
    const EngineAnswer &one = a.engines[i], &other = b.engines[i];
    if (one.verdict == other.verdict) continue;
    if (!titled) sheet.title("Engines");
    titled = true;
    sheet.line(one.name,
               fmt::format("{} -> {}", verdict_words(one.verdict), verdict_words(other.verdict)));
  }
  const auto say_traps = [&](const InspectReport& side, const InspectReport& against) {
    const auto only = only_in(side.traps, against.traps);
    if (only.empty()) return;
    sheet.title(fmt::format("Traps of {} alone", name_of(side)));
    for (const DecidedRule* trap : only) sheet.item(trap->text);
  };
  say_traps(a, b);
  say_traps(b, a);
  return sheet.text();
}

}  // namespace glint
