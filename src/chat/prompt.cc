// TextAssets::prepare: messages, tools and switches -> rendered text -> token ids.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "chat/continuation.h"
#include "chat/text_assets.h"

namespace glint {
namespace {

constexpr std::string_view kThinkEnd = "</think>";

Error no_template() {
  return not_found(
      "messages: this model has no chat template; pass one with --chat-template FILE, or send a "
      "raw prompt");
}

void keep_last(std::vector<std::int32_t>& ids, int count) {
  if (count > 0 && ids.size() > static_cast<std::size_t>(count))
    ids.erase(ids.begin(), ids.end() - count);
}

Status check_documents(const Json& documents) {
  if (documents.is_null()) return {};
  if (!documents.is_array()) {
    return invalid_argument(
        fmt::format("documents: must be a list, not {}", documents.type_name()));
  }
  for (std::size_t index = 0; index < documents.as_array().size(); ++index) {
    const Json& document = documents.as_array()[index];
    if (document.is_object() || document.is_string()) continue;
    return invalid_argument(fmt::format("documents[{}]: must be an object or a string, not {}",
                                        index, document.type_name()));
  }
  return {};
}

Result<std::string> render(const ChatTemplate& chat_template, const Json& variables) {
  auto rendered = chat_template.render(variables);
  if (rendered) return std::move(*rendered);
  return Error{rendered.error().code,
               "messages: the chat template refused them: " + rendered.error().message};
}

}  // namespace

Result<std::shared_ptr<const ParsedTemplate>> TextAssets::State::template_for(
    const ChatRequest& request) const {
  if (request.chat_template) return request_templates.get(*request.chat_template);
  const bool has_tools = request.tools.is_array() && !request.tools.as_array().empty();
  const bool wants_tools = tool_chat_template != nullptr && (has_tools || chat_template == nullptr);
  const auto& chosen = wants_tools ? tool_chat_template : chat_template;
  if (chosen == nullptr) return no_template();
  return chosen;
}

// Of what is to be encoded.
Status check_length(const ChatRequest& request, const char* field, std::size_t nbytes) {
  if (request.max_prompt_bytes == 0 || nbytes <= request.max_prompt_bytes) return {};
  return invalid_argument(
      fmt::format("{}: the prompt has {} bytes of text, and this server's memory (--memory) leaves "
                  "room to encode {}",
                  field, nbytes, request.max_prompt_bytes));
}

Result<PreparedPrompt> TextAssets::State::prepare_raw(const ChatRequest& request) const {
  PreparedPrompt prompt;
  prompt.is_past_thinking = true;
  if (!request.raw_ids.empty()) {
    for (const std::int32_t id : request.raw_ids) {
      if (id >= 0 && id < tokenizer->vocab_size()) continue;
      return invalid_argument(fmt::format("prompt: token {} is not in the vocabulary of {} tokens",
                                          id, tokenizer->vocab_size()));
    }
    prompt.ids = request.raw_ids;
    prompt.text = tokenizer->decode(prompt.ids);
  } else if (request.raw_prompt.empty()) {
    prompt.ids = {start_token};
    prompt.text = tokenizer->decode(prompt.ids);
  } else {
    GLINT_TRY_VOID(check_length(request, "prompt", request.raw_prompt.size()));
    prompt.text = request.raw_prompt;
    prompt.ids = tokenizer->encode(prompt.text);
    // Who wrote the prefix out does not get it twice.
    const bool has_prefix = std::ranges::equal(
        prefix_tokens,
        std::span(prompt.ids).first(std::min(prompt.ids.size(), prefix_tokens.size())));
    if (request.add_special_tokens && !has_prefix) {
      prompt.ids.insert(prompt.ids.begin(), prefix_tokens.begin(), prefix_tokens.end());
      prompt.text.insert(0, tokenizer->decode(prefix_tokens));
    }
  }
  keep_last(prompt.ids, request.keep_last_prompt_tokens);
  return prompt;
}

Result<TextAssets::State::Rendered> TextAssets::State::render_chat(
    const ChatRequest& request) const {
  const bool guarded = !parse_special_in_messages;
  const auto text_only = [&](Json value) {
    return guarded ? guard_strings(value, *tokenizer) : std::move(value);
  };
  GLINT_TRY(const auto parsed, template_for(request));
  Rendered out;
  GLINT_TRY(Json messages, normalise_messages(request.messages, parsed->argument_style,
                                              images ? &out.images : nullptr));
  GLINT_TRY(Json tools, normalise_tools(request.tools));
  std::optional<Continuation> continuation;
  if (request.continue_final_message) {
    GLINT_TRY(continuation, take_continuation(messages));
  }
  const bool add_prompt = request.add_generation_prompt || continuation.has_value();

  const ChatTemplate& source = *parsed->chat_template;
  GLINT_TRY(TemplateSwitches switches,
            template_switches(request, source.source(), token_variables, *tokenizer, guarded));
  Json& variables = switches.variables;
  variables.set("messages", text_only(std::move(messages)));
  if (!tools.is_null()) variables.set("tools", text_only(std::move(tools)));
  GLINT_TRY_VOID(check_documents(request.documents));
  if (!request.documents.is_null()) variables.set("documents", text_only(request.documents));
  variables.set("add_generation_prompt", Json(add_prompt));

  GLINT_TRY(out.text, render(source, variables));
  // Some templates open a thought whatever they are told.
  if (switches.thinking_off && add_prompt && ends_with_open_think(out.text)) {
    out.text += kThinkEnd;
    out.thinking_was_closed = true;
  }
  out.ends_in_thinking = ends_with_open_think(out.text);
  if (continuation) {
    out.ends_in_thinking = continuation->append_to(out.text, tool_format, reasoning_format,
                                                   guarded ? tokenizer.get() : nullptr);
    out.answer_begun = !continuation->content.empty();
  }
  return out;
}

Result<PreparedPrompt> TextAssets::prepare(const ChatRequest& request) const {
  if (request.raw) return state_->prepare_raw(request);
  GLINT_TRY(State::Rendered rendered, state_->render_chat(request));
  const bool guarded = !state_->parse_special_in_messages;
  const Tokenizer& tokenizer = *state_->tokenizer;
  PreparedPrompt prompt;
  prompt.thinking_was_closed = rendered.thinking_was_closed;
  prompt.ends_in_thinking = rendered.ends_in_thinking;
  prompt.is_past_thinking = rendered.answer_begun || ends_with_closed_think(rendered.text);
  GLINT_TRY_VOID(check_length(request, "messages", rendered.text.size()));
  prompt.ids = guarded ? tokenizer.encode_guarded(rendered.text) : tokenizer.encode(rendered.text);
  if (state_->images) {
    if (!rendered.images.empty() && request.keep_last_prompt_tokens > 0) {
      return unsupported("truncate_prompt_tokens: a prompt with images is not cut");
    }
    GLINT_TRY(prompt.images, place_images(*state_->images, rendered.images, prompt.ids));
  }
  keep_last(prompt.ids, request.keep_last_prompt_tokens);
  if (prompt.ids.empty()) return invalid_argument("messages: the rendered prompt is empty");
  prompt.text = guarded ? Tokenizer::remove_guards(rendered.text) : std::move(rendered.text);
  return prompt;
}

}  // namespace glint
