#include "engine/step_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "cache/page_store.h"

namespace glint {
namespace {

// Rows of logits that judge prompts, in one step: 64 rows of 150,000 floats are 40 MB.
constexpr int kMaxPromptRows = 64;
// How many that wait for others' pages are looked past, for one that need not.
constexpr std::size_t kMaxPassed = 16;
// How long a step sleeps that has nothing to do but to wait for a script.
constexpr auto kStallNap = std::chrono::milliseconds(2);
// And one that waits for the disk, at most, in seconds.
constexpr double kReadNap = 0.005;

void count_batch(BatchHistogram& histogram, int num_tokens) {
  const auto bound = std::ranges::lower_bound(BatchHistogram::kBounds, num_tokens);
  ++histogram.counts[static_cast<std::size_t>(bound - BatchHistogram::kBounds.begin())];
  histogram.sum += static_cast<std::uint64_t>(num_tokens);
}

void count_guesses(DraftStats& stats, const StepBatch::Member& member) {
  if (member.num_compared == 0) return;
  ++stats.rounds;
  stats.drafted += static_cast<std::uint64_t>(member.num_compared);
  stats.accepted += static_cast<std::uint64_t>(member.num_right);
  for (int i = 0; i < member.num_right; ++i) ++stats.accepted_at[static_cast<std::size_t>(i)];
}

bool is_stalled(const Sequence& sequence, Clock::time_point now) {
  return sequence.scripts_stall() && (!sequence.started || now < sequence.stalled_until);
}

}  // namespace

StepLoop::StepLoop(const Model& model, Exec& exec, Cache& cache, const EngineOptions& options,
                   std::function<void()> publish)
    : model_(model),
      exec_(exec),
      cache_(cache),
      options_(options),
      publish_(std::move(publish)),
      alone_chunk_(options.max_batch_tokens, options.max_alone_tokens),
      policy_(options.draft_mode, options.num_drafts, draft_costs(model.info())) {
  if (options.draft_mode != DraftMode::kOff) drafter_.emplace(model, exec, cache);
}

void StepLoop::add(std::unique_ptr<Sequence> sequence) {
  sequence->arrival = num_added_++;
  insert(waiting_, std::move(sequence));
}

bool StepLoop::is_senior(const Sequence& a, const Sequence& b) const {
  if (options_.by_priority && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

void StepLoop::insert(std::vector<SequencePtr>& list, SequencePtr sequence) const {
  const auto place = std::ranges::upper_bound(
      list, sequence,
      [this](const SequencePtr& a, const SequencePtr& b) { return is_senior(*a, *b); });
  list.insert(place, std::move(sequence));
}

void StepLoop::step() {
  end_cancelled();
  admit_stalled();
  if (idle()) return;
  const StepPlan next = plan();
  if (next.shares.empty()) {
    if (wait_for_recalls()) return;
    // The cache holds at least one whole context, so only a script is in the way.
    const auto now = Clock::now();
    GLINT_CHECK(std::ranges::any_of(
        running_, [now](const SequencePtr& sequence) { return sequence->scripts_stall(); }));
    std::this_thread::sleep_for(kStallNap);
    return;
  }
  for (int i = 0; i < next.num_admitted; ++i) {
    Sequence& sequence = *candidates_[static_cast<std::size_t>(i)];
    admit(sequence);
    ready_.push_back(&sequence);
  }
  if (next.num_admitted > 0) publish_();
  run_batch(next.shares);
  remove_finished();
}

void StepLoop::end_cancelled() {
  const auto now = Clock::now();
  const auto end = [&](Sequence& sequence) {
    if (sequence.is_cancelled()) {
      finish(sequence, FinishReason::kCancelled);
    } else if (sequence.timed_out(now) && sequence.num_generated() > 0) {
      finish(sequence, FinishReason::kLength);
    } else if (sequence.timed_out(now)) {
      finish(sequence, FinishReason::kError,
             cancelled(fmt::format("the request's limit of {} s has passed", sequence.timeout_s)));
    }
  };
  for (const SequencePtr& sequence : running_) end(*sequence);
  for (const SequencePtr& sequence : waiting_) end(*sequence);
  remove_finished();
}

// They take their slot and start, but no part in the steps until their time has passed.
void StepLoop::admit_stalled() {
  bool admitted = false;
  while (static_cast<int>(running_.size()) < options_.max_sequences && !waiting_.empty() &&
         is_stalled(*waiting_.front(), Clock::now())) {
    admit(*waiting_.front());
    admitted = true;
  }
  if (admitted) publish_();
}

StepLimits StepLoop::limits() const {
  const bool alone = running_.size() + waiting_.size() == 1;
  const int num_stalled = static_cast<int>(running_.size() - ready_.size());
  return {.max_sequences = options_.max_sequences - num_stalled,
          .max_batch_tokens = alone ? alone_chunk_.length() : options_.max_batch_tokens};
}

// How many tokens of a prompt that is judged may go into one step: all of them together have a
// bounded number of rows.
int StepLoop::judged_chunk() const {
  const auto judges = [](const SequencePtr& sequence) { return sequence->judges_prompt(); };
  const auto count =
      std::ranges::count_if(running_, judges) + std::ranges::count_if(waiting_, judges);
  return std::max(1, kMaxPromptRows / static_cast<int>(std::max<std::ptrdiff_t>(1, count)));
}

SequenceView StepLoop::view_of(const Sequence& sequence, int judged_chunk) const {
  SequenceView view{.known = sequence.known(),
                    .computed = sequence.computed(),
                    .pages = static_cast<int>(sequence.cache.pages().size())};
  if (sequence.judges_prompt()) view.most = judged_chunk;
  view.guesses = static_cast<int>(sequence.draft.guesses.size());
  return view;
}

StepPlan StepLoop::plan() {
  while (true) {
    const auto now = Clock::now();
    const int judged = judged_chunk();
    std::vector<SequenceView> running;
    ready_.clear();
    for (const SequencePtr& sequence : running_) {
      if (is_stalled(*sequence, now)) continue;
      ready_.push_back(sequence.get());
      running.push_back(view_of(*sequence, judged));
    }
    const std::vector<SequenceView> waiting = find_candidates(now, judged);
    if (running.empty() && waiting.empty()) return {};
    StepPlan next = plan_step(running, waiting, cache_.available_pages(), limits());
    if (next.preempt < 0) return next;
    if (!drop_guesses()) preempt_youngest();
  }
}

// Those that could join now, in order. Who waits for what others compute, or for its script, lets
// others pass meanwhile.
std::vector<SequenceView> StepLoop::find_candidates(Clock::time_point now, int judged_chunk) {
  std::vector<SequenceView> views;
  candidates_.clear();
  const std::size_t slots = static_cast<std::size_t>(options_.max_sequences) - running_.size();
  const std::size_t num_looked_at = std::min(slots + kMaxPassed, waiting_.size());
  for (std::size_t i = 0; i < num_looked_at && views.size() < slots; ++i) {
    Sequence& sequence = *waiting_[i];
    if (is_stalled(sequence, now)) continue;
    SequenceView view = view_of(sequence, judged_chunk);
    if (!sequence.judges_prompt()) {
      Cache::PrefixMatch match = cache_.match(sequence.cache_tokens(), sequence.cache_salt);
      if (is_being_computed(i, match.pages)) continue;
      if (cache_.store() != nullptr) {
        if (is_being_recalled(sequence, slots)) continue;
        match = cache_.match(sequence.cache_tokens(), sequence.cache_salt);
      }
      view.computed = match.pages * kPageSize;
      view.pages = match.pages;
      view.taken = match.unleased;
    }
    views.push_back(view);
    candidates_.push_back(&sequence);
  }
  return views;
}

// Whether an older sequence, which runs or is about to, will soon cache more of this one's prompt
// than is there now. Then waiting costs less than computing the same again: think of the choices of
// one request, or of agents with one preamble. Where a prefix can only be taken up at a snapshot,
// the older one is told to keep one.
bool StepLoop::is_being_computed(std::size_t waiting_index, int cached_pages) {
  if (!cache_.prefix_reuse()) return false;
  const bool by_snapshot = cache_.spec().snapshot_bytes > 0;
  if (by_snapshot && cache_.stats().total_snapshots == 0) return false;
  const Sequence& sequence = *waiting_[waiting_index];
  const std::span<const std::int32_t> mine = sequence.cache_tokens();
  const int most = (sequence.known() - 1) / kPageSize;  // its last token is always computed
  const auto now = Clock::now();
  const auto will_cache_more = [&](const SequencePtr& older) {
    if (is_stalled(*older, now)) return false;
    if (older->cache_salt != sequence.cache_salt || most <= cached_pages) return false;
    const auto [end_of_mine, end_of_theirs] = std::ranges::mismatch(mine, older->cache_tokens());
    const int common = std::min(most, static_cast<int>(end_of_mine - mine.begin()) / kPageSize);
    if (common <= cached_pages || older->computed() / kPageSize >= common) return false;
    if (by_snapshot) older->snapshots.want(common * kPageSize);
    return true;
  };
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_index);
  return std::any_of(running_.begin(), running_.end(), will_cache_more) ||
         std::any_of(waiting_.begin(), end, will_cache_more);
}

// Whether more of its prompt is on its way from disk. Each of those that wait looks there once, and
// no more of them hold pages than slots are free: there is room for as many.
bool StepLoop::is_being_recalled(Sequence& sequence, std::size_t slots) {
  if (!sequence.looked_on_disk) {
    const auto holding = std::ranges::count_if(
        waiting_, [](const SequencePtr& other) { return other->recall != nullptr; });
    if (static_cast<std::size_t>(holding) >= slots) return true;
    sequence.looked_on_disk = true;
    sequence.recall = Recall::begin(cache_, sequence.cache_tokens(), sequence.cache_salt);
  }
  return sequence.recall != nullptr && !sequence.recall->is_done();
}

// When nobody can take a step: waits for what is read, or gives up what was read, which is in the
// way. False when it is neither. Restoring the cache holds pages too, while it reads them.
bool StepLoop::wait_for_recalls() {
  bool reads = false, holds = false;
  for (const SequencePtr& sequence : waiting_) {
    if (sequence->recall == nullptr) continue;
    holds = true;
    reads = reads || !sequence->recall->is_done();
  }
  const bool restores =
      !holds && cache_.store() != nullptr && running_.empty() && cache_.stats().leased_pages > 0;
  if (reads || restores) {
    cache_.store()->wait_progress(kReadNap);
  } else {
    for (const SequencePtr& sequence : waiting_) sequence->recall.reset();
  }
  return holds || restores;
}

// Gives back the pages that only guesses need. False when there are none.
bool StepLoop::drop_guesses() {
  const std::size_t before = cache_.available_pages();
  for (const SequencePtr& sequence : running_) {
    if (sequence->draft.guesses.empty()) continue;
    Drafter::drop_guesses(*sequence);
    sequence->cache.truncate(sequence->computed());
  }
  return cache_.available_pages() > before;
}

// Its full pages stay in the prefix tree while there is room, so it may not even have to compute
// them again. A stalled one may be it, though the plan did not know it: its pages are as good.
void StepLoop::preempt_youngest() {
  SequencePtr sequence = std::move(running_.back());
  running_.pop_back();
  sequence->cache = SequenceCache();
  sequence->draft = {};
  sequence->looked_on_disk = false;
  insert(waiting_, std::move(sequence));
  ++counters_.preemptions;
}

void StepLoop::admit(Sequence& sequence) {
  const auto place = std::ranges::find(waiting_, &sequence, &SequencePtr::get);
  SequencePtr owner = std::move(*place);
  waiting_.erase(place);
  const std::span<const std::int32_t> reusable =
      sequence.judges_prompt() ? std::span<const std::int32_t>() : sequence.cache_tokens();
  const int branch = cache_.match(reusable, sequence.cache_salt).known * kPageSize;
  sequence.cache = start_sequence(model_, cache_, reusable, sequence.cache_salt);
  sequence.recall.reset();
  sequence.snapshots.start({.cached = sequence.computed(),
                            .known = sequence.known(),
                            .branch = branch,
                            .num_kept = static_cast<int>(cache_.stats().total_snapshots)});
  if (drafter_.has_value()) drafter_->start(sequence);
  insert(running_, std::move(owner));
  if (!sequence.started) start(sequence);
}

void StepLoop::start(Sequence& sequence) {
  sequence.started = true;
  sequence.started_at = Clock::now();
  sequence.cached_tokens = sequence.computed();
  if (sequence.scripts_stall()) {
    sequence.stalled_until =
        sequence.started_at + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(sequence.script->stall_s));
  }
  counters_.prompt_tokens += static_cast<std::uint64_t>(sequence.prompt_len);
  sequence.sink({.kind = TokenEvent::Kind::kStarted, .usage = sequence.usage(sequence.started_at)});
}

void StepLoop::run_batch(const std::vector<Share>& shares) {
  batch_.clear();
  for (const Share& share : shares) {
    Sequence& sequence = *ready_[static_cast<std::size_t>(share.sequence)];
    const Status status = batch_.add(sequence, share.count);
    if (!status.has_value()) finish(sequence, FinishReason::kError, status.error());
  }
  if (batch_.empty()) return;
  const bool keeps_up = drafter_.has_value() && policy_.keeps_up();
  batch_.encode_images(model_, exec_);
  const auto began = Clock::now();
  batch_.run(model_, exec_, cache_, constraints_, keeps_up);
  if (drafter_.has_value()) draft(keeps_up, seconds_between(began, Clock::now()));
  if (const Status failed = model_.take_failure(); !failed) return fail_all(failed.error());
  batch_.commit();
  if (keeps_up) drafter_->committed(batch_);
  if (size() == 1) alone_chunk_.ran(batch_.num_tokens(), seconds_between(began, Clock::now()));
  ++counters_.steps;
  count_batch(counters_.batch_tokens, batch_.num_tokens());
  for (const StepBatch::Member& member : batch_.members()) report(member);
}

// Guesses what follows the tokens that the batch sampled, and tells the policy how this went.
void StepLoop::draft(bool keeps_up, double verify_seconds) {
  const auto members = batch_.members();
  int num_going_on = 0;
  bool is_even = true;  // all decode, with as many guesses
  for (const StepBatch::Member& member : members) {
    count_guesses(counters_.drafts, member);
    for (int i = 0; i < member.num_compared && i <= member.num_right; ++i) {
      policy_.judged(i, i < member.num_right);
    }
    if (member.samples && !member.ends) ++num_going_on;
    is_even = is_even && member.count == 1 + member.num_guesses &&
              member.num_guesses == members.front().num_guesses;
  }
  const int num_members = static_cast<int>(members.size());
  if (is_even) policy_.verified(num_members, members.front().num_guesses, verify_seconds);
  if (!keeps_up) {
    Drafter::skip(batch_);
    if (num_going_on > 0) policy_.choose(num_going_on);
    return;
  }
  const int num_guesses = num_going_on > 0 ? policy_.choose(num_going_on) : 0;
  const auto began = Clock::now();
  drafter_->run(batch_, num_guesses);
  if (is_even && num_going_on == num_members) {
    policy_.drafted(num_members, num_guesses, seconds_between(began, Clock::now()));
  }
}

void StepLoop::report(const StepBatch::Member& member) {
  Sequence& sequence = *member.sequence;
  const auto rows = batch_.rows_of(member);
  for (const StepBatch::Row& row : rows.first(std::min(rows.size(), member.num_prompt_rows + 1))) {
    if (!row.status.has_value()) return fail(sequence, row);
  }
  // Somebody's sink may cancel somebody else's ticket.
  if (sequence.is_cancelled()) return finish(sequence, FinishReason::kCancelled);
  const int prompt_computed = std::min(sequence.computed(), sequence.prompt_len);
  if (sequence.progress && prompt_computed > sequence.told_progress) {
    sequence.told_progress = prompt_computed;
    sequence.sink({.kind = TokenEvent::Kind::kProgress,
                   .prompt_computed = prompt_computed,
                   .usage = sequence.usage(Clock::now())});
  }
  if (sequence.judges_prompt()) report_prompt(member);
  if (member.samples) report_samples(member);
}

void StepLoop::report_samples(const StepBatch::Member& member) {
  Sequence& sequence = *member.sequence;
  sequence.num_drafted += member.num_compared;
  sequence.num_accepted += member.num_right;
  for (StepBatch::Row& row : batch_.rows_of(member).subspan(member.num_prompt_rows)) {
    if (sequence.is_cancelled()) return finish(sequence, FinishReason::kCancelled);
    if (!row.status.has_value()) return fail(sequence, row);
    emit_token(sequence, std::move(row.sample));
    if (sequence.sink == nullptr) return;
  }
}

void StepLoop::report_prompt(const StepBatch::Member& member) {
  Sequence& sequence = *member.sequence;
  TokenEvent event{.kind = TokenEvent::Kind::kPrompt};
  if (sequence.num_judged == 0) event.prompt_logprobs.push_back({.token = sequence.tokens[0]});
  for (StepBatch::Row& row : batch_.rows_of(member).first(member.num_prompt_rows)) {
    event.prompt_logprobs.push_back(std::move(row.judged));
  }
  if (event.prompt_logprobs.empty()) return;
  sequence.num_judged += static_cast<int>(event.prompt_logprobs.size());
  sequence.sink(std::move(event));
}

void StepLoop::fail(Sequence& sequence, const StepBatch::Row& row) {
  log_warn(fmt::format("a request failed after {} tokens: {}", sequence.known(),
                       row.status.error().message));
  finish(sequence, FinishReason::kError, row.status.error());
  // Its rows may be as broken as its logits: nobody should start from them.
  if (!row.is_broken) return;
  cache_.clear_prefixes();
  forget_stored(cache_, sequence.cache_tokens(), sequence.cache_salt);
}

// What the step computed is worth nothing.
void StepLoop::fail_all(const Error& error) {
  log_warn(fmt::format("a step of {} requests failed: {}", batch_.members().size(), error.message));
  for (const StepBatch::Member& member : batch_.members())
    finish(*member.sequence, FinishReason::kError, error);
  cache_.clear_prefixes();
}

void StepLoop::emit_token(Sequence& sequence, Sample sample) {
  if (sequence.num_generated() == 0) sequence.first_token_at = Clock::now();
  sequence.tokens.push_back(sample.token);
  if (!sequence.images.empty()) sequence.cache_names.push_back(sample.token);
  ++counters_.generated_tokens;
  const bool is_stop = sequence.is_stop(sample.token);
  sequence.sink({.kind = TokenEvent::Kind::kToken,
                 .token = sample.token,
                 .is_stop = is_stop,
                 .logprob = sample.logprob,
                 .top_logprobs = std::move(sample.top_logprobs)});
  if (is_stop) {
    finish(sequence, FinishReason::kStop);
  } else if (sequence.num_generated() >= sequence.max_tokens) {
    finish(sequence, FinishReason::kLength);
  }
}

// Leaves the sequence in its list, without a sink, for remove_finished().
void StepLoop::finish(Sequence& sequence, FinishReason reason, Error error) {
  sequence.cache = SequenceCache();
  sequence.recall.reset();
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
  if (model_.experts() != nullptr) stats.experts = model_.experts()->stats();
  stats.drafts.mode = options_.draft_mode;
  stats.drafts.num_drafts = policy_.current();
  stats.drafts.paused = policy_.paused();
  return stats;
}

}  // namespace glint
