#include "models/layers/decoder_model.h"

#include <fmt/format.h>

#include "base/check.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// y = sublayer(what it reads of h), which joins the residual h again. `hyper`: h is streams.
template <typename Sublayer>
void run_sublayer(const DecoderStep& step, const std::optional<HyperWeights>& hyper,
                  const std::string& layer, const char* name, float* h, float* y,
                  const Sublayer& sublayer) {
  if (!hyper) {
    sublayer(h);
    step.report(layer + name, y);
    add_to_stream(step, y, h);
    return;
  }
  Exec& exec = step.exec;
  Workspace::Scope scope(exec.workspace);
  const HyperDims& dims = *step.config.hyper;
  const HyperMix mix = allocate_mix(exec, dims, step.tokens());
  auto* x = exec.workspace.array<float>(step.values());
  hyper_collapse(exec, dims, *hyper, h, step.tokens(), mix, x);
  if (step.probe != nullptr) {
    const std::string hc = layer + (name == std::string_view("mlp") ? "ffn_hc." : "attn_hc.");
    step.report(hc + "collapsed", x);
    step.report(hc + "post", mix.post, size(dims.streams));
    step.report(hc + "comb", mix.comb, size(dims.streams * dims.streams));
  }
  sublayer(x);
  step.report(layer + name, y);
  hyper_expand(exec, dims, mix, y, step.tokens(), h);
}

}  // namespace

DecoderWeights bind_decoder(TensorBinder& binder, const DecoderConfig& config, bool draft,
                            const std::function<void(int, const std::string&)>& bind_attention) {
  DecoderWeights w;
  w.ends = bind_ends(binder, config);
  const int layers = config.num_layers + (draft ? 1 : 0);
  for (int i = 0; i < layers && !binder.hopeless(); ++i) {
    const std::string prefix = config.layer_prefix(i);
    DecoderLayer layer;
    layer.input_layernorm = binder.vector(prefix + "input_layernorm.weight", config.hidden_size);
    bind_attention(i, prefix + "self_attn.");
    layer.mlp = bind_feed_forward(binder, config, i);
    if (config.hyper && i < config.num_layers) {
      layer.attn_hc = bind_hyper(binder, prefix + "hc_attn_", *config.hyper);
      layer.ffn_hc = bind_hyper(binder, prefix + "hc_ffn_", *config.hyper);
    }
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
      cache_format_(options.cache_format),
      rope_frequencies_(std::move(rope_frequencies)) {}

CacheSpec DecoderModel::cache_spec() const {
  const CacheSpecs& specs = can_draft() ? info_.draft.cache : info_.cache;
  GLINT_CHECK(specs.find(cache_format_) != nullptr);
  CacheSpec spec = *specs.find(cache_format_);
  spec.row_bytes *= row_factor(cache_format_, compute_);
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
  const DecoderLayer& layer = weights_.layers[size(attention_step.layer)];
  const std::string name =
      step.probe == nullptr ? std::string() : fmt::format("layer{}.", attention_step.layer);
  run_sublayer(step, layer.attn_hc, name, "attn", h, y,
               [&](const float* x) { attention(attention_step, x, y); });
  run_sublayer(step, layer.ffn_hc, name, "mlp", h, y,
               [&](const float* x) { feed_forward(step, layer.mlp, name, x, y); });
  step.report(name + "out", h, step.hidden() * size(layer.attn_hc ? streams() : 1));
}

void DecoderModel::run(const DecoderStep& step, Cache& cache, std::span<float> logits) const {
  GLINT_CHECK(logits.size() >= step.batch.logit_rows.size() * size(config_.vocab_size));
  Workspace& workspace = step.exec.workspace;
  Workspace::Scope scope(workspace);
  auto* h = workspace.array<float>(step.values() * size(streams()));  // the residual
  auto* y = workspace.array<float>(step.values());
  float* last = h;
  embed(step, weights_.ends.embed_tokens, config_.hyper ? y : h);
  step.report("embed", config_.hyper ? y : h);
  if (config_.hyper) hyper_spread(step.exec, *config_.hyper, y, step.tokens(), h);
  const RopeAngles rope = rope_angles(step.exec, step.batch, rope_frequencies_);
  std::byte* shared = workspace.bytes(step_bytes(step.batch));
  for (int i = 0; i < config_.num_layers; ++i) {
    run_layer(step,
              {step.exec, step.batch, cache, i, rope, 0, weights_.layers[size(i)].input_layernorm,
               shared, 0, step.probe},
              h, y);
  }
  if (config_.hyper) {
    hyper_mean(step.exec, *config_.hyper, h, step.tokens(), y);
    last = y;
  }
  final_states(step, weights_.ends.norm, last);
  head(step, weights_.ends.norm, weights_.ends.lm_head, last, nullptr, logits);
}

void DecoderModel::draft(Exec& exec, Cache& cache, const DraftBatch& draft_batch,
                         std::span<float> logits) const {
  GLINT_CHECK(can_draft());
  GLINT_CHECK(logits.size() >= draft_batch.logit_rows.size() * size(config_.vocab_size));
  GLINT_CHECK(draft_batch.recycled.empty() ||
              draft_batch.recycled.size() >=
                  draft_batch.logit_rows.size() * size(config_.hidden_size));
  const Batch batch{.tokens = draft_batch.tokens,
                    .sequences = draft_batch.sequences,
                    .logit_rows = draft_batch.logit_rows,
                    .inputs = draft_batch.inputs};
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
             weights_.layers.back().input_layernorm, exec.workspace.bytes(step_bytes(batch)),
             draft_batch.iteration, nullptr},
            h, y);
  // What is recycled is the state after the norm, as in transformers and SGLang. vLLM takes it
  // before; the demo model accepts as many drafts of drafts either way.
  head(step, weights_.draft->shared_head_norm, weights_.draft->shared_head, h,
       draft_batch.recycled.empty() ? nullptr : draft_batch.recycled.data(), logits);
}

}  // namespace glint
