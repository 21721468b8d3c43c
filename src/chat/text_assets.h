// What TextAssets holds; shared by the sources of this folder only.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chat/answer_constraint.h"
#include "chat/chat.h"
#include "chat/images.h"
#include "chat/messages.h"
#include "chat/script.h"
#include "chat/templates.h"
#include "text/grammar.h"

namespace glint {

struct TextAssets::State {
  std::shared_ptr<const Tokenizer> tokenizer;  // shared with constraints, which may outlive this
  std::shared_ptr<const ParsedTemplate> chat_template;       // null: none anywhere
  std::shared_ptr<const ParsedTemplate> tool_chat_template;  // a list's "tool_use", for requests
                                                             // with tools
  std::string template_source;
  mutable TemplateCache request_templates;
  Json token_variables;  // {"bos_token": "...", ...} as tokenizer_config.json has them
  std::vector<std::int32_t> end_tokens;
  std::vector<std::int32_t> prefix_tokens;  // what the tokenizer puts in front of a text
  std::int32_t start_token = -1;            // the prompt of those who have none
  ToolFormat tool_format = ToolFormat::kNone;
  ReasoningFormat reasoning_format = ReasoningFormat::kNone;
  std::shared_ptr<const AnswerTokens> answer_tokens;
  Json sampling_defaults;
  int default_max_tokens = 0;
  bool parse_special_in_messages = false;
  TextOptions::ToolGrammar tool_grammar = TextOptions::ToolGrammar::kStrict;
  std::optional<Script> script;
  std::optional<ImageRules> images;  // of a model that sees

  // Fill what they are named after.
  Status read_templates(const TextDocuments& documents, const TextOptions& options,
                        const std::string& model_type);
  Status read_formats(const TextDocuments& documents, const TextOptions& options,
                      const std::string& model_type);
  Status read_images(const TextDocuments& documents, const TextOptions& options);
  // The template of this request. Errors: kInvalidArgument, kNotFound.
  Result<std::shared_ptr<const ParsedTemplate>> template_for(const ChatRequest& request) const;
  struct Rendered {
    std::string text;  // with guards, unless parse_special_in_messages
    std::vector<ImagePart> images;
    bool ends_in_thinking = false;
    bool thinking_was_closed = false;
    bool answer_begun = false;  // there is content to go on with
  };
  Result<Rendered> render_chat(const ChatRequest& request) const;
  Result<PreparedPrompt> prepare_raw(const ChatRequest& request) const;
  Status set_lengths(const ChatRequest& request, const PreparedPrompt& prompt, int context,
                     GenerateRequest& out) const;
  // Null when the answer is free. Errors: those of answer_rules().
  Result<std::shared_ptr<TokenConstraint>> constraint_for(const ChatRequest& request,
                                                          const PreparedPrompt& prompt) const;
  // Made when first needed: most programs never constrain anything. Safe from any thread. Borrows
  // the tokenizer, so it goes first.
  Result<GrammarCompiler*> grammars() const;

 private:
  mutable std::once_flag grammars_once_;
  mutable std::optional<Result<std::unique_ptr<GrammarCompiler>>> grammars_;
};

// generation_config.json (which errors call `name`), or the family's published values without one,
// as {"temperature", "top_p", ...}; `overrides` (null or object) win over both.
Result<Json> resolve_sampling_defaults(const Json& generation_config, const std::string& name,
                                       const std::string& model_type, const Json& overrides);

// Ranges of what `defaults` and the request's own values come to.
SamplingParams merge_sampling(const ChatRequest& request, const Json& defaults);
Status check_sampling(const SamplingParams& sampling);

// The template's variables that switches of the request set: template_kwargs, enable_thinking,
// reasoning_effort.
struct TemplateSwitches {
  Json variables;  // an object; `base` with what the request sets
  bool thinking_off = false;
};
// `guarded`: strings are text, whatever they look like.
Result<TemplateSwitches> template_switches(const ChatRequest& request,
                                           std::string_view template_source, Json base,
                                           const Tokenizer& tokenizer, bool guarded);

}  // namespace glint
