// The table of engines: every row is well formed, can apply and can fail to, and the join is what
// docs/inspect.md says.
#include "serviceability/engine_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "checkpoint/json_file.h"
#include "configs.h"

namespace glint {
namespace {

using testing::HasSubstr;

const EngineTable& table() {
  static const Result<EngineTable> kTable = EngineTable::built_in();
  if (!kTable) {
    ADD_FAILURE() << kTable.error().message;
    std::abort();
  }
  return *kTable;
}

Facts facts_of(const std::string& model, std::optional<int> gpu = {}, CheckpointFacts files = {}) {
  return facts_of(profile_of(model.c_str()), files, gpu);
}

// Facts of all configs, on no GPU and on some, with files that are right and with files that are
// wrong in every way.
const std::vector<Facts>& all_facts() {
  static const std::vector<Facts> kAll = [] {
    std::vector<Facts> all;
    CheckpointFacts wrong;
    wrong.container = "safetensors";
    wrong.mtp_unlisted = wrong.mtp_missing = wrong.gguf_lacks_gating = true;
    wrong.fp8_matrices = 4;
    wrong.fp8_unpaired = 1;
    wrong.fp8_example = "x.weight";
    wrong.gguf_architecture = "deepseek2";
    for (const std::string& name : config_names()) {
      const ModelProfile profile = profile_of(name.c_str());
      for (const std::optional<int> gpu : {std::optional<int>{}, {80}, {90}, {100}, {120}}) {
        all.push_back(facts_of(profile, {}, gpu));
        all.push_back(facts_of(profile, wrong, gpu));
      }
    }
    Json resaved = load_config("deepseek-v3");
    resaved.set("qk_rope_head_dim", 128);
    all.push_back(facts_of(profile_of(resaved), {}, {}));
    return all;
  }();
  return kAll;
}

const EngineAnswer& answer(const std::vector<EngineAnswer>& answers, std::string_view engine) {
  return *std::ranges::find(answers, engine, &EngineAnswer::engine);
}

bool has(const std::vector<DecidedRule>& rules, std::string_view id) {
  return std::ranges::any_of(rules, [&](const DecidedRule& rule) { return rule.rule->id == id; });
}

TEST(EngineTable, every_row_can_apply_and_can_fail_to) {
  for (const auto* rows : {&table().rules(), &table().traps()}) {
    for (const EngineRule& row : *rows) {
      const auto applies = [&](const Facts& facts) { return holds(row, facts); };
      EXPECT_TRUE(std::ranges::any_of(all_facts(), applies)) << row.id << " never applies";
      EXPECT_FALSE(std::ranges::all_of(all_facts(), applies)) << row.id << " always applies";
    }
  }
}

TEST(EngineTable, every_row_has_a_dated_source_and_a_filled_text) {
  const std::regex date("20[0-9]{2}-[0-9]{2}(-[0-9]{2})?");
  for (const auto* rows : {&table().rules(), &table().traps()}) {
    for (const EngineRule& row : *rows) {
      EXPECT_TRUE(std::regex_match(row.date, date)) << row.id << ": " << row.date;
      EXPECT_FALSE(row.source.empty()) << row.id;
    }
  }
  for (const Facts& facts : all_facts()) {
    for (const EngineAnswer& one : table().join(facts)) {
      for (const DecidedRule& rule : one.rules)
        EXPECT_THAT(rule.text, testing::Not(HasSubstr("?")));
    }
    for (const DecidedRule& trap : table().traps_of(facts)) {
      EXPECT_THAT(trap.text, testing::Not(testing::AnyOf(HasSubstr("?"), HasSubstr("{"))));
    }
  }
}

TEST(EngineTable, facts_have_documented_names) {
  EXPECT_TRUE(std::ranges::is_sorted(fact_names()));
  std::set<std::string_view> seen;
  for (const Facts& facts : all_facts()) {
    for (const auto& [name, value] : facts.values()) {
      EXPECT_TRUE(std::ranges::binary_search(fact_names(), std::string_view(name))) << name;
      seen.insert(*std::ranges::lower_bound(fact_names(), std::string_view(name)));
    }
  }
  for (const std::string_view name : fact_names()) EXPECT_TRUE(seen.contains(name)) << name;
}

TEST(Join, names_what_decides_each_cell) {
  const auto flash = table().join(facts_of("glm-4.7-flash"));
  EXPECT_EQ(answer(flash, "vllm").verdict, Verdict::kConditional);
  EXPECT_TRUE(has(answer(flash, "vllm").rules, "vllm-mla-nope"));
  EXPECT_TRUE(has(answer(flash, "vllm").rules, "vllm-glm4-moe-lite-before"));
  EXPECT_TRUE(has(answer(flash, "tensorrt-llm").rules, "trtllm-mla-chunked"));
  const auto glm45 = table().join(facts_of("glm-4.5"));
  EXPECT_EQ(answer(glm45, "vllm").verdict, Verdict::kYes);
  EXPECT_EQ(answer(glm45, "tensorrt-llm").verdict, Verdict::kConditional);
  EXPECT_TRUE(has(answer(glm45, "tensorrt-llm").rules, "trtllm-glm4-moe-guided"));
  for (const EngineAnswer& one : table().join(facts_of("qwen3-30b-a3b")))
    EXPECT_EQ(one.verdict, Verdict::kUnknown) << one.engine;
}

TEST(Join, a_gpu_settles_the_rows_that_need_one) {
  const auto at = [](const char* model, const char* engine, std::optional<int> gpu) {
    const auto answers = table().join(facts_of(model, gpu));
    return answer(answers, engine).verdict;
  };
  EXPECT_EQ(at("deepseek-v4-flash", "tensorrt-llm", {}), Verdict::kConditional);
  EXPECT_EQ(at("deepseek-v4-flash", "tensorrt-llm", 100), Verdict::kYes);
  EXPECT_EQ(at("deepseek-v4-flash", "tensorrt-llm", 90), Verdict::kNo);
  EXPECT_EQ(at("deepseek-v4-flash", "vllm", 120), Verdict::kNo);
  EXPECT_EQ(at("deepseek-v4-flash", "vllm", 100), Verdict::kYes);
  EXPECT_EQ(at("deepseek-v3", "tensorrt-llm", 90), Verdict::kYes);
  EXPECT_EQ(at("deepseek-v3", "tensorrt-llm", 80), Verdict::kConditional);
}

struct TrapCase {
  const char *id, *with, *without;
};

TEST(Traps, apply_to_one_model_and_not_to_another) {
  const TrapCase cases[] = {
      {"mla-not-detected", "glm-4.7-flash", "glm-4.5"},
      {"nope-not-128", "glm-4.7-flash", "deepseek-v3"},
      {"page-64-compressed", "deepseek-v4-flash", "deepseek-v3.2"},
      {"fp8-only-decode-512", "glm-5.3-flash", "deepseek-v3"},
      {"fp8-only-decode-other", "deepseek-v3", "glm-5.3-flash"},
      {"xgrammar-only", "glm-4.5", "glm-4.7-flash"},
      {"constants-not-in-checkpoint", "glm-5.3-flash", "kimi-linear"},
      {"vision-eps", "glm-5.3-flash", "kimi-k3"},
      {"nvfp4-two-spellings", "glm-4.7-nvfp4", "glm-4.5"},
      {"head-dim-under-mla", "glm-5.2", "glm-5"},
      {"state-snapshots", "kimi-linear", "kimi-k2"},
      {"indexer-above-topk", "glm-5", "deepseek-v3"},
  };
  for (const TrapCase& c : cases) {
    EXPECT_TRUE(has(table().traps_of(facts_of(c.with)), c.id)) << c.id << " " << c.with;
    EXPECT_FALSE(has(table().traps_of(facts_of(c.without)), c.id)) << c.id << " " << c.without;
  }
}

TEST(Traps, of_files_apply_where_the_files_are_wrong) {
  const auto traps = [](auto change) {
    CheckpointFacts files;
    change(files);
    return table().traps_of(facts_of("glm-4.7-flash", {}, files));
  };
  EXPECT_TRUE(has(traps([](auto& f) { f.mtp_unlisted = true; }), "mtp-unlisted"));
  EXPECT_TRUE(has(traps([](auto& f) { f.mtp_missing = true; }), "mtp-missing"));
  EXPECT_TRUE(has(traps([](auto& f) { f.fp8_unpaired = 2; }), "fp8-unpaired"));
  EXPECT_TRUE(has(traps([](auto& f) { f.gguf_lacks_gating = true; }), "gguf-no-gating"));
  const auto none = traps([](auto&) {});
  for (const char* id : {"mtp-unlisted", "mtp-missing", "fp8-unpaired", "gguf-no-gating"})
    EXPECT_FALSE(has(none, id)) << id;
}

TEST(Traps, say_the_numbers_of_the_model) {
  const auto traps = table().traps_of(facts_of("glm-4.7-flash"));
  const auto trap = std::ranges::find_if(
      traps, [](const DecidedRule& rule) { return rule.rule->id == "mla-not-detected"; });
  ASSERT_NE(trap, traps.end());
  EXPECT_THAT(trap->text, HasSubstr("962,560 bytes a token"));
  EXPECT_THAT(trap->text, HasSubstr("54,144, 17.8 times"));
}

TEST(Conditions, an_absent_fact_satisfies_nothing) {
  Facts facts;
  facts.set("layers", 3);
  facts.set("family", "x");
  EXPECT_TRUE(holds({"layers", ">=", 3}, facts));
  EXPECT_TRUE(holds({"layers", "=", 3.0}, facts));
  EXPECT_FALSE(holds({"layers", "<", 3}, facts));
  EXPECT_FALSE(holds({"family", "<", 3}, facts));
  EXPECT_TRUE(holds({"family", "in", Json(Json::Array{Json("y"), Json("x")})}, facts));
  for (const char* op : {"!=", "not in", "<", "has"})
    EXPECT_FALSE(holds({"gpu", op, Json(Json::Array{})}, facts)) << op;
}

TEST(EngineTable, wrong_rows_are_refused_by_their_id) {
  const char* good = R"({"id": "r", "engine": "e", "when": [["layers", ">", 1]], "verdict": "yes",
                         "aspect": "a", "text": "t {layers}", "source": "s", "date": "2026-01"})";
  const auto parse = [&](std::string_view from, std::string_view to) {
    std::string row = good;
    if (!from.empty()) row.replace(row.find(from), from.size(), to);
    const std::string text = R"({"as_of": "x", "engines": [{"id": "e", "name": "E"}], "rules": [)" +
                             row + R"(], "traps": []})";
    const auto json = parse_json_object(text, "t");
    EXPECT_TRUE(json) << text;
    return EngineTable::parse(*json);
  };
  EXPECT_TRUE(parse("", ""));
  const std::pair<const char*, const char*> wrong[] = {
      {R"("engine": "e")", R"("engine": "f")"},
      {R"("layers", ">")", R"("layer", ">")"},
      {R"(">", 1)", R"("~", 1)"},
      {R"(">", 1)", R"("in", 1)"},
      {R"(">", 1)", R"("has", 1)"},
      {R"("yes")", R"("maybe")"},
      {"{layers}", "{layer}"},
      {"{layers}", "{layers"},
      {R"("date": "2026-01")", R"("dated": 1)"},
      {R"("text": "t {layers}")", R"("text": 3)"},
      {R"("when": [["layers", ">", 1]])", R"("when": "always")"},
  };
  for (const auto& [from, to] : wrong) {
    const auto made = parse(from, to);
    ASSERT_FALSE(made) << to;
    EXPECT_THAT(made.error().message, HasSubstr("row \"r\"")) << to;
  }
}

}  // namespace
}  // namespace glint
