// How often the demo model's draft layer guesses what the demo model says next, against what
// models/demo/evaluate.py counted with transformers.
#include <gtest/gtest.h>

#include "base/json.h"
#include "drafter.h"

namespace glint::golden {
namespace {

std::filesystem::path demo() {
  return std::filesystem::path(GLINT_TEST_DATA) / "../../models/demo";
}

Tokens ids_of(const Json& output, const char* name) {
  Tokens ids;
  for (const Json& id : output.find(name)->as_array())
    ids.push_back(static_cast<std::int32_t>(id.as_int()));
  return ids;
}

struct Counts {
  int drafted = 0, accepted = 0;
};

// Greedy decoding of `tokens` beyond the first `prompt` with one draft a step, replayed.
Counts replay(const Tokens& tokens, std::size_t prompt, const Drafts& drafts, std::size_t vocab) {
  Counts counts;
  for (std::size_t known = prompt + 1; known < tokens.size();) {
    const std::size_t slot = known - 1;
    const auto row =
        drafts.logits.begin() +
        static_cast<std::ptrdiff_t>((slot - static_cast<std::size_t>(drafts.first_slot)) * vocab);
    const auto guess = std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
    const bool right = guess == tokens[known];
    ++counts.drafted;
    counts.accepted += right ? 1 : 0;
    known += right ? 2 : 1;
  }
  return counts;
}

TEST(DraftAcceptance, the_demo_model_guesses_its_own_words_as_with_transformers) {
  const auto reference = parse_json(*read_text_file(demo() / "eval_reference.json", 1 << 24));
  ASSERT_TRUE(reference.has_value());
  const auto& outputs = reference->find("outputs")->as_array();
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    Runner::Options options;
    options.isa = tested_isas().back();
    options.compute = compute;
    options.draft = DraftLayer::kRequired;
    Drafter drafter(demo(), options);
    const auto vocab = static_cast<std::size_t>(drafter.model().info().vocab_size);
    Counts want, got;
    constexpr std::size_t kStep = 4;  // of the items; all of them agree as well
    for (std::size_t i = 0; i < outputs.size(); i += kStep) {
      Tokens tokens = ids_of(outputs[i], "prompt_ids");
      const std::size_t prompt = tokens.size();
      const Tokens output = ids_of(outputs[i], "output_ids");
      tokens.insert(tokens.end(), output.begin(), output.end());
      drafter.cache().clear_prefixes();
      const Counts counts = replay(tokens, prompt, drafter.run(tokens, 0), vocab);
      got.drafted += counts.drafted;
      got.accepted += counts.accepted;
      want.drafted += static_cast<int>(outputs[i].find("drafted")->as_int());
      want.accepted += static_cast<int>(outputs[i].find("accepted")->as_int());
    }
    const double rate = static_cast<double>(got.accepted) / got.drafted;
    const double reference_rate = static_cast<double>(want.accepted) / want.drafted;
    RecordProperty(compute == Compute::kF32 ? "f32" : "bf16", std::to_string(rate));
    EXPECT_GT(want.drafted, 1000);
    EXPECT_NEAR(rate, reference_rate, compute == Compute::kF32 ? 0.002 : 0.01);
  }
}

}  // namespace
}  // namespace glint::golden
