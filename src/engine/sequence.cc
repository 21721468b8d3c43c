#include "engine/sequence.h"

#include <fmt/format.h>

#include <cmath>

namespace glint {
namespace {

constexpr double kLongestStallS = 3600;

Status check_script(const TokenScript& script, int vocab_size) {
  for (const std::int32_t token : script.tokens) {
    if (token >= 0 && token < vocab_size) continue;
    return invalid_argument(
        fmt::format("the script names token {}, and the vocabulary has {}", token, vocab_size));
  }
  if (std::isfinite(script.stall_s) && script.stall_s <= kLongestStallS) return {};
  return invalid_argument(fmt::format("the script stalls for {} s, and must not for more than {} s",
                                      script.stall_s, kLongestStallS));
}

Status check_request(const GenerateRequest& request, int vocab_size, int context) {
  if (request.prompt.empty()) return invalid_argument("the prompt is empty");
  if (request.prompt.size() >= static_cast<std::size_t>(context)) {
    return invalid_argument(fmt::format(
        "the maximum context length is {} tokens, and the prompt has {}, which leaves no "
        "room for an answer; shorten the prompt or start with a larger context",
        context, request.prompt.size()));
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const std::int32_t token = request.prompt[i];
    if (token < 0 || token >= vocab_size) {
      return invalid_argument(fmt::format("token {} of the prompt is {}, and the vocabulary has {}",
                                          i, token, vocab_size));
    }
  }
  GLINT_TRY_VOID(check_images(request.images, request.prompt.size()));
  if (request.max_tokens < 1) {
    return invalid_argument(
        fmt::format("max_tokens is {}, and must be 1 or more", request.max_tokens));
  }
  if (request.script != nullptr) GLINT_TRY_VOID(check_script(*request.script, vocab_size));
  return check_sampling(request.sampling, vocab_size);
}

}  // namespace

Usage Sequence::usage(Clock::time_point now) const {
  Usage usage{.prompt_tokens = prompt_len,
              .cached_tokens = cached_tokens,
              .completion_tokens = num_generated(),
              .drafted_tokens = num_drafted,
              .accepted_tokens = num_accepted};
  usage.queue_s = seconds_between(submitted, started ? started_at : now);
  if (!started) return usage;
  const bool has_token = num_generated() > 0;
  usage.prefill_s = seconds_between(started_at, has_token ? first_token_at : now);
  if (has_token) usage.decode_s = seconds_between(first_token_at, now);
  return usage;
}

Result<std::unique_ptr<Sequence>> make_sequence(GenerateRequest request, EventSink sink,
                                                std::shared_ptr<const std::atomic<bool>> cancelled,
                                                int vocab_size, int context) {
  GLINT_TRY_VOID(check_request(request, vocab_size, context));
  const int prompt_len = static_cast<int>(request.prompt.size());
  Sampler sampler(std::move(request.sampling), request.min_tokens, request.stop_ids,
                  request.prompt);
  SequenceImages images(std::move(request.images));
  std::vector<std::int32_t> cache_names;
  if (!images.empty()) {
    cache_names = request.prompt;
    images.rename(0, cache_names);
  }
  return std::unique_ptr<Sequence>(new Sequence{
      .tokens = std::move(request.prompt),
      .images = std::move(images),
      .cache_names = std::move(cache_names),
      .prompt_len = prompt_len,
      .max_tokens = std::min(request.max_tokens, context - prompt_len),
      .stop_ids = std::move(request.stop_ids),
      .cache_salt = request.cache_salt,
      .timeout_s = request.timeout_s,
      .sampler = std::move(sampler),
      .sink = std::move(sink),
      .cancelled = std::move(cancelled),
      .constraint = std::move(request.constraint),
      .script = std::move(request.script),
      .prompt_logprobs = request.prompt_logprobs,
      .progress = request.progress,
      .priority = request.priority,
      .cache = {},
      .submitted = Clock::now(),
      .started_at = {},
      .first_token_at = {},
  });
}

}  // namespace glint
