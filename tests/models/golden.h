// Loads a golden case (a tiny checkpoint and what transformers computes from it) and runs our model
// over its prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cache/cache.h"
#include "checkpoint/checkpoint.h"
#include "kernels/isa.h"
#include "models/registry.h"
#include "ops/exec.h"

namespace glint::golden {

// A tensor of expected.safetensors as float32 (integers converted) with its shape.
struct Expected {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
// All tensors of a safetensors file. Aborts with a message when it cannot be read.
std::map<std::string, Expected> read_expected(const std::filesystem::path& file);

class Case {
 public:
  // `name` is a folder of tests/data/golden. Aborts with a message when it cannot be read.
  explicit Case(const std::string& name);
  const std::filesystem::path& folder() const { return folder_; }
  int num_prompts() const { return static_cast<int>(prompts_.size()); }
  const std::vector<std::int32_t>& prompt(int i) const {
    return prompts_[static_cast<std::size_t>(i)];
  }
  // The folder's rule: max(1e-3, 10 x float32_noise).
  double tolerance(int prompt) const;
  int bisect_prompt() const;
  const Expected& expected(const std::string& name) const;
  bool has(const std::string& name) const { return expected_.contains(name); }

 private:
  std::filesystem::path folder_;
  Json case_;
  std::map<std::string, Expected> expected_;
  std::vector<std::vector<std::int32_t>> prompts_;
};

// Room for a snapshot at every page boundary that the next `count` tokens reach.
std::vector<StateSnapshot> keep_snapshots(SequenceCache& sequence, int count);

// A model with everything it runs on.
class Runner {
 public:
  struct Options {
    Isa isa = Isa::kScalar;
    int threads = 2;
    Compute compute = Compute::kF32;
    LatentForm form = LatentForm::kByCost;
    WeightPlacement placement = WeightPlacement::kResident;
    WeightQuant quant = WeightQuant::kAsIs;
    bool repack = true;
    std::filesystem::path packed_cache = {};
    DraftLayer draft = DraftLayer::kOff;
    bool sparse_attention = true;
    LoadOptions::StreamedExperts experts = {};
    CacheFormat cache_format = CacheFormat::kBf16;
  };
  // `path` is what Checkpoint::open takes.
  Runner(const std::filesystem::path& path, const Options& options);

  // Logits of every position [tokens, vocab], `chunk` tokens a step (0: all at once), from an empty
  // cache or with what the prefix tree holds (the positions that were reused are then missing at
  // the front).
  std::vector<float> logits(const std::vector<std::int32_t>& ids, int chunk);
  // The same for several prompts that share every step.
  std::vector<std::vector<float>> logits_together(
      const std::vector<std::vector<std::int32_t>>& prompts, int chunk);
  std::vector<std::int32_t> greedy(const std::vector<std::int32_t>& ids, int n, int chunk);
  std::map<std::string, std::vector<float>> states(const std::vector<std::int32_t>& ids);

  int vocab() const { return model_->info().vocab_size; }
  Cache& cache() { return *cache_; }
  const Model& model() const { return *model_; }
  Exec& exec() { return exec_; }

 private:
  std::unique_ptr<Model> model_;
  ThreadPool pool_;
  Workspace workspace_;
  Exec exec_;
  std::unique_ptr<Cache> cache_;
};

// The tables that the tests of this folder run with. Under a sanitizer the scalar loops would take
// minutes here; tests/kernels runs them there too.
std::vector<Isa> tested_isas();

using States = std::map<std::string, std::vector<float>>;
// Which of the `rows` positions choose the same experts, and attend to the same ones, in both runs,
// in every layer.
std::vector<bool> same_experts(const States& a, const States& b, std::size_t rows);

// Largest absolute difference.
double max_difference(const std::vector<float>& a, const std::vector<float>& b);
// KL(softmax(reference) || softmax(other)) of each row.
std::vector<double> kl_of_rows(const std::vector<float>& reference, const std::vector<float>& other,
                               int vocab);
// Their mean.
double mean_kl(const std::vector<float>& reference, const std::vector<float>& other, int vocab);

}  // namespace glint::golden
