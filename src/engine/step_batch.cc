#include "engine/step_batch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/logits.h"

namespace glint {

void StepBatch::clear() {
  tokens_.clear();
  spans_.clear();
  members_.clear();
  logit_rows_.clear();
  rows_.clear();
  questions_.clear();
}

Status StepBatch::add(Sequence& sequence, int count) {
  GLINT_TRY_VOID(sequence.cache.reserve(count));
  const int begin = num_tokens();
  const int start = sequence.computed();
  const auto fresh = std::span(sequence.tokens)
                         .subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(count));
  tokens_.insert(tokens_.end(), fresh.begin(), fresh.end());
  spans_.push_back(
      {.begin = begin, .count = count, .start = start, .pages = sequence.cache.pages()});
  Member member{.sequence = &sequence, .first_row = rows_.size()};
  const auto add_row = [&](int position, std::int32_t prompt_token) {
    logit_rows_.push_back(begin + position - start);
    rows_.push_back({.member = members_.size(), .prompt_token = prompt_token});
  };
  // The row of a token judges the one after it.
  const int first_judged = std::max(start + 1, sequence.num_judged);
  const int end_judged =
      sequence.judges_prompt() ? std::min(start + count + 1, sequence.prompt_len) : first_judged;
  for (int i = first_judged; i < end_judged; ++i) {
    add_row(i - 1, sequence.tokens[static_cast<std::size_t>(i)]);
    ++member.num_prompt_rows;
  }
  member.samples = start + count == sequence.known();
  if (member.samples) {
    add_row(start + count - 1, -1);
    if (sequence.constraint != nullptr) {
      member.question = questions_.size();
      questions_.push_back({sequence.constraint.get()});
    }
  }
  members_.push_back(member);
  return {};
}

void StepBatch::run(const Model& model, Exec& exec, Cache& cache, ConstraintThread& helper) {
  const std::size_t vocab_size = static_cast<std::size_t>(model.info().vocab_size);
  const std::size_t size = rows_.size() * vocab_size;
  if (logits_.size() < size) logits_.resize(size);
  helper.start(questions_);
  model.forward(exec, cache, {.tokens = tokens_, .sequences = spans_, .logit_rows = logit_rows_},
                std::span(logits_).first(size));
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    members_[i].sequence->cache.commit(std::span(tokens_).subspan(
        static_cast<std::size_t>(spans_[i].begin), static_cast<std::size_t>(spans_[i].count)));
  }
  helper.wait();
  const auto run_one = [this, vocab_size](std::size_t row, int) {
    run_row(row, std::span(logits_).subspan(row * vocab_size, vocab_size));
  };
  if (rows_.size() == 1) {
    run_one(0, 0);
  } else if (!rows_.empty()) {
    exec.pool.run(rows_.size(), run_one);
  }
}

void StepBatch::run_row(std::size_t index, std::span<float> logits) {
  Row& row = rows_[index];
  const Member& member = members_[row.member];
  const Sequence& sequence = *member.sequence;
  if (row.prompt_token < 0 && sequence.scripts_nan()) {
    logits[0] = std::numeric_limits<float>::quiet_NaN();
  }
  row.status = check_finite(logits);
  row.is_broken = !row.status.has_value();
  if (row.is_broken) return;
  if (row.prompt_token >= 0) {
    auto judged = judge_token(logits, row.prompt_token, sequence.prompt_logprobs);
    if (judged.has_value()) row.judged = std::move(*judged);
    return;
  }
  auto sampled = sample(member, logits);
  if (sampled.has_value()) {
    row.sample = std::move(*sampled);
  } else {
    row.status = std::move(sampled).error();
  }
}

Result<Sample> StepBatch::sample(const Member& member, std::span<float> logits) {
  Sequence& sequence = *member.sequence;
  NextTokens rule;
  if (sequence.constraint != nullptr) {
    const Result<NextTokens>& answer = questions_[member.question].answer;
    if (!answer.has_value()) return answer.error();
    rule = *answer;
  }
  GLINT_TRY(Sample picked, sequence.sampler.next(logits, rule, sequence.scripted_token()));
  if (sequence.constraint != nullptr) {
    GLINT_TRY_VOID(sequence.constraint->accept(picked.token));
  }
  return picked;
}

}  // namespace glint
