// One turn of a conversation: a neutral request -> prompt tokens -> engine -> text -> neutral deltas. The server and the
// command line both use it; it knows no API's JSON beyond messages and tools in OpenAI's shape.
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

struct ChatRequest {
  Json messages;                          // OpenAI-shaped array
  Json tools;                             // null or array
  Json template_kwargs;                   // null or object, merged key by key into the template's variables
  std::optional<bool> enable_thinking;
  bool add_generation_prompt = true;
  std::string raw_prompt;                 // when `raw`: used instead of messages, special tokens parsed
  bool raw = false;
  // Unset values come from generation_config.json, then from neutral defaults.
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k, repeat_last_n;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::optional<std::uint64_t> seed;      // unset: random
  std::optional<int> max_tokens;          // unset: the room left in the context
  int min_tokens = 0;
  int top_logprobs = -1;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::uint64_t cache_salt = 0;
  double timeout_s = 0;
};

struct ChatDelta {
  enum class Kind { kStarted, kOutput, kFinished } kind = Kind::kOutput;
  std::vector<OutputEvent> events;            // kOutput (and leftovers in kFinished)
  std::vector<std::int32_t> tokens;           // the sampled tokens these came from
  std::vector<TokenEvent> logprobs;           // per token, when asked for
  // kFinished:
  std::string finish_reason;                  // "stop", "length", "tool_calls", "cancelled", "error"
  std::string stop_string;                    // the stop string that matched, if one did
  std::int32_t stop_token = -1;               // the end token, if one did
  Error error;
  Usage usage;
  int reasoning_tokens = 0;
};
using DeltaSink = std::function<void(ChatDelta)>;  // on the engine thread, in order

struct PreparedPrompt {
  std::string text;                           // rendered, guards removed
  std::vector<std::int32_t> ids;
  bool ends_in_thinking = false;
};

// The text side of a checkpoint: tokenizer, template, end tokens, sampling defaults. Immutable.
class TextAssets {
 public:
  // Reads tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json from the folder.
  // Errors name the file and the remedy. A missing template is an error only when a chat is rendered.
  static Result<std::shared_ptr<const TextAssets>> load(const std::filesystem::path& folder, const Json& config,
                                                        const Json& generation_config);
  ~TextAssets();
  const Tokenizer& tokenizer() const;
  bool has_template() const;
  const std::string& template_source() const;
  // The union of config.json, generation_config.json and tokenizer_config.json eos entries, and the family's turn-ending
  // tokens that the tokenizer has (<|user|>, <|observation|>, <|endoftext|>).
  const std::vector<std::int32_t>& end_tokens() const;
  const Json& sampling_defaults() const;      // {"temperature":..,"top_p":..} as resolved from generation_config.json
  Result<PreparedPrompt> prepare(const ChatRequest& request) const;
  // Fills a GenerateRequest's sampling from the request and the defaults; checks ranges. Errors name the field.
  Result<GenerateRequest> to_generate_request(const ChatRequest& request, std::vector<std::int32_t> prompt, int context) const;

 private:
  TextAssets();
  struct State;
  std::unique_ptr<State> state_;
};

// A running turn. Destroying it cancels.
class Turn {
 public:
  Turn();
  Turn(Turn&&) noexcept;
  Turn& operator=(Turn&&) noexcept;
  ~Turn();
  void cancel();
  const PreparedPrompt& prompt() const;

 private:
  friend Result<Turn> start_turn(Engine&, std::shared_ptr<const TextAssets>, ChatRequest, DeltaSink);
  struct State;
  std::shared_ptr<State> state_;
};

// Renders, encodes and submits. The sink gets kStarted, kOutput*, one kFinished.
Result<Turn> start_turn(Engine& engine, std::shared_ptr<const TextAssets> assets, ChatRequest request, DeltaSink sink);

}  // namespace glint
