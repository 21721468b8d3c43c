// TextAssets::prepare: messages, tools and switches -> rendered text -> token ids.
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

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

bool ends_with_open_think(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text.ends_with(kThink);
}

Status add_kwargs(const Json& kwargs, const Tokenizer& tokenizer, Json& variables) {
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
    if (!value.is_null()) variables.set(key, guard_strings(value, tokenizer));
  }
  return {};
}

// Templates that know efforts know three of them.
Result<std::string_view> template_effort(const std::string& effort) {
  if (effort == "none") return std::string_view();
  if (effort == "minimal" || effort == "low") return std::string_view("low");
  if (effort == "medium" || effort == "high") return std::string_view("high");
  if (effort == "xhigh" || effort == "max") return std::string_view("max");
  return invalid_argument(fmt::format(
      "reasoning_effort: '{}' is none of none, minimal, low, medium, high, xhigh, max", effort));
}

// Sets enable_thinking and reasoning_effort unless template_kwargs did. Returns whether thinking
// was switched off.
Result<bool> add_thinking(const ChatRequest& request, std::string_view template_source,
                          Json& variables) {
  std::optional<bool> thinking = request.enable_thinking;
  if (request.reasoning_effort) {
    GLINT_TRY(const std::string_view effort, template_effort(*request.reasoning_effort));
    if (!thinking) thinking = !effort.empty();
    if (!effort.empty() && variables.find("reasoning_effort") == nullptr &&
        template_source.find("reasoning_effort") != std::string_view::npos) {
      variables.set("reasoning_effort", Json(effort));
    }
  }
  if (thinking && variables.find("enable_thinking") == nullptr) {
    variables.set("enable_thinking", Json(*thinking));
  }
  const Json* decided = variables.find("enable_thinking");
  return decided != nullptr && decided->is_bool() && !decided->as_bool();
}

Error no_template() {
  return not_found(
      "this model has no chat template: add chat_template.jinja to its folder, pass "
      "--chat-template FILE, or use a raw "
      "prompt");
}

void keep_last(std::vector<std::int32_t>& ids, int count) {
  if (count > 0 && ids.size() > static_cast<std::size_t>(count))
    ids.erase(ids.begin(), ids.end() - count);
}

}  // namespace

Result<PreparedPrompt> TextAssets::prepare(const ChatRequest& request) const {
  const Tokenizer& tokenizer = *state_->tokenizer;
  PreparedPrompt prompt;
  if (request.raw) {
    prompt.text = request.raw_prompt;
    prompt.ids = tokenizer.encode(prompt.text);
    keep_last(prompt.ids, request.keep_last_prompt_tokens);
    return prompt;
  }
  GLINT_TRY(Json messages, normalise_messages(request.messages, state_->argument_style));
  GLINT_TRY(Json tools, normalise_tools(request.tools));
  const ChatTemplate* chat_template = state_->chat_template.get();
  if (chat_template == nullptr || (!tools.is_null() && state_->tool_chat_template != nullptr)) {
    chat_template = state_->tool_chat_template.get();
  }
  if (chat_template == nullptr) return no_template();

  Json variables = state_->token_variables;
  GLINT_TRY_VOID(add_kwargs(request.template_kwargs, tokenizer, variables));
  GLINT_TRY(const bool thinking_off, add_thinking(request, chat_template->source(), variables));
  variables.set("messages", guard_strings(messages, tokenizer));
  if (!tools.is_null()) variables.set("tools", guard_strings(tools, tokenizer));
  variables.set("add_generation_prompt", Json(request.add_generation_prompt));

  auto rendered = chat_template->render(variables);
  if (!rendered) {
    return Error{rendered.error().code,
                 "messages: the chat template refused them: " + rendered.error().message};
  }
  // Some templates open a thought whatever they are told.
  if (thinking_off && request.add_generation_prompt && ends_with_open_think(*rendered))
    *rendered += kThinkEnd;
  prompt.ends_in_thinking = ends_with_open_think(*rendered);
  prompt.ids = tokenizer.encode_guarded(*rendered);
  keep_last(prompt.ids, request.keep_last_prompt_tokens);
  prompt.text = Tokenizer::remove_guards(*rendered);
  if (prompt.ids.empty()) return invalid_argument("messages: the rendered prompt is empty");
  return prompt;
}

}  // namespace glint
