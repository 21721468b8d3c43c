// `glint quantize`: a smaller copy of a checkpoint.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "base/cpu.h"
#include "tools/commands.h"
#include "tools/demo_model.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/progress_bar.h"
#include "tools/quantizer.h"

namespace glint {
namespace {

struct QuantizeCommandOptions {
  std::string model, output, type;
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;
  int threads = 0;
  bool json = false;
  LogOptions log;
};

void declare(Flags& flags, QuantizeCommandOptions* options) {
  declare_model(flags, &options->model);
  flags.text("-o,--output", &options->output, "DIR", "the new checkpoint: an empty folder or none");
  flags.choice(
      "-t,--type", &options->type, quantize_type_names(),
      "w8a16: 8-bit integers, a scale a row; w4a16-g32, w4a16-g128: 4-bit integers, a scale "
      "for 32 or 128 values; fp8-block: e4m3, a scale for 128 x 128. q8 is w8a16, q4 is "
      "w4a16-g32");
  flags.custom("--shard-size", "SIZE", "most bytes of one file (default 5GiB)",
               [options](const std::string& text) -> Status {
                 GLINT_TRY(options->shard_bytes, parse_bytes(text));
                 if (options->shard_bytes == 0)
                   return invalid_argument("--shard-size must be more than 0");
                 return {};
               });
  flags.integer("--threads", &options->threads, "N", "threads (default: all cores)", 1, 4096);
  flags.toggle("--json", &options->json, "one object for machines");
  declare_log(flags, &options->log);
}

Json to_json(const QuantizeCommandOptions& options, const QuantizeReport& report) {
  Json kinds(Json::Array{});
  for (const QuantizedKind& kind : report.kinds) {
    Json one;
    one.set("name", kind.name);
    one.set("matrices", kind.matrices);
    one.set("bytes_before", kind.bytes_before);
    one.set("bytes_after", kind.bytes_after);
    one.set("relative_error", kind.error);
    kinds.push_back(std::move(one));
  }
  Json kept(Json::Array{});
  for (const std::string& name : report.kept_matrices) kept.push_back(name);
  Json json;
  json.set("output", options.output);
  json.set("type", options.type);
  json.set("kinds", std::move(kinds));
  json.set("kept_for_their_shape", std::move(kept));
  json.set("bytes_before", report.bytes_before);
  json.set("bytes_after", report.bytes_after);
  json.set("files", report.shards);
  return json;
}

std::string megabytes(std::uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

void print(const QuantizeCommandOptions& options, const QuantizeReport& report) {
  std::puts(fmt::format("{:<24} {:>9} {:>12} {:>12} {:>14}", "quantised", "matrices", "before",
                        "after", "relative error")
                .c_str());
  for (const QuantizedKind& kind : report.kinds) {
    std::puts(fmt::format("{:<24} {:>9} {:>12} {:>12} {:>13.2f}%", kind.name, kind.matrices,
                          megabytes(kind.bytes_before), megabytes(kind.bytes_after),
                          kind.error * 100)
                  .c_str());
  }
  if (!report.kept_matrices.empty()) {
    std::puts(fmt::format("kept as they were, because their rows do not divide into groups: {} "
                          "matrices, {} among them",
                          report.kept_matrices.size(), report.kept_matrices.front())
                  .c_str());
  }
  std::puts(fmt::format("{}: {} in {} file{}, from {} ({:.1f} %); read back and compared",
                        options.output, megabytes(report.bytes_after), report.shards,
                        report.shards == 1 ? "" : "s", megabytes(report.bytes_before),
                        100.0 * static_cast<double>(report.bytes_after) /
                            static_cast<double>(report.bytes_before))
                .c_str());
}

int run(const QuantizeCommandOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  if (options.model.empty()) return complain("which model? give MODEL, or demo", kExitUsage);
  if (options.type.empty())
    return complain(
        "give --type, one of " + fmt::format("{}", fmt::join(quantize_type_names(), ", ")),
        kExitUsage);
  if (options.output.empty()) return complain("give -o DIR for the new checkpoint", kExitUsage);
  const auto folder = model_folder(options.model);
  if (!folder) return complain(folder.error().message, kExitRefused);
  const auto checkpoint = Checkpoint::open(folder->path());
  if (!checkpoint) return complain(checkpoint.error().message, kExitRefused);

  ThreadPool pool(options.threads > 0 ? options.threads : cpu_budget().threads);
  QuantizeOptions how;
  how.type = *quantize_type_from_name(options.type);
  how.shard_bytes = options.shard_bytes;
  how.pool = &pool;
  Result<QuantizeReport> report = QuantizeReport{};
  {
    ProgressBar bar("quantising");
    if (isatty(STDERR_FILENO) != 0)
      how.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); };
    report = quantize_checkpoint(**checkpoint, options.output, how);
  }
  if (!report) return complain(report.error().message, work_exit_code(report.error()));
  if (options.json) {
    std::puts(to_json(options, *report).dump().c_str());
  } else {
    print(options, *report);
  }
  return kExitOk;
}

}  // namespace

Command quantize_command() {
  auto options = std::make_shared<QuantizeCommandOptions>();
  return {.name = "quantize",
          .summary = "a smaller copy of a checkpoint, which vLLM loads too",
          .usage = "MODEL -o DIR --type TYPE",
          .notes =
              "Embeddings, heads, routers, norms, kv_b_proj and the projection that draft layers "
              "start\n"
              "with keep their type. One matrix is in memory at a time.",
          .examples =
              {"glint quantize GLM-4.7-Flash -o GLM-4.7-Flash-W8A16 --type w8a16",
               "glint quantize demo -o /tmp/demo-q4 --type w4a16-g32",
               "glint quantize GLM-4.7 -o GLM-4.7-FP8-BLOCK --type fp8-block --shard-size 8GiB"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
