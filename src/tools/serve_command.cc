// `glint serve`: the HTTP server around one engine.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "server/server.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/program.h"

namespace glint {
namespace {

constexpr std::size_t kMaxKeyFileBytes = 1u << 20;

struct ServeOptions {
  SessionOptions session;
  ServerOptions server;
  LogOptions log;
  std::vector<std::string> keys;
  std::string key_file, template_kwargs;
  std::vector<std::string> names;
  int body_mib = 64;
};

void declare(Flags& flags, ServeOptions* options) {
  declare_model(flags, &options->session.model);
  ServerOptions& server = options->server;
  flags.group("Server");
  flags.text("--host", &server.host, "ADDRESS", "where to listen (default 127.0.0.1)");
  flags.integer("--port", &server.port, "N", "0 takes any free one (default 8080)", 0, 65535);
  flags.list("--api-key", &options->keys, "KEY",
             "requests must carry one of these; may be repeated");
  flags.text("--api-key-file", &options->key_file, "FILE", "more keys, one per line");
  flags.toggle("--insecure-no-auth", &server.insecure_no_auth,
               "allow an address that others can reach without any key");
  flags.list("--served-model-name", &options->names, "NAME",
             "the model's name in the API (default: the folder's); may be repeated");
  flags.toggle("--any-model", &server.any_model, "accept every model name in requests");
  flags.integer("--max-queue", &options->session.max_queue, "N",
                "waiting requests; beyond it 429 (default 256)", 0, 1000000);
  flags.integer("--max-n", &server.max_n, "N", "choices of one request (default 16)", 1, 1024);
  flags.integer("--max-body-mib", &options->body_mib, "N", "longest request body (default 64)", 1,
                4096);
  flags.number("--request-timeout", &server.request_timeout_s, "SECONDS",
               "end requests that run longer; 0 is never (default 0)", 0, 1e9);
  flags.number("--sse-ping", &server.sse_ping_s, "SECONDS",
               "a sign of life on silent streams (default 5)", 0.1, 1e6);
  flags.number("--drain-timeout", &server.drain_timeout_s, "SECONDS",
               "for running requests after SIGTERM or Ctrl-C (default 30)", 0, 1e6);
  flags.text("--chat-template", &options->session.chat_template, "FILE",
             "a Jinja template instead of the checkpoint's");
  flags.text("--chat-template-kwargs", &options->template_kwargs, "JSON",
             "an object of template variables, below each request's own");
  declare_session(flags, &options->session, true);
  declare_log(flags, &options->log);
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

Status resolve(ServeOptions& options) {
  GLINT_TRY_VOID(read_keys(options));
  ServerOptions& server = options.server;
  server.served_names = options.names;
  if (server.served_names.empty())
    server.served_names.push_back(default_name(options.session.model));
  server.model_root = options.session.model.empty() ? "demo" : options.session.model;
  server.version = version();
  server.max_body_bytes = static_cast<std::size_t>(options.body_mib) << 20;
  if (!options.template_kwargs.empty()) {
    auto kwargs = parse_json(options.template_kwargs);
    if (!kwargs) return invalid_argument("--chat-template-kwargs: " + kwargs.error().message);
    if (!kwargs->is_object()) return invalid_argument("--chat-template-kwargs: not a JSON object");
    server.chat_template_kwargs = std::move(*kwargs);
  }
  return {};
}

// What a signal handler may reach; null while there is nothing to drain.
std::atomic<Server*> g_server{nullptr};
static_assert(std::atomic<Server*>::is_always_lock_free);

void on_stop_signal(int) {
  Server* server = g_server.load();
  if (server == nullptr) _exit(kExitOk);
  server->request_stop();
}

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int run(ServeOptions& options) {
  start_log(options.log, LogLevel::kInfo);
  if (const Status resolved = resolve(options); !resolved) {
    return complain(resolved.error().message, kExitUsage);
  }
  // Everything that can be refused is refused here, before the port opens.
  auto plan = plan_session(options.session);
  if (!plan) return complain(plan.error().message, refusal_exit_code(plan.error()));

  auto server = Server::listen(options.server);
  if (!server) {
    const bool usage = server.error().code == ErrorCode::kInvalidArgument;
    return complain(server.error().message, usage ? kExitUsage : kExitFailed);
  }
  catch_stop_signals();
  log_info(fmt::format("listening on {}", (*server)->url()));
  auto session = load_session(std::move(*plan), {});
  if (!session) return complain(session.error().message, refusal_exit_code(session.error()));
  (*server)->attach(*(*session)->engine, (*session)->plan.text, (*session)->plan.info);
  g_server.store(server->get());
  log_info(fmt::format("ready: {} as {}", (*session)->plan.info.family,
                       options.server.served_names.front()));
  const bool clean = (*server)->run();
  g_server.store(nullptr);
  server->reset();  // before the engine that it borrows
  return clean ? kExitOk : kExitFailed;
}

}  // namespace

Command serve_command() {
  auto options = std::make_shared<ServeOptions>();
  options->session.max_sequences = 8;
  return {.name = "serve",
          .summary = "an OpenAI-compatible server",
          .usage = "[MODEL] [options]",
          .notes = "SIGTERM or Ctrl-C lets running requests end; a second one cuts them off.",
          .examples = {"glint serve --port 8080",
                       "glint serve ./GLM-4.7-Flash --ctx 32768 --parallel 4 --host 0.0.0.0 "
                       "--api-key-file keys.txt",
                       "curl localhost:8080/v1/chat/completions -d "
                       "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"},
          .declare = [options](Flags& flags) { declare(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
