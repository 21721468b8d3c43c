#include "models/layers/decoder_model.h"

#include <fmt/format.h>

#include "base/check.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

}  // namespace

DecoderWeights bind_decoder(TensorBinder& binder, const DecoderConfig& config, bool draft,
                            const std::function<void(const std::string&)>& bind_attention) {
  DecoderWeights w;
  w.ends = bind_ends(binder, config);
  const int layers = config.num_layers + (draft ? 1 : 0);
  for (int i = 0; i < layers && !binder.hopeless(); ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    DecoderLayer layer;
    layer.input_layernorm = binder.vector(prefix + "input_layernorm.weight", config.hidden_size);
    bind_attention(prefix + "self_attn.");
    layer.mlp = bind_feed_forward(binder, config, i);
    w.layers.push_back(std::move(layer));
  }
  if (draft) w.draft = bind_draft_ends(binder, config, w.ends);
  skip_draft_layers(binder, config, draft);
  return w;
}

DecoderModel::DecoderModel(const DecoderConfig& config, DecoderWeights weights, ModelInfo info,
                           std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options,
                           std::vector<float> rope_frequencies)
    : config_(config),
      weights_(std::move(weights)),
      info_(std::move(info)),
      checkpoint_(std::move(checkpoint)),
      compute_(options.compute),
      rope_frequencies_(std::move(rope_frequencies)) {}

CacheSpec DecoderModel::cache_spec() const {
  CacheSpec spec = can_draft() ? info_.draft.cache : info_.cache;
  if (compute_ == Compute::kF32) spec.row_bytes *= sizeof(float) / sizeof(bf16);
  return spec;
}

void DecoderModel::forward(Exec& exec, Cache& cache, const Batch& batch,
                           std::span<float> logits) const {
  run({exec, config_, compute_, batch, nullptr}, cache, logits);
}

void DecoderModel::forward_probed(Exec& exec, Cache& cache, const Batch& batch,
                                  std::span<float> logits, const Probe& probe) const {
  run({exec, config_, compute_, batch, &probe}, cache, logits);
}

void DecoderModel::run_layer(const DecoderStep& step, const AttentionStep& attention_step, float* h,
                             float* y) const {
  const int i = attention_step.layer;
  const std::string name = step.probe == nullptr ? std::string() : fmt::format("layer{}.", i);
  attention(attention_step, h, y);
  step.report(name + "attn", y);
  add_to_stream(step, y, h);
  feed_forward(step, weights_.layers[size(i)].mlp, name, h, y);
  step.report(name + "mlp", y);
  add_to_stream(step, y, h);
  step.report(name + "out", h);
}

void DecoderModel::run(const DecoderStep& step, Cache& cache, std::span<float> logits) const {
  GLINT_CHECK(logits.size() >= step.batch.logit_rows.size() * size(config_.vocab_size));
  Workspace& workspace = step.exec.workspace;
  Workspace::Scope scope(workspace);
  auto* h = workspace.array<float>(step.values());  // the residual stream
  auto* y = workspace.array<float>(step.values());
  embed(step, weights_.ends.embed_tokens, h);
  step.report("embed", h);
  const RopeAngles rope = rope_angles(step.exec, step.batch, rope_frequencies_);
  for (int i = 0; i < config_.num_layers; ++i) {
    run_layer(step,
              {step.exec, step.batch, cache, i, rope, 0, weights_.layers[size(i)].input_layernorm},
              h, y);
  }
  final_states(step, weights_.ends.norm, h);
  head(step, weights_.ends.norm, weights_.ends.lm_head, h, nullptr, logits);
}

void DecoderModel::draft(Exec& exec, Cache& cache, const DraftBatch& draft_batch,
                         std::span<float> logits) const {
  GLINT_CHECK(can_draft());
  GLINT_CHECK(logits.size() >= draft_batch.logit_rows.size() * size(config_.vocab_size));
  GLINT_CHECK(draft_batch.recycled.empty() ||
              draft_batch.recycled.size() >=
                  draft_batch.logit_rows.size() * size(config_.hidden_size));
  const Batch batch{draft_batch.tokens, draft_batch.sequences, draft_batch.logit_rows};
  const DecoderStep step{exec, config_, compute_, batch, nullptr};
  GLINT_CHECK(draft_batch.hidden.size() >= step.values());
  for (const SequenceSpan& sequence : batch.sequences)
    GLINT_CHECK(sequence.count == 0 || sequence.start >= kFirstDraftSlot);
  Workspace::Scope scope(exec.workspace);
  auto* h = exec.workspace.array<float>(step.values());
  auto* y = exec.workspace.array<float>(step.values());
  draft_input(step, *weights_.draft, draft_batch.hidden.data(), h);
  const RopeAngles rope = rope_angles(exec, batch, rope_frequencies_);
  run_layer(step,
            {exec, batch, cache, config_.num_layers, rope, kFirstDraftSlot,
             weights_.layers.back().input_layernorm},
            h, y);
  // What is recycled is the state after the norm, as in transformers and SGLang. vLLM takes it
  // before; the demo model accepts as many drafts of drafts either way.
  head(step, weights_.draft->shared_head_norm, weights_.draft->shared_head, h,
       draft_batch.recycled.empty() ? nullptr : draft_batch.recycled.data(), logits);
}

}  // namespace glint
