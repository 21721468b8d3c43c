// A model that shows page-table mistakes: it writes what it was given into the cache, and answers
// from what it reads back through the page table. answer() says the same from the tokens alone. Its
// draft layer guesses what the model will say, and complains about rows and states that are not
// what they should be. A recurrent one answers from a state that has seen every token once; its
// draft layer carries what the last slot was.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "models/model.h"

namespace glint {

inline std::uint64_t fake_mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9fb21c651e98df25u;
  return x ^ (x >> 28);
}

class FakeModel : public Model {
 public:
  static constexpr int kVocabSize = 101;
  static constexpr std::int32_t kPoison = 100;  // a sequence that holds it has NaN logits

  static constexpr int kHiddenSize = 9;
  static constexpr int kDraftLayer = 2;

  explicit FakeModel(bool drafts = false, bool recurrent = false)
      : drafts_(drafts), recurrent_(recurrent) {}

  // What one step ran.
  struct Span {
    int start, count;
  };

  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override {
    CacheSpec spec{.name = "fake", .num_layers = 2, .row_bytes = sizeof(std::uint64_t)};
    if (recurrent_) {
      spec.state_bytes = sizeof(Recurrent);
      spec.snapshot_bytes = sizeof(std::uint64_t);
    }
    if (!drafts_) return spec;
    spec.num_layers = 3;
    spec.page_state_bytes = sizeof(std::uint32_t) + kHiddenSize * sizeof(float);
    if (recurrent_) spec.page_model_bytes = sizeof(std::uint64_t);
    spec.page_state_bytes += spec.page_model_bytes;
    return spec;
  }
  void start_state(int length, const std::byte* snapshot, std::byte* state) const override {
    GLINT_CHECK(recurrent_ && length % kPageSize == 0 && (snapshot != nullptr) == (length > 0));
    Recurrent fresh{.base = length};
    if (snapshot != nullptr) std::memcpy(&fresh.chain, snapshot, sizeof fresh.chain);
    std::memcpy(state, &fresh, sizeof fresh);
  }
  void forward(Exec&, Cache& cache, const Batch& batch, std::span<float> logits) const override {
    if (before_forward) before_forward(batch);
    check_batch(batch, logits);
    steps.emplace_back();
    for (const SequenceSpan& span : batch.sequences) {
      steps.back().push_back({span.start, span.count});
      write_rows(cache, batch, span);
      if (recurrent_) run_state(batch, span);
      for (int i = 0; i < span.count && !batch.hidden.empty(); ++i) {
        encode(state_after(cache, span, i),
               batch.hidden.subspan(static_cast<std::size_t>(span.begin + i) * kHiddenSize,
                                    kHiddenSize));
      }
    }
    depth_ = 0;
    std::size_t sequence = 0;
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int row = batch.logit_rows[i];
      while (batch.sequences[sequence].begin + batch.sequences[sequence].count <= row) ++sequence;
      const SequenceSpan& span = batch.sequences[sequence];
      fill(state_after(cache, span, row - span.begin), logits.subspan(i * kVocabSize, kVocabSize));
    }
  }
  void forward_probed(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                      const Probe&) const override {
    forward(exec, cache, batch, logits);
  }

  // An image looks like tokens: those of sight() of its first value.
  bool can_see() const override { return sees; }
  void encode_image(Exec&, const ImagePatches& image, std::span<float> features) const override {
    ++num_encoded;
    GLINT_CHECK(features.size() == static_cast<std::size_t>(image.tokens()) * kHiddenSize);
    const auto seen = sight(image.values.front(), image.tokens());
    for (std::size_t i = 0; i < seen.size(); ++i)
      features[i * kHiddenSize] = static_cast<float>(seen[i]);
  }
  static std::vector<std::int32_t> sight(float value, int count) {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      const auto h = fake_mix(static_cast<std::uint64_t>(value * 1000) + 77 +
                              static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u);
      tokens.push_back(static_cast<std::int32_t>(h % kPoison));
    }
    return tokens;
  }
  bool sees = false;
  mutable int num_encoded = 0;

  bool can_draft() const override { return drafts_; }
  void draft(Exec&, Cache& cache, const DraftBatch& batch, std::span<float> logits) const override {
    if (before_draft) before_draft(batch);
    ++num_drafts;
    check_spans(batch.tokens, batch.sequences);
    GLINT_CHECK(batch.hidden.size() == batch.tokens.size() * kHiddenSize);
    GLINT_CHECK(logits.size() == batch.logit_rows.size() * kVocabSize);
    std::size_t next = 0;  // row of logits
    for (const SequenceSpan& span : batch.sequences) {
      GLINT_CHECK(span.start >= 1 && span.first >= 1 && span.first <= span.start);
      GLINT_CHECK(batch.iteration == depth_ && span.guesses <= 1);
      if (depth_ == 0) check_slots(cache, span);
      if (recurrent_) check_last_slot(cache, span);
      for (int i = 0; i < span.count; ++i) {
        const std::size_t index = static_cast<std::size_t>(span.begin + i);
        const auto hidden = batch.hidden.subspan(index * kHiddenSize, kHiddenSize);
        const int slot = span.start + i;
        // True states first; a guess is made of what its predecessor said.
        if (depth_ == 0) GLINT_CHECK(decode(hidden) == read_state(cache, span, slot - 1));
        State state = decode(hidden);
        const std::uint64_t own = local(input_of(batch, static_cast<int>(index)), slot);
        *row(cache, span, kDraftLayer, slot) = slot_row(own, state);
        if (recurrent_) keep_slot(cache, span, slot);
        state.add(own);
        if (next == batch.logit_rows.size() ||
            batch.logit_rows[next] != static_cast<std::int32_t>(index)) {
          continue;
        }
        const auto out = logits.subspan(next * kVocabSize, kVocabSize);
        fill(state, out);
        if (guesses_wrong && guesses_wrong(depth_, slot)) {
          *std::ranges::max_element(out) = -9.0f;
        }
        if (guesses_poison) {
          out[kPoison] = 9;
        }
        encode(state, batch.recycled.subspan(next * kHiddenSize, kHiddenSize));
        ++next;
      }
    }
    ++depth_;
  }

  // The logits after `tokens`, and the likeliest continuation.
  static std::vector<float> answer(std::span<const std::int32_t> tokens) {
    State state;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      state.add(local(tokens[i], static_cast<int>(i)));
    std::vector<float> logits(kVocabSize);
    fill(state, logits);
    return logits;
  }
  static std::vector<std::int32_t> greedy(std::vector<std::int32_t> tokens, int count) {
    std::vector<std::int32_t> out;
    for (int i = 0; i < count; ++i) {
      const auto logits = answer(tokens);
      std::int32_t best = 0;
      for (std::int32_t t = 1; t < kVocabSize; ++t) {
        if (logits[static_cast<std::size_t>(t)] > logits[static_cast<std::size_t>(best)]) best = t;
      }
      out.push_back(best);
      tokens.push_back(best);
    }
    return out;
  }

  mutable std::vector<std::vector<Span>> steps;
  std::function<void(const Batch&)> before_forward;
  std::function<void(const DraftBatch&)> before_draft;
  mutable int num_drafts = 0;  // passes of the draft layer
  // Whether the guess of this depth (0: the first) behind this slot is to be wrong.
  std::function<bool(int depth, int slot)> guesses_wrong;
  bool guesses_poison = false;  // all of them are kPoison

 private:
  // Rows of layer 0 depend on their own token, those of layer 1 on all before: a wrong page shows
  // in one or the other.
  struct State {
    std::uint64_t chain = 1;
    std::uint64_t sum = 0;
    bool poisoned = false;
    void add(std::uint64_t row) {
      chain = fake_mix(chain * 31 + row);
      sum += row * row;
      if (row % kVocabSize == kPoison) poisoned = true;
    }
    bool operator==(const State&) const = default;
  };

  // Sixteen bits a float.
  static void encode(const State& state, std::span<float> hidden) {
    for (std::size_t i = 0; i < 4; ++i) {
      hidden[i] = static_cast<float>((state.chain >> (16 * i)) & 0xffff);
      hidden[4 + i] = static_cast<float>((state.sum >> (16 * i)) & 0xffff);
    }
    hidden[8] = state.poisoned ? 1 : 0;
  }
  static State decode(std::span<const float> hidden) {
    State state{.chain = 0, .sum = 0, .poisoned = hidden[8] != 0};
    for (std::size_t i = 0; i < 4; ++i) {
      state.chain |= static_cast<std::uint64_t>(hidden[i]) << (16 * i);
      state.sum |= static_cast<std::uint64_t>(hidden[4 + i]) << (16 * i);
    }
    return state;
  }
  static std::uint64_t slot_row(std::uint64_t local, const State& before) {
    return fake_mix(before.chain * 31 + local) | 1;
  }
  // What earlier passes left, of all slots that this one may see.
  static void check_slots(Cache& cache, const SequenceSpan& span) {
    State before;
    for (int slot = 0; slot < span.start; ++slot) {
      const std::uint64_t local = *row(cache, span, 0, slot);
      if (slot >= span.first) {
        GLINT_CHECK(*row(cache, span, kDraftLayer, slot) == slot_row(local, before));
      }
      before.add(local);
    }
  }

  // After all tokens before `base` and the pending ones behind: only what stands is entered into
  // the chain, and only by whole blocks, so that any guess can be taken back.
  struct Recurrent {
    static constexpr int kBlock = 16;
    int base = 0, num_pending = 0;
    std::uint64_t chain = 1;
    std::uint64_t pending[2 * kBlock] = {};
    std::uint64_t slots[2 * kBlock] = {};  // of the draft layer, by slot
  };
  static Recurrent& recurrent(const SequenceSpan& span) {
    return *reinterpret_cast<Recurrent*>(span.state);
  }
  static std::uint64_t step_chain(std::uint64_t chain, std::uint64_t local) {
    return fake_mix(chain * 31 + local);
  }

  void run_state(const Batch& batch, const SequenceSpan& span) const {
    GLINT_CHECK(span.state != nullptr);
    GLINT_CHECK(span.guesses >= 0 && span.guesses <= std::min(span.count, kMaxGuesses));
    Recurrent& state = recurrent(span);
    GLINT_CHECK(span.start >= state.base && span.start <= state.base + state.num_pending);
    const int standing = span.start + span.count - span.guesses;
    int last = span.start - kMaxGuesses;
    for (const StateSnapshot& snapshot : span.snapshots) {
      GLINT_CHECK(snapshot.length > last && snapshot.length <= standing);
      GLINT_CHECK(snapshot.length % kPageSize == 0);
      last = snapshot.length;
    }
    const auto keep = [&](int length, std::uint64_t chain) {
      for (const StateSnapshot& snapshot : span.snapshots) {
        if (snapshot.length == length) std::memcpy(snapshot.out, &chain, sizeof chain);
      }
    };
    chains_.resize(batch.tokens.size());
    // What was a guess and stands may fill the block.
    std::uint64_t chain = state.chain;
    const int base = state.base;
    keep(base, chain);
    for (int i = 0; i < span.start - base; ++i) {
      chain = step_chain(chain, state.pending[i]);
      keep(base + i + 1, chain);
      if (i + 1 == Recurrent::kBlock) state.chain = chain, state.base += Recurrent::kBlock;
    }
    state.num_pending = span.start - state.base;
    if (state.base > base)
      std::copy_n(state.pending + state.base - base, kMaxGuesses, state.pending);
    for (int i = 0; i < span.count; ++i) {
      const int position = span.start + i;
      const std::size_t index = static_cast<std::size_t>(span.begin + i);
      const std::uint64_t value = local(input_of(batch, static_cast<int>(index)), position);
      chain = chains_[index] = step_chain(chain, value);
      if (position + 1 <= standing) keep(position + 1, chain);
      state.pending[state.num_pending++] = value;
      if (state.num_pending == Recurrent::kBlock && position + 1 <= standing) {
        state.base = position + 1;
        state.num_pending = 0;
        state.chain = chain;
      }
    }
  }
  void check_last_slot(Cache& cache, const SequenceSpan& span) const {
    GLINT_CHECK(span.state != nullptr);
    if (span.start == span.first) return;
    const int slot = span.start - 1;
    std::uint64_t last = recurrent(span).slots[slot % (2 * Recurrent::kBlock)];
    if (span.start % kPageSize == 0) {
      const PageId page = span.pages[static_cast<std::size_t>(slot / kPageSize)];
      std::memcpy(&last, cache.page_state(page) + model_offset(cache), sizeof last);
    }
    GLINT_CHECK(last == *row(cache, span, kDraftLayer, slot));
  }
  void keep_slot(Cache& cache, const SequenceSpan& span, int slot) const {
    const std::uint64_t value = *row(cache, span, kDraftLayer, slot);
    recurrent(span).slots[slot % (2 * Recurrent::kBlock)] = value;
    if (slot % kPageSize != kPageSize - 1) return;
    const PageId page = span.pages[static_cast<std::size_t>(slot / kPageSize)];
    std::memcpy(cache.page_state(page) + model_offset(cache), &value, sizeof value);
  }
  static std::size_t model_offset(const Cache& cache) {
    return cache.spec().page_state_bytes - cache.spec().page_model_bytes;
  }
  // After `i` + 1 tokens of the span. The sum is of the rows, the chain too unless recurrent.
  State state_after(Cache& cache, const SequenceSpan& span, int i) const {
    State state = read_state(cache, span, span.start + i);
    if (recurrent_) state.chain = chains_[static_cast<std::size_t>(span.begin + i)];
    return state;
  }

  static std::uint64_t local(std::int32_t token, int position) {
    const auto scale = static_cast<std::uint64_t>(position) * 7919 + 13;
    return scale * kVocabSize + static_cast<std::uint64_t>(token);
  }
  // The token of a row of the batch, or what an image has there.
  template <typename AnyBatch>
  static std::int32_t input_of(const AnyBatch& batch, int row) {
    for (const InputRows& input : batch.inputs) {
      if (row < input.begin || row >= input.begin + input.count) continue;
      return static_cast<std::int32_t>(
          input.values[static_cast<std::size_t>(row - input.begin) * kHiddenSize]);
    }
    return batch.tokens[static_cast<std::size_t>(row)];
  }
  static std::uint64_t* row(Cache& cache, const SequenceSpan& span, int layer, int position) {
    const PageId page = span.pages[static_cast<std::size_t>(position / kPageSize)];
    return reinterpret_cast<std::uint64_t*>(cache.rows(page, layer)) + position % kPageSize;
  }
  void write_rows(Cache& cache, const Batch& batch, const SequenceSpan& span) const {
    for (int i = 0; i < span.count; ++i) {
      const int position = span.start + i;
      const std::uint64_t value = local(input_of(batch, span.begin + i), position);
      *row(cache, span, 0, position) = value;
      const std::uint64_t before = position == 0 ? 1 : *row(cache, span, 1, position - 1);
      *row(cache, span, 1, position) = fake_mix(before * 31 + value);
    }
  }
  static State read_state(Cache& cache, const SequenceSpan& span, int position) {
    State state;
    for (int p = 0; p <= position; ++p) state.add(*row(cache, span, 0, p));
    state.chain = *row(cache, span, 1, position);
    return state;
  }
  static void fill(const State& state, std::span<float> logits) {
    for (std::size_t t = 0; t < logits.size(); ++t) {
      const std::uint64_t h = fake_mix(fake_mix(state.chain + t * 0x9e3779b97f4a7c15u) + state.sum);
      logits[t] = static_cast<float>(h >> 40) * 0x1p-20f - 8.0f;
      if (state.poisoned) logits[t] = std::numeric_limits<float>::quiet_NaN();
    }
    logits[kPoison] = state.poisoned ? logits[0] : -20.0f;  // never sampled on its own
  }
  static void check_spans(std::span<const std::int32_t> tokens,
                          std::span<const SequenceSpan> spans) {
    int begin = 0;
    for (const SequenceSpan& span : spans) {
      GLINT_CHECK(span.begin == begin && span.count > 0 && span.start >= 0);
      GLINT_CHECK(span.pages.size() * kPageSize >=
                  static_cast<std::size_t>(span.start + span.count));
      begin += span.count;
    }
    GLINT_CHECK(static_cast<std::size_t>(begin) == tokens.size() && begin > 0);
  }
  static void check_batch(const Batch& batch, std::span<float> logits) {
    check_spans(batch.tokens, batch.sequences);
    GLINT_CHECK(batch.hidden.empty() || batch.hidden.size() == batch.tokens.size() * kHiddenSize);
    GLINT_CHECK(logits.size() == batch.logit_rows.size() * kVocabSize);
    for (std::size_t i = 1; i < batch.logit_rows.size(); ++i) {
      GLINT_CHECK(batch.logit_rows[i - 1] < batch.logit_rows[i]);
    }
  }
  static ModelInfo make_info() {
    ModelInfo info;
    info.model_type = "fake";
    info.vocab_size = kVocabSize;
    info.hidden_size = kHiddenSize;
    return info;
  }
  bool drafts_, recurrent_;
  mutable std::vector<std::uint64_t> chains_;  // after each token of the step, when recurrent
  mutable int depth_ = 0;                      // passes of the draft layer since the last step
  ModelInfo info_ = make_info();
};

// Everything a model runs with, and a cache of `num_pages`.
struct FakeRig {
  // With `states` the model is recurrent.
  explicit FakeRig(std::size_t num_pages, bool prefix_reuse = true, int threads = 1,
                   bool drafts = false, StateRoom states = {})
      : model(drafts, states.num_states > 0),
        pool(threads),
        cache(model.cache_spec(), num_pages, prefix_reuse, states) {}

  FakeModel model;
  KernelTable table;
  ThreadPool pool;
  Workspace workspace;
  Exec exec{table, pool, workspace};
  Cache cache;
};

// The first n tokens of an endless text that `name` stands for.
inline std::vector<std::int32_t> fake_text(std::string_view name, int n) {
  std::uint64_t h = 17;
  for (const char c : name) h = fake_mix(h * 131 + static_cast<unsigned char>(c));
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < n; ++i) {
    h = fake_mix(h + 0x9e3779b97f4a7c15u);
    tokens.push_back(static_cast<std::int32_t>(h % FakeModel::kPoison));
  }
  return tokens;
}

}  // namespace glint
