// A model that answers by rote: the last user message picks what it says. Its rows in the cache are
// the tokens themselves, so it needs no arithmetic, and it runs under the real engine with the demo
// model's tokenizer and template.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "models/model.h"

namespace glint {

inline std::filesystem::path demo_folder() {
  return std::filesystem::path(GLINT_SOURCE_DIR) / "models/demo";
}

inline Json demo_json(const char* name) {
  auto text = read_text_file(demo_folder() / name, 1u << 20);
  GLINT_CHECK(text.has_value());
  auto parsed = parse_json(*text);
  GLINT_CHECK(parsed.has_value());
  return *parsed;
}

inline std::shared_ptr<const TextAssets> demo_text() {
  auto text = TextAssets::load(demo_folder(), demo_json("config.json"),
                               demo_json("generation_config.json"));
  GLINT_CHECK(text.has_value());
  return *text;
}

class ScriptModel : public Model {
 public:
  static constexpr int kVocabSize = 1536;

  explicit ScriptModel(std::shared_ptr<const TextAssets> text) : text_(std::move(text)) {
    info_.model_type = "script";
    info_.family = "script";
    info_.weight_format = "none";
    info_.vocab_size = kVocabSize;
    user_ = token("<|user|>");
    assistant_ = token("<|assistant|>");
    think_ = token("<think>");
    think_end_ = token("</think>");
  }

  // Special tokens may be written literally in `say`; it ends with <|user|> unless `endless`, when
  // it repeats. Set before the engine runs.
  void add(const std::string& user, const std::string& say, bool endless = false) {
    std::vector<std::int32_t> ids = text_->tokenizer().encode(say);
    if (!endless) ids.push_back(user_);
    answers_[user] = ids;
  }
  std::int32_t token(std::string_view name) const {
    const auto id = text_->tokenizer().token_id(name);
    GLINT_CHECK(id.has_value());
    return *id;
  }
  std::atomic<int> step_ms = 0;
  mutable std::atomic<int> num_steps = 0;

  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override {
    return {.name = "script", .num_layers = 1, .row_bytes = sizeof(std::int32_t)};
  }
  void forward(Exec&, Cache& cache, const Batch& batch, std::span<float> logits) const override {
    ++num_steps;
    if (step_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
    for (const SequenceSpan& span : batch.sequences) {
      for (int index = 0; index < span.count; ++index) {
        *row(cache, span, span.start + index) =
            batch.tokens[static_cast<std::size_t>(span.begin + index)];
      }
    }
    std::size_t sequence = 0;
    for (std::size_t index = 0; index < batch.logit_rows.size(); ++index) {
      const int at = batch.logit_rows[index];
      while (batch.sequences[sequence].begin + batch.sequences[sequence].count <= at) ++sequence;
      const SequenceSpan& span = batch.sequences[sequence];
      std::vector<std::int32_t> tokens;
      for (int position = 0; position <= span.start + at - span.begin; ++position) {
        tokens.push_back(*row(cache, span, position));
      }
      fill(next_token(tokens), logits.subspan(index * kVocabSize, kVocabSize));
    }
  }
  void forward_probed(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                      const Probe&) const override {
    forward(exec, cache, batch, logits);
  }

 private:
  static std::int32_t* row(Cache& cache, const SequenceSpan& span, int position) {
    std::byte* rows = cache.rows(span.pages[static_cast<std::size_t>(position / kPageSize)], 0);
    return reinterpret_cast<std::int32_t*>(rows) + position % kPageSize;
  }
  // The answer begins behind the generation prompt, <|assistant|> and one thinking token.
  std::int32_t next_token(const std::vector<std::int32_t>& tokens) const {
    std::size_t begin = tokens.size();
    while (begin > 0 && tokens[begin - 1] != assistant_) --begin;
    std::size_t user_end = begin > 0 ? begin - 1 : 0, user_begin = user_end;
    while (user_begin > 0 && tokens[user_begin - 1] != user_) --user_begin;
    const std::string user =
        text_->tokenizer().decode(std::span(tokens).subspan(user_begin, user_end - user_begin));
    if (begin < tokens.size() && (tokens[begin] == think_ || tokens[begin] == think_end_)) ++begin;
    const auto found = answers_.find(user);
    if (found == answers_.end()) return user_;
    return found->second[(tokens.size() - begin) % found->second.size()];
  }
  static void fill(std::int32_t next, std::span<float> logits) {
    for (std::size_t index = 0; index < logits.size(); ++index)
      logits[index] = -static_cast<float>(index % 7);
    logits[static_cast<std::size_t>(next)] = 30.0f;
  }

  std::shared_ptr<const TextAssets> text_;
  ModelInfo info_;
  std::map<std::string, std::vector<std::int32_t>> answers_;
  std::int32_t user_, assistant_, think_, think_end_;
};

// Everything a ScriptModel runs with.
struct ScriptRig {
  explicit ScriptRig(EngineOptions options = {.context = 512,
                                              .max_sequences = 4,
                                              .max_batch_tokens = 64})
      : text(demo_text()),
        model(text),
        pool(1),
        cache(model.cache_spec(), 64, true),
        engine_options(options) {}

  Engine& start() {
    engine = std::make_unique<Engine>(model, exec, cache, engine_options);
    return *engine;
  }

  std::shared_ptr<const TextAssets> text;
  ScriptModel model;
  KernelTable table;
  ThreadPool pool;
  Workspace workspace;
  Exec exec{table, pool, workspace};
  Cache cache;
  EngineOptions engine_options;
  std::unique_ptr<Engine> engine;
};

}  // namespace glint
