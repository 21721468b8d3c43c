#include "serviceability/engine_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "checkpoint/json_file.h"

namespace glint {
namespace {

constexpr std::array<std::string_view, 9> kOps = {"=",  "!=", "<",      "<=", ">",
                                                  ">=", "in", "not in", "has"};

struct VerdictWord {
  Verdict verdict;
  std::string_view name, words;
};
constexpr std::array kVerdicts = {
    VerdictWord{Verdict::kUnknown, "unknown", "not known"},
    VerdictWord{Verdict::kNote, "note", "note"},
    VerdictWord{Verdict::kYes, "yes", "supported"},
    VerdictWord{Verdict::kConditional, "conditional", "supported with conditions"},
    VerdictWord{Verdict::kNo, "no", "not supported"},
};

// Reads one row; the first error names it.
class RowReader {
 public:
  RowReader(const Json& row, bool is_trap) : row_(row), is_trap_(is_trap) {}

  Result<EngineRule> read() {
    if (!row_.is_object()) return corrupt("data/engines.json: a row is no object");
    rule_.id = word("id");
    if (!is_trap_) rule_.engine = word("engine");
    rule_.aspect = word("aspect");
    rule_.text = word("text");
    rule_.source = word("source");
    rule_.date = word("date");
    rule_.verdict = is_trap_ ? Verdict::kNote : verdict("verdict");
    if (row_.find("otherwise") != nullptr) rule_.otherwise = verdict("otherwise");
    conditions("when", rule_.when, true);
    conditions("any", rule_.any, false);
    read_needs();
    check_keys();
    check_placeholders();
    if (!error_.empty())
      return corrupt(fmt::format("data/engines.json: row \"{}\": {}", rule_.id, error_));
    return std::move(rule_);
  }

 private:
  void fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }

  std::string word(std::string_view key) {
    const Json* found = row_.find(key);
    if (found != nullptr && found->is_string() && !found->as_string().empty())
      return found->as_string();
    fail(fmt::format("\"{}\" must be a text", key));
    return "";
  }

  Verdict verdict(std::string_view key) {
    const std::string name = word(key);
    const auto found = std::ranges::find(kVerdicts, name, &VerdictWord::name);
    if (found != kVerdicts.end() && found->verdict != Verdict::kUnknown) return found->verdict;
    fail(fmt::format("\"{}\" is none of note, yes, conditional, no", key));
    return Verdict::kNote;
  }

  void conditions(std::string_view key, std::vector<Condition>& out, bool required) {
    const Json* list = row_.find(key);
    if (list == nullptr && !required) return;
    if (list == nullptr || !list->is_array()) {
      fail(fmt::format("\"{}\" must list conditions", key));
      return;
    }
    for (const Json& item : list->as_array()) {
      if (!item.is_array() || item.as_array().size() < 2 || item.as_array().size() > 3 ||
          !item.as_array()[0].is_string() || !item.as_array()[1].is_string()) {
        fail(fmt::format("\"{}\": a condition is [fact, operator, value]", key));
        return;
      }
      const Json::Array& parts = item.as_array();
      Condition c{parts[0].as_string(), parts[1].as_string(), parts.size() > 2 ? parts[2] : Json()};
      check(c, parts.size());
      out.push_back(std::move(c));
    }
  }

  void check(const Condition& c, std::size_t parts) {
    if (!std::ranges::binary_search(fact_names(), std::string_view(c.fact)))
      fail(fmt::format("there is no fact \"{}\"", c.fact));
    if (std::ranges::find(kOps, c.op) == kOps.end())
      fail(fmt::format("\"{}\" is none of the operators {}", c.op, fmt::join(kOps, " ")));
    if ((c.op == "has") != (parts == 2))
      fail(fmt::format("{} {}: wrong number of parts", c.fact, c.op));
    if ((c.op == "in" || c.op == "not in") && !c.value.is_array())
      fail(fmt::format("{} {}: the value must be a list", c.fact, c.op));
  }

  void read_needs() {
    const Json* list = row_.find("needs_sm");
    if (list == nullptr) return;
    if (!list->is_array() || list->as_array().empty()) {
      fail("\"needs_sm\" must list numbers");
      return;
    }
    for (const Json& item : list->as_array()) {
      if (item.is_int() && item.as_int() > 0 && item.as_int() < 1000) {
        rule_.needs_sm.push_back(static_cast<int>(item.as_int()));
      } else {
        fail("\"needs_sm\" must list numbers");
      }
    }
  }

  void check_keys() {
    for (const auto& [key, value] : row_.as_object()) {
      constexpr std::array<std::string_view, 11> kKnown = {
          "id",   "engine", "when",   "any",  "verdict",  "needs_sm",
          "text", "aspect", "source", "date", "otherwise"};
      if (std::ranges::find(kKnown, key) == kKnown.end() ||
          (is_trap_ && (key == "engine" || key == "verdict" || key == "needs_sm")))
        fail(fmt::format("\"{}\" is no key of it", key));
    }
  }

  void check_placeholders() {
    for (std::size_t open = rule_.text.find('{'); open != std::string::npos;
         open = rule_.text.find('{', open + 1)) {
      const std::size_t close = rule_.text.find('}', open);
      if (close == std::string::npos) {
        fail("\"text\" has a { without a }");
        return;
      }
      const std::string_view name = std::string_view(rule_.text).substr(open + 1, close - open - 1);
      if (!std::ranges::binary_search(fact_names(), name))
        fail(fmt::format("\"text\": there is no fact \"{}\"", name));
    }
  }

  const Json& row_;
  bool is_trap_;
  EngineRule rule_;
  std::string error_;
};

std::string filled(std::string_view text, const Facts& facts) {
  std::string out;
  while (!text.empty()) {
    const std::size_t open = text.find('{');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = text.find('}', open);
    const Json* value = facts.find(text.substr(open + 1, close - open - 1));
    out += value != nullptr ? fact_text(*value) : "?";
    text.remove_prefix(close + 1);
  }
  return out;
}

bool equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return a == b;
}

bool listed(const Json& value, const Json& list) {
  return std::ranges::any_of(list.as_array(), [&](const Json& item) { return equal(value, item); });
}

// What a row says where --gpu may have named a GPU.
DecidedRule decide(const EngineRule& rule, const Facts& facts) {
  DecidedRule decided{&rule, rule.verdict, filled(rule.text, facts)};
  const Json* gpu = facts.find("gpu");
  if (rule.needs_sm.empty() || gpu == nullptr) return decided;
  const bool met = std::ranges::find(rule.needs_sm, gpu->as_int()) != rule.needs_sm.end();
  decided.verdict = met ? Verdict::kNote : rule.otherwise;
  decided.text +=
      fmt::format(" (SM{} {})", gpu->as_int(), met ? "is one of them" : "is none of them");
  return decided;
}

Verdict combined(const std::vector<DecidedRule>& rules) {
  const auto any = [&](Verdict verdict) {
    return std::ranges::find(rules, verdict, &DecidedRule::verdict) != rules.end();
  };
  if (any(Verdict::kNo)) return Verdict::kNo;
  if (!any(Verdict::kYes)) return Verdict::kUnknown;
  return any(Verdict::kConditional) ? Verdict::kConditional : Verdict::kYes;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  return std::ranges::find(kVerdicts, verdict, &VerdictWord::verdict)->name;
}

std::string_view verdict_words(Verdict verdict) {
  return std::ranges::find(kVerdicts, verdict, &VerdictWord::verdict)->words;
}

bool holds(const Condition& c, const Facts& facts) {
  const Json* value = facts.find(c.fact);
  if (value == nullptr) return false;
  if (c.op == "has") return true;
  if (c.op == "=") return equal(*value, c.value);
  if (c.op == "!=") return !equal(*value, c.value);
  if (c.op == "in") return listed(*value, c.value);
  if (c.op == "not in") return !listed(*value, c.value);
  if (!value->is_number() || !c.value.is_number()) return false;
  const double a = value->as_double(), b = c.value.as_double();
  if (c.op == "<") return a < b;
  if (c.op == "<=") return a <= b;
  return c.op == ">" ? a > b : a >= b;
}

bool holds(const EngineRule& rule, const Facts& facts) {
  const auto holds_here = [&](const Condition& condition) { return holds(condition, facts); };
  return std::ranges::all_of(rule.when, holds_here) &&
         (rule.any.empty() || std::ranges::any_of(rule.any, holds_here));
}

Result<EngineTable> EngineTable::parse(const Json& json) {
  EngineTable table;
  const auto list = [&](std::string_view key) -> const Json* {
    const Json* found = json.find(key);
    return found != nullptr && found->is_array() ? found : nullptr;
  };
  const Json *engines = list("engines"), *rules = list("rules"), *traps = list("traps");
  const Json* as_of = json.find("as_of");
  if (engines == nullptr || rules == nullptr || traps == nullptr || as_of == nullptr ||
      !as_of->is_string())
    return corrupt("data/engines.json must have \"as_of\", \"engines\", \"rules\" and \"traps\"");
  table.as_of_ = as_of->as_string();
  for (const Json& engine : engines->as_array()) {
    const Json *id = engine.find("id"), *name = engine.find("name");
    if (id == nullptr || name == nullptr || !id->is_string() || !name->is_string())
      return corrupt("data/engines.json: an engine must have \"id\" and \"name\"");
    table.engines_.push_back({id->as_string(), name->as_string()});
  }
  std::vector<std::string> ids;
  for (const auto& [rows, out] :
       {std::pair{rules, &table.rules_}, std::pair{traps, &table.traps_}}) {
    for (const Json& row : rows->as_array()) {
      GLINT_TRY(EngineRule rule, RowReader(row, rows == traps).read());
      const bool known =
          rows == traps ||
          std::ranges::find(table.engines_, rule.engine, &EngineName::id) != table.engines_.end();
      if (!known || std::ranges::find(ids, rule.id) != ids.end())
        return corrupt(fmt::format("data/engines.json: row \"{}\": {}", rule.id,
                                   known ? "the id is there twice" : "there is no such engine"));
      ids.push_back(rule.id);
      out->push_back(std::move(rule));
    }
  }
  return table;
}

Result<EngineTable> EngineTable::built_in() {
  GLINT_TRY(const Json json, parse_json_object(engines_json(), "data/engines.json"));
  return parse(json);
}

std::vector<EngineAnswer> EngineTable::join(const Facts& facts) const {
  std::vector<EngineAnswer> answers;
  for (const EngineName& engine : engines_) {
    EngineAnswer answer{engine.id, engine.name};
    for (const EngineRule& rule : rules_) {
      if (rule.engine == engine.id && holds(rule, facts))
        answer.rules.push_back(decide(rule, facts));
    }
    // No, conditional, yes, note.
    std::ranges::stable_sort(answer.rules, std::greater{}, &DecidedRule::verdict);
    answer.verdict = combined(answer.rules);
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::vector<DecidedRule> EngineTable::traps_of(const Facts& facts) const {
  std::vector<DecidedRule> found;
  for (const EngineRule& trap : traps_) {
    if (holds(trap, facts)) found.push_back(decide(trap, facts));
  }
  return found;
}

}  // namespace glint
