// The support code of golden.h, shared by the test files of this folder.
#include "golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace glint::golden {
namespace {

template <typename T>
T must(Result<T> result) {
  if (!result.has_value()) {
    ADD_FAILURE() << result.error().message;
    throw std::runtime_error(result.error().message);
  }
  return std::move(*result);
}

Expected widen(const TensorRef& tensor) {
  Expected out{tensor.shape, {}};
  std::size_t n = 1;
  for (const std::int64_t dim : tensor.shape) n *= static_cast<std::size_t>(dim);
  out.values.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::byte* at = tensor.bytes.data() + i * dtype_bytes(tensor.dtype);
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&out.values[i], at, 4);
    } else if (tensor.dtype == DType::kI64) {
      std::int64_t v;
      std::memcpy(&v, at, 8);
      out.values[i] = static_cast<float>(v);
    } else if (tensor.dtype == DType::kI32) {
      std::int32_t v;
      std::memcpy(&v, at, 4);
      out.values[i] = static_cast<float>(v);
    } else {
      throw std::runtime_error("unexpected dtype of " + tensor.name);
    }
  }
  return out;
}

}  // namespace

std::map<std::string, Expected> read_expected(const std::filesystem::path& file) {
  std::map<std::string, Expected> tensors;
  for (const TensorRef& tensor : must(parse_safetensors(must(MappedFile::open(file)))))
    tensors[tensor.name] = widen(tensor);
  return tensors;
}

Case::Case(const std::string& name)
    : folder_(std::filesystem::path(GLINT_TEST_DATA) / "golden" / name) {
  case_ = must(parse_json(must(read_text_file(folder_ / "case.json", 1 << 20))));
  expected_ = read_expected(folder_ / "expected.safetensors");
  for (int i = 0; has(fmt::format("prompt{}.ids", i)); ++i) {
    const Expected& ids = expected(fmt::format("prompt{}.ids", i));
    prompts_.emplace_back(ids.values.begin(), ids.values.end());
  }
}

double Case::tolerance(int prompt) const {
  const Json& info = case_.find("prompts")->as_array()[static_cast<std::size_t>(prompt)];
  return std::max(1e-3, 10 * info.find("float32_noise")->as_double());
}

int Case::bisect_prompt() const {
  return static_cast<int>(case_.find("bisect_prompt")->as_int());
}

const Expected& Case::expected(const std::string& name) const {
  return expected_.at(name);
}

std::vector<StateSnapshot> keep_snapshots(SequenceCache& sequence, int count) {
  std::vector<StateSnapshot> snapshots;
  const int end = sequence.length() + count;
  for (int at = (sequence.length() / kPageSize + 1) * kPageSize; at <= end; at += kPageSize) {
    if (std::byte* out = sequence.reserve_snapshot(at)) snapshots.push_back({at, out});
  }
  return snapshots;
}

Runner::Runner(const std::filesystem::path& path, const Options& options)
    : pool_(options.threads), exec_{kernel_table(options.isa), pool_, workspace_} {
  LoadOptions load;
  load.compute = options.compute;
  load.cache_format = options.cache_format;
  load.latent_form = options.form;
  load.placement = options.placement;
  load.quant = options.quant;
  load.repack = options.repack;
  load.packed_cache = options.packed_cache;
  load.draft = options.draft;
  load.sparse_attention = options.sparse_attention;
  load.streamed_experts = options.experts;
  load.kernels = &exec_.kernels;
  load.pool = &pool_;
  model_ = must(load_model(must(Checkpoint::open(path)), load));
  cache_ = std::make_unique<Cache>(model_->cache_spec(), 64, true,
                                   StateRoom{.num_states = 32, .num_snapshots = 64});
}

std::vector<std::vector<float>> Runner::logits_together(
    const std::vector<std::vector<std::int32_t>>& prompts, int chunk) {
  const std::size_t v = static_cast<std::size_t>(vocab());
  std::vector<SequenceCache> caches;
  for (const auto& ids : prompts) caches.push_back(start_sequence(*model_, *cache_, ids));
  std::vector<std::vector<float>> out(prompts.size());
  for (bool more = true; more;) {
    std::vector<std::int32_t> tokens, rows;
    std::vector<SequenceSpan> spans;
    std::vector<std::vector<StateSnapshot>> snapshots(prompts.size());
    std::vector<std::size_t> owners;
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      const int left = static_cast<int>(prompts[p].size()) - caches[p].length();
      const int n = chunk == 0 ? left : std::min(left, chunk);
      if (n == 0) continue;
      EXPECT_TRUE(caches[p].reserve(n).has_value());
      snapshots[p] = keep_snapshots(caches[p], n);
      spans.push_back({.begin = static_cast<int>(tokens.size()),
                       .count = n,
                       .start = caches[p].length(),
                       .pages = caches[p].pages(),
                       .state = caches[p].state(),
                       .snapshots = snapshots[p]});
      owners.push_back(p);
      for (int i = 0; i < n; ++i) {
        rows.push_back(static_cast<std::int32_t>(tokens.size()));
        tokens.push_back(prompts[p][static_cast<std::size_t>(caches[p].length() + i)]);
      }
    }
    more = !tokens.empty();
    if (!more) break;
    std::vector<float> logits(rows.size() * v);
    model_->forward(exec_, *cache_, {tokens, spans, rows}, logits);
    for (std::size_t s = 0; s < spans.size(); ++s) {
      const auto begin = logits.begin() +
                         static_cast<std::ptrdiff_t>(static_cast<std::size_t>(spans[s].begin) * v);
      auto& mine = out[owners[s]];
      mine.insert(
          mine.end(), begin,
          begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(spans[s].count) * v));
      caches[owners[s]].commit(std::span(tokens).subspan(static_cast<std::size_t>(spans[s].begin),
                                                         static_cast<std::size_t>(spans[s].count)));
    }
  }
  return out;
}

std::vector<float> Runner::logits(const std::vector<std::int32_t>& ids, int chunk) {
  return logits_together({ids}, chunk)[0];
}

std::vector<std::int32_t> Runner::greedy(const std::vector<std::int32_t>& ids, int n, int chunk) {
  std::vector<std::int32_t> known = ids, made;
  const std::size_t v = static_cast<std::size_t>(vocab());
  SequenceCache sequence = start_sequence(*model_, *cache_, ids);
  while (static_cast<int>(made.size()) < n) {
    const int left = static_cast<int>(known.size()) - sequence.length();
    const int count = chunk == 0 ? left : std::min(left, chunk);
    EXPECT_TRUE(sequence.reserve(count).has_value());
    const std::vector<std::int32_t> tokens(known.begin() + sequence.length(),
                                           known.begin() + sequence.length() + count);
    const std::vector<StateSnapshot> snapshots = keep_snapshots(sequence, count);
    const SequenceSpan span{.count = count,
                            .start = sequence.length(),
                            .pages = sequence.pages(),
                            .state = sequence.state(),
                            .snapshots = snapshots};
    const std::int32_t last = count - 1;
    std::vector<float> logits(v);
    model_->forward(exec_, *cache_, {tokens, {&span, 1}, {&last, 1}}, logits);
    sequence.commit(tokens);
    if (sequence.length() < static_cast<int>(known.size())) continue;
    made.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    known.push_back(made.back());
  }
  return made;
}

std::map<std::string, std::vector<float>> Runner::states(const std::vector<std::int32_t>& ids) {
  std::map<std::string, std::vector<float>> out;
  SequenceCache sequence = start_sequence(*model_, *cache_, ids);
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_TRUE(sequence.reserve(static_cast<int>(ids.size())).has_value());
  const SequenceSpan span{
      .count = static_cast<int>(ids.size()), .pages = sequence.pages(), .state = sequence.state()};
  model_->forward_probed(exec_, *cache_, {ids, {&span, 1}, {}}, {},
                         [&](const std::string& name, const float* data, std::size_t rows,
                             std::size_t cols) { out[name].assign(data, data + rows * cols); });
  return out;
}

std::vector<Isa> tested_isas() {
  std::vector<Isa> isas = available_isas();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (isas.size() > 1) isas.erase(isas.begin());
#endif
  return isas;
}

std::vector<bool> same_experts(const States& a, const States& b, std::size_t rows) {
  std::vector<bool> same(rows, true);
  for (const auto& [name, ids] : a) {
    if (!name.ends_with("router_ids") && !name.ends_with("selected")) continue;
    const std::size_t k = ids.size() / rows;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::ptrdiff_t>(row * k);
      const auto end = at + static_cast<std::ptrdiff_t>(k);
      std::vector<float> mine(ids.begin() + at, ids.begin() + end);
      std::vector<float> theirs(b.at(name).begin() + at, b.at(name).begin() + end);
      std::sort(mine.begin(), mine.end());
      std::sort(theirs.begin(), theirs.end());
      same[row] = same[row] && mine == theirs;
    }
  }
  return same;
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= worst)) worst = difference;  // also takes NaN
  }
  return worst;
}

std::vector<double> kl_of_rows(const std::vector<float>& reference, const std::vector<float>& other,
                               int vocab) {
  EXPECT_EQ(reference.size(), other.size());
  const std::size_t v = static_cast<std::size_t>(vocab), rows = reference.size() / v;
  const auto log_sum = [&](const float* x) {
    const double top = *std::max_element(x, x + v);
    double sum = 0;
    for (std::size_t i = 0; i < v; ++i) sum += std::exp(x[i] - top);
    return top + std::log(sum);
  };
  std::vector<double> divergence(rows, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* p = reference.data() + r * v;
    const float* q = other.data() + r * v;
    const double lp = log_sum(p), lq = log_sum(q);
    for (std::size_t i = 0; i < v; ++i)
      divergence[r] += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
  }
  return divergence;
}

double mean_kl(const std::vector<float>& reference, const std::vector<float>& other, int vocab) {
  const std::vector<double> rows = kl_of_rows(reference, other, vocab);
  return std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
}

}  // namespace glint::golden
