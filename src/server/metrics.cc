#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "server/bounded_labels.h"
#include "server/process_stats.h"

namespace glint {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = std::vector<double>;

// Time series that a client could make more of by asking for more; beyond this many they share one.
constexpr std::size_t kMaxPathLabels = 100;
constexpr std::size_t kMaxFieldLabels = 100;

const Buckets kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenSeconds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                               .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoices = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, ... up to the longest request there can be.
Buckets token_buckets(int max_model_len) {
  Buckets buckets;
  for (double decade = 1; decade <= max_model_len; decade *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * decade <= max_model_len) buckets.push_back(digit * decade);
    }
  }
  return buckets;
}

class Registry {
 public:
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
  }
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
  }
  Histogram& histogram(const std::string& name, const std::string& help, const Buckets& buckets,
                       const Labels& labels = {}) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels,
                                                                                      buckets);
  }
  void write(std::ostream& out) const {
    prometheus::TextSerializer().Serialize(out, registry_.Collect());
  }

 private:
  prometheus::Registry registry_;
};

// A counter fed with totals. They come from elsewhere, so one that went back means that its source
// began anew: what it says now is on top.
class Total {
 public:
  Total() = default;
  explicit Total(Counter& counter) : counter_(&counter) {}
  void advance_to(double total) {
    const double before = total < last_ ? 0 : last_;
    counter_->Increment(total - before);
    last_ = total;
  }

 private:
  Counter* counter_ = nullptr;
  double last_ = 0;
};

class BatchTotals {
 public:
  explicit BatchTotals(Histogram& histogram) : histogram_(histogram) {}
  void advance_to(const BatchHistogram& now) {
    const bool is_anew = now.sum < last_.sum;
    if (is_anew) last_ = {};
    std::vector<double> more;
    for (std::size_t index = 0; index < now.counts.size(); ++index) {
      more.push_back(static_cast<double>(now.counts[index] - last_.counts[index]));
    }
    histogram_.ObserveMultiple(more, static_cast<double>(now.sum - last_.sum));
    last_ = now;
  }
  static Buckets buckets() {
    return {BatchHistogram::kBounds.begin(), BatchHistogram::kBounds.end()};
  }

 private:
  Histogram& histogram_;
  BatchHistogram last_;
};

// A rate over the recent past: each new part outweighs the ones before it.
class RecentRate {
 public:
  void add(double amount, double seconds) {
    constexpr double kKept = 0.9;
    amount_ = amount_ * kKept + amount;
    seconds_ = seconds_ * kKept + seconds;
  }
  double value() const { return seconds_ > 0 ? amount_ / seconds_ : 0; }

 private:
  double amount_ = 0, seconds_ = 0;
};

double cache_usage(const CacheStats& cache) {
  if (cache.total_pages == 0) return 0;
  return static_cast<double>(cache.leased_pages) / static_cast<double>(cache.total_pages);
}

std::string reason_label(const std::string& reason) {
  if (reason == "tool_calls") return "stop";
  return reason == "stop" || reason == "length" || reason == "abort" ? reason : "error";
}

// vLLM's names and buckets.
class VllmGroup {
 public:
  VllmGroup(Registry& registry, const std::string& model_name, const MetricsModel& model)
      : registry_(registry), labels_{{"model_name", model_name}, {"engine", "0"}} {
    add_requests(model);
    add_engine();
    Labels config = labels_;
    config.emplace("block_size", std::to_string(model.block_size));
    config.emplace("num_gpu_blocks", std::to_string(model.num_blocks));
    config.emplace("cache_dtype", model.cache_dtype);
    registry_.gauge("vllm:cache_config_info", "How the cache is laid out.", config).Set(1);
  }

  void on_first_token(double seconds) { first_token_->Observe(seconds); }
  void on_token_gap(double seconds, int tokens) {
    for (int count = 0; count < tokens; ++count) {
      token_gap_->Observe(seconds / tokens);
      output_token_->Observe(seconds / tokens);
    }
  }
  void on_request_done(const RequestRecord& record) {
    success_.at(reason_label(record.finished_reason))->Increment();
    e2e_->Observe(record.e2e_s);
    queue_->Observe(record.queue_s);
    inference_->Observe(record.prefill_s + record.decode_s);
    prefill_->Observe(record.prefill_s);
    decode_->Observe(record.decode_s);
    prompt_tokens_->Observe(record.prompt_tokens);
    generation_tokens_->Observe(record.completion_tokens);
    if (record.max_tokens > 0) max_tokens_->Observe(record.max_tokens);
    n_->Observe(record.n);
  }
  void on_engine(const EngineStats& stats) {
    running_->Set(stats.running);
    waiting_->Set(stats.waiting);
    cache_->Set(cache_usage(stats.cache));
    old_cache_->Set(cache_usage(stats.cache));
    prompt_total_.advance_to(static_cast<double>(stats.prompt_tokens));
    generation_total_.advance_to(static_cast<double>(stats.generated_tokens));
    preemptions_.advance_to(static_cast<double>(stats.preemptions));
    queries_.advance_to(static_cast<double>(stats.cache.prefix_queries));
    hits_.advance_to(static_cast<double>(stats.cache.prefix_hits));
    iteration_->advance_to(stats.batch_tokens);
  }
  void on_spec_decode(const SpecDecodeTotals& totals) {
    if (!drafts_) add_spec_decode();
    drafts_->advance_to(static_cast<double>(totals.drafts));
    draft_tokens_.advance_to(static_cast<double>(totals.draft_tokens));
    accepted_.advance_to(static_cast<double>(totals.accepted_tokens));
    for (std::size_t index = 0; index < totals.accepted_per_position.size(); ++index) {
      if (index == positions_.size()) {
        Labels labels = labels_;
        labels.emplace("position", std::to_string(index));
        positions_.emplace_back(
            registry_.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                              "Accepted draft tokens by their place in the draft.", labels));
      }
      positions_[index].advance_to(static_cast<double>(totals.accepted_per_position[index]));
    }
  }

 private:
  Gauge* gauge(const std::string& name, const std::string& help) {
    return &registry_.gauge("vllm:" + name, help, labels_);
  }
  Total total(const std::string& name, const std::string& help) {
    return Total(registry_.counter("vllm:" + name + "_total", help, labels_));
  }
  Histogram* histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return &registry_.histogram("vllm:" + name, help, buckets, labels_);
  }

  void add_requests(const MetricsModel& model) {
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      Labels labels = labels_;
      labels.emplace("finished_reason", reason);
      success_[reason] = &registry_.counter("vllm:request_success_total",
                                            "Requests that ended, by how they did.", labels);
    }
    first_token_ = histogram("time_to_first_token_seconds",
                             "From a request's arrival to its first token.", kFirstTokenSeconds);
    token_gap_ =
        histogram("inter_token_latency_seconds", "From one token to the next.", kTokenSeconds);
    output_token_ = histogram("time_per_output_token_seconds",
                              "Older name of inter_token_latency_seconds.", kTokenSeconds);
    e2e_ = histogram("e2e_request_latency_seconds", "From a request's arrival to its end.",
                     kRequestSeconds);
    queue_ = histogram("request_queue_time_seconds", "Spent waiting to be run.", kRequestSeconds);
    inference_ = histogram("request_inference_time_seconds", "Spent in prefill and decode.",
                           kRequestSeconds);
    prefill_ =
        histogram("request_prefill_time_seconds", "Spent reading the prompt.", kRequestSeconds);
    decode_ = histogram("request_decode_time_seconds", "Spent generating.", kRequestSeconds);
    const Buckets tokens = token_buckets(model.max_model_len);
    prompt_tokens_ = histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens);
    generation_tokens_ =
        histogram("request_generation_tokens", "Generated tokens of a request.", tokens);
    max_tokens_ = histogram("request_params_max_tokens", "The limit that a request set.", tokens);
    n_ = histogram("request_params_n", "Choices that a request asked for.", kChoices);
  }
  void add_engine() {
    running_ = gauge("num_requests_running", "Sequences being run.");
    waiting_ = gauge("num_requests_waiting", "Sequences waiting to be run.");
    cache_ = gauge("kv_cache_usage_perc", "Part of the cache in use, 0 to 1.");
    old_cache_ = gauge("gpu_cache_usage_perc", "Older name of kv_cache_usage_perc.");
    prompt_total_ = total("prompt_tokens", "Prompt tokens of requests that ran.");
    generation_total_ = total("generation_tokens", "Generated tokens.");
    preemptions_ = total("num_preemptions", "Sequences that had to give their cache back.");
    queries_ = total("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.");
    hits_ = total("prefix_cache_hits", "Prompt tokens found in the prefix cache.");
    iteration_.emplace(
        *histogram("iteration_tokens_total", "Tokens of one step.", BatchTotals::buckets()));
  }
  void add_spec_decode() {
    drafts_ = total("spec_decode_num_drafts", "Drafts made.");
    draft_tokens_ = total("spec_decode_num_draft_tokens", "Draft tokens made.");
    accepted_ = total("spec_decode_num_accepted_tokens", "Draft tokens accepted.");
  }

  Registry& registry_;
  const Labels labels_;
  std::map<std::string, Counter*> success_;
  Histogram *first_token_, *token_gap_, *output_token_, *e2e_, *queue_, *inference_, *prefill_,
      *decode_, *prompt_tokens_, *generation_tokens_, *max_tokens_, *n_;
  Gauge *running_, *waiting_, *cache_, *old_cache_;
  Total prompt_total_, generation_total_, preemptions_, queries_, hits_;
  std::optional<BatchTotals> iteration_;
  std::optional<Total> drafts_;
  Total draft_tokens_, accepted_;
  std::vector<Total> positions_;
};

// llama-server's names.
class LlamaGroup {
 public:
  LlamaGroup(Registry& registry, const MetricsModel& model)
      : registry_(registry), block_size_(model.block_size) {}

  void on_request_done(const RequestRecord& record) {
    prompt_seconds_.Increment(record.prefill_s);
    predicted_seconds_.Increment(record.decode_s);
    prompt_rate_.add(record.prompt_tokens - record.cached_tokens, record.prefill_s);
    predicted_rate_.add(record.completion_tokens, record.decode_s);
    prompt_speed_.Set(prompt_rate_.value());
    predicted_speed_.Set(predicted_rate_.value());
    longest_ = std::max(longest_, record.prompt_tokens + record.completion_tokens);
    n_tokens_max_.Set(longest_);
  }
  void on_engine(const EngineStats& stats) {
    const auto generated = static_cast<double>(stats.generated_tokens);
    prompt_total_.advance_to(static_cast<double>(stats.prompt_tokens));
    predicted_total_.advance_to(generated);
    steps_.advance_to(static_cast<double>(stats.steps));
    processing_.Set(stats.running);
    deferred_.Set(stats.waiting);
    busy_.Set(stats.steps == 0 ? 0 : generated / static_cast<double>(stats.steps));
    cache_usage_.Set(cache_usage(stats.cache));
    cache_tokens_.Set(static_cast<double>(stats.cache.leased_pages) * block_size_);
  }
  void on_spec_decode(const SpecDecodeTotals& totals) {
    if (!draft_tokens_) {
      draft_tokens_ = total("spec_decode_num_draft_tokens", "Draft tokens made.");
      accepted_ = total("spec_decode_num_accepted_tokens", "Draft tokens accepted.");
    }
    draft_tokens_->advance_to(static_cast<double>(totals.draft_tokens));
    accepted_.advance_to(static_cast<double>(totals.accepted_tokens));
  }

 private:
  Gauge& gauge(const std::string& name, const std::string& help) {
    return registry_.gauge("llamacpp:" + name, help);
  }
  Counter& counter(const std::string& name, const std::string& help) {
    return registry_.counter("llamacpp:" + name + "_total", help);
  }
  Total total(const std::string& name, const std::string& help) {
    return Total(counter(name, help));
  }

  Registry& registry_;
  const int block_size_;
  int longest_ = 0;
  RecentRate prompt_rate_, predicted_rate_;
  Total prompt_total_ = total("prompt_tokens", "Prompt tokens of requests that ran.");
  Counter& prompt_seconds_ = counter("prompt_seconds", "Spent reading prompts.");
  Total predicted_total_ = total("tokens_predicted", "Generated tokens.");
  Counter& predicted_seconds_ = counter("tokens_predicted_seconds", "Spent generating.");
  Total steps_ = total("n_decode", "Steps of the model.");
  Gauge& prompt_speed_ = gauge("prompt_tokens_seconds", "Prompt tokens a second, lately.");
  Gauge& predicted_speed_ = gauge("predicted_tokens_seconds", "Generated tokens a second, lately.");
  Gauge& processing_ = gauge("requests_processing", "Sequences being run.");
  Gauge& deferred_ = gauge("requests_deferred", "Sequences waiting to be run.");
  Gauge& n_tokens_max_ = gauge("n_tokens_max", "Tokens of the longest request so far.");
  Gauge& busy_ = gauge("n_busy_slots_per_decode", "Tokens generated in a step, on average.");
  Gauge& cache_usage_ = gauge("kv_cache_usage_ratio", "Part of the cache in use, 0 to 1.");
  Gauge& cache_tokens_ = gauge("kv_cache_tokens", "Tokens that the used part of the cache holds.");
  std::optional<Total> draft_tokens_;
  Total accepted_;
};

class ProcessGroup {
 public:
  explicit ProcessGroup(Registry& registry)
      : cpu_(registry.counter("process_cpu_seconds_total", "User and system time.")),
        start_(registry.gauge("process_start_time_seconds", "Start, in seconds since 1970.")),
        resident_(registry.gauge("process_resident_memory_bytes", "Resident memory.")),
        virtual_(registry.gauge("process_virtual_memory_bytes", "Virtual memory.")),
        open_fds_(registry.gauge("process_open_fds", "Open file descriptors.")),
        max_fds_(registry.gauge("process_max_fds", "Most file descriptors that may be open.")),
        threads_(registry.gauge("process_threads", "Threads.")) {}
  void update() {
    const ProcessStats stats = process_stats();
    cpu_.advance_to(stats.cpu_seconds);
    start_.Set(stats.start_time);
    resident_.Set(static_cast<double>(stats.resident_bytes));
    virtual_.Set(static_cast<double>(stats.virtual_bytes));
    open_fds_.Set(static_cast<double>(stats.open_fds));
    max_fds_.Set(static_cast<double>(stats.max_fds));
    threads_.Set(static_cast<double>(stats.threads));
  }

 private:
  Total cpu_;
  Gauge &start_, &resident_, &virtual_, &open_fds_, &max_fds_, &threads_;
};

}  // namespace

Status choose_metric_groups(std::string_view list, MetricsOptions& options) {
  options.vllm = options.llamacpp = false;
  if (list == "none") return {};
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    if (name == "vllm") {
      options.vllm = true;
    } else if (name == "llamacpp") {
      options.llamacpp = true;
    } else {
      return invalid_argument(fmt::format(
          "--metrics-compat: '{}' is not one of vllm, llamacpp (a list) or none", name));
    }
    if (comma == std::string_view::npos) return {};
    list.remove_prefix(comma + 1);
  }
}

struct Metrics::State {
  explicit State(MetricsOptions given) : options(std::move(given)) {
    registry.gauge("glint_build_info", "The program's version.", {{"version", options.version}})
        .Set(1);
  }

  const MetricsOptions options;
  Registry registry;
  ProcessGroup process{registry};
  Gauge& connections = registry.gauge("glint_http_connections", "Open connections.");
  BoundedLabels paths{kMaxPathLabels}, fields{kMaxFieldLabels};

  // From attach() on.
  std::optional<VllmGroup> vllm;
  std::optional<LlamaGroup> llamacpp;
  bool attached = false;
  Gauge* step_age = nullptr;
  Total steps, cancelled, failed;
  Counter *reasoning_tokens = nullptr, *cached_tokens = nullptr;
  std::map<std::string, Total, std::less<>> expert_tokens;
  std::map<std::string, Total, std::less<>> totals;  // by name

  void set(const char* name, const char* help, std::uint64_t value) {
    registry.gauge(name, help).Set(static_cast<double>(value));
  }
  void advance(const char* name, const char* help, double total) {
    auto found = totals.find(name);
    if (found == totals.end())
      found = totals.emplace(name, Total(registry.counter(name, help))).first;
    found->second.advance_to(total);
  }
  void add_own();
  void on_pages(const CacheStats& cache);
  void on_states(const CacheStats& cache);
  void on_prefix_cache(const CacheStats& cache);
};

void Metrics::State::add_own() {
  step_age = &registry.gauge("glint_engine_step_age_seconds",
                             "Since the step at work began; 0 while there is nothing to do.");
  steps = Total(registry.counter("glint_engine_steps_total", "Steps of the model."));
  cancelled =
      Total(registry.counter("glint_engine_cancelled_total", "Sequences whose client went away."));
  failed = Total(registry.counter("glint_engine_failed_total", "Sequences ended by an error."));
  reasoning_tokens =
      &registry.counter("glint_reasoning_tokens_total", "Generated tokens that were thinking.");
  cached_tokens = &registry.counter("glint_cached_prompt_tokens_total",
                                    "Prompt tokens of finished requests that were cached.");
}

void Metrics::State::on_pages(const CacheStats& cache) {
  const auto set = [this](const char* state, std::size_t pages) {
    registry
        .gauge("glint_cache_pages",
               "Pages of the cache: free ones, those that only keep prefixes, "
               "and those of running sequences.",
               {{"state", state}})
        .Set(static_cast<double>(pages));
  };
  set("free", cache.free_pages);
  set("cached", cache.cached_pages);
  set("leased", cache.leased_pages);
  registry.gauge("glint_cache_pages_max", "All pages of the cache.")
      .Set(static_cast<double>(cache.total_pages));
}

// Of models with recurrent states alone.
void Metrics::State::on_states(const CacheStats& cache) {
  set("glint_recurrent_states", "Recurrent states in use, one of each running sequence.",
      cache.used_states);
  set("glint_recurrent_states_max", "Room for recurrent states.", cache.total_states);
  set("glint_state_snapshots", "Kept snapshots of recurrent states, where prompts can be taken up.",
      cache.kept_snapshots);
  set("glint_state_snapshots_max", "Room for snapshots.", cache.total_snapshots);
  advance("glint_state_snapshots_evicted_total", "Snapshots that made room for newer ones.",
          static_cast<double>(cache.evicted_snapshots));
}

void Metrics::State::on_prefix_cache(const CacheStats& cache) {
  const auto total = [this](const char* name, const char* help, std::uint64_t value) {
    advance(name, help, static_cast<double>(value));
  };
  set("glint_prefix_cache_bytes", "Memory of cached pages that no request uses.",
      static_cast<std::uint64_t>(cache.cached_pages) * cache.page_bytes);
  set("glint_prefix_cache_limit_bytes", "Most memory that these may take.",
      static_cast<std::uint64_t>(cache.max_cached_pages) * cache.page_bytes);
  total("glint_prefix_cache_evicted_pages_total", "Pages that made room for newer ones.",
        cache.evicted_pages);
  if (!cache.store) return;
  const StoreStats& store = *cache.store;
  set("glint_prefix_cache_disk_bytes", "Bytes of --prefix-cache-dir.", store.bytes);
  set("glint_prefix_cache_disk_limit_bytes", "Most bytes of it.", store.max_bytes);
  set("glint_prefix_cache_disk_entries", "Pages and snapshots there.", store.entries);
  total("glint_prefix_cache_disk_written_total", "Pages and snapshots written there.",
        store.written);
  total("glint_prefix_cache_disk_read_total", "Pages and snapshots read from there.", store.read);
  total("glint_prefix_cache_disk_evicted_total", "Those that made room for newer ones.",
        store.evicted);
  total("glint_prefix_cache_disk_dropped_total",
        "Those not written, since the disk was full or too slow.", store.dropped);
  total("glint_prefix_cache_disk_damaged_total", "Those found damaged, and removed.",
        store.damaged);
}

Metrics::Metrics(MetricsOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Metrics::~Metrics() = default;

void Metrics::attach(const MetricsModel& model) {
  State& state = *state_;
  if (std::exchange(state.attached, true)) return;
  if (state.options.vllm) state.vllm.emplace(state.registry, state.options.model_name, model);
  if (state.options.llamacpp) state.llamacpp.emplace(state.registry, model);
  state.add_own();
}

void Metrics::on_first_token(double seconds) {
  if (state_->vllm) state_->vllm->on_first_token(seconds);
}

void Metrics::on_token_gap(double seconds, int tokens) {
  if (state_->vllm && tokens > 0) state_->vllm->on_token_gap(seconds, tokens);
}

void Metrics::on_request_done(const RequestRecord& record) {
  if (!state_->attached) return;
  if (state_->vllm) state_->vllm->on_request_done(record);
  if (state_->llamacpp) state_->llamacpp->on_request_done(record);
  state_->reasoning_tokens->Increment(record.reasoning_tokens);
  state_->cached_tokens->Increment(record.cached_tokens);
}

void Metrics::on_http(std::string_view path_label, int status) {
  state_->registry
      .counter("glint_http_requests_total", "HTTP requests by route and status.",
               {{"path", state_->paths.take(path_label)}, {"code", std::to_string(status)}})
      .Increment();
}

void Metrics::on_unknown_field(std::string_view name) {
  state_->registry
      .counter("glint_http_unknown_fields_total", "Fields of requests that nothing here reads.",
               {{"field", state_->fields.take(name)}})
      .Increment();
}

void Metrics::on_engine(const EngineStats& stats) {
  if (!state_->attached) return;
  if (state_->vllm) state_->vllm->on_engine(stats);
  if (state_->llamacpp) state_->llamacpp->on_engine(stats);
  state_->step_age->Set(stats.step_age_s);
  state_->steps.advance_to(static_cast<double>(stats.steps));
  state_->cancelled.advance_to(static_cast<double>(stats.cancelled));
  state_->failed.advance_to(static_cast<double>(stats.failed));
  state_->on_pages(stats.cache);
  if (stats.cache.total_states > 0) state_->on_states(stats.cache);
  state_->on_prefix_cache(stats.cache);
  if (stats.experts) on_streamed_experts(*stats.experts);
  if (stats.drafts.mode == DraftMode::kOff) return;
  on_spec_decode({.drafts = stats.drafts.rounds,
                  .draft_tokens = stats.drafts.drafted,
                  .accepted_tokens = stats.drafts.accepted,
                  .accepted_per_position = stats.drafts.accepted_at});
  state_->registry
      .gauge("glint_spec_decode_drafts",
             "Tokens guessed ahead in a step of each sequence, by mode.",
             {{"mode", std::string(draft_mode_name(stats.drafts.mode))}})
      .Set(stats.drafts.num_drafts);
  state_->registry.gauge("glint_spec_decode_paused", "1 while guessing ahead does not pay.")
      .Set(stats.drafts.paused ? 1 : 0);
}

void Metrics::on_connections(int open) {
  state_->connections.Set(open);
}

void Metrics::on_memory(std::string_view kind, std::uint64_t nbytes) {
  state_->registry
      .gauge("glint_mem_bytes", "Memory by what it is for.", {{"kind", std::string(kind)}})
      .Set(static_cast<double>(nbytes));
}

void Metrics::on_spec_decode(const SpecDecodeTotals& totals) {
  if (state_->vllm) state_->vllm->on_spec_decode(totals);
  if (state_->llamacpp) state_->llamacpp->on_spec_decode(totals);
}

void Metrics::on_expert_tokens(std::string_view layer_group, std::uint64_t total) {
  auto found = state_->expert_tokens.find(layer_group);
  if (found == state_->expert_tokens.end()) {
    const std::string label(layer_group);
    Counter& counter = state_->registry.counter(
        "glint_expert_tokens_total", "Tokens that experts computed.", {{"layer_group", label}});
    found = state_->expert_tokens.emplace(label, Total(counter)).first;
  }
  found->second.advance_to(static_cast<double>(total));
}

void Metrics::on_streamed_experts(const ExpertStats& stats) {
  const auto total = [this](const char* name, const char* help, double value) {
    state_->advance(name, help, value);
  };
  const auto gauge = [this](const char* name, const char* help, std::uint64_t value) {
    state_->set(name, help, value);
  };
  gauge("glint_streamed_experts", "Experts on disk.", stats.num_experts);
  gauge("glint_streamed_experts_cached", "Experts that fit memory at once.", stats.num_slots);
  gauge("glint_streamed_experts_memory_bytes", "Memory of those.", stats.memory_bytes);
  total("glint_streamed_expert_uses_total", "Uses of an expert by a step.",
        static_cast<double>(stats.uses));
  total("glint_streamed_expert_misses_total", "Uses that had to read the expert.",
        static_cast<double>(stats.misses));
  total("glint_streamed_expert_reads_ahead_total", "Experts read because the next layer might.",
        static_cast<double>(stats.reads_ahead));
  total("glint_streamed_expert_reads_ahead_used_total", "Those that were then used.",
        static_cast<double>(stats.reads_ahead_used));
  total("glint_streamed_expert_read_bytes_total", "Read from disk.",
        static_cast<double>(stats.bytes_read));
  total("glint_streamed_expert_read_seconds_total", "In which the disk was being read.",
        stats.read_seconds);
  total("glint_streamed_expert_wait_seconds_total", "In which steps waited for the disk.",
        stats.wait_seconds);
}

void Metrics::on_numa_remote_ratio(double ratio) {
  state_->registry
      .gauge("glint_numa_remote_ratio", "Part of reads that went to another node's memory.")
      .Set(ratio);
}

std::string Metrics::text() const {
  state_->process.update();
  std::ostringstream out;
  state_->registry.write(out);
  return std::move(out).str();
}

}  // namespace glint
