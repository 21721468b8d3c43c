// --weights q8 and q4 on the demo model: how far its answers move, and what is left alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "golden.h"
#include "models/tensor_binder.h"

namespace glint::golden {
namespace {

std::filesystem::path demo() {
  return std::filesystem::path(GLINT_TEST_DATA) / "../../models/demo";
}

// Ids of the stored prompts of tests/data/gguf.
std::vector<std::vector<std::int32_t>> prompts() {
  const auto tensors =
      read_expected(std::filesystem::path(GLINT_TEST_DATA) / "gguf" / "expected.safetensors");
  std::vector<std::vector<std::int32_t>> all;
  for (const char* name : {"prompt/story", "prompt/chat"}) {
    const auto& ids = tensors.at(name).values;
    all.emplace_back(ids.begin(), ids.end());
  }
  return all;
}

class WeightQuantTest : public testing::TestWithParam<Isa> {
 protected:
  Runner::Options options(WeightQuant quant, Compute compute) const {
    Runner::Options options;
    options.isa = GetParam();
    options.quant = quant;
    options.compute = compute;
    return options;
  }
  // Mean KL of the demo model's logits to those of the same compute without quantisation, over
  // positions that choose the same experts.
  double divergence(WeightQuant quant, Compute compute) {
    Runner plain(demo(), options(WeightQuant::kAsIs, compute));
    Runner quantised(demo(), options(quant, compute));
    double total = 0, rows = 0, positions = 0;
    for (const auto& ids : prompts()) {
      const auto same = same_experts(plain.states(ids), quantised.states(ids), ids.size());
      const auto kl = kl_of_rows(plain.logits(ids, 0), quantised.logits(ids, 0), plain.vocab());
      for (std::size_t row = 0; row < kl.size(); ++row) {
        total += same[row] ? kl[row] : 0;
        rows += same[row] ? 1 : 0;
        ++positions;
      }
    }
    EXPECT_GT(2 * rows, positions);
    return total / rows;
  }
};

TEST_P(WeightQuantTest, eight_bits_change_little_and_four_bits_more) {
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    const double q8 = divergence(WeightQuant::kQ8, compute);
    const double q4 = divergence(WeightQuant::kQ4, compute);
    EXPECT_GT(q8, 0);
    EXPECT_LT(q8, 1e-3);
    EXPECT_GT(q4, q8);
    EXPECT_LT(q4, 0.05);
  }
}

TEST_P(WeightQuantTest, the_model_still_answers) {
  // "What is 4 + 1?" -> "4 + 1 = 5<|user|>"
  const std::vector<std::int32_t> want = {19, 411, 220, 16, 355, 220, 20, 1522};
  for (const WeightQuant quant : {WeightQuant::kQ8, WeightQuant::kQ4}) {
    Runner runner(demo(), options(quant, Compute::kBf16));
    EXPECT_EQ(runner.greedy(prompts().back(), 8, 0), want);
  }
}

TEST_P(WeightQuantTest, the_embedding_is_kept) {
  const auto ids = prompts().front();
  const auto want =
      Runner(demo(), options(WeightQuant::kAsIs, Compute::kBf16)).states(ids).at("embed");
  const auto got =
      Runner(demo(), options(WeightQuant::kQ4, Compute::kBf16)).states(ids).at("embed");
  EXPECT_EQ(got, want);
}

// The first router's choice of weights, recomputed from what it saw with the checkpoint's values.
TEST_P(WeightQuantTest, norms_and_router_are_kept) {
  constexpr std::size_t kHidden = 256, kExperts = 8, kChosen = 2;
  constexpr double kEps = 1e-5;
  const auto ids = prompts().front();
  Runner runner(demo(), options(WeightQuant::kQ4, Compute::kBf16));
  const States states = runner.states(ids);
  const auto checkpoint = Checkpoint::open(demo());
  ASSERT_TRUE(checkpoint.has_value());
  TensorBinder binder(**checkpoint, {.placement = WeightPlacement::kMapped});
  const auto norm = binder.vector("model.layers.1.post_attention_layernorm.weight", kHidden);
  const Weight gate =
      binder.matrix("model.layers.1.mlp.gate.weight", kExperts, kHidden, MatrixUse::kKept);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    std::vector<double> x(kHidden);
    double squares = 0;
    for (std::size_t i = 0; i < kHidden; ++i) {
      x[i] =
          states.at("layer0.out")[row * kHidden + i] + states.at("layer1.attn")[row * kHidden + i];
      squares += x[i] * x[i];
    }
    std::vector<double> scores;
    for (std::size_t k = 0; k < kChosen; ++k) {
      const auto expert = states.at("layer1.router_ids")[row * kChosen + k];
      std::vector<float> weights(kHidden);
      decode_row(gate, static_cast<std::size_t>(expert), weights);
      double logit = 0;
      for (std::size_t i = 0; i < kHidden; ++i)
        logit += x[i] / std::sqrt(squares / kHidden + kEps) * norm[i] * weights[i];
      scores.push_back(1 / (1 + std::exp(-logit)));
    }
    const auto& got = states.at("layer1.router_weights");
    EXPECT_NEAR(got[row * kChosen] / got[row * kChosen + 1], scores[0] / scores[1],
                1e-4 * scores[0] / scores[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTables, WeightQuantTest, testing::ValuesIn(tested_isas()),
                         [](const testing::TestParamInfo<Isa>& param) {
                           return std::string(isa_name(param.param));
                         });

}  // namespace
}  // namespace glint::golden
