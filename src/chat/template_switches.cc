// What a request switches in a chat template: its own variables, thinking and effort.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "chat/text_assets.h"

namespace glint {
namespace {

// Names that a request's template_kwargs must not set: the template's inputs and transformers' own
// arguments.
constexpr std::array<std::string_view, 19> kReserved = {"messages",
                                                        "tools",
                                                        "documents",
                                                        "conversation",
                                                        "chat_template",
                                                        "add_generation_prompt",
                                                        "continue_final_message",
                                                        "tokenize",
                                                        "tokenizer_kwargs",
                                                        "return_dict",
                                                        "return_tensors",
                                                        "return_assistant_tokens_mask",
                                                        "padding",
                                                        "truncation",
                                                        "max_length",
                                                        "template_kwargs",
                                                        "raise_exception",
                                                        "strftime_now",
                                                        "functions"};

constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};

Status add_kwargs(const Json& kwargs, const Tokenizer& tokenizer, bool guarded, Json& variables) {
  if (kwargs.is_null()) return {};
  if (!kwargs.is_object()) {
    return invalid_argument(
        fmt::format("chat_template_kwargs: must be an object, not {}", kwargs.type_name()));
  }
  for (const auto& [key, value] : kwargs.as_object()) {
    if (std::ranges::find(kReserved, key) != kReserved.end() || key.ends_with("_token")) {
      return invalid_argument(
          fmt::format("chat_template_kwargs: '{}' is reserved and cannot be set this way", key));
    }
    // Templates test `is defined`, so a null must not define the name.
    if (!value.is_null()) variables.set(key, guarded ? guard_strings(value, tokenizer) : value);
  }
  return {};
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Whether a template has `word` as a string of its own, in any case.
bool names_word(std::string_view source, std::string_view word) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(word) + quote;
    const auto found =
        std::ranges::search(source, quoted, [](char a, char b) { return lower(a) == lower(b); });
    if (!found.empty()) return true;
  }
  return false;
}

// Templates print an effort they do not know, or take it for the highest, so they get one of their
// own words where they name any.
std::string_view effort_for(std::string_view source, std::string_view effort) {
  if (names_word(source, effort)) return effort;
  if (effort == "minimal" || effort == "low") {
    return names_word(source, "high") && !names_word(source, "low") ? "high" : "low";
  }
  if (effort == "medium" || effort == "high") return "high";
  return "max";
}

}  // namespace

Result<TemplateSwitches> template_switches(const ChatRequest& request,
                                           std::string_view template_source, Json base,
                                           const Tokenizer& tokenizer, bool guarded) {
  TemplateSwitches out{.variables = std::move(base)};
  Json& variables = out.variables;
  GLINT_TRY_VOID(add_kwargs(request.template_kwargs, tokenizer, guarded, variables));
  std::string_view effort;
  if (request.reasoning_effort) {
    effort = *request.reasoning_effort;
    if (std::ranges::find(kEfforts, effort) == kEfforts.end()) {
      return invalid_argument(
          fmt::format("reasoning_effort: '{}' is none of {}", effort, fmt::join(kEfforts, ", ")));
    }
  }
  std::optional<bool> thinking = request.enable_thinking;
  if (!thinking && !effort.empty()) thinking = effort != "none";
  if (thinking && variables.find("enable_thinking") == nullptr) {
    variables.set("enable_thinking", Json(*thinking));
  }
  const Json* decided = variables.find("enable_thinking");
  out.thinking_off = decided != nullptr && *decided == Json(false);

  const bool knows_effort = template_source.find("reasoning_effort") != std::string_view::npos;
  // A template that has no switch for thinking is at least told to spend little on it.
  const bool knows_switch = template_source.find("enable_thinking") != std::string_view::npos;
  if (out.thinking_off && (effort.empty() || effort == "none")) effort = knows_switch ? "" : "low";
  if (effort == "none") effort = "";
  if (knows_effort && !effort.empty() && variables.find("reasoning_effort") == nullptr) {
    variables.set("reasoning_effort", Json(effort_for(template_source, effort)));
  }
  return out;
}

}  // namespace glint
