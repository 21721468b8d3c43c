// `glint serve`: the HTTP server around one engine.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "models/cache_format.h"
#include "server/server.h"
#include "tools/bench.h"
#include "tools/commands.h"
#include "tools/flags.h"
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
  const RowFormat rows = row_format(plan.load.cache_format, plan.load.compute);
  const CacheStats cache = session.cache->stats();
  Json cache_json(
      Json::Object{{"format", Json(std::string(row_format_name(rows)))},
                   {"bytes_per_token", Json(static_cast<std::uint64_t>(spec.bytes_per_token()))},
                   {"page_tokens", Json(kPageSize)},
                   {"pages", Json(static_cast<std::uint64_t>(cache.total_pages))}});
  return Json(Json::Object{{"isa", Json(plan.options.isa)},
                           {"threads", Json(plan.options.threads)},
                           {"compute", Json(plan.options.compute)},
                           {"kernels", uses_json(weights_in_use(model, plan.isa))},
                           {"cache", std::move(cache_json)}});
}

// With --memory requests get what the plan leaves them.
void bound_requests(const MemoryPlan& plan, ServerOptions& server) {
  server.memory_limit = plan.limit;
  server.request_memory = plan.requests;
  server.max_body_bytes =
      std::min<std::uint64_t>(server.max_body_bytes, plan.requests / kBytesOfBody);
  server.max_pending_bytes = plan.requests / kBytesOfPendingBody;
  server.api.max_prompt_bytes = plan.requests / kBytesOfPrompt;
  const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  log_info(
      fmt::format("--memory leaves requests {}: bodies of at most {}, {} at once, prompts of at "
                  "most {} of text",
                  text(plan.requests), text(server.max_body_bytes), text(server.max_pending_bytes),
                  text(server.api.max_prompt_bytes)));
}

std::vector<std::pair<std::string, std::uint64_t>> memory_classes(const MemoryPlan& plan) {
  std::vector<std::pair<std::string, std::uint64_t>> classes = {
      {"weights", plan.weights},      {"kv_cache", plan.cache},
      {"states", plan.states.states}, {"snapshots", plan.states.snapshots},
      {"logits", plan.logits},        {"scratch", plan.scratch},
      {"images", plan.images},        {"requests", plan.requests},
      {"program", plan.program},      {"expert_cache", plan.expert_cache},
      {"limit", plan.limit}};
  std::erase_if(classes, [](const auto& one) { return one.second == 0; });
  return classes;
}

int run(ServeOptions& options) {
  start_log(options.log, LogLevel::kInfo);
  if (const Status resolved = resolve_serve_options(options); !resolved) {
    return complain(resolved.error().message, kExitUsage);
  }
  // Everything that can be refused is refused here, before the port opens.
  auto plan = plan_session(options.session);
  if (!plan) return complain(plan.error().message, refusal_exit_code(plan.error()));

  if (options.session.memory_limit > 0) bound_requests(plan->memory, options.server);
  options.server.mapped_weights = options.session.mapped_weights;
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
                    {(*session)->plan.info, describe_machine(**session),
                     memory_classes((*session)->plan.memory)});
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
