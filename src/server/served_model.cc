#include "server/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace glint {
namespace {

Json merged_kwargs(const Json& defaults, Json own) {
  if (!defaults.is_object()) return own;
  if (!own.is_null() && !own.is_object()) return own;
  for (const auto& [key, value] : defaults.as_object()) {
    const Json* given = own.find(key);
    if (given == nullptr || given->is_null()) own.set(key, value);
  }
  return own;
}

}  // namespace

std::expected<std::string, ApiError> resolve_model(const ServedModel& model, const ApiCall& call) {
  const std::string& asked = call.model;
  if (asked.empty()) return model.names.front();
  if (model.any_model || call.accepts_any_model ||
      std::ranges::find(model.names, asked) != model.names.end()) {
    return asked;
  }
  return std::unexpected(ApiError{
      404, "not_found_error", "model_not_found", "model",
      fmt::format("The model '{}' is not served here; '{}' is.", asked, model.names.front())});
}

std::expected<PreparedPrompt, ApiError> prepare_prompt(const ServedModel& model,
                                                       ChatRequest& chat) {
  chat.template_kwargs = merged_kwargs(model.template_kwargs, std::move(chat.template_kwargs));
  chat.max_prompt_bytes = model.api.max_prompt_bytes;
  auto prompt = model.text->prepare(chat);
  if (!prompt) return std::unexpected(error_of(prompt.error()));
  return std::move(*prompt);
}

}  // namespace glint
