#include "server/routes.h"

#include <map>
#include <string>

#include "server/anthropic.h"
#include "server/http_text.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/responses.h"
#include "server/text_routes.h"

namespace glint {
namespace {

using Kind = Route::Kind;

constexpr std::string_view kModelPrefixes[] = {"/v1/models/", "/models/"};
constexpr std::string_view kPagePrefix = "/page/";
constexpr std::string_view kMessagesPrefix = "/v1/messages/";  // refusals in its API's words

Route open(Kind kind) {
  return {.kind = kind};
}
Route guarded(Kind kind) {
  return {.kind = kind, .is_guarded = true};
}
Route not_supported() {
  return {.kind = Kind::kNotSupported, .is_post = true, .is_guarded = true};
}
Route text(Route::Text run, ErrorShape shape = ErrorShape::kOpenAi) {
  return {.kind = Kind::kText, .is_post = true, .is_guarded = true, .shape = shape, .text = run};
}
Route cache(CacheAction action) {
  return {.kind = Kind::kCache, .is_post = true, .is_guarded = true, .cache = action};
}
Route generate(GenerateRoute route) {
  return {.kind = Kind::kGenerate,
          .is_post = true,
          .is_guarded = true,
          .shape = route.shape,
          .generate = route};
}

using Table = std::map<std::string, Route, std::less<>>;

// A generating endpoint with its /render twin; `bare` also without the /v1.
void add_generate(Table& table, const std::string& path, GenerateRoute route, Route::Text render,
                  bool bare) {
  table["/v1" + path] = generate(route);
  table["/v1" + path + "/render"] = text(render, route.shape);
  if (bare) table[path] = generate(route);
}

Table make_table() {
  Table table = {
      {"/", open(Kind::kPage)},
      {"/health", open(Kind::kHealth)},
      {"/v1/health", open(Kind::kHealth)},
      {"/ping", open(Kind::kHealth)},
      {"/live", open(Kind::kLive)},
      {"/version", open(Kind::kVersion)},
      {"/metrics", open(Kind::kMetrics)},
      {"/v1/models", guarded(Kind::kModels)},
      {"/models", guarded(Kind::kModels)},
      {"/props", guarded(Kind::kProps)},
      {"/slots", guarded(Kind::kSlots)},
      {"/tokenize", text(tokenize)},
      {"/detokenize", text(detokenize)},
      {"/apply-template", text(apply_template)},
      {"/v1/chat/completions/input_tokens", text(count_input<parse_chat_call>)},
      {"/v1/messages/count_tokens", text(count_message_tokens, ErrorShape::kAnthropic)},
      {"/v1/responses/input_tokens", text(count_input<parse_responses_call>)},
      {"/v1/cache/save", cache(CacheAction::kSave)},
      {"/v1/cache/restore", cache(CacheAction::kRestore)},
      {"/v1/cache/clear", cache(CacheAction::kClear)},
      {"/v1/embeddings", not_supported()},
      {"/v1/rerank", not_supported()},
      {"/v1/score", not_supported()},
      {"/v1/audio/transcriptions", not_supported()},
      {"/v1/images/generations", not_supported()},
  };
  add_generate(table, "/chat/completions", {parse_chat_call, ErrorShape::kOpenAi},
               render<parse_chat_call>, true);
  add_generate(table, "/completions", {parse_completions_call, ErrorShape::kOpenAi},
               render<parse_completions_call>, true);
  add_generate(table, "/messages", {parse_messages_call, ErrorShape::kAnthropic},
               render<parse_messages_call>, false);
  add_generate(table, "/responses", {parse_responses_call, ErrorShape::kOpenAi},
               render<parse_responses_call>, true);
  for (auto& [path, route] : table) route.label = path;
  return table;
}

}  // namespace

Route find_route(std::string_view path) {
  static const Table kTable = make_table();
  if (const auto found = kTable.find(path); found != kTable.end()) return found->second;
  for (const std::string_view prefix : kModelPrefixes) {
    if (path.starts_with(prefix)) {
      Route route = guarded(Kind::kModel);
      route.label = "/v1/models/{id}";
      return route;
    }
  }
  if (path.starts_with(kPagePrefix)) {
    Route route = open(Kind::kPage);
    route.label = "/page";
    return route;
  }
  if (path.starts_with(kMessagesPrefix)) return {.shape = ErrorShape::kAnthropic};
  return {};
}

std::string model_of_path(std::string_view path) {
  for (const std::string_view prefix : kModelPrefixes) {
    if (path.starts_with(prefix)) return percent_decode(path.substr(prefix.size()));
  }
  return {};
}

}  // namespace glint
