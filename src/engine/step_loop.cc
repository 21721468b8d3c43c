#include "engine/step_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace glint {

StepLoop::StepLoop(const Model& model, Exec& exec, Cache& cache, const EngineOptions& options,
                   std::function<void()> publish)
    : model_(model), exec_(exec), cache_(cache), options_(options), publish_(std::move(publish)) {}

void StepLoop::step() {
  end_cancelled();
  if (idle()) return;
  const StepPlan next = plan();
  GLINT_CHECK(!next.shares.empty());  // the cache holds at least one whole context
  if (next.num_admitted > 0) {
    admit(next.num_admitted);
    publish_();
  }
  build_batch(next.shares);
  if (!tokens_.empty()) run_batch();
  remove_finished();
}

void StepLoop::end_cancelled() {
  const auto now = Clock::now();
  const auto end = [&](Sequence& sequence) {
    if (sequence.cancelled->load(std::memory_order_relaxed)) {
      finish(sequence, FinishReason::kCancelled);
    } else if (sequence.timed_out(now)) {
      finish(sequence, FinishReason::kError,
             cancelled(fmt::format("the request's limit of {} s has passed", sequence.timeout_s)));
    }
  };
  for (const SequencePtr& sequence : running_) end(*sequence);
  for (const SequencePtr& sequence : waiting_) end(*sequence);
  remove_finished();
}

StepPlan StepLoop::plan() {
  const bool alone = running_.size() + waiting_.size() == 1;
  const StepLimits limits{
      .max_sequences = options_.max_sequences,
      .max_batch_tokens = alone ? std::max(options_.max_batch_tokens, options_.max_alone_tokens)
                                : options_.max_batch_tokens};
  while (true) {
    std::vector<SequenceView> running, waiting;
    for (const SequencePtr& sequence : running_) {
      running.push_back({.known = sequence->known(),
                         .computed = sequence->computed(),
                         .pages = static_cast<int>(sequence->cache.pages().size())});
    }
    const std::size_t slots = static_cast<std::size_t>(options_.max_sequences) - running_.size();
    for (std::size_t i = 0; i < std::min(slots, waiting_.size()); ++i) {
      const Cache::PrefixMatch match = cache_.match(waiting_[i]->tokens, waiting_[i]->cache_salt);
      if (is_being_computed(i, match.pages)) break;
      waiting.push_back({.known = waiting_[i]->known(),
                         .computed = match.pages * kPageSize,
                         .pages = match.pages,
                         .taken = match.unleased});
    }
    StepPlan next = plan_step(running, waiting, cache_.available_pages(), limits);
    if (next.preempt < 0) return next;
    preempt(next.preempt);
  }
}

// Whether an older sequence, which runs or is about to, will soon cache more of this one's prompt
// than is there now. Then waiting costs less than computing the same again: think of the choices of
// one request, or of agents with one preamble.
bool StepLoop::is_being_computed(std::size_t waiting_index, int cached_pages) const {
  if (!cache_.prefix_reuse()) return false;
  const Sequence& sequence = *waiting_[waiting_index];
  const int most = (sequence.known() - 1) / kPageSize;  // its last token is always computed
  const auto will_cache_more = [&](const SequencePtr& older) {
    if (older->cache_salt != sequence.cache_salt || most <= cached_pages) return false;
    const auto [mine, theirs] = std::ranges::mismatch(sequence.tokens, older->tokens);
    const int common = std::min(most, static_cast<int>(mine - sequence.tokens.begin()) / kPageSize);
    return common > cached_pages && older->computed() / kPageSize < common;
  };
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_index);
  return std::any_of(running_.begin(), running_.end(), will_cache_more) ||
         std::any_of(waiting_.begin(), end, will_cache_more);
}

// Its full pages stay in the prefix tree while there is room, so it may not even have to compute
// them again.
void StepLoop::preempt(int index) {
  SequencePtr sequence = std::move(running_[static_cast<std::size_t>(index)]);
  running_.erase(running_.begin() + index);
  sequence->cache = SequenceCache();
  waiting_.push_front(std::move(sequence));
  ++counters_.preemptions;
}

void StepLoop::admit(int count) {
  for (; count > 0; --count) {
    SequencePtr sequence = std::move(waiting_.front());
    waiting_.pop_front();
    sequence->cache = cache_.start(sequence->tokens, sequence->cache_salt);
    running_.push_back(std::move(sequence));
    if (!running_.back()->started) start(*running_.back());
  }
}

void StepLoop::start(Sequence& sequence) {
  sequence.started = true;
  sequence.started_at = Clock::now();
  sequence.cached_tokens = sequence.computed();
  counters_.prompt_tokens += static_cast<std::uint64_t>(sequence.prompt_len);
  sequence.sink({.kind = TokenEvent::Kind::kStarted, .usage = sequence.usage(sequence.started_at)});
}

void StepLoop::build_batch(const std::vector<Share>& shares) {
  tokens_.clear();
  spans_.clear();
  members_.clear();
  logit_rows_.clear();
  for (const Share& share : shares) {
    Sequence& sequence = *running_[static_cast<std::size_t>(share.sequence)];
    if (const Status status = sequence.cache.reserve(share.count); !status.has_value()) {
      finish(sequence, FinishReason::kError, status.error());
      continue;
    }
    const int begin = static_cast<int>(tokens_.size());
    const int start = sequence.computed();
    const auto fresh =
        std::span(sequence.tokens)
            .subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(share.count));
    tokens_.insert(tokens_.end(), fresh.begin(), fresh.end());
    spans_.push_back(
        {.begin = begin, .count = share.count, .start = start, .pages = sequence.cache.pages()});
    members_.push_back(&sequence);
    if (start + share.count == sequence.known()) logit_rows_.push_back(begin + share.count - 1);
  }
}

void StepLoop::run_batch() {
  const std::size_t vocab_size = static_cast<std::size_t>(model_.info().vocab_size);
  if (logits_.size() < logit_rows_.size() * vocab_size)
    logits_.resize(logit_rows_.size() * vocab_size);
  const std::span<float> logits = std::span(logits_).first(logit_rows_.size() * vocab_size);
  model_.forward(exec_, cache_, {.tokens = tokens_, .sequences = spans_, .logit_rows = logit_rows_},
                 logits);
  ++counters_.steps;
  jobs_.clear();
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    Sequence& sequence = *members_[i];
    sequence.cache.commit(std::span(tokens_).subspan(static_cast<std::size_t>(spans_[i].begin),
                                                     static_cast<std::size_t>(spans_[i].count)));
    if (sequence.computed() == sequence.known()) jobs_.push_back({&sequence, Sample{}});
  }
  sample_all();
}

void StepLoop::sample_all() {
  const std::size_t vocab_size = static_cast<std::size_t>(model_.info().vocab_size);
  const auto sample = [this, vocab_size](std::size_t job, int) {
    jobs_[job].outcome =
        jobs_[job].sequence->sampler.next(std::span(logits_).subspan(job * vocab_size, vocab_size));
  };
  if (jobs_.size() == 1) {
    sample(0, 0);
  } else if (!jobs_.empty()) {
    exec_.pool.run(jobs_.size(), sample);
  }
  for (SampleJob& job : jobs_) {
    if (job.outcome.has_value()) {
      emit_token(*job.sequence, *job.outcome);
      continue;
    }
    log_warn(fmt::format("a request failed after {} tokens: {}", job.sequence->known(),
                         job.outcome.error().message));
    finish(*job.sequence, FinishReason::kError, job.outcome.error());
    // Its rows may be as broken as its logits: nobody should start from them.
    if (job.outcome.error().code == ErrorCode::kInternal) cache_.clear_prefixes();
  }
}

void StepLoop::emit_token(Sequence& sequence, const Sample& sample) {
  if (sequence.num_generated() == 0) sequence.first_token_at = Clock::now();
  sequence.tokens.push_back(sample.token);
  ++counters_.generated_tokens;
  const bool is_stop = sequence.is_stop(sample.token);
  sequence.sink({.kind = TokenEvent::Kind::kToken,
                 .token = sample.token,
                 .is_stop = is_stop,
                 .logprob = sample.logprob,
                 .top_logprobs = sample.top_logprobs});
  if (is_stop) {
    finish(sequence, FinishReason::kStop);
  } else if (sequence.num_generated() >= sequence.max_tokens) {
    finish(sequence, FinishReason::kLength);
  }
}

// Leaves the sequence in its list, without a sink, for remove_finished().
void StepLoop::finish(Sequence& sequence, FinishReason reason, Error error) {
  sequence.cache = SequenceCache();
  if (reason == FinishReason::kCancelled) {
    ++counters_.cancelled;
  } else if (reason == FinishReason::kError) {
    ++counters_.failed;
  } else {
    ++counters_.finished;
  }
  const EventSink sink = std::exchange(sequence.sink, nullptr);
  publish_();
  sink({.kind = TokenEvent::Kind::kFinished,
        .reason = reason,
        .error = std::move(error),
        .usage = sequence.usage(Clock::now())});
}

void StepLoop::remove_finished() {
  const auto is_finished = [](const SequencePtr& sequence) { return sequence->sink == nullptr; };
  std::erase_if(running_, is_finished);
  std::erase_if(waiting_, is_finished);
}

void StepLoop::cancel_all() {
  for (const SequencePtr& sequence : running_) finish(*sequence, FinishReason::kCancelled);
  for (const SequencePtr& sequence : waiting_) finish(*sequence, FinishReason::kCancelled);
  remove_finished();
}

void StepLoop::refuse_waiting(const Error& error) {
  for (const SequencePtr& sequence : waiting_) {
    if (!sequence->started) finish(*sequence, FinishReason::kError, error);
  }
  remove_finished();
}

EngineStats StepLoop::stats() const {
  const auto alive = [](const SequencePtr& sequence) { return sequence->sink != nullptr; };
  EngineStats stats = counters_;
  stats.running = static_cast<int>(std::ranges::count_if(running_, alive));
  stats.waiting = static_cast<int>(std::ranges::count_if(waiting_, alive));
  stats.cache = cache_.stats();
  return stats;
}

}  // namespace glint
