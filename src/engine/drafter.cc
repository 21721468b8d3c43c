#include "engine/drafter.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/logits.h"

namespace glint {
namespace {

// The state of a page begins with this, whether the draft layer's rows of the page are written; the
// state of its last token follows, and then what is the model's own.
constexpr std::uint32_t kValid = 1;

bool is_valid(const Cache& cache, PageId page) {
  std::uint32_t flag = 0;
  std::memcpy(&flag, cache.page_state(page), sizeof flag);
  return flag == kValid;
}

}  // namespace

Drafter::Drafter(const Model& model, Exec& exec, Cache& cache)
    : model_(model),
      exec_(exec),
      cache_(cache),
      hidden_size_(static_cast<std::size_t>(model.info().hidden_size)),
      vocab_size_(static_cast<std::size_t>(model.info().vocab_size)) {
  GLINT_CHECK(model.can_draft());
  GLINT_CHECK(cache.spec().page_state_bytes >=
              sizeof kValid + hidden_size_ * sizeof(float) + cache.spec().page_model_bytes);
}

void Drafter::start(Sequence& sequence) const {
  DraftState& draft = sequence.draft;
  draft = {};
  const std::span<const PageId> pages = sequence.cache.pages();
  std::size_t first = pages.size();
  while (first > 0 && is_valid(cache_, pages[first - 1])) --first;
  if (first == pages.size()) {
    draft.first = draft.end = std::max(1, sequence.computed() + 1);
    return;
  }
  draft.first = std::max(1, static_cast<int>(first) * kPageSize);
  draft.end = sequence.computed();
  draft.hidden.resize(hidden_size_);
  std::memcpy(draft.hidden.data(), cache_.page_state(pages.back()) + sizeof kValid,
              hidden_size_ * sizeof(float));
}

void Drafter::drop_guesses(Sequence& sequence) {
  sequence.draft.guesses.clear();
  sequence.draft.end = std::min(sequence.draft.end, std::max(1, sequence.computed()));
}

void Drafter::skip(const StepBatch& batch) {
  for (const StepBatch::Member& member : batch.members()) {
    member.sequence->draft.guesses.clear();
    member.sequence->draft.hidden.clear();
  }
}

void Drafter::run(const StepBatch& batch, int num_guesses) {
  jobs_.clear();
  guessing_.clear();
  for (const StepBatch::Member& member : batch.members()) add_job(member, num_guesses);
  if (jobs_.empty()) return;
  catch_up(batch);
  for (const Job& job : jobs_) write_page_states(batch, job);
  for (int depth = 1; depth < num_guesses && !guessing_.empty(); ++depth) guess_on(depth);
}

void Drafter::add_job(const StepBatch::Member& member, int num_guesses) {
  Sequence& sequence = *member.sequence;
  DraftState& draft = sequence.draft;
  draft.guesses.clear();
  Job job{.member = &member, .computed = member.start + member.kept()};
  const bool fills_page = member.start / kPageSize != job.computed / kPageSize;
  // Who ends needs no guesses, but who comes next may start from its pages.
  if (sequence.is_cancelled() || sequence.judges_prompt() || (member.ends && !fills_page)) {
    draft.hidden.clear();
    return;
  }
  const bool goes_on =
      draft.end == member.start + 1 || (draft.end == member.start && !draft.hidden.empty());
  // The state before the first token of this step is not known, those of its tokens are.
  if (!goes_on) draft.first = draft.end = member.start + 1;
  if (member.samples && !member.ends) {
    const int generated = sequence.num_generated() + static_cast<int>(member.num_sampled);
    job.num_guesses = std::min(num_guesses, sequence.max_tokens - generated - 1);
  }
  if (job.num_guesses > 0 && !sequence.cache.reserve(member.kept() + job.num_guesses).has_value()) {
    const int room = static_cast<int>(sequence.cache.pages().size()) * kPageSize;
    job.num_guesses = std::min(job.num_guesses, room - job.computed);
  }
  // The newest token has its slot too, where guesses begin.
  job.end = job.computed + (job.num_guesses > 0 ? 1 : 0);
  jobs_.push_back(job);
}

// The slots of the tokens that stand, made of true states; over what guesses left there before.
void Drafter::catch_up(const StepBatch& batch) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    DraftState& draft = job.member->sequence->draft;
    const int start = draft.end;
    job.member->sequence->images.add_rows(start, job.end, static_cast<int>(tokens_.size()),
                                          inputs_);
    for (; draft.end < job.end; ++draft.end) {
      tokens_.push_back(batch.token_at(*job.member, draft.end));
      const auto before = draft.end == job.member->start
                              ? std::span<const float>(draft.hidden)
                              : batch.hidden_at(*job.member, draft.end - 1);
      hidden_.insert(hidden_.end(), before.begin(), before.end());
    }
    // The newest token's slot stands, but goes with the guesses when pages run out.
    add_span(job, start, job.num_guesses > 0 ? 1 : 0);
    if (job.num_guesses > 0) {
      logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
      guessing_.push_back(i);
    }
    const auto last = batch.hidden_at(*job.member, job.computed - 1);
    draft.hidden.assign(last.begin(), last.end());
  }
  run_pass(0);
}

// One guess more for those that made `depth` of them: the slot of the last one, made of what the
// layer said there instead of a true state.
void Drafter::guess_on(int depth) {
  const std::vector<std::size_t> before = std::move(guessing_);
  guessing_.clear();
  for (std::size_t row = 0; row < before.size(); ++row) {
    const Job& job = jobs_[before[row]];
    const DraftState& draft = job.member->sequence->draft;
    if (job.num_guesses <= depth || static_cast<int>(draft.guesses.size()) < depth) continue;
    logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()));
    tokens_.push_back(draft.guesses.back());
    const auto recycled = std::span(recycled_).subspan(row * hidden_size_, hidden_size_);
    hidden_.insert(hidden_.end(), recycled.begin(), recycled.end());
    add_span(job, job.computed + depth, 1);
    guessing_.push_back(before[row]);
  }
  run_pass(depth);
}

// Of the tokens that were added since the last span, the last `guesses` of which may be taken back.
void Drafter::add_span(const Job& job, int start, int guesses) {
  const int begin = spans_.empty() ? 0 : spans_.back().begin + spans_.back().count;
  const int count = static_cast<int>(tokens_.size()) - begin;
  if (count == 0) return;
  const Sequence& sequence = *job.member->sequence;
  spans_.push_back({.begin = begin,
                    .count = count,
                    .start = start,
                    .pages = sequence.cache.pages(),
                    .first = sequence.draft.first,
                    .guesses = guesses,
                    .state = sequence.cache.state()});
}

// Runs the layer over what was added, and takes the likeliest token of each row of logits as the
// next guess. Logits that are not finite say nothing: guesses end there.
void Drafter::run_pass(int iteration) {
  if (!tokens_.empty()) {
    logits_.resize(logit_rows_.size() * vocab_size_);
    recycled_.resize(logit_rows_.size() * hidden_size_);
    model_.draft(exec_, cache_,
                 {.tokens = tokens_,
                  .sequences = spans_,
                  .hidden = hidden_,
                  .logit_rows = logit_rows_,
                  .recycled = recycled_,
                  .inputs = inputs_,
                  .iteration = iteration},
                 logits_);
  }
  for (std::size_t row = 0; row < guessing_.size(); ++row) {
    const auto best = argmax(std::span(logits_).subspan(row * vocab_size_, vocab_size_));
    if (!best.has_value()) continue;
    jobs_[guessing_[row]].member->sequence->draft.guesses.push_back(*best);
  }
  tokens_.clear();
  hidden_.clear();
  spans_.clear();
  inputs_.clear();
  logit_rows_.clear();
}

void Drafter::write_page_states(const StepBatch& batch, const Job& job) const {
  const DraftState& draft = job.member->sequence->draft;
  const std::span<const PageId> pages = job.member->sequence->cache.pages();
  for (int page = job.member->start / kPageSize; page < job.computed / kPageSize; ++page) {
    if (draft.first > std::max(1, page * kPageSize)) continue;
    GLINT_DCHECK(draft.end >= (page + 1) * kPageSize);
    const auto last = batch.hidden_at(*job.member, (page + 1) * kPageSize - 1);
    std::byte* state = cache_.page_state(pages[static_cast<std::size_t>(page)]);
    std::memcpy(state, &kValid, sizeof kValid);
    std::memcpy(state + sizeof kValid, last.data(), last.size_bytes());
  }
}

void Drafter::committed(const StepBatch& batch) const {
  for (const StepBatch::Member& member : batch.members()) {
    DraftState& draft = member.sequence->draft;
    const std::span<const PageId> pages = member.sequence->cache.pages();
    const int end = member.sequence->computed() / kPageSize;
    for (int page = member.start / kPageSize; page < end; ++page) {
      // That page's rows are not there: the layer sees what comes after it.
      if (!is_valid(cache_, pages[static_cast<std::size_t>(page)])) {
        draft.first = std::max(draft.first, (page + 1) * kPageSize);
      }
    }
    draft.end = std::max(draft.end, draft.first);
  }
}

}  // namespace glint
