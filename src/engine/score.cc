#include "engine/score.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/logits.h"

namespace glint {
namespace {

Status check_tokens(std::span<const std::int32_t> tokens, int vocab_size, std::string_view what) {
  if (tokens.empty()) return invalid_argument(fmt::format("{} is empty", what));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return invalid_argument(fmt::format("token {} of {} is {}, and the vocabulary has {}", i,
                                          what, tokens[i], vocab_size));
    }
  }
  return {};
}

// Some tokens of one sequence in a step.
struct Piece {
  SequenceCache* cache;
  std::span<const std::int32_t> tokens;  // what to compute
  int num_logits;                        // of the last tokens
};

// Runs steps, and keeps the logits of the last one.
class Stepper {
 public:
  Stepper(const Model& model, Exec& exec, Cache& cache)
      : model_(model), exec_(exec), cache_(cache) {}

  const Model& model() const { return model_; }
  std::size_t vocab_size() const { return static_cast<std::size_t>(model_.info().vocab_size); }

  Status step(std::span<const Piece> pieces) {
    tokens_.clear();
    spans_.clear();
    logit_rows_.clear();
    for (const Piece& piece : pieces) {
      const int count = static_cast<int>(piece.tokens.size());
      const int begin = static_cast<int>(tokens_.size());
      GLINT_TRY_VOID(piece.cache->reserve(count));
      tokens_.insert(tokens_.end(), piece.tokens.begin(), piece.tokens.end());
      spans_.push_back({.begin = begin,
                        .count = count,
                        .start = piece.cache->length(),
                        .pages = piece.cache->pages(),
                        .state = piece.cache->state()});
      for (int i = count - piece.num_logits; i < count; ++i) logit_rows_.push_back(begin + i);
    }
    logits_.resize(logit_rows_.size() * vocab_size());
    model_.forward(exec_, cache_,
                   {.tokens = tokens_, .sequences = spans_, .logit_rows = logit_rows_}, logits_);
    GLINT_TRY_VOID(model_.take_failure());
    for (const Piece& piece : pieces) piece.cache->commit(piece.tokens);
    return {};
  }
  std::span<const float> logits() const { return logits_; }
  std::span<const float> row(std::size_t i) const {
    return logits().subspan(i * vocab_size(), vocab_size());
  }

 private:
  const Model& model_;
  Exec& exec_;
  Cache& cache_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSpan> spans_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<float> logits_;
};

std::span<const std::int32_t> next_tokens(std::span<const std::int32_t> tokens,
                                          const SequenceCache& cache, int most) {
  const auto rest = tokens.subspan(static_cast<std::size_t>(cache.length()));
  return rest.first(std::min(rest.size(), static_cast<std::size_t>(most)));
}

// All the prompts side by side, as far as a step's budget goes.
Status logits_side_by_side(Stepper& stepper, Cache& cache,
                           std::span<const std::vector<std::int32_t>> prompts,
                           std::size_t first_prompt, const ScoreOptions& options,
                           const LogitSink& sink) {
  std::vector<SequenceCache> sequences;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    sequences.push_back(start_sequence(stepper.model(), cache, {}));
  std::vector<Piece> pieces;
  std::vector<std::size_t> owners;
  while (true) {
    int budget = std::max(options.max_batch_tokens, options.chunk);
    pieces.clear();
    owners.clear();
    for (std::size_t i = 0; i < prompts.size() && budget > 0; ++i) {
      const auto tokens = next_tokens(prompts[i], sequences[i], std::min(options.chunk, budget));
      if (tokens.empty()) continue;
      budget -= static_cast<int>(tokens.size());
      pieces.push_back({&sequences[i], tokens, static_cast<int>(tokens.size())});
      owners.push_back(i);
    }
    if (pieces.empty()) return {};
    GLINT_TRY_VOID(stepper.step(pieces));
    std::size_t row = 0;
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      const std::size_t count = pieces[k].tokens.size();
      const int first = sequences[owners[k]].length() - static_cast<int>(count);
      GLINT_TRY_VOID(
          sink(first_prompt + owners[k], first,
               stepper.logits().subspan(row * stepper.vocab_size(), count * stepper.vocab_size())));
      row += count;
    }
  }
}

Result<std::int32_t> next_greedy(Stepper& stepper, SequenceCache& sequence,
                                 std::span<const std::int32_t> tokens, int chunk) {
  while (true) {
    const auto piece = next_tokens(tokens, sequence, chunk);
    const bool last = static_cast<std::size_t>(sequence.length()) + piece.size() == tokens.size();
    const Piece pieces[] = {{&sequence, piece, last ? 1 : 0}};
    GLINT_TRY_VOID(stepper.step(pieces));
    if (last) return argmax(stepper.logits());
  }
}

// Adds -log p of window[i] for i in [first, size), each given window[0, i).
Status add_window(Stepper& stepper, Cache& cache, std::span<const std::int32_t> window,
                  std::size_t first, int chunk, NllSum& sum) {
  SequenceCache sequence = start_sequence(stepper.model(), cache, {});
  const auto inputs =
      window.first(window.size() - 1);  // the last token predicts nothing in this window
  while (static_cast<std::size_t>(sequence.length()) < inputs.size()) {
    const std::size_t start = static_cast<std::size_t>(sequence.length());
    const auto piece = next_tokens(inputs, sequence, chunk);
    const std::size_t end = start + piece.size();
    const std::size_t from =
        std::min(end, std::max(start, first - 1));  // row i predicts token i + 1
    const Piece pieces[] = {{&sequence, piece, static_cast<int>(end - from)}};
    GLINT_TRY_VOID(stepper.step(pieces));
    for (std::size_t i = from; i < end; ++i) {
      const auto row = stepper.row(i - from);
      GLINT_TRY_VOID(argmax(row));  // refuses logits that are not finite
      sum.nll +=
          log_sum_exp(row) - static_cast<double>(row[static_cast<std::size_t>(window[i + 1])]);
      ++sum.count;
    }
  }
  return {};
}

}  // namespace

Status prompt_logits(const Model& model, Exec& exec, Cache& cache,
                     std::span<const std::vector<std::int32_t>> prompts,
                     const ScoreOptions& options, const LogitSink& sink) {
  GLINT_CHECK(options.chunk >= 1);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GLINT_TRY_VOID(check_tokens(prompts[i], model.info().vocab_size, fmt::format("prompt {}", i)));
  }
  const CacheStats room = cache.stats();
  const std::size_t most = room.total_states - room.used_states;
  const std::size_t side_by_side = options.all_at_once ? prompts.size() : 1;
  if (cache.spec().state_bytes > 0 && side_by_side > most) {
    return exhausted(
        fmt::format("there is room for the recurrent states of {} sequences, and {} "
                    "prompts are to run side by side",
                    most, side_by_side));
  }
  Stepper stepper(model, exec, cache);
  if (options.all_at_once) return logits_side_by_side(stepper, cache, prompts, 0, options, sink);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GLINT_TRY_VOID(logits_side_by_side(stepper, cache, prompts.subspan(i, 1), i, options, sink));
  }
  return {};
}

Result<std::vector<std::int32_t>> greedy_continuation(const Model& model, Exec& exec, Cache& cache,
                                                      std::span<const std::int32_t> prompt,
                                                      int count, int chunk) {
  GLINT_CHECK(chunk >= 1 && count >= 0);
  GLINT_TRY_VOID(check_tokens(prompt, model.info().vocab_size, "the prompt"));
  Stepper stepper(model, exec, cache);
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  SequenceCache sequence = start_sequence(model, cache, tokens);
  for (int i = 0; i < count; ++i) {
    GLINT_TRY(const std::int32_t token, next_greedy(stepper, sequence, tokens, chunk));
    tokens.push_back(token);
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokens;
}

Result<NllSum> negative_log_likelihood(const Model& model, Exec& exec, Cache& cache,
                                       std::span<const std::int32_t> tokens,
                                       const NllOptions& options,
                                       const std::function<void(std::size_t done)>& progress) {
  const int stride = options.stride == 0 ? options.window : options.stride;
  GLINT_CHECK(options.window >= 2 && stride >= 1 && stride <= options.window && options.chunk >= 1);
  GLINT_TRY_VOID(check_tokens(tokens, model.info().vocab_size, "the text"));
  Stepper stepper(model, exec, cache);
  NllSum sum;
  std::size_t done = 0;  // tokens that had their turn
  for (std::size_t begin = 0; done < tokens.size(); begin += static_cast<std::size_t>(stride)) {
    const std::size_t end =
        std::min(tokens.size(), begin + static_cast<std::size_t>(options.window));
    // A window's first token has nothing before it.
    const std::size_t first = std::max<std::size_t>(1, done - begin);
    if (end - begin > first) {
      GLINT_TRY_VOID(add_window(stepper, cache, tokens.subspan(begin, end - begin), first,
                                options.chunk, sum));
    }
    done = end;
    if (progress) progress(done);
  }
  return sum;
}

}  // namespace glint
