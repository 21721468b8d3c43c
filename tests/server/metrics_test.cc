// The names, types and buckets that dashboards and routers know, and counters that never go back.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace glint {
namespace {

const MetricsModel kModel = {
    .block_size = 16, .num_blocks = 100, .cache_dtype = "fp8", .max_model_len = 3000};

// What a scraper makes of the text.
struct Scrape {
  std::map<std::string, std::string> types;  // family -> type
  std::map<std::string, double> values;      // name{labels} -> value
  std::map<std::string, std::string> help;

  explicit Scrape(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) read(line);
  }
  void read(const std::string& line) {
    static const std::regex kHelp("# HELP (\\S+) (.*)"), kType("# TYPE (\\S+) (\\w+)"),
        kSample("([a-zA-Z_:][a-zA-Z0-9_:]*(?:\\{.*\\})?) (\\S+)");
    std::smatch match;
    if (std::regex_match(line, match, kHelp)) {
      help[match[1]] = match[2];
    } else if (std::regex_match(line, match, kType)) {
      EXPECT_TRUE(types.emplace(match[1], match[2]).second) << line;
    } else if (std::regex_match(line, match, kSample)) {
      EXPECT_TRUE(values.emplace(match[1], std::strtod(match[2].str().c_str(), nullptr)).second)
          << line;
    } else if (!line.empty()) {
      ADD_FAILURE() << line;
    }
  }
  std::string type(const std::string& name) const {
    const auto found = types.find(name);
    return found == types.end() ? "absent" : found->second;
  }
  // By its name alone, the first of its label sets.
  double value(const std::string& name) const {
    for (const auto& [key, value] : values) {
      if (key == name || key.starts_with(name + "{")) return value;
    }
    ADD_FAILURE() << name << " is not there";
    return -1;
  }
  // The upper bounds of a histogram.
  std::set<double> buckets(const std::string& name) const {
    std::set<double> bounds;
    for (const auto& [key, value] : values) {
      const std::size_t at = key.find("le=\"");
      if (!key.starts_with(name + "_bucket{") || at == std::string::npos) continue;
      bounds.insert(std::strtod(key.c_str() + at + 4, nullptr));
    }
    return bounds;
  }
};

MetricsOptions named() {
  return {.model_name = "glm", .version = "1.2.3"};
}

RequestRecord record() {
  RequestRecord out;
  out.finished_reason = "stop";
  out.prompt_tokens = 100;
  out.cached_tokens = 60;
  out.completion_tokens = 20;
  out.reasoning_tokens = 5;
  out.max_tokens = 50;
  out.n = 2;
  out.queue_s = 0.5;
  out.prefill_s = 2;
  out.decode_s = 4;
  out.e2e_s = 7;
  return out;
}

TEST(metrics, vllm_names_have_their_types) {
  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_spec_decode({});
  const Scrape scrape(metrics.text());
  for (const char* name : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                           "gpu_cache_usage_perc", "cache_config_info"}) {
    EXPECT_EQ(scrape.type(std::string("vllm:") + name), "gauge") << name;
  }
  for (const char* name :
       {"prompt_tokens", "generation_tokens", "request_success", "num_preemptions",
        "prefix_cache_queries", "prefix_cache_hits", "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"}) {
    EXPECT_EQ(scrape.type("vllm:" + std::string(name) + "_total"), "counter") << name;
  }
  for (const char* name :
       {"time_to_first_token_seconds", "inter_token_latency_seconds",
        "time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
        "request_generation_tokens", "request_params_max_tokens", "request_params_n",
        "iteration_tokens_total"}) {
    EXPECT_EQ(scrape.type("vllm:" + std::string(name)), "histogram") << name;
  }
  for (const auto& [key, value] : scrape.values) {
    if (!key.starts_with("vllm:")) continue;
    EXPECT_NE(key.find("model_name=\"glm\""), std::string::npos) << key;
    EXPECT_NE(key.find("engine=\"0\""), std::string::npos) << key;
  }
  for (const auto& [name, type] : scrape.types) EXPECT_FALSE(scrape.help.at(name).empty()) << name;
}

TEST(metrics, histograms_have_their_buckets) {
  Metrics metrics(named());
  metrics.attach(kModel);
  const Scrape scrape(metrics.text());
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(scrape.buckets("vllm:time_to_first_token_seconds"),
            (std::set<double>{.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                              2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, kInf}));
  const std::set<double> token = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80, kInf};
  EXPECT_EQ(scrape.buckets("vllm:inter_token_latency_seconds"), token);
  EXPECT_EQ(scrape.buckets("vllm:time_per_output_token_seconds"), token);
  for (const char* name : {"e2e_request_latency", "request_queue_time", "request_inference_time",
                           "request_prefill_time", "request_decode_time"}) {
    EXPECT_EQ(scrape.buckets("vllm:" + std::string(name) + "_seconds"),
              (std::set<double>{.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, kInf}))
        << name;
  }
  const std::set<double> lengths = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, kInf};
  EXPECT_EQ(scrape.buckets("vllm:request_prompt_tokens"), lengths);
  EXPECT_EQ(scrape.buckets("vllm:request_generation_tokens"), lengths);
  EXPECT_EQ(scrape.buckets("vllm:request_params_max_tokens"), lengths);
  EXPECT_EQ(scrape.buckets("vllm:request_params_n"), (std::set<double>{1, 2, 5, 10, 20, kInf}));
  const auto steps = scrape.buckets("vllm:iteration_tokens_total");
  EXPECT_EQ(steps.size(), BatchHistogram::kBounds.size() + 1);
  EXPECT_TRUE(steps.contains(1) && steps.contains(8) && steps.contains(16));
}

TEST(metrics, llama_server_names_have_their_types) {
  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_spec_decode({});
  const Scrape scrape(metrics.text());
  for (const char* name :
       {"prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_total",
        "tokens_predicted_seconds_total", "n_decode_total", "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total"}) {
    EXPECT_EQ(scrape.type(std::string("llamacpp:") + name), "counter") << name;
  }
  for (const char* name : {"prompt_tokens_seconds", "predicted_tokens_seconds",
                           "requests_processing", "requests_deferred", "n_tokens_max",
                           "n_busy_slots_per_decode", "kv_cache_usage_ratio", "kv_cache_tokens"}) {
    EXPECT_EQ(scrape.type(std::string("llamacpp:") + name), "gauge") << name;
  }
}

TEST(metrics, groups_are_chosen_by_a_list) {
  MetricsOptions options = named();
  ASSERT_TRUE(choose_metric_groups("llamacpp", options).has_value());
  EXPECT_FALSE(options.vllm);
  Metrics metrics(options);
  metrics.attach(kModel);
  metrics.on_request_done(record());
  metrics.on_first_token(1);
  metrics.on_token_gap(1);
  metrics.on_engine({});
  EXPECT_EQ(metrics.text().find("vllm:"), std::string::npos);
  EXPECT_NE(metrics.text().find("llamacpp:"), std::string::npos);
  ASSERT_TRUE(choose_metric_groups("llamacpp,vllm", options).has_value());
  EXPECT_TRUE(options.vllm && options.llamacpp);
  ASSERT_TRUE(choose_metric_groups("none", options).has_value());
  EXPECT_FALSE(options.vllm || options.llamacpp);
  for (const char* bad : {"", "vllm,", "sglang", "vllm,none", "vllm, llamacpp"}) {
    const Status status = choose_metric_groups(bad, options);
    ASSERT_FALSE(status.has_value()) << bad;
    EXPECT_NE(status.error().message.find("--metrics-compat"), std::string::npos);
  }
}

TEST(metrics, requests_are_counted_by_how_they_ended) {
  Metrics metrics(named());
  metrics.on_request_done(record());  // nothing is loaded yet
  metrics.attach(kModel);
  metrics.attach(kModel);
  RequestRecord one = record();
  for (const char* reason : {"stop", "tool_calls", "length", "abort", "error", "no such"}) {
    one.finished_reason = reason;
    one.max_tokens = one.finished_reason == "stop" ? 0 : 50;
    metrics.on_request_done(one);
  }
  const Scrape scrape(metrics.text());
  const auto success = [&](const std::string& reason) {
    return scrape.values.at("vllm:request_success_total{engine=\"0\",finished_reason=\"" + reason +
                            "\",model_name=\"glm\"}");
  };
  EXPECT_EQ(success("stop"), 2);
  EXPECT_EQ(success("length"), 1);
  EXPECT_EQ(success("abort"), 1);
  EXPECT_EQ(success("error"), 2);
  EXPECT_EQ(scrape.value("vllm:e2e_request_latency_seconds_count"), 6);
  EXPECT_EQ(scrape.value("vllm:request_queue_time_seconds_sum"), 3);
  EXPECT_EQ(scrape.value("vllm:request_inference_time_seconds_sum"), 36);
  EXPECT_EQ(scrape.value("vllm:request_prompt_tokens_sum"), 600);
  EXPECT_EQ(scrape.value("vllm:request_generation_tokens_sum"), 120);
  EXPECT_EQ(scrape.value("vllm:request_params_max_tokens_count"), 5);
  EXPECT_EQ(scrape.value("vllm:request_params_n_sum"), 12);
  EXPECT_EQ(scrape.value("llamacpp:prompt_seconds_total"), 12);
  EXPECT_EQ(scrape.value("llamacpp:tokens_predicted_seconds_total"), 24);
  EXPECT_NEAR(scrape.value("llamacpp:prompt_tokens_seconds"), 20, 1e-6);
  EXPECT_NEAR(scrape.value("llamacpp:predicted_tokens_seconds"), 5, 1e-6);
  EXPECT_EQ(scrape.value("llamacpp:n_tokens_max"), 120);
  EXPECT_EQ(scrape.value("glint_reasoning_tokens_total"), 30);
  EXPECT_EQ(scrape.value("glint_cached_prompt_tokens_total"), 360);
}

TEST(metrics, tokens_are_timed_one_by_one) {
  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_first_token(0.3);
  metrics.on_token_gap(0.4, 2);
  metrics.on_token_gap(0.1);
  metrics.on_token_gap(0.1, 0);
  const Scrape scrape(metrics.text());
  EXPECT_EQ(scrape.value("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(scrape.value("vllm:inter_token_latency_seconds_count"), 3);
  EXPECT_NEAR(scrape.value("vllm:inter_token_latency_seconds_sum"), 0.5, 1e-9);
  EXPECT_EQ(scrape.value("vllm:time_per_output_token_seconds_count"), 3);
}

EngineStats stats() {
  EngineStats out;
  out.running = 3;
  out.waiting = 2;
  out.steps = 10;
  out.prompt_tokens = 1000;
  out.generated_tokens = 25;
  out.preemptions = 4;
  out.cancelled = 5;
  out.failed = 6;
  out.step_age_s = 1.5;
  out.batch_tokens.counts[0] = 7;
  out.batch_tokens.counts[2] = 2;
  out.batch_tokens.counts.back() = 1;
  out.batch_tokens.sum = 9999;
  out.cache = {.total_pages = 100,
               .free_pages = 50,
               .cached_pages = 30,
               .leased_pages = 20,
               .prefix_queries = 900,
               .prefix_hits = 400};
  return out;
}

TEST(metrics, the_engine_is_shown_as_it_says) {
  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_engine(stats());
  const Scrape scrape(metrics.text());
  EXPECT_EQ(scrape.value("vllm:num_requests_running"), 3);
  EXPECT_EQ(scrape.value("vllm:num_requests_waiting"), 2);
  EXPECT_EQ(scrape.value("vllm:kv_cache_usage_perc"), 0.2);
  EXPECT_EQ(scrape.value("vllm:gpu_cache_usage_perc"), 0.2);
  EXPECT_EQ(scrape.value("vllm:prompt_tokens_total"), 1000);
  EXPECT_EQ(scrape.value("vllm:generation_tokens_total"), 25);
  EXPECT_EQ(scrape.value("vllm:num_preemptions_total"), 4);
  EXPECT_EQ(scrape.value("vllm:prefix_cache_queries_total"), 900);
  EXPECT_EQ(scrape.value("vllm:prefix_cache_hits_total"), 400);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_count"), 10);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_sum"), 9999);
  EXPECT_EQ(scrape.values.at("vllm:iteration_tokens_total_bucket{engine=\"0\",model_name=\"glm\","
                             "le=\"8\"}"),
            7);
  EXPECT_EQ(scrape.values.at("vllm:iteration_tokens_total_bucket{engine=\"0\",model_name=\"glm\","
                             "le=\"16\"}"),
            9);
  EXPECT_EQ(scrape.value("llamacpp:kv_cache_tokens"), 320);
  EXPECT_EQ(scrape.value("llamacpp:n_busy_slots_per_decode"), 2.5);
  EXPECT_EQ(scrape.value("glint_engine_step_age_seconds"), 1.5);
  EXPECT_EQ(scrape.value("glint_engine_cancelled_total"), 5);
  EXPECT_EQ(scrape.value("glint_engine_failed_total"), 6);
}

TEST(metrics, counters_never_go_back) {
  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_engine(stats());
  metrics.on_engine(stats());  // nothing new
  EngineStats anew = stats();
  anew.prompt_tokens = 10;  // an engine that began again
  anew.generated_tokens = 26;
  anew.batch_tokens = {};
  anew.batch_tokens.counts[0] = 1;
  anew.batch_tokens.sum = 1;
  metrics.on_engine(anew);
  const Scrape scrape(metrics.text());
  EXPECT_EQ(scrape.value("vllm:prompt_tokens_total"), 1010);
  EXPECT_EQ(scrape.value("vllm:generation_tokens_total"), 26);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_count"), 11);
  EXPECT_EQ(scrape.value("vllm:iteration_tokens_total_sum"), 10000);
}

TEST(metrics, speculation_is_counted_by_place_in_the_draft) {
  Metrics metrics(named());
  metrics.attach(kModel);
  EXPECT_EQ(metrics.text().find("spec_decode"), std::string::npos);
  std::uint64_t places[] = {5, 3, 0};
  metrics.on_spec_decode(
      {.drafts = 6, .draft_tokens = 18, .accepted_tokens = 8, .accepted_per_position = places});
  places[1] = 4;
  metrics.on_spec_decode(
      {.drafts = 7, .draft_tokens = 21, .accepted_tokens = 9, .accepted_per_position = places});
  const Scrape scrape(metrics.text());
  EXPECT_EQ(scrape.value("vllm:spec_decode_num_drafts_total"), 7);
  EXPECT_EQ(scrape.value("vllm:spec_decode_num_accepted_tokens_total"), 9);
  EXPECT_EQ(scrape.values.at("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\","
                             "model_name=\"glm\",position=\"1\"}"),
            4);
}

TEST(metrics, states_come_with_the_model_that_has_them) {
  Metrics metrics(named());
  metrics.attach(kModel);
  EngineStats stats;
  metrics.on_engine(stats);
  EXPECT_EQ(metrics.text().find("snapshots"), std::string::npos);
  stats.cache.total_states = 4;
  stats.cache.used_states = 3;
  stats.cache.total_snapshots = 9;
  stats.cache.kept_snapshots = 7;
  stats.cache.evicted_snapshots = 5;
  metrics.on_engine(stats);
  stats.cache.evicted_snapshots = 6;
  metrics.on_engine(stats);
  const Scrape told(metrics.text());
  EXPECT_EQ(told.value("glint_recurrent_states"), 3);
  EXPECT_EQ(told.value("glint_recurrent_states_max"), 4);
  EXPECT_EQ(told.value("glint_state_snapshots"), 7);
  EXPECT_EQ(told.value("glint_state_snapshots_max"), 9);
  EXPECT_EQ(told.value("glint_state_snapshots_evicted_total"), 6);
}

TEST(metrics, guesses_come_with_the_engine_that_makes_them) {
  Metrics metrics(named());
  metrics.attach(kModel);
  EngineStats stats;
  metrics.on_engine(stats);
  EXPECT_EQ(metrics.text().find("spec_decode"), std::string::npos) << "nothing guesses";
  stats.drafts = {.mode = DraftMode::kAuto,
                  .num_drafts = 2,
                  .paused = false,
                  .rounds = 10,
                  .drafted = 20,
                  .accepted = 13,
                  .accepted_at = {8, 5}};
  metrics.on_engine(stats);
  const Scrape told(metrics.text());
  EXPECT_EQ(told.value("vllm:spec_decode_num_drafts_total"), 10);
  EXPECT_EQ(told.value("vllm:spec_decode_num_draft_tokens_total"), 20);
  EXPECT_EQ(told.value("vllm:spec_decode_num_accepted_tokens_total"), 13);
  EXPECT_EQ(told.values.at("glint_spec_decode_drafts{mode=\"auto\"}"), 2);
  EXPECT_EQ(told.values.at("glint_spec_decode_paused"), 0);
  stats.drafts.num_drafts = 0;
  stats.drafts.paused = true;
  metrics.on_engine(stats);
  const Scrape paused(metrics.text());
  EXPECT_EQ(paused.values.at("glint_spec_decode_drafts{mode=\"auto\"}"), 0);
  EXPECT_EQ(paused.values.at("glint_spec_decode_paused"), 1);
}

TEST(metrics, clients_cannot_grow_the_text) {
  Metrics metrics(named());
  metrics.on_http("/v1/chat/completions", 200);
  metrics.on_http("/v1/chat/completions", 200);
  for (int count = 0; count < 10000; ++count) {
    metrics.on_unknown_field("field" + std::to_string(count));
    metrics.on_http("/some/" + std::to_string(count), 404);
  }
  for (const char* odd : {"", "new\nline", "quote\"", "\xff\xfe"}) metrics.on_unknown_field(odd);
  metrics.on_unknown_field(std::string(1000, 'a'));
  metrics.on_unknown_field("field7");
  const std::string text = metrics.text();
  EXPECT_LT(text.size(), 40000u);
  const Scrape scrape(text);
  EXPECT_EQ(
      scrape.values.at("glint_http_requests_total{code=\"200\",path=\"/v1/chat/completions\"}"), 2);
  EXPECT_EQ(scrape.values.at("glint_http_unknown_fields_total{field=\"field7\"}"), 2);
  EXPECT_EQ(scrape.values.at("glint_http_unknown_fields_total{field=\"other\"}"), 9905);
}

TEST(metrics, the_process_is_measured) {
  Metrics metrics(named());
  metrics.on_connections(12);
  metrics.on_memory("weights", 1u << 30);
  metrics.on_expert_tokens("sparse", 77);
  metrics.on_expert_tokens("sparse", 80);
  metrics.on_numa_remote_ratio(0.25);
  ExpertStats experts{.num_experts = 640, .num_slots = 64, .uses = 90, .misses = 30};
  experts.read_seconds = 1.5;
  metrics.on_streamed_experts(experts);
  experts.misses = 40;
  metrics.on_streamed_experts(experts);
  const Scrape scrape(metrics.text());
  EXPECT_GT(scrape.value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(scrape.value("process_virtual_memory_bytes"),
            scrape.value("process_resident_memory_bytes"));
  EXPECT_GT(scrape.value("process_start_time_seconds"), 1.5e9);
  EXPECT_GE(scrape.value("process_cpu_seconds_total"), 0);
  EXPECT_GE(scrape.value("process_open_fds"), 3);
  EXPECT_GT(scrape.value("process_max_fds"), scrape.value("process_open_fds"));
  EXPECT_GE(scrape.value("process_threads"), 1);
  EXPECT_EQ(scrape.value("glint_http_connections"), 12);
  EXPECT_EQ(scrape.value("glint_expert_tokens_total"), 80);
  EXPECT_EQ(scrape.value("glint_numa_remote_ratio"), 0.25);
  EXPECT_EQ(scrape.value("glint_streamed_experts_cached"), 64);
  EXPECT_EQ(scrape.value("glint_streamed_expert_uses_total"), 90);
  EXPECT_EQ(scrape.value("glint_streamed_expert_misses_total"), 40);
  EXPECT_EQ(scrape.value("glint_streamed_expert_read_seconds_total"), 1.5);
  EXPECT_EQ(scrape.values.at("glint_mem_bytes{kind=\"weights\"}"), 1u << 30);
  EXPECT_EQ(scrape.values.at("glint_build_info{version=\"1.2.3\"}"), 1);
}

// docs/grafana.json may only ask for what there is.
TEST(metrics, the_dashboard_asks_for_what_there_is) {
  std::ifstream file(GLINT_SOURCE_DIR "/docs/grafana.json");
  std::stringstream content;
  content << file.rdbuf();
  const auto dashboard = parse_json(content.str());
  ASSERT_TRUE(dashboard.has_value());
  ASSERT_NE(dashboard->find("uid"), nullptr);
  EXPECT_GE(dashboard->find("schemaVersion")->as_int(), 36);

  Metrics metrics(named());
  metrics.attach(kModel);
  metrics.on_request_done(record());
  metrics.on_engine(stats());
  metrics.on_http("/health", 200);
  metrics.on_memory("weights", 1);
  const Scrape scrape(metrics.text());
  std::set<std::string> known;
  for (const auto& [key, value] : scrape.values) known.insert(key.substr(0, key.find('{')));

  int num_queries = 0;
  static const std::regex kName("\\b(?:vllm:|llamacpp:|glint_|process_)[a-zA-Z0-9_]+");
  for (const Json& panel : dashboard->find("panels")->as_array()) {
    const Json* targets = panel.find("targets");
    if (targets == nullptr) continue;
    for (const Json& target : targets->as_array()) {
      const std::string query = target.find("expr")->as_string();
      std::sregex_iterator name(query.begin(), query.end(), kName);
      EXPECT_NE(name, std::sregex_iterator()) << query;
      for (; name != std::sregex_iterator(); ++name) {
        EXPECT_TRUE(known.contains(name->str())) << name->str();
      }
      ++num_queries;
    }
  }
  EXPECT_GE(num_queries, 12);
}

}  // namespace
}  // namespace glint
