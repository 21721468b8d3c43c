// What glm5_next alone has: the keys that its indexer chooses, lengths around its borders, dense
// attention instead, drafts that share a choice. golden_test.cc and draft_test.cc run it too.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "../base/temp_folder.h"
#include "drafter.h"
#include "golden.h"
#include "models/layers/hyper.h"
#include "models/layers/kpool_indexer.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const char* const kCases[] = {"glm5_next", "glm5_next_shared", "glm5_next_fp8"};

Runner::Options options_of(Isa isa, Compute compute = Compute::kF32,
                           LatentForm form = LatentForm::kAbsorbed) {
  Runner::Options options;
  options.isa = isa;
  options.compute = compute;
  options.form = form;
  return options;
}

class Glm5Next : public testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  Case golden_{std::get<0>(GetParam())};
  Isa isa_ = std::get<1>(GetParam());
};

TEST_P(Glm5Next, attends_to_the_keys_that_transformers_chooses) {
  Runner runner(golden_.folder(), options_of(isa_));
  int compared = 0;
  for (int p = 0; p < golden_.num_prompts(); ++p) {
    const auto states = runner.states(golden_.prompt(p));
    for (int layer = 0; layer < runner.model().info().num_layers; ++layer) {
      const std::string name = fmt::format("layer{}.selected", layer);
      const std::string want = fmt::format("prompt{}.{}", p, name);
      if (golden_.has(want)) {
        EXPECT_EQ(states.at(name), golden_.expected(want).values) << want;
        ++compared;
      } else if (states.contains(name)) {  // a layer that shares the choice of the one before it
        EXPECT_EQ(states.at(name), states.at(fmt::format("layer{}.selected", layer - 1))) << want;
      }
    }
  }
  EXPECT_GT(compared, 2);
}

TEST_P(Glm5Next, drafts_match_the_reference) {
  Runner::Options options = options_of(isa_);
  options.draft = DraftLayer::kRequired;
  Drafter drafter(golden_.folder(), options);
  const int bisect = golden_.bisect_prompt();
  std::vector<std::int32_t> tokens = golden_.prompt(bisect);
  tokens.push_back(static_cast<std::int32_t>(golden_.expected("mtp.next_ids").values.back()));
  EXPECT_LE(max_difference(golden_.expected("mtp.logits").values, drafter.run(tokens, 0).logits),
            golden_.tolerance(bisect));
  drafter.cache().clear_prefixes();
  const auto& want = golden_.expected("mtp.chain_ids").values;
  const auto [ids, logits] = drafter.chain(tokens, static_cast<int>(want.size()));
  EXPECT_EQ(ids, want);
  EXPECT_LE(max_difference(golden_.expected("mtp.chain_logits").values, logits),
            golden_.tolerance(bisect));
  // The first draft chooses its keys; those after it may take the same and what came since.
  drafter.cache().clear_prefixes();
  const auto reused = drafter.chain(tokens, static_cast<int>(want.size()), true);
  const auto first = static_cast<std::ptrdiff_t>(logits.size() / want.size());
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + first, reused.second.begin()));
  const bool sparse = tokens.size() > 40;  // else there is nothing to choose, and all is the same
  EXPECT_EQ(reused.second == logits, !sparse);
}

// At every length that a pool, the choice or a page borders on, one more and one less: what comes
// later changes nothing, and a prefix of a page is as good as none.
TEST_P(Glm5Next, lengths_around_every_border_have_the_bits_of_the_whole) {
  if (isa_ != tested_isas().back()) return;  // what is cut is the same in all tables
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    const auto& ids = golden_.prompt(golden_.num_prompts() - 1);
    Runner whole(golden_.folder(), options_of(isa_, compute));
    const auto want = whole.logits(ids, 0);
    Runner runner(golden_.folder(), options_of(isa_, compute));
    for (const int length : {7, 8, 9, 23, 24, 25, 31, 32, 33, 34, 35, 36, 37, 63, 64, 65, 80}) {
      const std::vector<std::int32_t> prefix(ids.begin(), ids.begin() + length);
      const auto got = runner.logits(prefix, 0);
      ASSERT_LE(got.size(), want.size());
      const auto end = want.begin() + static_cast<std::ptrdiff_t>(length) * runner.vocab();
      EXPECT_TRUE(std::equal(got.rbegin(), got.rend(), std::make_reverse_iterator(end)))
          << "length " << length;
    }
    runner.cache().check_integrity();
  }
}

TEST_P(Glm5Next, dense_attention_is_the_same_until_there_is_something_to_leave_out) {
  Runner::Options options = options_of(isa_);
  Runner sparse(golden_.folder(), options);
  options.sparse_attention = false;
  Runner dense(golden_.folder(), options);
  EXPECT_LT(dense.model().cache_spec().row_bytes, sparse.model().cache_spec().row_bytes);
  const int last = golden_.num_prompts() - 1;
  const auto& ids = golden_.prompt(last);
  const auto& want = golden_.expected(fmt::format("prompt{}.logits", last)).values;
  auto got = dense.logits(ids, 0);
  // The first token that leaves something out is behind `topk` tokens and a pool.
  const auto states = sparse.states(ids);
  const auto& selected =
      states.at(fmt::format("layer{}.selected", dense.model().info().num_layers - 1));
  const std::size_t width = selected.size() / ids.size();
  std::size_t same = 0;
  while (selected[same * width + std::min(same, width - 1)] == static_cast<float>(same)) ++same;
  ASSERT_GT(same, 20u);
  ASSERT_LT(same, ids.size());
  const auto rows = static_cast<std::ptrdiff_t>(same) * dense.vocab();
  EXPECT_LE(max_difference({want.begin(), want.begin() + rows}, {got.begin(), got.begin() + rows}),
            golden_.tolerance(last));
  EXPECT_GT(max_difference(want, got), 10 * golden_.tolerance(last));
}

std::string param_name(const testing::TestParamInfo<std::tuple<const char*, Isa>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), isa_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(AllCasesAndTables, Glm5Next,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

// ---- checkpoints that say it otherwise

class Glm5NextFolder : public testing::Test {
 protected:
  // The case glm5_next with its text_config changed, without the tensors that have `dropped` in
  // their names.
  fs::path edited(const char* changes, const std::string& dropped) {
    const auto checkpoint = *Checkpoint::open(Case("glm5_next").folder());
    Json config = checkpoint->config();
    Json text = *config.find("text_config");
    const Json parsed = *parse_json(changes);
    for (const auto& [key, value] : parsed.as_object()) text.set(key, value);
    config.set("text_config", std::move(text));
    Json header;
    std::string bytes;
    for (const auto& [name, tensor] : checkpoint->tensors()) {
      if (!dropped.empty() && name.find(dropped) != std::string::npos) continue;
      Json shape = Json(Json::Array{}), entry;
      for (const std::int64_t dim : tensor.shape) shape.push_back(dim);
      entry.set("dtype", tensor.dtype == DType::kF32 ? "F32" : "BF16");
      entry.set("shape", std::move(shape));
      const auto begin = static_cast<std::int64_t>(bytes.size());
      bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      entry.set("data_offsets",
                Json(Json::Array{Json(begin), Json(static_cast<std::int64_t>(bytes.size()))}));
      header.set(name, std::move(entry));
    }
    std::ofstream(folder_.path() / "config.json") << config.dump();
    std::ofstream file(folder_.path() / "model.safetensors", std::ios::binary);
    const std::string text_header = header.dump();
    const std::uint64_t length = text_header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text_header << bytes;
    return folder_.path();
  }

  TempFolder folder_;
};

TEST_F(Glm5NextFolder, dense_attention_needs_no_indexer) {
  const Case golden("glm5_next");
  const auto& ids = golden.prompt(3);
  Runner::Options options = options_of(available_isas().back());
  options.sparse_attention = false;
  Runner whole(golden.folder(), options);
  const auto want = whole.logits(ids, 0);
  edited("{}", ".indexer.");
  EXPECT_EQ(Runner(folder_.path(), options).logits(ids, 0), want);
  options.sparse_attention = true;
  LoadOptions load;
  const auto refused = load_model(*Checkpoint::open(folder_.path()), load);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(check_model(**Checkpoint::open(folder_.path())).has_value());
  EXPECT_THAT(describe_model(**Checkpoint::open(folder_.path()))->notes,
              testing::Contains(HasSubstr("--dsa off")));
  EXPECT_THAT(refused.error().message,
              testing::AllOf(HasSubstr("indexer.wk.weight"), HasSubstr("--dsa off")));
  // A config that says so says the same.
  edited(R"({"index_topk": null})", ".indexer.");
  EXPECT_EQ(Runner(folder_.path(), options).logits(ids, 0), want);
  // So does one that chooses more than there is.
  edited(R"({"index_topk": 400})", "");
  EXPECT_LE(max_difference(Runner(folder_.path(), options).logits(ids, 0), want), 1e-4);
}

TEST_F(Glm5NextFolder, older_spellings_of_the_streams_are_read) {
  const Case golden("glm5_next");
  const Runner::Options options = options_of(available_isas().back());
  const auto want = Runner(golden.folder(), options).logits(golden.prompt(1), 0);
  edited(R"({"hc_mult": null, "mhc_num_residual_streams": 4, "hc_sinkhorn_iters": null,
             "mhc_sinkhorn_iterations": 20})",
         "");
  EXPECT_EQ(Runner(folder_.path(), options).logits(golden.prompt(1), 0), want);
}

TEST_F(Glm5NextFolder, a_limit_that_is_absent_bounds_nothing) {
  const Case golden("glm5_next");
  const Runner::Options options = options_of(available_isas().back());
  edited(R"({"swiglu_limit": null})", "");
  const auto unbounded = Runner(folder_.path(), options).logits(golden.prompt(2), 0);
  edited(R"({"swiglu_limit": 1e20})", "");
  EXPECT_EQ(Runner(folder_.path(), options).logits(golden.prompt(2), 0), unbounded);
  EXPECT_GT(max_difference(golden.expected("prompt2.logits").values, unbounded), 0.1);
}

// ---- the parts

TEST(Kpool, the_best_are_chosen_and_of_equals_the_lower) {
  std::mt19937 random(7);
  for (const int n : {2, 3, 17, 64, 1000, 5000}) {
    for (const int k : {1, 2, n / 2, n - 1}) {
      if (k < 1 || k >= n) continue;
      for (const int kinds : {2, 5, 1 << 20}) {  // few kinds of scores: many are equal
        std::vector<float> scores(static_cast<std::size_t>(n));
        for (float& score : scores) {
          const int kind = static_cast<int>(random() % static_cast<unsigned>(kinds));
          score = static_cast<float>(kind - kinds / 2) * 0.37f;
          if (kind % 3 == 0) score = -score * 1e-6f;
        }
        std::vector<int> order(scores.size());
        for (int i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = i;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
          return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
        });
        std::vector<std::int32_t> want(order.begin(), order.begin() + k), got(want.size(), -1);
        std::sort(want.begin(), want.end());
        std::vector<std::uint64_t> scratch(scores.size());
        choose_best(scores.data(), n, k, scratch.data(), got.data());
        EXPECT_EQ(got, want) << n << " " << k << " " << kinds;
      }
    }
  }
}

TEST(Kpool, scores_that_are_not_finite_choose_as_many) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores(100, nan);
  std::vector<std::uint64_t> scratch(100);
  std::vector<std::int32_t> got(10);
  choose_best(scores.data(), 100, 10, scratch.data(), got.data());
  EXPECT_THAT(got, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

}  // namespace
}  // namespace glint::golden
