// TextAssets::to_generate_request: what a request says in words -> what the engine takes in tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "chat/answer_rules.h"
#include "chat/text_assets.h"

namespace glint {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopChars = 1000;
constexpr std::size_t kMaxBadWords = 256;
constexpr float kMaxBias = 100.0f;

std::size_t count_chars(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Each of 1 to kMaxStopChars characters, and at most `most` of them.
Status check_texts(const char* field, const std::vector<std::string>& texts, std::size_t most) {
  if (texts.size() > most) {
    return invalid_argument(
        fmt::format("{}: at most {} strings, not {}", field, most, texts.size()));
  }
  for (std::size_t index = 0; index < texts.size(); ++index) {
    const std::size_t chars = count_chars(texts[index]);
    if (chars == 0 || chars > kMaxStopChars) {
      return invalid_argument(fmt::format("{}[{}]: must have 1 to {} characters, not {}", field,
                                          index, kMaxStopChars, chars));
    }
  }
  return {};
}

Status check_limits(const ChatRequest& request) {
  if (request.max_tokens && *request.max_tokens < 1) {
    return invalid_argument(
        fmt::format("max_tokens: must be at least 1, not {}", *request.max_tokens));
  }
  if (request.min_tokens < 0) {
    return invalid_argument(
        fmt::format("min_tokens: must be at least 0, not {}", request.min_tokens));
  }
  if (request.prompt_logprobs < -1) {
    return invalid_argument(
        fmt::format("prompt_logprobs: must be at least 0, not {}", request.prompt_logprobs));
  }
  if (request.keep_last_prompt_tokens < 0) {
    return invalid_argument(fmt::format("truncate_prompt_tokens: must be at least 1, not {}",
                                        request.keep_last_prompt_tokens));
  }
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    return invalid_argument(fmt::format("min_tokens: {} is more than max_tokens {}",
                                        request.min_tokens, *request.max_tokens));
  }
  GLINT_TRY_VOID(check_texts("stop", request.stop, kMaxStops));
  return check_texts("bad_words", request.bad_words, kMaxBadWords);
}

Status check_token(const char* field, std::int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return invalid_argument(
      fmt::format("{}: token {} is not in the vocabulary of {} tokens", field, id, vocab_size));
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

// A word may stand behind a space or not, which are different tokens.
std::vector<std::vector<std::int32_t>> bad_sequences(const std::vector<std::string>& words,
                                                     const Tokenizer& tokenizer) {
  std::vector<std::vector<std::int32_t>> out;
  for (const std::string& word : words) {
    for (const std::string& text : {word, " " + word}) {
      std::vector<std::int32_t> ids = tokenizer.encode(text);
      if (!ids.empty() && std::ranges::find(out, ids) == out.end()) out.push_back(std::move(ids));
    }
  }
  return out;
}

Status add_token_lists(const ChatRequest& request, const Tokenizer& tokenizer,
                       SamplingParams& sampling) {
  const int vocab_size = tokenizer.vocab_size();
  for (const auto& [id, bias] : request.logit_bias) {
    GLINT_TRY_VOID(check_token("logit_bias", id, vocab_size));
    if (std::isnan(bias)) return invalid_argument("logit_bias: a bias must be a number");
    sampling.logit_bias.emplace_back(id, std::clamp(bias, -kMaxBias, kMaxBias));
  }
  for (const std::int32_t id : request.allowed_token_ids) {
    GLINT_TRY_VOID(check_token("allowed_token_ids", id, vocab_size));
  }
  sampling.allowed_tokens = request.allowed_token_ids;
  sampling.bad_sequences = bad_sequences(request.bad_words, tokenizer);
  return {};
}

}  // namespace

Status TextAssets::State::set_lengths(const ChatRequest& request, const PreparedPrompt& prompt,
                                      int context, GenerateRequest& out) const {
  if (static_cast<std::size_t>(std::max(context, 0)) < prompt.ids.size() + 1) {
    return invalid_argument(
        fmt::format("{}: this model's maximum context length is {} tokens, but the prompt has {} "
                    "and at least 1 is needed for the answer; shorten the messages or serve with a "
                    "larger --ctx",
                    request.raw ? "prompt" : "messages", context, prompt.ids.size()));
  }
  const int room = context - static_cast<int>(prompt.ids.size());
  const int otherwise = default_max_tokens > 0 ? default_max_tokens : room;
  out.max_tokens = std::min(request.max_tokens.value_or(otherwise), room);
  out.min_tokens = std::min(request.min_tokens, out.max_tokens);
  if (!request.ignore_eos) out.stop_ids = end_tokens;
  for (const std::int32_t id : request.stop_token_ids) {
    GLINT_TRY_VOID(check_token("stop_token_ids", id, tokenizer->vocab_size()));
    if (std::ranges::find(out.stop_ids, id) == out.stop_ids.end()) out.stop_ids.push_back(id);
  }
  return {};
}

Result<std::shared_ptr<TokenConstraint>> TextAssets::State::constraint_for(
    const ChatRequest& request, const PreparedPrompt& prompt) const {
  AnswerSetting setting{.tokenizer = tokenizer,
                        .tokens = answer_tokens,
                        .tool_format = tool_format,
                        .reasoning_format = reasoning_format,
                        .tool_grammar = tool_grammar,
                        .grammars = [this] { return grammars(); }};
  GLINT_TRY(AnswerRules rules, answer_rules(request, prompt, setting));
  if (!rules.constrain()) return std::shared_ptr<TokenConstraint>();
  return std::shared_ptr<TokenConstraint>(std::make_shared<AnswerConstraint>(std::move(rules)));
}

Result<GenerateRequest> TextAssets::to_generate_request(const ChatRequest& request,
                                                        const PreparedPrompt& prompt,
                                                        int context) const {
  GenerateRequest out;
  out.sampling = merge_sampling(request, state_->sampling_defaults);
  GLINT_TRY_VOID(check_sampling(out.sampling));
  GLINT_TRY_VOID(check_limits(request));
  if (out.sampling.top_k < 0) out.sampling.top_k = 0;
  GLINT_TRY_VOID(add_token_lists(request, *state_->tokenizer, out.sampling));
  out.sampling.seed = request.seed ? *request.seed : random_seed();
  GLINT_TRY_VOID(state_->set_lengths(request, prompt, context, out));
  GLINT_TRY(out.constraint, state_->constraint_for(request, prompt));
  out.prompt = prompt.ids;
  out.images = prompt.images;
  if (state_->script) out.script = state_->script->find(prompt.text);
  out.prompt_logprobs = request.prompt_logprobs;
  out.progress = request.progress;
  out.priority = request.priority;
  out.cache_salt = request.cache_salt;
  out.timeout_s = request.timeout_s;
  return out;
}

}  // namespace glint
