// Every family against transformers' numbers (tests/data/golden), and against itself: the same bits
// however the work is cut.
#include "golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace glint::golden {
namespace {

const char* const kCases[] = {"glm4_moe",      "glm4_moe_noqknorm",
                              "glm4_moe_lite", "glm4_moe_lite_groups",
                              "glm5_next",     "glm5_next_shared"};

class Golden : public testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  Case golden_{std::get<0>(GetParam())};
  Isa isa_ = std::get<1>(GetParam());
  // An inner state of the bisect prompt.
  const Expected& state(const std::string& name) const {
    return golden_.expected(fmt::format("prompt{}.{}", golden_.bisect_prompt(), name));
  }
  Runner::Options f32() const {
    return {isa_, 2, Compute::kF32, LatentForm::kByCost, WeightPlacement::kResident};
  }
  // The ways to compute this family's attention.
  std::vector<LatentForm> forms() const {
    const Runner runner(golden_.folder(), f32());
    if (!runner.model().info().attention_class.contains("MLA")) return {LatentForm::kByCost};
    return {LatentForm::kAbsorbed, LatentForm::kExpanded};
  }
};

TEST_P(Golden, f32_logits_match_transformers_at_every_chunk_size) {
  for (const LatentForm form : forms()) {
    for (const int chunk : {0, 1, 7, 63, 64}) {
      if (form == LatentForm::kExpanded && chunk == 63) continue;  // the absorbed one has met it
      Runner::Options options = f32();
      options.form = form;
      Runner runner(golden_.folder(), options);
      for (int p = 0; p < golden_.num_prompts(); ++p) {
        runner.cache().clear_prefixes();
        const auto& want = golden_.expected(fmt::format("prompt{}.logits", p)).values;
        EXPECT_LE(max_difference(want, runner.logits(golden_.prompt(p), chunk)),
                  golden_.tolerance(p))
            << "prompt " << p << " chunk " << chunk;
      }
      runner.cache().check_integrity();
    }
  }
}

TEST_P(Golden, f32_states_match_transformers_layer_by_layer) {
  Runner runner(golden_.folder(), f32());
  const auto states = runner.states(golden_.prompt(golden_.bisect_prompt()));
  int compared = 0;
  for (const auto& [name, values] : states) {
    if (name.find("router") != std::string::npos) continue;  // unsorted there, compared below
    if (name.ends_with("selected")) continue;                // glm5_next_test.cc
    EXPECT_LE(max_difference(state(name).values, values), 1e-3) << name;
    ++compared;
  }
  const bool has_streams = states.contains("layer0.attn_hc.comb");
  EXPECT_EQ(compared, 2 + (has_streams ? 9 : 3) * runner.model().info().num_layers);
}

TEST_P(Golden, router_chooses_and_weighs_as_transformers) {
  Runner runner(golden_.folder(), f32());
  const auto states = runner.states(golden_.prompt(golden_.bisect_prompt()));
  int compared = 0;
  for (const auto& [name, ids] : states) {
    if (!name.ends_with("router_ids")) continue;
    const std::string layer = name.substr(0, name.size() - std::string("router_ids").size());
    const auto& want_ids = state(name);
    const auto& want_weights = state(layer + "router_weights").values;
    const auto& weights = states.at(layer + "router_weights");
    const auto k = static_cast<std::size_t>(want_ids.shape.back());
    ASSERT_EQ(want_ids.values.size(), ids.size());
    for (std::size_t row = 0; row < ids.size(); row += k) {
      for (std::size_t i = row; i < row + k; ++i) {
        const auto at =
            std::find(want_ids.values.begin() + static_cast<std::ptrdiff_t>(row),
                      want_ids.values.begin() + static_cast<std::ptrdiff_t>(row + k), ids[i]);
        ASSERT_NE(at, want_ids.values.begin() + static_cast<std::ptrdiff_t>(row + k))
            << name << " row " << row / k;
        EXPECT_NEAR(weights[i],
                    want_weights[static_cast<std::size_t>(at - want_ids.values.begin())], 1e-4);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_P(Golden, greedy_continuations_are_identical) {
  for (const int chunk : {0, 7}) {
    Runner runner(golden_.folder(), f32());
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      const auto& want = golden_.expected(fmt::format("prompt{}.greedy", p)).values;
      const auto got = runner.greedy(golden_.prompt(p), static_cast<int>(want.size()), chunk);
      EXPECT_EQ(std::vector<float>(got.begin(), got.end()), want) << "prompt " << p;
    }
    runner.cache().check_integrity();
  }
}

TEST_P(Golden, a_batch_of_all_prompts_matches_transformers) {
  for (const int chunk : {0, 7}) {
    Runner runner(golden_.folder(), f32());
    std::vector<std::vector<std::int32_t>> prompts;
    for (int p = 0; p < golden_.num_prompts(); ++p) prompts.push_back(golden_.prompt(p));
    const auto got = runner.logits_together(prompts, chunk);
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      EXPECT_LE(max_difference(golden_.expected(fmt::format("prompt{}.logits", p)).values,
                               got[static_cast<std::size_t>(p)]),
                golden_.tolerance(p));
    }
  }
}

// The promise of --deterministic: nothing about the cut changes a bit.
TEST_P(Golden, deterministic_results_have_the_same_bits_however_the_work_is_cut) {
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    Runner::Options options{isa_, 1, compute, LatentForm::kAbsorbed, WeightPlacement::kResident};
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<std::vector<float>> want;
    Runner whole(golden_.folder(), options);
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      prompts.push_back(golden_.prompt(p));
      whole.cache().clear_prefixes();
      want.push_back(whole.logits(prompts.back(), 0));
    }
    const std::pair<int, int> cuts[] = {{1, 1}, {1, 7}, {1, 64}, {3, 0}, {3, 7}};  // threads, chunk
    for (const auto& [threads, chunk] : cuts) {
      options.threads = threads;
      Runner runner(golden_.folder(), options);
      EXPECT_EQ(runner.logits_together(prompts, chunk), want)
          << "threads " << threads << " chunk " << chunk;
      // Again: every prompt longer than a page now starts from the prefix tree.
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto again = runner.logits(prompts[p], chunk);
        ASSERT_LE(again.size(), want[p].size());
        EXPECT_TRUE(std::equal(again.rbegin(), again.rend(), want[p].rbegin()))
            << "prefix hit, prompt " << p;
        if (prompts[p].size() > kPageSize) {
          EXPECT_LT(again.size(), want[p].size());
        }
      }
      runner.cache().check_integrity();
    }
  }
}

// Random weights put many experts within a rounding of each other, so rounding alone flips some
// (see the data's README); what no flip has touched must stay within the bound.
TEST_P(Golden, bf16_compute_stays_close_where_the_same_experts_are_chosen) {
  Runner exact(golden_.folder(), f32());
  Runner::Options options = f32();
  options.compute = Compute::kBf16;
  Runner rounded(golden_.folder(), options);
  const auto vocab = static_cast<std::size_t>(exact.vocab());
  double total = 0;
  std::size_t rows = 0;
  for (int p = 0; p < golden_.num_prompts(); ++p) {
    const auto& ids = golden_.prompt(p);
    const auto chosen = same_experts(exact.states(ids), rounded.states(ids), ids.size());
    const auto same =
        static_cast<std::size_t>(std::find(chosen.begin(), chosen.end(), false) - chosen.begin());
    exact.cache().clear_prefixes();
    rounded.cache().clear_prefixes();
    auto want = exact.logits(ids, 0), got = rounded.logits(ids, 0);
    exact.cache().clear_prefixes();
    rounded.cache().clear_prefixes();
    want.resize(same * vocab);
    got.resize(same * vocab);
    if (same > 0) total += mean_kl(want, got, exact.vocab()) * static_cast<double>(same);
    rows += same;
  }
  EXPECT_GT(rows, 8u);
  // A recurrence and residual streams carry more roundings along than a plain residual.
  const bool has_streams = exact.model().cache_spec().state_bytes > 0;
  EXPECT_LT(total / static_cast<double>(rows), has_streams ? 1e-2 : 1e-3);
}

// glm4_moe.gguf holds the weights of the case glm4_moe (reference/make_glm4moe_gguf.py).
TEST(GoldenGguf, glm4moe_is_the_model_of_its_folder) {
  const Case golden("glm4_moe");
  const auto file = std::filesystem::path(GLINT_TEST_DATA) / "gguf" / "glm4_moe.gguf";
  for (const Isa isa : tested_isas()) {
    const Runner::Options options{isa, 2, Compute::kF32, LatentForm::kByCost,
                                  WeightPlacement::kResident};
    Runner from_folder(golden.folder(), options), from_file(file, options);
    const ModelInfo& want = from_folder.model().info();
    const ModelInfo& got = from_file.model().info();
    EXPECT_EQ(got.attention_why, want.attention_why);
    EXPECT_EQ(got.total_parameters, want.total_parameters);
    EXPECT_EQ(got.mtp_parameters, want.mtp_parameters);
    EXPECT_EQ(got.cache.bf16.bytes_per_token(), want.cache.bf16.bytes_per_token());
    for (int p = 0; p < golden.num_prompts(); ++p) {
      const auto& ids = golden.prompt(p);
      const auto logits = from_file.logits(ids, 0);
      EXPECT_LE(max_difference(golden.expected(fmt::format("prompt{}.logits", p)).values, logits),
                golden.tolerance(p));
      // Not the same bits everywhere: the file's router is float32, the folder's bf16.
      EXPECT_LE(max_difference(from_folder.logits(ids, 0), logits), 1e-4);
    }
  }
}

std::string param_name(const testing::TestParamInfo<std::tuple<const char*, Isa>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), isa_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(AllCasesAndTables, Golden,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

}  // namespace
}  // namespace glint::golden
