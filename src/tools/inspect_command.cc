// `glint inspect`: what a model is, what it costs, and whether it will run. Reads headers only.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "tools/commands.h"
#include "tools/demo_model.h"
#include "tools/inspect_report.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/text_sheet.h"

namespace glint {
namespace {

struct Options {
  InspectOptions inspect;
  LogOptions log;
};

void declare(Flags& flags, Options* options) {
  InspectOptions& o = options->inspect;
  flags.positional("MODEL", &o.model,
                   "a Hugging Face folder, a GGUF file, a bare config.json, or demo (the default)");
  flags.positional("OTHER", &o.other, "with --diff, the second model");
  flags.group("Options");
  flags.toggle("--json", &o.json, "one object for machines");
  flags.toggle("--diff", &o.diff, "what changes from MODEL to OTHER");
  flags.text("--engine", &o.engine, "NAME",
             "this engine alone, every rule with its source: vllm, ...");
  flags.custom("--gpu", "SM", "settle the rules that ask for a GPU: sm90, sm120, h100, ...",
               [&o](const std::string& value) -> Status {
                 GLINT_TRY(o.gpu, parse_gpu(value));
                 return {};
               });
  flags.integer("-c,--context,--ctx", &o.context, "N",
                "what the cache costs for N tokens (default: the model's longest)", 1);
  flags.integer("--parallel", &o.parallel, "N", "times N sequences, also -np (default 1)", 1);
  flags.text("--isa", &o.session.isa, "NAME", "as in the other commands");
  flags.integer("-t,--threads", &o.session.threads, "N", "as in the other commands", 1, 4096);
  declare_memory(flags, &o.session);
  declare_kv_cache(flags, &o.session);
  declare_weights(flags, &o.session);
  declare_log(flags, &options->log);
}

Result<InspectReport> report_of(const std::string& model, const InspectOptions& options, Isa isa) {
  GLINT_TRY(const auto folder, model_folder(model));
  return inspect(folder.path(), options, isa);
}

int exit_code_of(const Error& error) {
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitRefused;
}

int show_difference(const InspectReport& a, const InspectOptions& options, Isa isa) {
  const auto b = report_of(options.other, options, isa);
  if (!b) return complain(b.error().message, exit_code_of(b.error()));
  for (const InspectReport* report : {&a, &*b}) {
    if (!report->profile) {
      return complain(report->notes.empty() ? report->refusal : report->notes.front(),
                      kExitRefused);
    }
  }
  if (options.json) {
    std::puts(diff_json(a, *b).dump(2).c_str());
  } else {
    std::fputs(diff_text(a, *b, terminal_width()).c_str(), stdout);
  }
  return kExitOk;
}

int run(const Options& chosen) {
  const InspectOptions& options = chosen.inspect;
  start_log(chosen.log, LogLevel::kWarn);
  if (options.diff && options.other.empty())
    return complain("--diff compares two models: glint inspect --diff A B", kExitUsage);
  if (!options.diff && !options.other.empty()) {
    return complain(
        fmt::format("'{}' is a second model: to compare the two, add --diff", options.other),
        kExitUsage);
  }
  const auto isa = choose_isa(options.session.isa);
  if (!isa) return complain("--isa: " + isa.error().message, kExitUsage);
  const auto report = report_of(options.model, options, *isa);
  if (!report) return complain(report.error().message, exit_code_of(report.error()));
  if (options.diff) return show_difference(*report, options, *isa);
  if (options.json) {
    std::puts(report_json(*report).dump(2).c_str());
  } else {
    std::fputs(report_text(*report, !options.engine.empty(), terminal_width()).c_str(), stdout);
  }
  if (report->refusal.empty()) return kExitOk;
  return options.json ? complain(report->refusal, kExitRefused) : kExitRefused;
}

}  // namespace

Command inspect_command() {
  auto options = std::make_shared<Options>();
  return {.name = "inspect",
          .summary = "what a model is, what it costs, and which engines run it",
          .usage = "[MODEL] [options]\n       glint inspect --diff MODEL OTHER [options]",
          .notes =
              "config.json alone is enough, also of models that glint does not run.\n"
              "The exit code is 3 when glint would refuse the model.",
          .examples = {"glint inspect ./GLM-4.7-Flash --context 32768 --parallel 4",
                       "glint inspect GLM-5/config.json --engine vllm --gpu sm120",
                       "glint inspect --diff GLM-4.7/config.json GLM-5/config.json",
                       "glint inspect config.json --json"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
