#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/log.h"
#include "server/access.h"
#include "server/answer.h"
#include "server/anthropic.h"
#include "server/cache_control.h"
#include "server/http.h"
#include "server/memory_guard.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/props.h"
#include "server/routes.h"
#include "server/served_model.h"
#include "server/worker.h"

namespace glint {
namespace {

constexpr std::size_t kMaxLoggedFields = 256;
// Of one that waits for the answer to be whole, and is then written out; 873 were measured.
constexpr std::uint64_t kBytesOfLogprob = 1000;

HttpResponse json_response(int status, const Json& body) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump();
  return response;
}

Json status_json(const char* status) {
  return Json(Json::Object{{"status", Json(status)}});
}

// Paths that two APIs share tell them apart by this.
bool is_anthropic(const HttpRequest& request) {
  return !request.header("anthropic-version").empty();
}

MetricsOptions metrics_options(const ServerOptions& options) {
  MetricsOptions out;
  out.model_name = options.served_names.front();
  out.version = options.version;
  // Checked before.
  static_cast<void>(choose_metric_groups(options.metrics_compat, out));
  return out;
}

MetricsModel metrics_model(const Engine& engine, const Json& machine) {
  MetricsModel model;
  model.block_size = kPageSize;
  model.num_blocks = engine.stats().cache.total_pages;
  model.max_model_len = engine.options().context;
  if (const Json* cache = machine.find("cache"); cache != nullptr && cache->find("format"))
    model.cache_dtype = cache->find("format")->as_string();
  return model;
}

RequestRecord request_record(const AnswerRecord& answer) {
  const Usage& usage = answer.usage.usage;
  RequestRecord record;
  record.finished_reason = answer.reason;
  record.prompt_tokens = usage.prompt_tokens;
  record.cached_tokens = usage.cached_tokens;
  record.completion_tokens = usage.completion_tokens;
  record.reasoning_tokens = answer.usage.reasoning_tokens;
  record.max_tokens = answer.max_tokens;
  record.n = answer.n;
  record.queue_s = usage.queue_s;
  record.prefill_s = usage.prefill_s;
  record.decode_s = usage.decode_s;
  record.e2e_s = answer.seconds;
  return record;
}

Status check_options(const ServerOptions& options) {
  if (options.served_names.empty())
    return invalid_argument("--served-model-name: at least one name is needed");
  if (options.api_keys.empty() && !options.insecure_no_auth && !is_loopback(options.host)) {
    return invalid_argument(
        fmt::format("--host {}: others can reach this address, so set --api-key KEY (or "
                    "--insecure-no-auth if that is meant)",
                    options.host));
  }
  if (std::ranges::any_of(options.api_keys, [](const std::string& key) { return key.empty(); })) {
    return invalid_argument("--api-key: must not be empty");
  }
  MetricsOptions metrics;
  GLINT_TRY_VOID(choose_metric_groups(options.metrics_compat, metrics));
  if (!options.chat_template_kwargs.is_null() && !options.chat_template_kwargs.is_object()) {
    return invalid_argument("--chat-template-kwargs: must be a JSON object");
  }
  return {};
}

}  // namespace

struct Server::State {
  explicit State(ServerOptions given)
      : options(std::move(given)),
        access(options.api_keys, options.host, options.cors_origins),
        metrics(metrics_options(options)),
        guard(options.memory_limit, options.request_memory, !options.mapped_weights) {
    observer.on_first_token = [this](double seconds) { metrics.on_first_token(seconds); };
    observer.on_token_gap = [this](double seconds, int tokens) {
      metrics.on_token_gap(seconds, tokens);
    };
    observer.on_unknown_field = [this](const std::string& name) {
      metrics.on_unknown_field(name);
      if (logged_fields.size() < kMaxLoggedFields && logged_fields.insert(name).second)
        log_debug("ignored unknown request field " + name);
    };
    if (options.memory_limit > 0) {
      observer.on_held = [this, most = options.request_memory / kBytesOfLogprob / 2](auto count) {
        num_logprobs += count;
        return num_logprobs <= static_cast<std::ptrdiff_t>(most);
      };
    }
    observer.on_done = [this](const AnswerRecord& record) {
      metrics.on_request_done(request_record(record));
    };
  }

  const ServerOptions options;
  const Access access;
  std::string url;

  // I/O thread only.
  std::shared_ptr<const ServedModel> model;  // null while loading
  ServedInfo info;
  Json models;  // [model, ...] of /v1/models
  std::map<Answer*, std::shared_ptr<Answer>> answers;
  AnswerObserver observer;
  Metrics metrics;
  std::set<std::string> logged_fields;  // unknown ones, each told once
  bool draining = false;
  MemoryGuard guard;
  std::ptrdiff_t num_logprobs = 0;  // in answers that are not whole yet

  std::mutex mutex;  // guards what follows
  std::condition_variable done_changed;
  bool done = false;
  bool clean = true;

  std::unique_ptr<Worker> worker;
  std::unique_ptr<HttpServer> http;

  HttpHandlers handlers();
  std::optional<HttpResponse> check(const HttpRequest& request);
  void handle(const std::shared_ptr<HttpExchange>& exchange);
  HttpResponse simple_answer(const Route& route, const HttpRequest& request);
  HttpResponse metrics_text();
  HttpResponse health() const;
  HttpResponse one_model(const HttpRequest& request) const;
  void start_answer(const Route& route, const std::shared_ptr<HttpExchange>& exchange);
  void start_text(const Route& route, const std::shared_ptr<HttpExchange>& exchange);
  void start_cache(const Route& route, const std::shared_ptr<HttpExchange>& exchange);
  void on_stop_signal(int count);
  void watch_drain(double seconds_left);
  void abort_answers(bool only_waiting);
  void watch_memory();
  void finish(bool is_clean);
};

HttpHandlers Server::State::handlers() {
  HttpHandlers handlers;
  handlers.check = [this](const HttpRequest& request) { return check(request); };
  handlers.handle = [this](std::shared_ptr<HttpExchange> exchange) { handle(exchange); };
  handlers.on_stop_signal = [this](int count) { on_stop_signal(count); };
  handlers.error_page = [](const std::string& path, int status, const std::string& message) {
    return error_response(error_of_status(status, message), find_route(path).shape, "");
  };
  handlers.on_response = [this](const HttpRequest& request, HttpResponse& response) {
    access.add_cors(request, response);
  };
  handlers.on_done = [this](const HttpRequest& request, int status, double seconds) {
    const Route route = find_route(request.path);
    metrics.on_http(route.label.empty() ? "other" : route.label, status);
    log_debug(fmt::format("{} {} {} {} {:.3f} s", request.id, request.method, request.path, status,
                          seconds));
  };
  return handlers;
}

std::optional<HttpResponse> Server::State::check(const HttpRequest& request) {
  if (request.method == "OPTIONS") return std::nullopt;
  const Route route = find_route(request.path);
  const auto refuse = [&](const ApiError& error) {
    return error_response(error, route.shape, request.id);
  };
  if (route.kind == Route::Kind::kNone) {
    return refuse(error_of_status(404, fmt::format("There is no {} here.", request.path)));
  }
  const bool method_fits = route.is_post ? request.method == "POST"
                                         : request.method == "GET" || request.method == "HEAD";
  if (!method_fits) {
    const char* allowed = route.is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
    HttpResponse response = refuse(error_of_status(
        405, fmt::format("{} takes {}, not {}.", request.path, allowed, request.method)));
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  const bool wants_key =
      route.is_guarded || (route.kind == Route::Kind::kMetrics && options.metrics_auth);
  if (!wants_key) return std::nullopt;
  if (const std::optional<ApiError> refusal = access.check(request)) return refuse(*refusal);
  if (!route.is_guarded) return std::nullopt;
  if (draining) return refuse(draining_error());
  if (model == nullptr) return refuse(loading_error());
  if (guard.level() != MemoryGuard::Level::kFine) return refuse(memory_error());
  return std::nullopt;
}

void Server::State::handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (request.method == "OPTIONS") return exchange->respond(access.preflight(request));
  const Route route = find_route(request.path);
  if (route.kind == Route::Kind::kGenerate) return start_answer(route, exchange);
  if (route.kind == Route::Kind::kText) return start_text(route, exchange);
  if (route.kind == Route::Kind::kCache) return start_cache(route, exchange);
  exchange->respond(simple_answer(route, request));
}

HttpResponse Server::State::simple_answer(const Route& route, const HttpRequest& request) {
  switch (route.kind) {
    case Route::Kind::kPage:
      if (auto response = page_response(request)) return std::move(*response);
      break;
    case Route::Kind::kMetrics:
      return metrics_text();
    case Route::Kind::kHealth:
      return health();
    case Route::Kind::kLive:
      return json_response(200, status_json("ok"));
    case Route::Kind::kVersion:
      return json_response(200, version_json(options, info.machine));
    case Route::Kind::kProps:
      return json_response(200, props_json(*model, info, options));
    case Route::Kind::kSlots:
      if (options.slots) return json_response(200, slots_json(*model->engine));
      return error_response(error_of_status(404, "GET /slots is there with --slots only."));
    case Route::Kind::kModels:
      if (is_anthropic(request)) return json_response(200, anthropic_models(models));
      return json_response(200, Json(Json::Object{{"object", Json("list")}, {"data", models}}));
    case Route::Kind::kModel:
      return one_model(request);
    case Route::Kind::kNotSupported: {
      ApiError error =
          error_of_status(501, fmt::format("{} is not supported by this server.", request.path));
      error.code = "not_supported";
      return error_response(error);
    }
    default:
      break;
  }
  return error_response(error_of_status(404, "There is nothing here."));
}

HttpResponse Server::State::metrics_text() {
  if (model != nullptr) metrics.on_engine(model->engine->stats());
  metrics.on_connections(http->num_connections());
  HttpResponse response;
  response.content_type = Metrics::kContentType;
  response.body = metrics.text();
  return response;
}

HttpResponse Server::State::health() const {
  if (draining) return json_response(503, status_json("draining"));
  if (model == nullptr) return json_response(503, status_json("loading"));
  if (options.watchdog_s > 0 && model->engine->stats().step_age_s > options.watchdog_s) {
    return json_response(503, status_json("stuck"));
  }
  return json_response(200, status_json("ok"));
}

HttpResponse Server::State::one_model(const HttpRequest& request) const {
  const std::string id = model_of_path(request.path);
  for (const Json& entry : models.as_array()) {
    if (entry.find("id")->as_string() != id) continue;
    return json_response(200, is_anthropic(request) ? anthropic_model(entry) : entry);
  }
  ApiError error = error_of_status(404, fmt::format("The model '{}' is not served here.", id));
  error.code = "model_not_found";
  const ErrorShape shape = is_anthropic(request) ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
  return error_response(error, shape, request.id);
}

void Server::State::start_answer(const Route& route,
                                 const std::shared_ptr<HttpExchange>& exchange) {
  auto answer = std::make_shared<Answer>(model, route.generate, exchange, http->mailbox(), observer,
                                         [this](Answer* ended) { answers.erase(ended); });
  answers.emplace(answer.get(), answer);
  answer->start(*worker);
}

void Server::State::start_text(const Route& route, const std::shared_ptr<HttpExchange>& exchange) {
  worker->post([model = model, mailbox = http->mailbox(), route, exchange] {
    const auto result = route.text(*model, exchange->request().body);
    HttpResponse response =
        result ? json_response(200, *result)
               : error_response(result.error(), route.shape, exchange->request().id);
    mailbox->post([exchange, response = std::move(response)]() mutable {
      exchange->respond(std::move(response));
    });
  });
}

// The engine does it between its steps, and calls back from its thread.
void Server::State::start_cache(const Route& route, const std::shared_ptr<HttpExchange>& exchange) {
  const auto answer = [mailbox = http->mailbox(), exchange](Result<CacheReport> report) {
    HttpResponse response = report ? json_response(200, cache_json(*report))
                                   : error_response(cache_error(report.error()));
    mailbox->post([exchange, response = std::move(response)]() mutable {
      exchange->respond(std::move(response));
    });
  };
  model->engine->control_cache(route.cache, answer);
}

void Server::State::on_stop_signal(int count) {
  if (count > 1) {
    const bool nothing_is_lost = answers.empty();
    http->close_connections();
    return finish(nothing_is_lost);
  }
  log_info(fmt::format("stopping: {} requests have {:g} s to end", answers.size(),
                       options.drain_timeout_s));
  draining = true;
  http->stop_accepting();
  abort_answers(true);
  watch_drain(options.drain_timeout_s);
}

void Server::State::watch_drain(double seconds_left) {
  constexpr double kPoll = 0.02;
  // After the last answer its bytes still have to leave.
  constexpr double kFlush = 0.5;
  if (answers.empty()) {
    if (http->num_connections() == 0) return finish(true);
    return http->after(kFlush, [this] { finish(true); });
  }
  if (seconds_left <= 0) {
    abort_answers(false);
    return http->after(kFlush, [this] { finish(false); });
  }
  http->after(kPoll, [this, seconds_left] { watch_drain(seconds_left - kPoll); });
}

void Server::State::abort_answers(bool only_waiting) {
  const auto copy = answers;  // aborting erases
  for (const auto& [key, answer] : copy) {
    if (!only_waiting || !answer->is_running()) answer->abort(draining_error());
  }
}

// Answers grow while they are generated: before the limit is broken the newest ends.
void Server::State::watch_memory() {
  constexpr double kPoll = 0.02;
  if (guard.level() == MemoryGuard::Level::kOver && !answers.empty()) {
    const auto newest = std::ranges::max_element(
        answers, {}, [](const auto& entry) { return entry.second->began(); });
    const std::shared_ptr<Answer> victim = newest->second;
    log_warn("the limit of memory (--memory) is reached: the newest request is ended");
    victim->abort(memory_error());
  }
  http->after(kPoll, [this] { watch_memory(); });
}

void Server::State::finish(bool is_clean) {
  const std::lock_guard lock(mutex);
  if (done) return;
  done = true;
  clean = is_clean;
  done_changed.notify_all();
}

Server::Server() = default;

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
  GLINT_TRY_VOID(check_options(options));
  HttpOptions http;
  http.host = options.host;
  http.port = options.port;
  http.server_header = "glint/" + options.version;
  http.max_header_bytes = options.max_header_bytes;
  http.max_body_bytes = options.max_body_bytes;
  http.max_pending_bytes = options.max_pending_bytes;
  if (options.memory_limit > 0) http.max_unsent_bytes = options.request_memory / 8;
  http.header_timeout_s = options.header_timeout_s;
  http.body_idle_timeout_s = options.body_idle_timeout_s;
  http.write_stall_timeout_s = options.write_stall_timeout_s;
  http.keep_alive_timeout_s = options.keep_alive_timeout_s;
  http.max_connections = options.max_connections;

  std::unique_ptr<Server> server(new Server());
  server->state_ = std::make_unique<State>(std::move(options));
  State& state = *server->state_;
  state.worker = std::make_unique<Worker>();
  GLINT_TRY(state.http, HttpServer::listen(std::move(http), state.handlers()));
  const std::string& host = state.options.host;
  const bool is_v6 = host.find(':') != std::string::npos;
  state.url =
      fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", state.http->port());
  return server;
}

Server::~Server() {
  if (state_ == nullptr) return;
  // The I/O thread hands work to the worker, so it ends first; what the worker still posts is
  // dropped.
  state_->http.reset();
  state_->worker.reset();
}

int Server::port() const {
  return state_->http->port();
}
const std::string& Server::url() const {
  return state_->url;
}

void Server::attach(Engine& engine, std::shared_ptr<const TextAssets> text, ServedInfo info) {
  const ServerOptions& options = state_->options;
  auto model = std::make_shared<ServedModel>();
  model->engine = &engine;
  model->text = std::move(text);
  model->names = options.served_names;
  model->any_model = options.any_model;
  model->fingerprint = fmt::format("glint-{}-{}", options.version, info.model.weight_format);
  model->template_kwargs = options.chat_template_kwargs;
  model->api = options.api;
  model->api.takes_images = model->text->takes_images();
  model->sse_ping_s = options.sse_ping_s;
  model->request_timeout_s = options.request_timeout_s;
  model->stream_interval = options.stream_interval;
  if (options.memory_limit > 0) model->backlog.most = options.request_memory / 8;
  Json models(Json::Array{});
  const std::int64_t now = std::time(nullptr);
  for (const std::string& name : model->names) {
    models.push_back(model_json(name, options.model_root, now, info.model, engine.options().context,
                                model->text->takes_images()));
  }
  state_->http->mailbox()->post([state = state_.get(), model = std::move(model),
                                 models = std::move(models), info = std::move(info)]() mutable {
    state->model = std::move(model);
    state->models = std::move(models);
    state->info = std::move(info);
    state->metrics.attach(metrics_model(*state->model->engine, state->info.machine));
    for (const auto& [kind, nbytes] : state->info.memory) state->metrics.on_memory(kind, nbytes);
    if (state->options.memory_limit > 0) state->watch_memory();
  });
}

bool Server::run() {
  std::unique_lock lock(state_->mutex);
  state_->done_changed.wait(lock, [this] { return state_->done; });
  return state_->clean;
}

void Server::request_stop() noexcept {
  state_->http->signal_stop();
}

}  // namespace glint
