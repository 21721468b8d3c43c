// The join of models and engines: rows of data/engines.json, each a condition on facts, what it
// means for one engine, and where that is written. A new row is a few lines there and no code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "serviceability/facts.h"

namespace glint {

// What a row says: supported, supported under a condition, not supported, or worth knowing.
enum class Verdict { kUnknown, kNote, kYes, kConditional, kNo };
std::string_view verdict_name(Verdict verdict);   // "unknown", "note", "yes", "conditional", "no"
std::string_view verdict_words(Verdict verdict);  // "supported with conditions", ...

struct Condition {
  std::string fact, op;
  Json value;
};

// A row of the table: of an engine, or a trap (engine empty). All of `when` must hold, and, where
// there are any, one of `any`.
struct EngineRule {
  std::string id, engine;
  std::vector<Condition> when, any;
  Verdict verdict = Verdict::kNote;
  // Compute capabilities that the row needs; empty: none. On another that is named with --gpu the
  // row says `otherwise`; where it is one of these it is met, and says nothing but a note.
  std::vector<int> needs_sm;
  Verdict otherwise = Verdict::kConditional;
  std::string aspect;  // "architecture", "kernel", "cache format", ...
  std::string text;    // {fact} stands for its value
  std::string source, date;
};

struct EngineName {
  std::string id, name;
};

struct DecidedRule {
  const EngineRule* rule = nullptr;
  Verdict verdict = Verdict::kNote;
  std::string text;
};

struct EngineAnswer {
  std::string engine, name;
  Verdict verdict = Verdict::kUnknown;
  std::vector<DecidedRule> rules = {};  // the ones that decide it first
};

class EngineTable {
 public:
  // Errors: kCorrupt naming the row and what is wrong with it: unknown keys, facts, operators.
  static Result<EngineTable> parse(const Json& json);
  // The one inside the program.
  static Result<EngineTable> built_in();

  const std::string& as_of() const { return as_of_; }
  const std::vector<EngineName>& engines() const { return engines_; }
  const std::vector<EngineRule>& rules() const { return rules_; }
  const std::vector<EngineRule>& traps() const { return traps_; }

  // An answer per engine, in the table's order. No: where a row says so. Else with conditions where
  // a row says yes and another names a condition; unknown where no row says yes or no.
  std::vector<EngineAnswer> join(const Facts& facts) const;
  std::vector<DecidedRule> traps_of(const Facts& facts) const;

 private:
  std::string as_of_;
  std::vector<EngineName> engines_;
  std::vector<EngineRule> rules_, traps_;
};

bool holds(const Condition& condition, const Facts& facts);
bool holds(const EngineRule& rule, const Facts& facts);

std::string_view engines_json();  // data/engines.json, inside the program

}  // namespace glint
