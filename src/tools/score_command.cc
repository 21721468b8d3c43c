// `glint score`: numbers that say how well a model computes.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "tools/commands.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/score.h"

namespace glint {
namespace {

struct ScoreOptionsOfUser {
  ScoreRequest request;
  std::string ids, tasks, text, reference;
  bool json = false;
  LogOptions log;
};

void declare(Flags& flags, ScoreOptionsOfUser* options) {
  ScoreRequest& request = options->request;
  declare_model(flags, &request.session.model);
  flags.group("What to score (one of)");
  flags.text("--ids", &options->ids, "FILE",
             "token ids, {\"prompts\": [{\"name\": ..., \"ids\": [...]}, ...]} or a list of id "
             "lists: their "
             "logits go to -o");
  flags.text("--tasks", &options->tasks, "FILE",
             "exact-match items, one JSON object per line: the accuracy of greedy answers");
  flags.text("--text", &options->text, "FILE", "plain text: its perplexity");
  flags.text("--teacher-force", &options->reference, "FILE",
             "reference outputs, {\"outputs\": [{\"prompt_ids\": [...], \"output_ids\": [...]}, "
             "...]}: how "
             "often the likeliest token is the reference's");
  flags.group("How");
  flags.text(
      "-o,--output", &request.output, "FILE",
      "for --ids: safetensors with logits.NAME [tokens, vocabulary] and greedy.NAME; for --tasks: "
      "one JSON object per item");
  flags.integer("--greedy", &request.greedy, "N",
                "--ids: also N greedy tokens behind each prompt, end tokens or not", 0, 1000000);
  flags.toggle("--all-at-once", &request.all_at_once,
               "--ids: all prompts side by side in the same steps");
  flags.integer("-n,--max-tokens", &request.max_tokens, "N",
                "--tasks: longest answer (default 300)", 1, 1000000);
  flags.integer("--window", &request.window, "N",
                "--text: tokens that see each other, after [gMASK]<sop> (default 510)", 1, 1000000);
  flags.toggle("--json", &options->json, "one object for machines");
  declare_session(flags, &request.session, true);
  declare_mtp(flags, &request.session.mtp);
  request.session.vision = false;
  declare_log(flags, &options->log);
}

std::string percent(const Json& share) {
  return fmt::format("{:>5}/{:<5} {:6.1f} %", share.find("correct")->as_int(),
                     share.find("n")->as_int(), share.find("accuracy")->as_double() * 100);
}

void print_tasks(const Json& report) {
  for (const auto& [name, share] : report.find("tasks")->as_object()) {
    std::puts(fmt::format("{:<16} {}", name, percent(share)).c_str());
  }
  for (const char* name : {"thinking_on", "thinking_off", "overall"}) {
    std::puts(fmt::format("{:<16} {}", name, percent(*report.find(name))).c_str());
  }
  if (const Json* drafts = report.find("drafts")) {
    std::puts(fmt::format("{:<16} {:>5}/{:<5} {:6.1f} %", "guesses right",
                          drafts->find("accepted")->as_int(), drafts->find("drafted")->as_int(),
                          drafts->find("rate")->as_double() * 100)
                  .c_str());
  }
}

void print_plain(const Json& report) {
  for (const auto& [name, value] : report.as_object()) {
    std::puts(fmt::format("{:<12} {}", name, value.dump()).c_str());
  }
}

int run(ScoreOptionsOfUser& options) {
  start_log(options.log, LogLevel::kWarn);
  ScoreRequest& request = options.request;
  const struct {
    const std::string& file;
    Result<Json> (*score)(ScoreRequest);
    bool needs_output;
  } modes[] = {{options.ids, score_ids, true},
               {options.tasks, score_tasks, false},
               {options.text, score_text, false},
               {options.reference, score_reference, false}};
  int chosen = 0;
  for (const auto& mode : modes) chosen += mode.file.empty() ? 0 : 1;
  if (chosen != 1) {
    return complain("give one of --ids, --tasks, --text and --teacher-force", kExitUsage);
  }
  for (const auto& mode : modes) {
    if (mode.file.empty()) continue;
    if (mode.needs_output && request.output.empty()) {
      return complain("--ids needs -o FILE for the logits", kExitUsage);
    }
    request.input = mode.file;
    request.progress = isatty(STDERR_FILENO) != 0;
    auto report = mode.score(request);
    if (!report) return complain(report.error().message, work_exit_code(report.error()));
    if (options.json) {
      std::puts(report->dump().c_str());
    } else if (report->find("tasks") != nullptr) {
      print_tasks(*report);
    } else {
      print_plain(*report);
    }
  }
  return kExitOk;
}

}  // namespace

Command score_command() {
  auto options = std::make_shared<ScoreOptionsOfUser>();
  options->request.session.max_sequences = 8;
  options->request.session.mtp = {.mode = DraftMode::kOff};
  return {.name = "score",
          .summary = "logits, accuracy or perplexity of a model",
          .usage =
              "[MODEL] (--ids FILE -o FILE | --tasks FILE | --text FILE | --teacher-force FILE) "
              "[options]",
          .notes = "",
          .examples =
              {"glint score demo --ids ids.json -o logits.safetensors --greedy 32 --compute f32",
               "glint score demo --tasks models/demo/evals.jsonl --json",
               "glint score demo --text models/demo/text_heldout.txt"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
