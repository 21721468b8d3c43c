#include "engine/step_batch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/logits.h"

namespace glint {

void StepBatch::clear() {
  tokens_.clear();
  spans_.clear();
  snapshots_.clear();
  inputs_.clear();
  members_.clear();
  logit_rows_.clear();
  rows_.clear();
  first_rows_.clear();
  questions_.clear();
}

Status StepBatch::add(Sequence& sequence, int count) {
  GLINT_TRY_VOID(sequence.cache.reserve(count));
  const int start = sequence.computed();
  Member member{.sequence = &sequence,
                .begin = num_tokens(),
                .start = start,
                .count = count,
                .num_guesses = std::max(0, start + count - sequence.known()),
                .first_row = rows_.size()};
  const auto fresh = std::span(sequence.tokens)
                         .subspan(static_cast<std::size_t>(start),
                                  static_cast<std::size_t>(count - member.num_guesses));
  const auto guesses =
      std::span(sequence.draft.guesses).first(static_cast<std::size_t>(member.num_guesses));
  tokens_.insert(tokens_.end(), fresh.begin(), fresh.end());
  tokens_.insert(tokens_.end(), guesses.begin(), guesses.end());
  spans_.push_back({.begin = member.begin,
                    .count = count,
                    .start = start,
                    .pages = sequence.cache.pages(),
                    .guesses = member.num_guesses,
                    .state = sequence.cache.state()});
  reserve_snapshots(member);
  const auto add_row = [&](int position, std::int32_t prompt_token) {
    logit_rows_.push_back(member.begin + position - start);
    rows_.push_back({.member = members_.size(), .prompt_token = prompt_token});
  };
  // The row of a token judges the one after it.
  const int first_judged = std::max(start + 1, sequence.num_judged);
  const int end_judged =
      sequence.judges_prompt() ? std::min(start + count + 1, sequence.prompt_len) : first_judged;
  for (int i = first_judged; i < end_judged; ++i) {
    first_rows_.push_back(rows_.size());
    add_row(i - 1, sequence.tokens[static_cast<std::size_t>(i)]);
    ++member.num_prompt_rows;
  }
  member.samples = start + count >= sequence.known();
  if (member.samples) {
    first_rows_.push_back(rows_.size());
    for (int i = sequence.known(); i <= start + count; ++i) add_row(i - 1, -1);
    if (sequence.constraint != nullptr) {
      member.question = questions_.size();
      questions_.push_back({sequence.constraint.get()});
    }
  }
  members_.push_back(member);
  return {};
}

// Where there is no room, or no need, none is kept.
void StepBatch::reserve_snapshots(Member& member) {
  Sequence& sequence = *member.sequence;
  member.first_snapshot = snapshots_.size();
  due_.clear();
  sequence.snapshots.due(member.start, member.start + member.count - member.num_guesses, due_);
  for (const SnapshotPlan::Due& due : due_) {
    std::byte* out = sequence.cache.reserve_snapshot(due.length, due.replaces);
    if (out != nullptr) snapshots_.push_back({due.length, out});
  }
  member.num_snapshots = snapshots_.size() - member.first_snapshot;
}

void StepBatch::encode_images(const Model& model, Exec& exec) {
  for (const Member& member : members_) {
    const int end = member.start + member.count;
    member.sequence->images.encode(model, exec, member.start, end);
    member.sequence->images.add_rows(member.start, end, member.begin, inputs_);
  }
}

void StepBatch::run(const Model& model, Exec& exec, Cache& cache, ConstraintThread& helper,
                    bool keep_hidden) {
  vocab_size_ = static_cast<std::size_t>(model.info().vocab_size);
  hidden_size_ = static_cast<std::size_t>(model.info().hidden_size);
  const std::size_t size = rows_.size() * vocab_size_;
  if (logits_.size() < size) {
    std::vector<float>().swap(logits_);  // so that old and new are not there at once
    logits_.resize(size);
  }
  hidden_.resize(keep_hidden ? tokens_.size() * hidden_size_ : 0);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    spans_[i].snapshots =
        std::span(snapshots_).subspan(member.first_snapshot, member.num_snapshots);
  }
  helper.start(questions_);
  model.forward(exec, cache,
                {.tokens = tokens_,
                 .sequences = spans_,
                 .logit_rows = logit_rows_,
                 .hidden = hidden_,
                 .inputs = inputs_},
                std::span(logits_).first(size));
  helper.wait();
  const auto run_one = [this](std::size_t i, int) {
    Row& row = rows_[first_rows_[i]];
    if (row.prompt_token >= 0) {
      judge(row, logits_of(first_rows_[i]));
    } else {
      sample(members_[row.member]);
    }
  };
  if (first_rows_.size() == 1) {
    run_one(0, 0);
  } else if (!first_rows_.empty()) {
    exec.pool.run(first_rows_.size(), run_one);
  }
}

void StepBatch::commit() {
  for (const Member& member : members_) {
    Sequence& sequence = *member.sequence;
    std::span<const std::int32_t> kept = std::span(tokens_).subspan(
        static_cast<std::size_t>(member.begin), static_cast<std::size_t>(member.kept()));
    if (!sequence.images.empty()) {
      cache_names_.assign(kept.begin(), kept.end());
      sequence.images.rename(member.start, cache_names_);
      kept = cache_names_;
    }
    sequence.cache.commit(kept);
    sequence.images.forget(sequence.computed());
  }
}

void StepBatch::judge(Row& row, std::span<float> logits) {
  row.status = check_finite(logits);
  row.is_broken = !row.status.has_value();
  if (row.is_broken) return;
  const int num_top = members_[row.member].sequence->prompt_logprobs;
  auto judged = judge_token(logits, row.prompt_token, num_top);
  if (judged.has_value()) row.judged = std::move(*judged);
}

// Only what is sampled enters sampler and constraint, in order: so tokens are what they would be
// without guesses, and nothing has to be taken back.
void StepBatch::sample(Member& member) {
  const Sequence& sequence = *member.sequence;
  for (int ahead = 0; ahead <= member.num_guesses; ++ahead) {
    const std::size_t index = member.first_row + member.num_prompt_rows + member.num_sampled++;
    Row& row = rows_[index];
    const std::span<float> logits = logits_of(index);
    member.ends = true;  // unless all goes well
    if (sequence.scripts_nan(ahead)) logits[0] = std::numeric_limits<float>::quiet_NaN();
    row.status = check_finite(logits);
    row.is_broken = !row.status.has_value();
    if (row.is_broken) return;
    auto sampled = sample_row(member, ahead, logits);
    if (!sampled.has_value()) {
      row.status = std::move(sampled).error();
      return;
    }
    row.sample = std::move(*sampled);
    member.ends = sequence.is_stop(row.sample.token) ||
                  sequence.num_generated() + ahead + 1 >= sequence.max_tokens;
    if (ahead == member.num_guesses) return;
    ++member.num_compared;
    if (row.sample.token != sequence.draft.guesses[static_cast<std::size_t>(ahead)]) {
      member.num_compared = member.num_guesses;  // those after a wrong one are wrong too
      return;
    }
    ++member.num_right;
    if (member.ends) return;
  }
}

Result<Sample> StepBatch::sample_row(Member& member, int ahead, std::span<float> logits) {
  Sequence& sequence = *member.sequence;
  NextTokens rule;
  if (sequence.constraint != nullptr) {
    Result<NextTokens>& answer = questions_[member.question].answer;
    // The first answer came while the model ran; the others depend on what was sampled.
    if (ahead > 0) answer = sequence.constraint->next();
    if (!answer.has_value()) return answer.error();
    rule = *answer;
  }
  GLINT_TRY(Sample picked, sequence.sampler.next(logits, rule, sequence.scripted_token(ahead)));
  if (sequence.constraint != nullptr) {
    GLINT_TRY_VOID(sequence.constraint->accept(picked.token));
  }
  return picked;
}

std::int32_t StepBatch::token_at(const Member& member, int position) const {
  const int offset = position - member.start;
  GLINT_DCHECK(offset >= 0 && offset <= member.kept());
  const int known = member.count - member.num_guesses;
  if (offset < known) return tokens_[static_cast<std::size_t>(member.begin + offset)];
  const std::size_t sampled = static_cast<std::size_t>(offset - known);
  return rows_[member.first_row + member.num_prompt_rows + sampled].sample.token;
}

std::span<const float> StepBatch::hidden_at(const Member& member, int position) const {
  const std::size_t row = static_cast<std::size_t>(member.begin + position - member.start);
  GLINT_DCHECK(position >= member.start && position < member.start + member.count);
  return std::span(hidden_).subspan(row * hidden_size_, hidden_size_);
}

}  // namespace glint
