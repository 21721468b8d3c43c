// Plans of scratch memory against what forward passes took.
#include "tools/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/isa.h"
#include "models/registry.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Case {
  const char* model;
  Compute compute = Compute::kBf16;
  WeightQuant quant = WeightQuant::kAsIs;
};

class StepMemory : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto checkpoint =
        Checkpoint::open(std::string(GLINT_TEST_DATA) + "/golden/" + GetParam().model);
    ASSERT_TRUE(checkpoint.has_value());
    checkpoint_ = std::move(*checkpoint);
  }

  // What a step of so many tokens took, the last of a prompt of `context` tokens, which is cut in
  // pieces of that many.
  std::uint64_t measure(const StepShape& shape, LoadOptions& load) {
    ThreadPool pool(shape.threads);
    Workspace workspace;
    Exec exec{kernel_table(available_isas().back()), pool, workspace};
    load.compute = GetParam().compute;
    load.quant = GetParam().quant;
    load.vision = false;
    load.draft = DraftLayer::kIfPresent;
    load.kernels = &exec.kernels;
    load.pool = &pool;
    auto model = load_model(checkpoint_, load);
    GLINT_CHECK(model.has_value());
    const auto vocabulary = static_cast<std::size_t>((*model)->info().vocab_size);
    Cache cache((*model)->cache_spec(), static_cast<std::size_t>(shape.context / kPageSize + 2),
                false, {.num_states = 1});
    Tokens tokens(static_cast<std::size_t>(shape.context));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i * 7919 % vocabulary);
    std::vector<float> logits(64 * vocabulary);
    SequenceCache sequence = start_sequence(**model, cache, tokens);
    while (sequence.length() < shape.context) {
      const int start = sequence.length();
      const int count = std::min(shape.tokens, shape.context - start);
      GLINT_CHECK(sequence.reserve(count).has_value());
      const auto step = std::span(tokens).subspan(static_cast<std::size_t>(start),
                                                  static_cast<std::size_t>(count));
      const SequenceSpan span{.begin = 0,
                              .count = count,
                              .start = start,
                              .pages = sequence.pages(),
                              .state = sequence.state()};
      Tokens rows(static_cast<std::size_t>(std::min(count, 64)));
      std::iota(rows.begin(), rows.end(), count - static_cast<int>(rows.size()));
      (*model)->forward(exec, cache, {.tokens = step, .sequences = {&span, 1}, .logit_rows = rows},
                        logits);
      sequence.commit(step);
    }
    return workspace.peak();
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
};

TEST_P(StepMemory, forward_passes_take_no_more_than_is_planned_and_not_much_less) {
  const auto info = describe_model(*checkpoint_);
  ASSERT_TRUE(info.has_value());
  for (const StepShape& shape : {StepShape{.tokens = 1, .context = 65, .threads = 2},
                                 StepShape{.tokens = 65, .context = 600, .threads = 1},
                                 StepShape{.tokens = 1024, .context = 1024, .threads = 2}}) {
    LoadOptions load;
    const std::uint64_t measured = measure(shape, load);
    const std::uint64_t planned = workspace_bound(*info, load, shape);
    EXPECT_LE(measured, planned) << shape.tokens << " tokens";
    EXPECT_GT(4 * measured + (std::uint64_t{8} << 20), planned) << shape.tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StepMemory,
                         testing::Values(Case{"glm4_moe_lite"},
                                         Case{"glm4_moe_lite", Compute::kF32},
                                         Case{"glm4_moe_lite", Compute::kBf16, WeightQuant::kQ8},
                                         Case{"glm4_moe"}, Case{"glm4_moe_nvfp4"},
                                         Case{"glm5_next"}, Case{"glm5_next", Compute::kF32},
                                         Case{"glm5_next_fp8"}));

TEST(ImageMemory, counts_only_where_a_tower_is_loaded) {
  ModelInfo info;
  info.hidden_size = 64;
  LoadOptions load;
  EXPECT_EQ(image_bound(info, load, 100), 0u);
  info.images = ImageInput{.patch_size = 14, .temporal_patch_size = 2, .merge = 2};
  info.images->hidden_size = 128;
  const std::uint64_t of_hundred = image_bound(info, load, 100);
  EXPECT_GT(of_hundred, 600'000'000u) << "decoding the largest picture";
  // Patches of the 100 tokens more: values twice, residual, queries, keys and values.
  EXPECT_GT(image_bound(info, load, 200) - of_hundred,
            400u * (2 * 3 * 2 * 14 * 14 * 4 + 128 * (4 + 3 * 2)));
  load.vision = false;
  EXPECT_EQ(image_bound(info, load, 100), 0u);
}

TEST(LogitsMemory, guesses_and_prompts_that_are_judged_have_rows) {
  ModelInfo info;
  info.vocab_size = 1000;
  LoadOptions load;
  const StepShape shape{.tokens = 512, .sequences = 4};
  const std::uint64_t plain = logits_bound(info, load, shape);
  EXPECT_GE(plain, (4 + 64) * 4000u);
  load.draft = DraftLayer::kIfPresent;
  EXPECT_GE(logits_bound(info, load, shape), plain + 4 * (8 + 1) * 4000u);
}

}  // namespace
}  // namespace glint
