// One turn of a conversation: a neutral request -> prompt tokens -> engine -> text -> neutral
// deltas. The server and the command line both use it; it knows no API's JSON beyond messages and
// tools in OpenAI's shape.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace glint {

// What an answer has to look like, apart from calls.
struct AnswerFormat {
  enum class Kind {
    kFree,
    kJsonObject,
    kJsonSchema,
    kRegex,
    kChoice,
    kLark,
    kGbnf
  } kind = Kind::kFree;
  Json schema;       // kJsonSchema; kJsonObject: null, or what the object has to fit
  std::string text;  // kRegex, kLark, kGbnf
  std::vector<std::string> choices;  // kChoice
  bool strict = true;                // kJsonSchema: keywords that are not implemented are refused
  bool any_whitespace = true;        // kJsonObject, kJsonSchema
  std::string field = "response_format";  // what errors call it
};

struct ToolChoice {
  enum class Kind {
    kAuto,
    kNone,      // the tools stay in the prompt, the token that opens a call is masked
    kRequired,  // at least one call
    kNamed      // exactly one call, of a tool in `names`
  } kind = Kind::kAuto;
  std::vector<std::string> names;  // kNamed, and limits the others when not empty
};

struct ChatRequest {
  std::size_t max_prompt_bytes = 0;  // of text: encoding takes many times that; 0: any number
  Json messages;                     // OpenAI-shaped array
  Json tools;                        // null or array
  Json template_kwargs;  // null or object, merged key by key into the template's variables
  std::optional<bool>
      enable_thinking;  // template_kwargs.enable_thinking wins, then this, then reasoning_effort
  std::optional<std::string> reasoning_effort;  // none, minimal, low, medium, high, xhigh, max
  std::optional<int> thinking_budget;           // tokens of thought, then the thought is closed
  ToolChoice tool_choice;
  AnswerFormat format;
  Json documents;  // null or array, for templates that take them
  // Renders all but the last message, which must be the assistant's, and lets the model go on with
  // it. A content that opens a <think> without closing it is gone on with inside the thought.
  bool continue_final_message = false;
  bool parallel_tool_calls = true;  // false: the answer ends after its first call
  int keep_last_prompt_tokens = 0;  // > 0: longer prompts lose their beginning
  bool add_generation_prompt = true;
  // When `raw`: used instead of messages; special tokens are parsed, and the answer is content from
  // end to end.
  bool raw = false;
  std::string raw_prompt;
  std::vector<std::int32_t> raw_ids;  // when not empty: instead of raw_prompt
  // raw_prompt: when not empty, the model is to write what belongs between it and this (fill in the
  // middle). kUnsupported "suffix: ..." when the tokenizer has no tokens for that.
  std::string fill_suffix;
  bool add_special_tokens = false;  // raw_prompt: what the tokenizer puts in front, as [gMASK]<sop>
  std::optional<std::string> chat_template;  // instead of the checkpoint's
  // Unset values come from generation_config.json, then from neutral defaults.
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k, repeat_last_n;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::optional<std::uint64_t> seed;  // unset: random
  std::optional<int> max_tokens;      // unset: the room left in the context
  int min_tokens = 0;
  int top_logprobs = -1;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool keep_special = false;  // special tokens are shown as text
  std::vector<std::string> bad_words;
  std::vector<std::int32_t> allowed_token_ids;
  int prompt_logprobs = -1;  // as GenerateRequest's
  bool progress = false;     // kProgress deltas
  int priority = 0;
  std::uint64_t cache_salt = 0;
  double timeout_s = 0;
};

struct ChatDelta {
  enum class Kind { kStarted, kProgress, kPrompt, kOutput, kFinished } kind = Kind::kOutput;
  int prompt_computed = 0;                     // kProgress
  std::vector<PromptLogprob> prompt_logprobs;  // kPrompt
  std::vector<OutputEvent> events;             // kOutput (and leftovers in kFinished)
  std::vector<std::int32_t> tokens;            // the sampled tokens these came from
  std::vector<TokenEvent> logprobs;            // per token, when asked for
  // kFinished:
  std::string finish_reason;     // "stop", "length", "tool_calls", "cancelled", "error"
  std::string stop_string;       // the stop string that matched, if one did
  std::int32_t stop_token = -1;  // the end token, if one did
  Error error;
  Usage usage;
  int reasoning_tokens = 0;
};
using DeltaSink = std::function<void(ChatDelta)>;  // on the engine thread, in order

struct PreparedPrompt {
  std::string text;  // rendered, guards removed; one placeholder an image
  std::vector<std::int32_t> ids;
  std::vector<PromptImage> images;
  bool ends_in_thinking = false;
  // A thought was closed, or the answer was begun: the model is not expected to open one.
  bool is_past_thinking = false;
  // The template opened a thought although the request asked for none, so it was closed.
  bool thinking_was_closed = false;
};

// How a server or a program uses a checkpoint's text side.
struct TextOptions {
  std::optional<std::string> chat_template;  // replaces the checkpoint's
  std::optional<ToolFormat> tool_format;     // unset: guessed from the checkpoint
  std::optional<ReasoningFormat> reasoning_format;
  bool parse_special_in_messages = false;  // control tokens written in messages are control tokens
  // When a call is held to a grammar although the request does not force one.
  enum class ToolGrammar { kOff, kNames, kStrict, kAlways } tool_grammar = ToolGrammar::kStrict;
  Json sampling_overrides;     // null or object, over generation_config.json
  int default_max_tokens = 0;  // of requests without max_tokens; 0: the room left in the context
  std::optional<std::string> script;  // a test device: lines of JSON, see docs/server.md
  std::optional<ImageInput> images;   // of a model that sees; unset: it reads text only
  int max_image_tokens = 0;           // of one image; 0: what the checkpoint's processor allows
  int max_images = 32;                // of one request
};

// What the text side of a checkpoint says, whatever kind of file it came from: the contents of a
// Hugging Face folder's files, and what error messages call them.
struct TextDocuments {
  std::string tokenizer_json;
  Json tokenizer_config;                     // null: none
  Json preprocessor_config;                  // of images; null: none
  std::optional<std::string> chat_template;  // chat_template.jinja; wins over tokenizer_config's
  std::string tokenizer_name = "tokenizer.json";
  std::string tokenizer_config_name = "tokenizer_config.json";
  std::string preprocessor_config_name = "preprocessor_config.json";
  std::string chat_template_name = "chat_template.jinja";
  std::string config_name = "config.json";
  std::string generation_config_name = "generation_config.json";
};

// The text side of a checkpoint: tokenizer, template, end tokens, sampling defaults. Immutable.
class TextAssets {
 public:
  // `config` and `generation_config` are the parsed files (null when absent). Errors name the file
  // (or the option) and the remedy. A missing template is
  // an error only when a chat is rendered.
  static Result<std::shared_ptr<const TextAssets>> from_documents(const TextDocuments& documents,
                                                                  const Json& config,
                                                                  const Json& generation_config,
                                                                  const TextOptions& options = {});
  // The same from tokenizer.json, tokenizer_config.json and chat_template.jinja in a folder.
  static Result<std::shared_ptr<const TextAssets>> load(const std::filesystem::path& folder,
                                                        const Json& config,
                                                        const Json& generation_config,
                                                        const TextOptions& options = {});
  ~TextAssets();
  const Tokenizer& tokenizer() const;
  bool has_template() const;
  const std::string& template_source() const;
  // The union of config.json, generation_config.json and tokenizer_config.json eos entries, and the
  // family's turn-ending tokens that the tokenizer has (<|user|>, <|observation|>, <|endoftext|>).
  const std::vector<std::int32_t>& end_tokens() const;
  const Json& sampling_defaults()
      const;  // {"temperature":..,"top_p":..} as resolved from generation_config.json
  ToolFormat tool_format() const;
  ReasoningFormat reasoning_format() const;
  bool takes_images() const;
  // Renders and encodes the conversation. Strings that come from messages, tools or template_kwargs
  // never become control tokens.
  Result<PreparedPrompt> prepare(const ChatRequest& request) const;
  // Fills a GenerateRequest from the request and the defaults: sampling, constraint, script; checks
  // ranges and compiles grammars. Errors of both: kInvalidArgument (kUnsupported for media) "FIELD:
  // what is wrong", FIELD a path such as messages[2].content; kNotFound without template.
  Result<GenerateRequest> to_generate_request(const ChatRequest& request,
                                              const PreparedPrompt& prompt, int context) const;

 private:
  TextAssets();
  struct State;
  std::unique_ptr<State> state_;
};

// A running turn. Destroying it cancels; the sink is still called until it got its one kFinished.
class Turn {
 public:
  Turn();
  Turn(Turn&&) noexcept;
  Turn& operator=(Turn&&) noexcept;
  ~Turn();
  void cancel();
  const PreparedPrompt& prompt() const;  // not of a default-constructed turn

 private:
  friend Result<Turn> start_prepared_turn(Engine&, std::shared_ptr<const TextAssets>, ChatRequest,
                                          std::shared_ptr<const PreparedPrompt>, DeltaSink);
  struct State;
  std::shared_ptr<State> state_;
};

// Renders, encodes and submits. The sink gets kStarted, kOutput*, one kFinished.
// Errors, with the sink never called: those of prepare(), to_generate_request() and
// Engine::submit().
Result<Turn> start_turn(Engine& engine, std::shared_ptr<const TextAssets> assets,
                        ChatRequest request, DeltaSink sink);
// The same for a prompt that was prepared before, for example for the further choices of one
// request.
Result<Turn> start_prepared_turn(Engine& engine, std::shared_ptr<const TextAssets> assets,
                                 ChatRequest request, std::shared_ptr<const PreparedPrompt> prompt,
                                 DeltaSink sink);

}  // namespace glint
