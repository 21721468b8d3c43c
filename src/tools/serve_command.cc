// `glint serve`: the HTTP server around one engine.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "base/log.h"
#include "server/server.h"
#include "tools/bench.h"
#include "tools/commands.h"
#include "tools/program.h"
#include "tools/serve_options.h"

namespace glint {
namespace {

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

// What computes, for GET /props and /version.
Json describe_machine(const Session& session) {
  const SessionPlan& plan = session.plan;
  const std::vector<PlacedGroup> weights = place_weights(plan.info, plan.load);
  const BenchModel model{plan.info, weights, plan.load.compute};
  const CacheSpec& spec = cache_spec(plan);
  const CacheStats cache = session.cache->stats();
  Json cache_json(
      Json::Object{{"format", Json("bf16")},
                   {"bytes_per_token", Json(static_cast<std::uint64_t>(spec.bytes_per_token()))},
                   {"page_tokens", Json(kPageSize)},
                   {"pages", Json(static_cast<std::uint64_t>(cache.total_pages))}});
  return Json(Json::Object{{"isa", Json(plan.options.isa)},
                           {"threads", Json(plan.options.threads)},
                           {"compute", Json(plan.options.compute)},
                           {"kernels", uses_json(weights_in_use(model, plan.isa))},
                           {"cache", std::move(cache_json)}});
}

int run(ServeOptions& options) {
  start_log(options.log, LogLevel::kInfo);
  if (const Status resolved = resolve_serve_options(options); !resolved) {
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
  (*server)->attach(*(*session)->engine, (*session)->plan.text,
                    {(*session)->plan.info, describe_machine(**session)});
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
  options->session.serves = true;
  return {.name = "serve",
          .summary = "a server for OpenAI and Anthropic clients, with a chat page",
          .usage = "[MODEL] [options]",
          .notes = "SIGTERM or Ctrl-C lets running requests end; a second one cuts them off.",
          .examples = {"glint serve --port 8080",
                       "glint serve ./GLM-4.7-Flash --ctx 32768 --parallel 4 --host 0.0.0.0 "
                       "--api-key-file keys.txt",
                       "curl localhost:8080/v1/chat/completions -d "
                       "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"},
          .declare = [options](Flags& flags) { declare_serve(flags, options.get()); },
          .run = [options] { return run(*options); }};
}

}  // namespace glint
