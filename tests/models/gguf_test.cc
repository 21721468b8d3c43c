// GGUF files of the demo model against transformers' numbers (tests/data/gguf/README.md), and
// low-bit weights against themselves: the same bits however the work is cut and wherever the
// weights lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "golden.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() {
  return fs::path(GLINT_TEST_DATA) / "gguf";
}

// What is expected of one file, by prompt.
struct Prompt {
  std::string name;
  std::vector<std::int32_t> ids;
  std::vector<float> logits;  // [ids, vocab]
  std::vector<float> margin;  // [ids]: the least of all layers
  std::vector<std::int32_t> greedy;
};

std::vector<float> least_of_rows(const Expected& margins) {
  const auto layers = static_cast<std::size_t>(margins.shape[1]);
  std::vector<float> least;
  for (std::size_t i = 0; i < margins.values.size(); i += layers) {
    const auto row = margins.values.begin() + static_cast<std::ptrdiff_t>(i);
    least.push_back(*std::min_element(row, row + static_cast<std::ptrdiff_t>(layers)));
  }
  return least;
}

const std::map<std::string, Expected>& expected_tensors() {
  static const auto tensors = read_expected(data_folder() / "expected.safetensors");
  return tensors;
}

// "demo-q4_0" for "demo-q4_0.gguf", "hf" for the folder.
std::vector<Prompt> prompts_of(const std::string& file) {
  std::vector<Prompt> prompts;
  for (const char* name : {"story", "chat"}) {
    const auto logits = expected_tensors().find(file + "/" + name + "/logits");
    if (logits == expected_tensors().end()) continue;
    const auto integers = [](const Expected& e) {
      return std::vector<std::int32_t>(e.values.begin(), e.values.end());
    };
    prompts.push_back({name, integers(expected_tensors().at(std::string("prompt/") + name)),
                       logits->second.values,
                       least_of_rows(expected_tensors().at(file + "/" + name + "/router_margin")),
                       integers(expected_tensors().at(file + "/" + name + "/greedy"))});
  }
  return prompts;
}

fs::path path_of(const std::string& file) {
  if (file == "hf") return fs::path(GLINT_TEST_DATA) / "../../models/demo";
  return data_folder() / (file + ".gguf");
}

std::vector<std::string> tested_files() {
  std::vector<std::string> files;
  for (const auto& [name, tensor] : expected_tensors()) {
    const std::string file = name.substr(0, name.find('/'));
    if (file == "prompt" || (!files.empty() && files.back() == file)) continue;
    if (fs::exists(path_of(file))) files.push_back(file);
  }
  return files;
}

class GgufModel : public testing::TestWithParam<std::tuple<std::string, Isa>> {
 protected:
  std::string file_ = std::get<0>(GetParam());
  Isa isa_ = std::get<1>(GetParam());
  std::vector<Prompt> prompts_ = prompts_of(file_);
  Runner::Options options(Compute compute) const {
    Runner::Options options;
    options.isa = isa_;
    options.compute = compute;
    return options;
  }
};

TEST(GgufFiles, all_that_are_stored_are_tested) {
  EXPECT_GE(tested_files().size(), 7u);
}

TEST_P(GgufModel, f32_logits_are_those_of_the_dequantised_weights) {
  Runner runner(path_of(file_), options(Compute::kF32));
  for (const Prompt& prompt : prompts_) {
    runner.cache().clear_prefixes();
    EXPECT_LE(max_difference(prompt.logits, runner.logits(prompt.ids, 0)), 1e-3) << prompt.name;
  }
}

TEST_P(GgufModel, f32_greedy_ids_are_those_of_the_dequantised_weights) {
  Runner runner(path_of(file_), options(Compute::kF32));
  for (const Prompt& prompt : prompts_) {
    EXPECT_EQ(runner.greedy(prompt.ids, static_cast<int>(prompt.greedy.size()), 0), prompt.greedy)
        << prompt.name;
  }
}

// Where a position chooses other experts its logits differ by much, and by right only where the
// choice was close; all other positions must be near, whatever those before them chose.
TEST_P(GgufModel, rounded_activations_stay_close_where_the_same_experts_are_chosen) {
  constexpr float kCloseChoice = 0.02f;
  Runner exact(path_of(file_), options(Compute::kF32));
  Runner rounded(path_of(file_), options(Compute::kBf16));
  std::size_t judged = 0, positions = 0;
  for (const Prompt& prompt : prompts_) {
    const std::vector<bool> same =
        same_experts(exact.states(prompt.ids), rounded.states(prompt.ids), prompt.ids.size());
    rounded.cache().clear_prefixes();
    const std::vector<double> kl =
        kl_of_rows(prompt.logits, rounded.logits(prompt.ids, 0), rounded.vocab());
    for (std::size_t row = 0; row < kl.size(); ++row) {
      if (same[row]) {
        EXPECT_LT(kl[row], 1e-2) << prompt.name << " position " << row;
        ++judged;
      } else {
        EXPECT_LT(prompt.margin[row], kCloseChoice) << prompt.name << " position " << row;
      }
    }
    positions += kl.size();
  }
  RecordProperty("judged", std::to_string(judged) + " of " + std::to_string(positions));
  EXPECT_GT(2 * judged, positions);
}

std::string param_name(const testing::TestParamInfo<std::tuple<std::string, Isa>>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::string(isa_name(std::get<1>(info.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(AllFilesAndTables, GgufModel,
                         testing::Combine(testing::ValuesIn(tested_files()),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

// One file of simple blocks, one of super-blocks with groups of 16 and 32 and with minima.
class LowBitModel : public GgufModel {
 protected:
  Runner::Options deterministic() const {
    Runner::Options pinned = options(Compute::kBf16);
    pinned.threads = 1;
    pinned.form = LatentForm::kAbsorbed;
    return pinned;
  }
  std::vector<std::vector<std::int32_t>> ids() const {
    std::vector<std::vector<std::int32_t>> all;
    for (const Prompt& prompt : prompts_) all.push_back(prompt.ids);
    // One that fills a page, with steps of many rows: every kernel of the table gets its turn.
    all.emplace_back();
    while (all.back().size() <= kPageSize) {
      for (const Prompt& prompt : prompts_)
        all.back().insert(all.back().end(), prompt.ids.begin(), prompt.ids.end());
    }
    return all;
  }
};

TEST_P(LowBitModel, results_have_the_same_bits_however_the_work_is_cut) {
  const auto prompts = ids();
  ASSERT_GT(prompts.back().size(), kPageSize);
  for (const Compute compute : {Compute::kBf16, Compute::kF32}) {
    Runner::Options pinned = deterministic();
    pinned.compute = compute;
    std::vector<std::vector<float>> want;
    Runner whole(path_of(file_), pinned);
    for (const auto& prompt : prompts) {
      whole.cache().clear_prefixes();
      want.push_back(whole.logits(prompt, 0));
    }
    const std::pair<int, int> cuts[] = {{1, 1}, {1, 7}, {1, 64}, {3, 0}, {3, 7}};  // threads, chunk
    for (const auto& [threads, chunk] : cuts) {
      pinned.threads = threads;
      Runner runner(path_of(file_), pinned);
      EXPECT_EQ(runner.logits_together(prompts, chunk), want)
          << "threads " << threads << " chunk " << chunk;
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        runner.cache().clear_prefixes();
        EXPECT_EQ(runner.logits(prompts[p], chunk), want[p]) << "alone, chunk " << chunk;
      }
      const auto again = runner.logits(prompts.back(), chunk);
      EXPECT_LT(again.size(), want.back().size());
      EXPECT_TRUE(std::equal(again.rbegin(), again.rend(), want.back().rbegin())) << "prefix hit";
      runner.cache().check_integrity();
    }
  }
}

TEST_P(LowBitModel, results_have_the_same_bits_wherever_the_weights_lie) {
  const auto prompts = ids();
  for (const Compute compute : {Compute::kBf16, Compute::kF32}) {
    Runner::Options pinned = deterministic();
    pinned.compute = compute;
    const auto want = Runner(path_of(file_), pinned).logits_together(prompts, 0);
    for (const WeightPlacement placement : {WeightPlacement::kResident, WeightPlacement::kMapped}) {
      for (const bool repack : {true, false}) {
        pinned.placement = placement;
        pinned.repack = repack;
        EXPECT_EQ(Runner(path_of(file_), pinned).logits_together(prompts, 0), want)
            << (placement == WeightPlacement::kMapped ? "mapped" : "resident")
            << (repack ? ", packed" : ", as rows");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TwoFilesAllTables, LowBitModel,
                         testing::Combine(testing::Values(std::string("demo-q4_0"),
                                                          std::string("slice-q2_k")),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

}  // namespace
}  // namespace glint::golden
