// `glint bench`: speed as people report it, beside what the machine could do at best.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include "engine/draft_policy.h"
#include "tools/bench.h"
#include "tools/bench_drafts.h"
#include "tools/commands.h"
#include "tools/machine_probe.h"
#include "tools/options.h"
#include "tools/program.h"

namespace glint {
namespace {

constexpr std::size_t kProbeBytes = 1u << 30;

struct BenchOptions {
  SessionOptions session;
  BenchPlan plan;
  LogOptions log;
  bool json = false;
};

struct Machine {
  MachineRates rates;
  std::string_view peak_name, int8_peak_name;
  std::uint64_t peak_bytes_before = 0;  // of this process, while loading
};

Status parse_drafts(const std::string& list, std::vector<int>& drafts) {
  drafts.clear();
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const auto number = parse_integer(word);
    if (!number || *number < 0 || *number > DraftPolicy::kMaxDrafts) {
      return invalid_argument(fmt::format("'{}' is no number of guesses between 0 and {}", word,
                                          DraftPolicy::kMaxDrafts));
    }
    drafts.push_back(static_cast<int>(*number));
  }
  return {};
}

void declare(Flags& flags, BenchOptions* options) {
  declare_model(flags, &options->session.model);
  flags.group("Measurements");
  flags.integers("-p,--prompt-tokens", &options->plan.prompt_tokens, "N,...",
                 "tokens of the prefill tests; 0 leaves them out (default 512)", 0);
  flags.integer("-n,--generated-tokens", &options->plan.generated_tokens, "N",
                "tokens of the decoding tests; 0 leaves them out (default 128)", 0);
  flags.integers("-d,--depth", &options->plan.depths, "N,...",
                 "tokens already in the cache (default 0,4096)", 0);
  flags.integers("--parallel", &options->plan.parallel, "N,...",
                 "sequences decoding at once, also -np (default 1,8)", 1);
  flags.integer("--reps", &options->plan.repetitions, "N",
                "the median of N runs counts (default 5)", 1, 1000);
  flags.custom(
      "--mtp", "N,...",
      "also answer a few questions with the draft layer guessing N tokens ahead; 0 is "
      "without, for comparison (default: not measured)",
      [options](const std::string& value) { return parse_drafts(value, options->plan.drafts); });
  flags.toggle("--json", &options->json, "one object for machines");
  declare_session(flags, &options->session, false);
  options->session.vision = false;
  declare_log(flags, &options->log);
}

Machine probe(Session& session) {
  const PeakKind kind = peak_kind(session.plan.isa, session.plan.load.compute);
  const PeakKind int8_kind = int8_peak_kind(session.plan.isa);
  const std::uint64_t free = available_memory().bytes;
  const std::uint64_t peak = peak_resident_bytes();
  Machine machine;
  machine.rates.bytes_per_s = read_bandwidth(
      *session.pool, static_cast<std::size_t>(std::min<std::uint64_t>(kProbeBytes, free / 4)));
  machine.rates.flops_per_s = peak_flops(*session.pool, kind);
  machine.rates.int8_flops_per_s = peak_flops(*session.pool, int8_kind);
  machine.peak_name = peak_name(kind);
  machine.int8_peak_name = peak_name(int8_kind);
  reset_peak_resident();  // the probe's own buffer is not the model's
  machine.peak_bytes_before = peak;
  return machine;
}

std::string test_name(const BenchResult& result) {
  std::string name = fmt::format("{}{}", result.prefill ? "pp" : "tg", result.tokens);
  if (result.depth > 0) name += fmt::format(" @ d{}", result.depth);
  if (result.parallel > 1) name += fmt::format(" x {}", result.parallel);
  return name;
}

double steps_per_s(const BenchResult& result) {
  return result.median() / (result.prefill ? result.tokens : result.parallel);
}

double read_rate(const ExpertStats& stats) {
  return stats.read_seconds > 0 ? static_cast<double>(stats.bytes_read) / stats.read_seconds : 0;
}

Json experts_json(const BenchResult& result) {
  const ExpertStats& stats = *result.experts;
  Json json;
  json.set("hit_rate", stats.hit_rate());
  json.set("uses", stats.uses);
  json.set("misses", stats.misses);
  json.set("reads_ahead", stats.reads_ahead);
  json.set("reads_ahead_used", stats.reads_ahead_used);
  json.set("bytes_read_per_token", static_cast<double>(stats.bytes_read) / result.total_tokens());
  json.set("read_bytes_per_s", read_rate(stats));
  json.set("read_seconds", stats.read_seconds);
  json.set("wait_seconds", stats.wait_seconds);
  return json;
}

Json result_json(const BenchResult& result, const BenchFloor& floor) {
  Json json;
  json.set("test", result.prefill ? "pp" : "tg");
  json.set("tokens", result.tokens);
  json.set("depth", result.depth);
  json.set("parallel", result.parallel);
  json.set("tokens_per_s", result.median());
  json.set("min", *std::ranges::min_element(result.tokens_per_s));
  json.set("max", *std::ranges::max_element(result.tokens_per_s));
  json.set("repetitions", static_cast<std::int64_t>(result.tokens_per_s.size()));
  json.set("gb_per_s", steps_per_s(result) * floor.bytes_per_step / 1e9);
  json.set("gflops", result.median() * floor.flops_per_token / 1e9);
  json.set("floor_tokens_per_s", floor.tokens_per_s);
  json.set("bound_by", floor.compute_bound ? "compute" : "bandwidth");
  json.set("of_floor", result.median() / floor.tokens_per_s);
  if (result.experts) json.set("experts", experts_json(result));
  return json;
}

std::string use_name(const WeightUse& use) {
  return std::string(dtype_name(use.form.type));
}

void print_head(const Session& session, const std::vector<WeightUse>& uses,
                const Machine& machine) {
  const SessionOptions& used = session.plan.options;
  const ModelInfo& info = session.plan.info;
  const auto print = [](const std::string& line) { std::puts(line.c_str()); };
  print(
      fmt::format("{} ({:.2f} M parameters, {:.2f} M active), {}, {} threads, {} compute, {} cache",
                  info.family, static_cast<double>(info.total_parameters) / 1e6,
                  static_cast<double>(info.active_parameters) / 1e6, used.isa, used.threads,
                  used.compute, used.kv_cache));
  for (const WeightUse& use : uses) {
    print(fmt::format("{} weights, {}: {}", use_name(use),
                      format_bytes(static_cast<double>(use.bytes)), use.kernel));
  }
  print(fmt::format("measured here: reads {:.1f} GB/s, {} {:.1f} GFLOP/s, {} {:.1f} GOP/s\n",
                    machine.rates.bytes_per_s / 1e9, machine.peak_name,
                    machine.rates.flops_per_s / 1e9, machine.int8_peak_name,
                    machine.rates.int8_flops_per_s / 1e9));
  std::puts(
      "test                   tok/s      min      max     GB/s   GFLOP/s     floor  of floor  "
      "bound by");
}

void print_result(const BenchResult& result, const BenchFloor& floor) {
  std::puts(fmt::format(
                "{:<18} {:>9.1f} {:>8.1f} {:>8.1f} {:>8.2f} {:>9.1f} {:>9.1f}    {:>4.0f} %  {}",
                test_name(result), result.median(), *std::ranges::min_element(result.tokens_per_s),
                *std::ranges::max_element(result.tokens_per_s),
                steps_per_s(result) * floor.bytes_per_step / 1e9,
                result.median() * floor.flops_per_token / 1e9, floor.tokens_per_s,
                100 * result.median() / floor.tokens_per_s,
                floor.compute_bound ? "compute" : "bandwidth")
                .c_str());
  if (result.experts) {
    const ExpertStats& stats = *result.experts;
    std::puts(
        fmt::format("  experts in memory {:.1f} %, {} read per token at {:.2f} GB/s; {} of {} "
                    "read ahead were used",
                    100 * stats.hit_rate(),
                    format_bytes(static_cast<double>(stats.bytes_read) / result.total_tokens()),
                    read_rate(stats) / 1e9, stats.reads_ahead_used, stats.reads_ahead)
            .c_str());
  }
  std::fflush(stdout);
}

Json draft_json(const DraftBench& result) {
  Json json;
  json.set("drafts", result.num_drafts);
  json.set("tokens_per_s", result.median());
  json.set("min", *std::ranges::min_element(result.tokens_per_s));
  json.set("max", *std::ranges::max_element(result.tokens_per_s));
  json.set("repetitions", static_cast<std::int64_t>(result.tokens_per_s.size()));
  json.set("drafted", result.drafted);
  json.set("accepted", result.accepted);
  json.set("acceptance", result.acceptance());
  json.set("tokens_per_step", result.tokens_per_step());
  return json;
}

void print_draft(const DraftBench& result) {
  std::puts(fmt::format("{:<18} {:>9.1f} {:>8.1f} {:>8.1f} {:>12.2f} {:>12.1f} %",
                        fmt::format("mtp {}", result.num_drafts), result.median(),
                        *std::ranges::min_element(result.tokens_per_s),
                        *std::ranges::max_element(result.tokens_per_s), result.tokens_per_step(),
                        100 * result.acceptance())
                .c_str());
  std::fflush(stdout);
}

// The tests that guess ahead. Errors: as of the runs.
Result<Json> run_drafts(Session& session, const BenchOptions& options) {
  Json results(Json::Array{});
  if (options.plan.drafts.empty()) return results;
  if (!options.json) {
    std::puts("\nquestions              tok/s      min      max  tokens/step  guesses right");
  }
  for (const int num_drafts : options.plan.drafts) {
    GLINT_TRY(const DraftBench result,
              run_draft_bench(session, num_drafts, options.plan.generated_tokens,
                              options.plan.repetitions));
    if (result.tokens_per_s.empty()) return internal_error("the answers are empty");
    results.push_back(draft_json(result));
    if (!options.json) print_draft(result);
  }
  return results;
}

std::uint64_t peak_bytes(const Machine& machine) {
  return std::max(machine.peak_bytes_before, peak_resident_bytes());
}

Json report_json(const Session& session, const std::vector<WeightUse>& uses, const Machine& machine,
                 Json results, Json drafts) {
  Json rates, json;
  rates.set("read_bytes_per_s", machine.rates.bytes_per_s);
  rates.set("peak_flops_per_s", machine.rates.flops_per_s);
  rates.set("peak", machine.peak_name);
  rates.set("int8_peak_flops_per_s", machine.rates.int8_flops_per_s);
  rates.set("int8_peak", machine.int8_peak_name);
  json.set("model", session.plan.info.family);
  json.set("isa", session.plan.options.isa);
  json.set("threads", session.plan.options.threads);
  json.set("compute", session.plan.options.compute);
  json.set("kv_cache", session.plan.options.kv_cache);
  json.set("chunk", session.plan.alone_chunk);
  json.set("weights", uses_json(uses));
  json.set("machine", std::move(rates));
  json.set("results", std::move(results));
  if (!drafts.as_array().empty()) json.set("mtp", std::move(drafts));
  json.set("peak_memory_bytes", peak_bytes(machine));
  return json;
}

// Room for the longest and the widest of the tests.
void size_session(const std::vector<BenchResult>& tests, const BenchPlan& plan,
                  SessionOptions* options) {
  int longest = 1;
  const int most_drafts = plan.drafts.empty() ? 0 : std::ranges::max(plan.drafts);
  options->mtp = {.mode = DraftMode::kOff};
  if (most_drafts > 0) {
    options->mtp = {.mode = DraftMode::kFixed, .num_drafts = most_drafts, .required = true};
  }
  if (!plan.drafts.empty()) longest = kDraftBenchPromptTokens + plan.generated_tokens;
  options->max_sequences = 1;
  for (const BenchResult& test : tests) {
    longest = std::max(longest, test.depth + test.tokens);
    options->max_sequences = std::max(options->max_sequences, test.parallel);
  }
  if (options->context == 0) options->context = longest;
  options->text = !plan.drafts.empty();
  options->engine = false;
  options->prefix_cache.enabled = false;
  options->keeps_expert_history = false;  // made-up tokens choose made-up experts
}

int run(BenchOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  const std::vector<BenchResult> tests = bench_tests(options.plan);
  if (tests.empty()) return complain("nothing to measure: -p and -n are both 0", kExitUsage);
  if (!options.plan.drafts.empty() && options.plan.generated_tokens < 2) {
    return complain("--mtp: needs -n of at least 2", kExitUsage);
  }
  size_session(tests, options.plan, &options.session);
  auto session = open_session(options.session);
  if (!session) return complain(session.error().message, refusal_exit_code(session.error()));
  const SessionPlan& plan = (*session)->plan;
  const std::vector<PlacedGroup> weights = place_weights(plan.info, plan.load);
  const BenchModel model{plan.info, weights, plan.load.compute, plan.load.cache_format};
  const std::vector<WeightUse> uses = weights_in_use(model, plan.isa);
  const Machine machine = probe(**session);
  if (!options.json) print_head(**session, uses, machine);
  Json results(Json::Array{});
  for (const BenchResult& test : tests) {
    const auto result = run_bench(**session, test, options.plan.repetitions);
    if (!result) return complain(test_name(test) + ": " + result.error().message, kExitFailed);
    const BenchFloor floor = bench_floor(model, *result, machine.rates);
    results.push_back(result_json(*result, floor));
    if (!options.json) print_result(*result, floor);
  }
  auto drafts = run_drafts(**session, options);
  if (!drafts) return complain("--mtp: " + drafts.error().message, kExitFailed);
  if (options.json) {
    std::puts(report_json(**session, uses, machine, std::move(results), std::move(*drafts))
                  .dump(2)
                  .c_str());
  } else {
    std::puts(
        fmt::format("\npeak memory {}", format_bytes(static_cast<double>(peak_bytes(machine))))
            .c_str());
  }
  return kExitOk;
}

}  // namespace

Command bench_command() {
  auto options = std::make_shared<BenchOptions>();
  return {.name = "bench",
          .summary = "speed: prefill, decoding at depth, batches; beside what the machine can do",
          .usage = "[MODEL] [options]",
          .notes =
              "pp is prefill, tg decoding, @ d4096 with 4096 tokens in the cache, x 8 with 8 "
              "sequences at\n"
              "once (the sum of their speeds). The floor is the time to read the active weights "
              "and the\n"
              "cache once at the measured bandwidth, or to do the products at the "
              "measured peaks\n"
              "(of int8 for low-bit weights), whichever is longer.",
          .examples = {"glint bench ./GLM-4.7-Flash",
                       "glint bench demo -p 512,2048 -n 64 -d 0 --parallel 1,8 --json"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
