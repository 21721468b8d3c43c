// `glint run`: one answer to stdout.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/file.h"
#include "chat/images.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/turn_runner.h"

namespace glint {
namespace {

constexpr std::size_t kMaxToolsBytes = 16u << 20;

struct RunOptions {
  SessionOptions session;
  SamplingOptions sampling;
  LogOptions log;
  std::string prompt, system, tools_file;
  bool has_prompt = false, raw = false, json = false, think = false, no_think = false;
  std::vector<std::string> stop, images;
};

void declare(Flags& flags, RunOptions* options) {
  declare_model(flags, &options->session.model);
  flags.group("Input and output");
  flags.custom("-p,--prompt", "TEXT", "what to answer; - reads it from stdin",
               [options](const std::string& value) {
                 options->prompt = value;
                 options->has_prompt = true;
                 return Status();
               });
  flags.list("--image", &options->images, "FILE",
             "a PNG, JPEG or WebP image to show before the prompt; may be repeated");
  flags.text("--system", &options->system, "TEXT", "the system message");
  flags.text("--tools", &options->tools_file, "FILE",
             "a JSON list of functions the model may call");
  flags.toggle("--raw", &options->raw, "continue the text as it is, without the chat template");
  flags.toggle("--think", &options->think, "ask the template for thinking");
  flags.toggle("--no-think", &options->no_think, "ask the template for no thinking");
  flags.list("--stop", &options->stop, "TEXT", "end the answer before this text; may be repeated");
  flags.toggle("--json", &options->json,
               "one object: text, reasoning, tool_calls, finish_reason, usage, timings");
  flags.text("--chat-template", &options->session.chat_template, "FILE",
             "a Jinja template instead of the checkpoint's");
  declare_sampling(flags, &options->sampling);
  declare_session(flags, &options->session, false);
  declare_mtp(flags, &options->session.mtp);
  declare_vision(flags, &options->session);
  declare_log(flags, &options->log);
}

Json message(const char* role, const std::string& content) {
  Json json;
  json.set("role", role);
  json.set("content", content);
  return json;
}

// The user's turn: the images, then the text.
Result<Json> user_message(const RunOptions& options, const std::string& prompt) {
  if (options.images.empty()) return message("user", prompt);
  Json parts(Json::Array{});
  for (const std::string& file : options.images) {
    auto part = image_file_part(file);
    if (!part) return invalid_argument("--image: " + part.error().message);
    parts.push_back(std::move(*part));
  }
  parts.push_back(Json(Json::Object{{"type", Json("text")}, {"text", Json(prompt)}}));
  return Json(Json::Object{{"role", Json("user")}, {"content", std::move(parts)}});
}

Result<ChatRequest> make_request(const RunOptions& options) {
  ChatRequest request;
  std::string prompt = options.prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  apply_sampling(options.sampling, &request);
  request.stop = options.stop;
  request.raw = options.raw;
  if (options.raw) {
    if (!options.images.empty()) return invalid_argument("--image: not with --raw");
    request.raw_prompt = std::move(prompt);
    return request;
  }
  if (!options.system.empty()) request.messages.push_back(message("system", options.system));
  GLINT_TRY(Json user, user_message(options, prompt));
  request.messages.push_back(std::move(user));
  if (options.think || options.no_think) request.enable_thinking = options.think;
  if (!options.tools_file.empty()) {
    GLINT_TRY(const std::string text, read_text_file(options.tools_file, kMaxToolsBytes));
    auto tools = parse_json(text);
    if (!tools) return invalid_argument(options.tools_file + ": " + tools.error().message);
    if (!tools->is_array()) return invalid_argument(options.tools_file + ": not a JSON list");
    request.tools = std::move(*tools);
  }
  return request;
}

Json usage_json(const TurnResult& result) {
  Json usage;
  usage.set("prompt_tokens", result.usage.prompt_tokens);
  usage.set("cached_tokens", result.usage.cached_tokens);
  usage.set("completion_tokens", result.usage.completion_tokens);
  usage.set("reasoning_tokens", result.reasoning_tokens);
  if (result.usage.drafted_tokens > 0) {
    usage.set("drafted_tokens", result.usage.drafted_tokens);
    usage.set("accepted_tokens", result.usage.accepted_tokens);
  }
  usage.set("total_tokens", result.usage.prompt_tokens + result.usage.completion_tokens);
  return usage;
}

Json timings_json(const Usage& usage) {
  Json timings;
  timings.set("queue_s", usage.queue_s);
  timings.set("prefill_s", usage.prefill_s);
  timings.set("decode_s", usage.decode_s);
  const int computed = usage.prompt_tokens - usage.cached_tokens;
  const int decoded = usage.completion_tokens > 1 ? usage.completion_tokens - 1 : 0;
  timings.set("prompt_per_second", usage.prefill_s > 0 ? computed / usage.prefill_s : 0.0);
  timings.set("predicted_per_second", usage.decode_s > 0 ? decoded / usage.decode_s : 0.0);
  return timings;
}

void print_json(const TurnResult& result) {
  Json object;
  object.set("text", result.text);
  object.set("reasoning", result.reasoning.empty() ? Json() : Json(result.reasoning));
  object.set("tool_calls", result.tool_calls.is_null() ? Json(Json::Array()) : result.tool_calls);
  object.set("finish_reason", result.finish_reason);
  object.set("usage", usage_json(result));
  object.set("timings", timings_json(result.usage));
  std::puts(object.dump().c_str());
}

int run(const RunOptions& options) {
  start_log(options.log, LogLevel::kWarn);
  if (!options.has_prompt)
    return complain("nothing to answer: give -p TEXT, or -p - for stdin", kExitUsage);
  if (options.think && options.no_think) {
    return complain("--think and --no-think contradict each other", kExitUsage);
  }
  auto request = make_request(options);
  if (!request) return complain(request.error().message, kExitUsage);
  auto session = open_session(options.session);
  if (!session) return complain(session.error().message, refusal_exit_code(session.error()));

  catch_interrupts();
  const bool colors = stdout_wants_colors();
  AnswerPrinter printer(colors, colors);
  auto result = run_turn(**session, std::move(*request), [&](const OutputEvent& event) {
    if (!options.json) printer.show(event);
  });
  if (!options.json) printer.finish();
  if (!result) return complain(result.error().message, turn_exit_code(result.error()));
  if (options.json) print_json(*result);
  if (colors && !options.json)
    std::puts(("\033[2m" + speed_line(result->usage) + "\033[0m").c_str());
  return result->finish_reason == "cancelled" ? kExitInterrupted : kExitOk;
}

}  // namespace

Command run_command() {
  auto options = std::make_shared<RunOptions>();
  return {.name = "run",
          .summary = "one answer to stdout",
          .usage = "[MODEL] -p TEXT [options]",
          .notes =
              "On a terminal the thinking is shown dimmed; into a pipe only the answer is written.",
          .examples = {"glint run -p \"What is 17 + 25?\"",
                       "glint run ./GLM-4.7-Flash -p - --json < question.txt",
                       "glint run ./GLM-5.3-Flash --image photo.jpg -p \"What is this?\"",
                       "glint run --raw -p \"Once upon a time\" -n 64 --temp 0.8 --seed 1"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
