#include "tools/bench.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <utility>

#include "models/cache_format.h"
#include "ops/kernel_name.h"

namespace glint {
namespace {

using Clock = std::chrono::steady_clock;

// Plausible rows: two bf16 values of moderate size, either sign, which float32 caches take too. In
// packed rows any byte may be a scale: bytes that are moderate whatever they are.
std::uint32_t made_up_values(CacheFormat format, std::mt19937& random) {
  if (format != CacheFormat::kBf16) return (random() & 0x07070707U) | 0x38383838U;
  return (random() & 0x807f807fU) | 0x3e803e80U;
}

class Driver {
 public:
  explicit Driver(Session& session) : session_(session), random_(1) {
    logits_.resize(vocab_size());
  }

  std::size_t vocab_size() const { return static_cast<std::size_t>(session_.plan.info.vocab_size); }

  // A sequence of `depth` tokens whose rows are made up. A recurrent state starts from zeros, at
  // the last page boundary.
  Result<SequenceCache> sequence(int depth) {
    SequenceCache cache = start_sequence(*session_.model, *session_.cache, {});
    const int rest = cache.state() == nullptr ? 0 : depth % kPageSize;
    const int made_up = depth - rest;
    const CacheSpec spec = session_.model->cache_spec();
    GLINT_TRY_VOID(cache.reserve(made_up));
    if (cache.state() != nullptr && made_up > 0) {
      const std::vector<std::byte> zeros(spec.snapshot_bytes);
      session_.model->start_state(made_up, zeros.empty() ? nullptr : zeros.data(), cache.state());
    }
    const std::size_t words = spec.row_bytes * kPageSize / sizeof(std::uint32_t);
    for (const PageId page : cache.pages()) {
      for (int layer = 0; layer < spec.num_layers; ++layer) {
        auto* row = reinterpret_cast<std::uint32_t*>(session_.cache->rows(page, layer));
        std::generate_n(row, words,
                        [&] { return made_up_values(session_.plan.load.cache_format, random_); });
      }
    }
    cache.commit(random_tokens(made_up));
    if (rest == 0) return cache;
    std::vector<SequenceCache> sequences;
    sequences.push_back(std::move(cache));
    GLINT_TRY_VOID(step(sequences, rest, false));
    return std::move(sequences[0]);
  }

  // One step that feeds `count` random tokens to each sequence, with logits of the last ones.
  Status step(std::vector<SequenceCache>& sequences, int count, bool logits) {
    tokens_ = random_tokens(count * static_cast<int>(sequences.size()));
    spans_.clear();
    logit_rows_.clear();
    int begin = 0;
    for (SequenceCache& sequence : sequences) {
      GLINT_TRY_VOID(sequence.reserve(count));
      spans_.push_back({.begin = begin,
                        .count = count,
                        .start = sequence.length(),
                        .pages = sequence.pages(),
                        .state = sequence.state()});
      begin += count;
      if (logits) logit_rows_.push_back(begin - 1);
    }
    logits_.resize(std::max(logits_.size(), logit_rows_.size() * vocab_size()));
    const Batch batch{tokens_, spans_, logit_rows_};
    session_.model->forward(*session_.exec, *session_.cache, batch,
                            std::span(logits_).first(logit_rows_.size() * vocab_size()));
    GLINT_TRY_VOID(session_.model->take_failure());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      sequences[i].commit(std::span(tokens_).subspan(static_cast<std::size_t>(spans_[i].begin),
                                                     static_cast<std::size_t>(count)));
    }
    return {};
  }

 private:
  std::vector<std::int32_t> random_tokens(int count) {
    std::uniform_int_distribution<std::int32_t> any(0, session_.plan.info.vocab_size - 1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    std::ranges::generate(tokens, [&] { return any(random_); });
    return tokens;
  }

  Session& session_;
  std::mt19937 random_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSpan> spans_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<float> logits_;
};

// Tokens per second of one repetition.
Result<double> measure(Driver& driver, const BenchResult& test, int chunk) {
  std::vector<SequenceCache> sequences;
  for (int i = 0; i < test.parallel; ++i) {
    GLINT_TRY(SequenceCache sequence, driver.sequence(test.depth));
    sequences.push_back(std::move(sequence));
  }
  const int stride = test.prefill ? chunk : 1;
  const auto start = Clock::now();
  for (int done = 0; done < test.tokens; done += stride) {
    const int count = std::min(stride, test.tokens - done);
    GLINT_TRY_VOID(driver.step(sequences, count, !test.prefill || done + count == test.tokens));
  }
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(test.tokens) * test.parallel / took;
}

int head_dim(const ModelInfo& info, std::string_view name) {
  for (const ModelInfo::HeadDim& dim : info.head_dims) {
    if (dim.name == name) return dim.value;
  }
  return 0;
}

bool is_head(const ModelInfo& info, WeightPart part) {
  return part == WeightPart::kHead || (part == WeightPart::kEmbedding && info.tied_embedding);
}

bool is_multiplied(const ModelInfo& info, WeightPart part) {
  return part != WeightPart::kVectors && (part != WeightPart::kEmbedding || is_head(info, part));
}

bool by_int8(const BenchModel& model, const WeightForm& form) {
  return is_block_type(form.type) && model.compute != Compute::kF32;
}

// Parameters that one token multiplies with, apart by what does it.
struct ActiveParameters {
  double floats = 0, int8 = 0;
};
ActiveParameters active_parameters(const BenchModel& model, bool with_head) {
  ActiveParameters active;
  for (const PlacedGroup& group : model.weights) {
    const WeightPart part = group.stored.part;
    if (!is_multiplied(model.info, part) || (is_head(model.info, part) && !with_head)) continue;
    (by_int8(model, group.form) ? active.int8 : active.floats) +=
        static_cast<double>(group.stored.parameters()) * share_read(model.info, part, 1);
  }
  return active;
}

}  // namespace

double BenchResult::median() const {
  if (tokens_per_s.empty()) return 0;
  std::vector<double> sorted = tokens_per_s;
  std::ranges::sort(sorted);
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

std::vector<BenchResult> bench_tests(const BenchPlan& plan) {
  std::vector<BenchResult> tests;
  for (const int depth : plan.depths) {
    for (const int tokens : plan.prompt_tokens) {
      if (tokens > 0) tests.push_back({.prefill = true, .tokens = tokens, .depth = depth});
    }
    if (plan.generated_tokens == 0) continue;
    for (const int parallel : plan.parallel) {
      tests.push_back({.tokens = plan.generated_tokens, .depth = depth, .parallel = parallel});
    }
  }
  return tests;
}

Result<BenchResult> run_bench(Session& session, const BenchResult& test, int repetitions) {
  Driver driver(session);
  const int chunk = session.plan.alone_chunk;
  BenchResult warm_up = test;
  warm_up.tokens = std::min(test.tokens, test.prefill ? chunk : 8);
  GLINT_TRY(const double ignored, measure(driver, warm_up, chunk));
  static_cast<void>(ignored);
  BenchResult result = test;
  if (const ExpertSource* experts = session.model->experts()) result.experts = experts->stats();
  for (int i = 0; i < repetitions; ++i) {
    GLINT_TRY(const double speed, measure(driver, test, chunk));
    result.tokens_per_s.push_back(speed);
  }
  if (result.experts) {
    const ExpertStats before = *result.experts;
    ExpertStats& used = *result.experts;
    used = session.model->experts()->stats();
    used.uses -= before.uses;
    used.misses -= before.misses;
    used.reads -= before.reads;
    used.reads_ahead -= before.reads_ahead;
    used.reads_ahead_used -= before.reads_ahead_used;
    used.bytes_read -= before.bytes_read;
    used.read_seconds -= before.read_seconds;
    used.wait_seconds -= before.wait_seconds;
  }
  return result;
}

std::vector<WeightUse> weights_in_use(const BenchModel& model, Isa isa) {
  std::vector<WeightUse> uses;
  for (const PlacedGroup& group : model.weights) {
    if (!is_multiplied(model.info, group.stored.part)) continue;
    const auto same = std::ranges::find_if(uses, [&](const WeightUse& use) {
      return use.form.type == group.form.type && use.form.format == group.form.format;
    });
    if (same != uses.end()) {
      same->bytes += group.bytes;
      continue;
    }
    std::string kernel = kernel_name(isa, group.form.type, model.compute);
    if (group.form.format == QuantFormat::kBlocks) kernel += ", packed anew by every product";
    uses.push_back({group.form, group.bytes, std::move(kernel)});
  }
  std::ranges::sort(uses, std::ranges::greater(), &WeightUse::bytes);
  return uses;
}

Json uses_json(const std::vector<WeightUse>& uses) {
  Json list(Json::Array{});
  for (const WeightUse& use : uses) {
    Json json;
    json.set("type", std::string(dtype_name(use.form.type)));
    json.set("bytes", use.bytes);
    json.set("kernel", use.kernel);
    list.push_back(std::move(json));
  }
  return list;
}

BenchFloor bench_floor(const BenchModel& model, const BenchResult& test,
                       const MachineRates& rates) {
  const ModelInfo& info = model.info;
  const double keys = test.depth + (test.tokens + 1) / 2.0;  // seen by a token, on average
  // Scores and weighted values of per-head keys: the least that any form computes.
  const int key_and_value =
      head_dim(info, "qk_head_dim") + head_dim(info, "v_head_dim") + 2 * head_dim(info, "head_dim");
  const double attention = 2.0 * keys * info.num_layers * info.num_heads * key_and_value;
  const ActiveParameters active = active_parameters(model, !test.prefill);
  const double step_tokens = test.prefill ? test.tokens : test.parallel;  // at best
  const double cache_bytes =
      static_cast<double>(info.cache.find(model.cache_format)->bytes_per_token() *
                          row_factor(model.cache_format, model.compute)) *
      keys;
  const double float_flops = 2.0 * active.floats + attention, int8_flops = 2.0 * active.int8;
  BenchFloor floor;
  floor.flops_per_token = float_flops + int8_flops;
  floor.bytes_per_step = bytes_read(info, model.weights, step_tokens) + cache_bytes * test.parallel;
  const double read_s = floor.bytes_per_step / rates.bytes_per_s / step_tokens;
  const double compute_s =
      float_flops / rates.flops_per_s + (int8_flops > 0 ? int8_flops / rates.int8_flops_per_s : 0);
  floor.compute_bound = compute_s > read_s;
  floor.tokens_per_s = 1 / std::max(read_s, compute_s);
  return floor;
}

}  // namespace glint
