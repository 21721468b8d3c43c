// `glint score --text`: perplexity.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/score.h"
#include "tools/score.h"

namespace glint {
namespace {

// What GLM models saw before plain text.
constexpr std::string_view kTextPrefix[] = {"[gMASK]", "<sop>"};

std::vector<std::int32_t> text_prefix(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const std::string_view token : kTextPrefix) {
    if (const auto id = tokenizer.token_id(token)) ids.push_back(*id);
  }
  return ids;
}

// -log softmax(logits)[token]
double surprise(std::span<const float> logits, std::int32_t token) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace

Result<Json> score_text(ScoreRequest request) {
  GLINT_TRY(const std::string text, read_score_input(request.input));
  GLINT_TRY(const auto tokenizer, open_tokenizer(request.session.model));
  const std::vector<std::int32_t> prefix = text_prefix(*tokenizer);
  const std::vector<std::int32_t> ids = tokenizer->encode(text, false);
  // Without a prefix the first token of a window has nothing to be predicted from.
  const std::size_t first_scored = std::max<std::size_t>(1, prefix.size());
  if (ids.empty()) return invalid_argument(request.input + ": the text has no tokens");
  const auto window = static_cast<std::size_t>(request.window);
  std::vector<std::vector<std::int32_t>> windows;
  for (std::size_t at = 0; at < ids.size(); at += window) {
    std::vector<std::int32_t> list = prefix;
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
    list.insert(list.end(), begin,
                begin + static_cast<std::ptrdiff_t>(std::min(window, ids.size() - at)));
    windows.push_back(std::move(list));
  }

  SessionOptions options = request.session;
  if (options.context == 0) options.context = static_cast<int>(window + prefix.size());
  options.text = false;
  options.engine = false;
  GLINT_TRY(const auto session, open_session(options));
  const auto vocab_size = static_cast<std::size_t>(session->plan.info.vocab_size);
  double nll = 0;
  std::int64_t count = 0;
  GLINT_TRY_VOID(prompt_logits(
      *session->model, *session->exec, *session->cache, windows,
      {.chunk = session->plan.options.chunk},
      [&](std::size_t index, int first, std::span<const float> logits) -> Status {
        const auto& list = windows[index];
        for (std::size_t row = 0; row * vocab_size < logits.size(); ++row) {
          const std::size_t predicted = static_cast<std::size_t>(first) + row + 1;
          if (predicted < first_scored || predicted >= list.size()) continue;
          nll += surprise(logits.subspan(row * vocab_size, vocab_size), list[predicted]);
          ++count;
        }
        if (request.progress && first == 0) {
          std::fputs(fmt::format("\r\033[Kwindow {} of {}", index + 1, windows.size()).c_str(),
                     stderr);
        }
        return {};
      }));
  if (request.progress) std::fputs("\r\033[K", stderr);
  if (count == 0) return invalid_argument(request.input + ": one token alone has no perplexity");
  if (!std::isfinite(nll)) return internal_error("the model's logits are not finite");
  Json report;
  report.set("perplexity", std::exp(nll / static_cast<double>(count)));
  report.set("tokens", count);
  report.set("nll", nll / static_cast<double>(count));
  report.set("window", request.window);
  return report;
}

}  // namespace glint
