// Runs sequences through a model and its draft layer as an engine does, for the tests of both.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "golden.h"

namespace glint::golden {

using Tokens = std::vector<std::int32_t>;

// What the draft layer makes of some slots: [slots, vocab] and [slots, hidden].
struct Drafts {
  int first_slot = 0;
  std::vector<float> logits, recycled;
  bool operator==(const Drafts&) const = default;
};

// Runs sequences through the network and its draft layer, step by step as an engine does.
class Drafter {
 public:
  Drafter(const std::filesystem::path& path, const Runner::Options& options)
      : runner_(path, options) {}

  // Sequences that share every step, `chunk` tokens each (0: all); the slots of all tokens that no
  // cached page holds. Keeps in every page the state at its end.
  std::vector<Drafts> run(const std::vector<Tokens>& prompts, int chunk) {
    std::vector<Sequence> sequences;
    for (const Tokens& tokens : prompts) sequences.push_back(start(tokens));
    while (step(sequences, chunk)) {
    }
    std::vector<Drafts> out;
    for (Sequence& sequence : sequences) out.push_back(std::move(sequence.drafts));
    return out;
  }
  Drafts run(const Tokens& tokens, int chunk) { return run(std::vector<Tokens>{tokens}, chunk)[0]; }

  // `n` greedy drafts behind the prompt, each of the one before it, and their logits. `counts`: the
  // passes say which they are, so that a choice of keys may be reused.
  std::pair<std::vector<float>, std::vector<float>> chain(const Tokens& prompt, int n,
                                                          bool counts = false) {
    std::vector<Sequence> sequences;
    sequences.push_back(start(prompt));
    Sequence& sequence = sequences[0];
    while (step(sequences, 0)) {
    }
    const std::size_t d = hidden(), v = vocab();
    std::vector<float> state(sequence.drafts.recycled.end() - static_cast<std::ptrdiff_t>(d),
                             sequence.drafts.recycled.end());
    std::vector<float> logits(sequence.drafts.logits.end() - static_cast<std::ptrdiff_t>(v),
                              sequence.drafts.logits.end());
    std::vector<float> ids, all_logits;
    EXPECT_TRUE(sequence.cache.reserve(n).has_value());
    for (int i = 0; i < n; ++i) {
      const auto token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                   logits.begin());
      ids.push_back(static_cast<float>(token));
      all_logits.insert(all_logits.end(), logits.begin(), logits.end());
      const SequenceSpan span{.count = 1,
                              .start = static_cast<int>(prompt.size()) + i,
                              .pages = sequence.cache.pages(),
                              .guesses = 1,
                              .state = sequence.cache.state()};
      const std::int32_t row = 0;
      std::vector<float> next(d);
      runner_.model().draft(runner_.exec(), runner_.cache(),
                            {.tokens = {&token, 1},
                             .sequences = {&span, 1},
                             .hidden = state,
                             .logit_rows = {&row, 1},
                             .recycled = next,
                             .iteration = counts ? i + 1 : 0},
                            logits);
      state = next;
    }
    return {ids, all_logits};
  }

  Cache& cache() { return runner_.cache(); }
  const Model& model() { return runner_.model(); }

 private:
  struct Sequence {
    const Tokens* tokens;
    SequenceCache cache;
    std::vector<float> last;  // the state at the last computed position, or empty
    Drafts drafts;
  };

  std::size_t vocab() const { return static_cast<std::size_t>(runner_.vocab()); }
  std::size_t hidden() { return static_cast<std::size_t>(model().info().hidden_size); }

  Sequence start(const Tokens& tokens) {
    Sequence sequence{&tokens, start_sequence(model(), cache(), tokens), {}, {}};
    sequence.drafts.first_slot = std::max(1, sequence.cache.length());
    if (sequence.cache.length() > 0) {
      sequence.last.resize(hidden());
      std::memcpy(sequence.last.data(),
                  cache().page_state(sequence.cache.pages().back()) + sizeof(std::uint32_t),
                  hidden() * sizeof(float));
    }
    return sequence;
  }

  bool step(std::vector<Sequence>& sequences, int chunk) {
    const std::size_t d = hidden();
    Tokens tokens;
    std::vector<SequenceSpan> spans;
    std::vector<std::vector<StateSnapshot>> snapshots;
    for (Sequence& s : sequences) {
      const int left = static_cast<int>(s.tokens->size()) - s.cache.length();
      const int n = chunk == 0 ? left : std::min(left, chunk);
      EXPECT_TRUE(s.cache.reserve(n).has_value());
      snapshots.push_back(golden::keep_snapshots(s.cache, n));
      spans.push_back({.begin = static_cast<int>(tokens.size()),
                       .count = n,
                       .start = s.cache.length(),
                       .pages = s.cache.pages(),
                       .state = s.cache.state(),
                       .snapshots = snapshots.back()});
      const auto from = s.tokens->begin() + s.cache.length();
      tokens.insert(tokens.end(), from, from + n);
    }
    if (tokens.empty()) return false;
    std::vector<float> states(tokens.size() * d);
    runner_.model().forward(runner_.exec(), cache(), {tokens, spans, {}, states}, {});
    draft(sequences, spans, tokens, states);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = sequences[i];
      const SequenceSpan& span = spans[i];
      if (span.count == 0) continue;
      const auto state = [&](int position) {
        return states.data() + static_cast<std::size_t>(span.begin + position - span.start) * d;
      };
      for (int p = span.start; p < span.start + span.count; ++p) {
        if (p % kPageSize != kPageSize - 1) continue;
        std::byte* page = cache().page_state(span.pages[static_cast<std::size_t>(p / kPageSize)]);
        std::memcpy(page + sizeof(std::uint32_t), state(p), d * sizeof(float));
      }
      const float* last = state(span.start + span.count - 1);
      s.last.assign(last, last + d);
      s.cache.commit(std::span(tokens).subspan(static_cast<std::size_t>(span.begin),
                                               static_cast<std::size_t>(span.count)));
    }
    return true;
  }

  // The slots of the tokens of a step; slot 0 of a sequence has nothing before it.
  void draft(std::vector<Sequence>& sequences, const std::vector<SequenceSpan>& spans,
             const Tokens& tokens, const std::vector<float>& states) {
    const std::size_t d = hidden(), v = vocab();
    Tokens slots, rows;
    std::vector<float> before;
    std::vector<SequenceSpan> slot_spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const SequenceSpan& span = spans[i];
      const int first = std::max(1, span.start);
      const int count = std::max(0, span.start + span.count - first);
      slot_spans.push_back({.begin = static_cast<int>(slots.size()),
                            .count = count,
                            .start = first,
                            .pages = span.pages,
                            .state = span.state});
      for (int p = first; p < first + count; ++p) {
        rows.push_back(static_cast<std::int32_t>(slots.size()));
        slots.push_back(tokens[static_cast<std::size_t>(span.begin + p - span.start)]);
        const float* state =
            p == span.start
                ? sequences[i].last.data()
                : states.data() + static_cast<std::size_t>(span.begin + p - 1 - span.start) * d;
        before.insert(before.end(), state, state + d);
      }
    }
    if (slots.empty()) return;
    std::vector<float> logits(slots.size() * v), recycled(slots.size() * d);
    runner_.model().draft(runner_.exec(), cache(), {slots, slot_spans, before, rows, recycled},
                          logits);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from,
                              std::size_t width) {
        const auto at = from.begin() + static_cast<std::ptrdiff_t>(
                                           static_cast<std::size_t>(slot_spans[i].begin) * width);
        to.insert(to.end(), at,
                  at + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(slot_spans[i].count) *
                                                   width));
      };
      append(sequences[i].drafts.logits, logits, v);
      append(sequences[i].drafts.recycled, recycled, d);
    }
  }

  Runner runner_;
};

}  // namespace glint::golden
