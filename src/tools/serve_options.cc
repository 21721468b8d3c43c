#include "tools/serve_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "server/access.h"
#include "tools/program.h"

namespace glint {
namespace {

constexpr std::size_t kMaxKeyFileBytes = 1u << 20;
constexpr std::size_t kMaxScriptBytes = 64u << 20;

void declare_access(Flags& flags, ServeOptions* options) {
  ServerOptions& server = options->server;
  flags.group("Server");
  flags.text("--host", &server.host, "ADDRESS", "where to listen (default 127.0.0.1)");
  flags.integer("--port", &server.port, "N", "0 takes any free one (default 8080)", 0, 65535);
  flags.list("--api-key", &options->keys, "KEY",
             "requests must carry one of these; may be repeated");
  flags.text("--api-key-file", &options->key_file, "FILE", "more keys, one per line");
  flags.toggle("--insecure-no-auth", &server.insecure_no_auth,
               "allow an address that others can reach without any key");
  flags.list("--cors-origins", &options->cors_origins, "ORIGIN",
             "web pages from here may call the server, for example https://chat.example.org; * is "
             "all of them; may be repeated (default: none)");
  flags.list("--served-model-name", &options->names, "NAME",
             "the model's name in the API (default: the folder's); may be repeated");
  flags.toggle("--any-model", &server.any_model, "accept every model name in requests");
}

void declare_limits(Flags& flags, ServeOptions* options) {
  ServerOptions& server = options->server;
  flags.group("Limits");
  flags.integer("--max-queue", &options->session.max_queue, "N",
                "waiting requests; beyond it 429 (default 256)", 0, 1000000);
  flags.integer("--max-connections", &server.max_connections, "N",
                "open connections; beyond it idle ones are closed (default 4096)", 1, 1000000);
  flags.integer("--max-n", &server.api.max_n, "N", "choices of one request (default 16)", 1, 1024);
  flags.integer("--max-logprobs", &server.api.max_logprobs, "N",
                "likeliest tokens that log-probs may list; -1 is all (default 20)", -1);
  flags.integer("--max-body-mib", &options->body_mib, "N",
                "longest request body (default 64, or less where --memory is tight)", 1, 4096);
  flags.integer("--max-images", &options->session.text_options.max_images, "N",
                "images of one request (default 32)", 0, 4096);
  flags.integer("--default-max-tokens", &options->session.text_options.default_max_tokens, "N",
                "longest answer of a request that sets no limit; 0 is the room left in the context "
                "(default 0)",
                0);
  flags.number("--request-timeout", &server.request_timeout_s, "SECONDS",
               "end requests that run longer; 0 is never (default 0)", 0, 1e9);
  flags.number("--drain-timeout", &server.drain_timeout_s, "SECONDS",
               "for running requests after SIGTERM or Ctrl-C (default 30)", 0, 1e6);
  flags.choice("--scheduling", &options->scheduling, {"fcfs", "priority"},
               "who runs next: in order of arrival, or the lowest `priority` of the requests first "
               "(default fcfs)");
  flags.number("--watchdog", &server.watchdog_s, "SECONDS",
               "/health fails when the model computes one step for longer; 0 is never (default "
               "120)",
               0, 1e9);
}

void declare_output(Flags& flags, ServeOptions* options) {
  ServerOptions& server = options->server;
  flags.group("Prompts and answers");
  flags.text("--chat-template", &options->session.chat_template, "FILE",
             "a Jinja template instead of the checkpoint's");
  flags.text("--chat-template-kwargs", &options->template_kwargs, "JSON",
             "an object of template variables, below each request's own");
  flags.toggle("--trust-request-chat-template", &server.api.trust_request_templates,
               "let requests bring a chat_template of their own");
  flags.toggle("--parse-special-in-messages",
               &options->session.text_options.parse_special_in_messages,
               "control tokens that are written in messages work as such (unsafe: a tool's result "
               "can then take the system's role)");
  flags.text("--override-generation-config", &options->sampling_overrides, "JSON",
             "sampling values over the checkpoint's generation_config.json, below each request's");
  flags.text("--tool-parser,--tool-call-parser", &options->tool_parser, "NAME",
             fmt::format("auto, {} (default auto: from the model)", tool_format_names()));
  flags.text("--reasoning-parser", &options->reasoning_parser, "NAME",
             "auto, think, none, or a tool parser's name (default auto: from the model)");
  flags.choice("--tool-grammar", &options->tool_grammar, {"off", "names", "strict", "always"},
               "when calls that no request forces are held to a grammar: never, their names only, "
               "those of tools with strict: true, or all (default strict)");
  flags.choice("--reasoning-field", &options->reasoning_field,
               {"both", "reasoning_content", "reasoning"},
               "what thoughts are called in chat completions (default both)");
  flags.choice("--anthropic-default-thinking", &options->anthropic_thinking, {"auto", "on", "off"},
               "thinking of /v1/messages when a request does not say (default auto: the "
               "template's)");
  flags.text("--effort-budget", &options->effort_budgets, "LIST",
             "most tokens of thought for a reasoning effort, for example low=2048,medium=8192");
  flags.integer("--stream-interval", &server.stream_interval, "N",
                "tokens of one chunk of a stream (default 1)", 1, 65536);
  flags.number("--sse-ping", &server.sse_ping_s, "SECONDS",
               "a sign of life on silent streams (default 5)", 0.1, 1e6);
  flags.group("Observation");
  flags.toggle("--slots", &server.slots, "GET /slots tells which slots are busy");
  flags.toggle("--metrics-auth", &server.metrics_auth, "GET /metrics wants an API key too");
  flags.text("--metrics-compat", &server.metrics_compat, "LIST",
             "whose names metrics have, of vllm,llamacpp, or none (default both)");
  flags.text("--script", &options->script_file, "FILE",
             "a test device: answers come from this JSONL file, see docs/server.md; loopback only");
}

Status read_keys(ServeOptions& options) {
  options.server.api_keys = options.keys;
  if (!options.key_file.empty()) {
    auto text = read_text_file(options.key_file, kMaxKeyFileBytes);
    if (!text) return invalid_argument("--api-key-file: " + text.error().message);
    std::istringstream lines(*text);
    std::string line;
    while (std::getline(lines, line)) {
      while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
      if (!line.empty()) options.server.api_keys.push_back(line);
    }
    if (options.server.api_keys.empty()) {
      return invalid_argument("--api-key-file: " + options.key_file + " has no key in it");
    }
  }
  for (const std::string& key : options.server.api_keys) {
    if (key.empty()) return invalid_argument("--api-key: an empty key protects nothing");
  }
  return {};
}

std::string default_name(const std::string& model) {
  if (model.empty()) return "demo";
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

// An option's value as a JSON object; null when it was not given.
Result<Json> object_of(const char* option, const std::string& value) {
  if (value.empty()) return Json();
  auto parsed = parse_json(value);
  if (!parsed) return invalid_argument(fmt::format("{}: {}", option, parsed.error().message));
  if (!parsed->is_object()) return invalid_argument(fmt::format("{}: not a JSON object", option));
  return std::move(*parsed);
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  std::string word;
  while (std::getline(in, word, ',')) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

Status resolve_budgets(ServeOptions& options) {
  static constexpr std::array<std::string_view, 6> kEfforts = {"minimal", "low",   "medium",
                                                               "high",    "xhigh", "max"};
  for (const std::string& word : words_of(options.effort_budgets)) {
    const std::size_t equals = word.find('=');
    const std::string effort = word.substr(0, equals);
    const std::int64_t budget =
        equals == std::string::npos ? -1 : parse_integer(word.substr(equals + 1)).value_or(-1);
    const bool known = std::find(kEfforts.begin(), kEfforts.end(), effort) != kEfforts.end();
    if (!known || budget < 0 || budget > 1'000'000'000) {
      return invalid_argument(
          fmt::format("--effort-budget: '{}' is not EFFORT=TOKENS with an effort of {}", word,
                      fmt::join(kEfforts, ", ")));
    }
    options.server.api.effort_budgets.emplace_back(effort, static_cast<int>(budget));
  }
  return {};
}

Status resolve_parsers(ServeOptions& options) {
  TextOptions& text = options.session.text_options;
  if (options.tool_parser != "auto") {
    text.tool_format = tool_format_named(options.tool_parser);
    if (!text.tool_format) {
      return invalid_argument(fmt::format("--tool-parser: '{}' is none of auto, {}",
                                          options.tool_parser, tool_format_names()));
    }
  }
  if (options.reasoning_parser != "auto") {
    text.reasoning_format = reasoning_format_named(options.reasoning_parser);
    if (!text.reasoning_format) {
      return invalid_argument(fmt::format("--reasoning-parser: '{}' is none of auto, think, {}",
                                          options.reasoning_parser, tool_format_names()));
    }
  }
  using Grammar = TextOptions::ToolGrammar;
  text.tool_grammar = options.tool_grammar == "off"      ? Grammar::kOff
                      : options.tool_grammar == "names"  ? Grammar::kNames
                      : options.tool_grammar == "always" ? Grammar::kAlways
                                                         : Grammar::kStrict;
  return {};
}

Status resolve_script(ServeOptions& options) {
  if (options.script_file.empty()) return {};
  if (!is_loopback(options.server.host)) {
    return invalid_argument(
        "--script: is a test device and works on a loopback --host only (127.0.0.1)");
  }
  auto text = read_text_file(options.script_file, kMaxScriptBytes);
  if (!text) return invalid_argument("--script: " + text.error().message);
  options.session.text_options.script = std::move(*text);
  return {};
}

}  // namespace

void declare_serve(Flags& flags, ServeOptions* options) {
  declare_model(flags, &options->session.model);
  declare_access(flags, options);
  declare_limits(flags, options);
  declare_output(flags, options);
  declare_session(flags, &options->session, true);
  declare_mtp(flags, &options->session.mtp);
  declare_vision(flags, &options->session);
  declare_log(flags, &options->log);
}

Status resolve_serve_options(ServeOptions& options) {
  GLINT_TRY_VOID(read_keys(options));
  ServerOptions& server = options.server;
  server.served_names = options.names;
  if (server.served_names.empty())
    server.served_names.push_back(default_name(options.session.model));
  server.model_root = options.session.model.empty() ? "demo" : options.session.model;
  server.version = version();
  server.commit = commit();
  if (options.body_mib > 0) {
    server.max_body_bytes = static_cast<std::size_t>(options.body_mib) << 20;
    if (options.session.memory_limit > 0) options.session.body_bytes = server.max_body_bytes;
  }
  for (const std::string& list : options.cors_origins) {
    GLINT_TRY(std::vector<std::string> origins, parse_origins(list));
    for (std::string& origin : origins) server.cors_origins.push_back(std::move(origin));
  }
  GLINT_TRY(server.chat_template_kwargs,
            object_of("--chat-template-kwargs", options.template_kwargs));
  GLINT_TRY(options.session.text_options.sampling_overrides,
            object_of("--override-generation-config", options.sampling_overrides));
  GLINT_TRY_VOID(resolve_budgets(options));
  GLINT_TRY_VOID(resolve_parsers(options));
  GLINT_TRY_VOID(resolve_script(options));
  server.api.shows_reasoning_content = options.reasoning_field != "reasoning";
  server.api.shows_reasoning = options.reasoning_field != "reasoning_content";
  server.api.by_priority = options.scheduling == "priority";
  options.session.by_priority = server.api.by_priority;
  if (options.anthropic_thinking != "auto")
    server.api.anthropic_thinking = options.anthropic_thinking == "on";
  return {};
}

}  // namespace glint
