// `glint score --ids` and `--teacher-force`: logits of given tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "engine/score.h"
#include "tools/safetensors_writer.h"
#include "tools/score.h"

namespace glint {
namespace {

constexpr std::size_t kMaxInputBytes = 1u << 30;

struct Prompts {
  std::vector<std::string> names;
  std::vector<std::vector<std::int32_t>> ids;
};

Result<std::vector<std::int32_t>> parse_id_list(const Json& json, std::string_view where) {
  if (!json.is_array())
    return invalid_argument(fmt::format("{} must be a list of token ids", where));
  std::vector<std::int32_t> ids;
  for (const Json& id : json.as_array()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
      return invalid_argument(fmt::format("{} holds {}, which is no token id", where, id.dump()));
    }
    ids.push_back(static_cast<std::int32_t>(id.as_int()));
  }
  if (ids.empty()) return invalid_argument(fmt::format("{} is empty", where));
  return ids;
}

// {"prompts": [{"name", "ids"}, ...]}, or a list of id lists.
Result<Prompts> parse_prompts(const Json& json) {
  Prompts prompts;
  const Json* list = json.is_array() ? &json : json.find("prompts");
  if (list == nullptr || !list->is_array() || list->as_array().empty()) {
    return invalid_argument(
        "expected {\"prompts\": [{\"name\": ..., \"ids\": [...]}, ...]} or a list of id lists");
  }
  for (const Json& entry : list->as_array()) {
    std::string name = fmt::format("p{}", prompts.names.size());
    const Json* ids = &entry;
    if (entry.is_object()) {
      ids = entry.find("ids");
      if (const Json* given = entry.find("name"); given != nullptr) {
        if (!given->is_string())
          return invalid_argument(fmt::format("the name of {} must be a string", name));
        name = given->as_string();
      }
      if (ids == nullptr) return invalid_argument(fmt::format("{} has no \"ids\"", name));
    }
    GLINT_TRY(auto list_of_ids, parse_id_list(*ids, name));
    prompts.names.push_back(std::move(name));
    prompts.ids.push_back(std::move(list_of_ids));
  }
  return prompts;
}

std::int64_t count_tokens(const std::vector<std::vector<std::int32_t>>& lists) {
  std::int64_t count = 0;
  for (const auto& list : lists) count += static_cast<std::int64_t>(list.size());
  return count;
}

// A session without text and engine whose cache holds the longest list and `extra` tokens more.
Result<std::unique_ptr<Session>> open_for(SessionOptions options,
                                          const std::vector<std::vector<std::int32_t>>& lists,
                                          int extra, bool all_at_once) {
  std::size_t longest = 1;
  for (const auto& list : lists) longest = std::max(longest, list.size());
  const std::size_t needed = longest + static_cast<std::size_t>(extra);
  if (options.context == 0)
    options.context = static_cast<int>(std::min<std::size_t>(needed, INT32_MAX));
  if (needed > static_cast<std::size_t>(options.context)) {
    return invalid_argument(fmt::format("the longest prompt needs {} tokens, more than --ctx {}",
                                        needed, options.context));
  }
  options.max_sequences = all_at_once ? static_cast<int>(lists.size()) : 1;
  options.text = false;
  options.engine = false;
  return open_session(std::move(options));
}

ScoreOptions step_options(const Session& session, bool all_at_once) {
  const int chunk = session.plan.options.chunk;
  return {.chunk = chunk, .max_batch_tokens = std::max(chunk, 512), .all_at_once = all_at_once};
}

Result<std::unique_ptr<SafetensorsWriter>> create_output(const ScoreRequest& request,
                                                         const Prompts& prompts, int vocab_size) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (std::size_t i = 0; i < prompts.ids.size(); ++i) {
    tensors.push_back({"logits." + prompts.names[i],
                       DType::kF32,
                       {static_cast<std::int64_t>(prompts.ids[i].size()), vocab_size}});
    if (request.greedy > 0)
      tensors.push_back({"greedy." + prompts.names[i], DType::kI64, {request.greedy}});
  }
  return SafetensorsWriter::create(request.output, tensors);
}

Status write_greedy(Session& session, const ScoreRequest& request, const Prompts& prompts,
                    SafetensorsWriter& writer) {
  for (std::size_t i = 0; i < prompts.ids.size(); ++i) {
    GLINT_TRY(const std::vector<std::int32_t> tokens,
              greedy_continuation(*session.model, *session.exec, *session.cache, prompts.ids[i],
                                  request.greedy, session.plan.options.chunk));
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    GLINT_TRY_VOID(writer.write("greedy." + prompts.names[i], 0, std::as_bytes(std::span(wide))));
  }
  return {};
}

struct Reference {
  std::vector<std::vector<std::int32_t>> inputs;  // prompt and output without its last token
  std::vector<std::vector<std::int32_t>> outputs;
};

Result<Reference> parse_reference(const Json& json) {
  const Json* outputs = json.find("outputs");
  if (outputs == nullptr || !outputs->is_array() || outputs->as_array().empty()) {
    return invalid_argument(
        "expected {\"outputs\": [{\"prompt_ids\": [...], \"output_ids\": [...]}, ...]}");
  }
  Reference reference;
  for (const Json& entry : outputs->as_array()) {
    const std::string where = fmt::format("outputs[{}]", reference.outputs.size());
    const Json* prompt_ids = entry.find("prompt_ids");
    const Json* output_ids = entry.find("output_ids");
    if (prompt_ids == nullptr || output_ids == nullptr) {
      return invalid_argument(where + " has no \"prompt_ids\" or no \"output_ids\"");
    }
    GLINT_TRY(auto input, parse_id_list(*prompt_ids, where + ".prompt_ids"));
    GLINT_TRY(auto output, parse_id_list(*output_ids, where + ".output_ids"));
    input.insert(input.end(), output.begin(), output.end() - 1);
    reference.inputs.push_back(std::move(input));
    reference.outputs.push_back(std::move(output));
  }
  return reference;
}

Result<Json> read_json_input(const std::string& path) {
  GLINT_TRY(const std::string text, read_score_input(path));
  auto json = parse_json(text, {.max_bytes = kMaxInputBytes});
  if (!json) return invalid_argument(path + ": " + json.error().message);
  return std::move(*json);
}

}  // namespace

Result<std::string> read_score_input(const std::string& path) {
  auto text = read_text_file(path, kMaxInputBytes);
  if (!text) return invalid_argument(text.error().message);
  return std::move(*text);
}

Result<Json> score_ids(ScoreRequest request) {
  GLINT_TRY(const Json json, read_json_input(request.input));
  auto prompts = parse_prompts(json);
  if (!prompts) return invalid_argument(request.input + ": " + prompts.error().message);
  GLINT_TRY(const auto session,
            open_for(request.session, prompts->ids, request.greedy, request.all_at_once));
  const auto vocab_size = static_cast<std::size_t>(session->plan.info.vocab_size);
  GLINT_TRY(const auto writer, create_output(request, *prompts, session->plan.info.vocab_size));
  GLINT_TRY_VOID(prompt_logits(*session->model, *session->exec, *session->cache, prompts->ids,
                               step_options(*session, request.all_at_once),
                               [&](std::size_t prompt, int first, std::span<const float> logits) {
                                 return writer->write(
                                     "logits." + prompts->names[prompt],
                                     static_cast<std::uint64_t>(first) * vocab_size * sizeof(float),
                                     std::as_bytes(logits));
                               }));
  if (request.greedy > 0) GLINT_TRY_VOID(write_greedy(*session, request, *prompts, *writer));
  GLINT_TRY_VOID(writer->finish());
  Json report;
  report.set("prompts", static_cast<std::int64_t>(prompts->ids.size()));
  report.set("tokens", count_tokens(prompts->ids));
  return report;
}

Result<Json> score_reference(ScoreRequest request) {
  GLINT_TRY(const Json json, read_json_input(request.input));
  auto reference = parse_reference(json);
  if (!reference) return invalid_argument(request.input + ": " + reference.error().message);
  GLINT_TRY(const auto session, open_for(request.session, reference->inputs, 0, false));
  const auto vocab_size = static_cast<std::size_t>(session->plan.info.vocab_size);
  std::int64_t agree = 0;
  GLINT_TRY_VOID(
      prompt_logits(*session->model, *session->exec, *session->cache, reference->inputs,
                    step_options(*session, false),
                    [&](std::size_t item, int first, std::span<const float> logits) -> Status {
                      const auto& output = reference->outputs[item];
                      const std::size_t prompt = reference->inputs[item].size() + 1 - output.size();
                      for (std::size_t row = 0; row * vocab_size < logits.size(); ++row) {
                        const std::size_t position =
                            static_cast<std::size_t>(first) + row;  // predicts the next token
                        if (position + 1 < prompt) continue;
                        const auto values = logits.subspan(row * vocab_size, vocab_size);
                        const auto best = std::ranges::max_element(values) - values.begin();
                        agree += best == output[position + 1 - prompt] ? 1 : 0;
                      }
                      return {};
                    }));
  const std::int64_t tokens = count_tokens(reference->outputs);
  Json report;
  report.set("items", static_cast<std::int64_t>(reference->outputs.size()));
  report.set("tokens", tokens);
  report.set("agree", agree);
  report.set("agreement", static_cast<double>(agree) / static_cast<double>(tokens));
  return report;
}

}  // namespace glint
