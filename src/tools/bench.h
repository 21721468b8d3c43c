// Speed of a model, measured by driving Model::forward directly: prefill, and decoding at depth
// with one or several sequences. Sequences start with made-up cache rows, so depth costs no
// prefill.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/weight_form.h"
#include "tools/session.h"

namespace glint {

struct BenchPlan {
  std::vector<int> prompt_tokens = {512};  // of a prefill test each; 0: none
  int generated_tokens = 128;              // 0: no decoding test
  std::vector<int> depths = {0, 4096};
  std::vector<int> parallel = {1, 8};
  int repetitions = 5;
  std::vector<int> drafts = {};  // of the tests that guess ahead; 0: without, for comparison
};

struct BenchResult {
  bool prefill = false;
  int tokens = 0;  // per sequence
  int depth = 0;
  int parallel = 1;
  std::vector<double> tokens_per_s = {};  // one per repetition, of all sequences together
  // Where experts are streamed: what all repetitions together did.
  std::optional<ExpertStats> experts = {};
  double median() const;
  // Tokens of all repetitions.
  double total_tokens() const {
    return 1.0 * tokens * parallel * static_cast<double>(tokens_per_s.size());
  }
};

// What bounds a test on this machine.
struct BenchFloor {
  double tokens_per_s = 0;  // at most possible
  bool compute_bound = false;
  double bytes_per_step = 0;
  double flops_per_token = 0;  // multiplications and additions, of floats or int8
};

struct MachineRates {
  double bytes_per_s = 0;
  double flops_per_s = 0;       // of float weights and of attention
  double int8_flops_per_s = 0;  // of low-bit weights that meet int8 activations
};

// A model as the session holds it.
struct BenchModel {
  const ModelInfo& info;
  const std::vector<PlacedGroup>& weights;
  Compute compute = Compute::kBf16;
  CacheFormat cache_format = CacheFormat::kBf16;
};

// The weights of one type and form that products read.
struct WeightUse {
  WeightForm form;
  std::uint64_t bytes = 0;
  std::string kernel;  // what multiplies them
};
// Those of most bytes first.
std::vector<WeightUse> weights_in_use(const BenchModel& model, Isa isa);
// [{"type", "bytes", "kernel"}, ...]
Json uses_json(const std::vector<WeightUse>& uses);

// Errors: kExhausted when the cache is too small.
Result<BenchResult> run_bench(Session& session, const BenchResult& test, int repetitions);
// The tests of a plan, in order, without results.
std::vector<BenchResult> bench_tests(const BenchPlan& plan);
// Reading the weights that a step needs and its cache once at the measured bandwidth, or doing the
// products of the weights and of attention at the measured peaks, whichever takes longer. Several
// tokens are expected to meet as many distinct experts as a random choice would.
BenchFloor bench_floor(const BenchModel& model, const BenchResult& test, const MachineRates& rates);

}  // namespace glint
