// A whole network of the decoder families: the layers, the draft layer behind them, the head. A
// family binds and runs its attention itself and adds it here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cache_format.h"
#include "models/layers/decoder.h"
#include "models/layers/draft.h"
#include "models/layers/rope.h"
#include "models/model.h"
#include "models/tensor_binder.h"
#include "ops/cache_rows.h"

namespace glint {

// A layer without its attention.
struct DecoderLayer {
  std::vector<float> input_layernorm;  // [hidden]
  FeedForward mlp;
  std::optional<HyperWeights> attn_hc, ffn_hc;  // where the residual is several streams
};

struct DecoderWeights {
  DecoderEnds ends;
  std::vector<DecoderLayer> layers;  // the draft layer's behind the others
  std::optional<DraftEnds> draft;
};

// Binds all but the attention, and calls bind_attention with the number and the prefix of its
// tensors for each layer, the draft layer last where `draft` says that it is wanted.
DecoderWeights bind_decoder(
    TensorBinder& binder, const DecoderConfig& config, bool draft,
    const std::function<void(int layer, const std::string& prefix)>& bind_attention);

class DecoderModel : public Model {
 public:
  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override;
  void forward(Exec& exec, Cache& cache, const Batch& batch,
               std::span<float> logits) const override;
  void forward_probed(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                      const Probe& probe) const override;
  bool can_draft() const override { return weights_.draft.has_value(); }
  void draft(Exec& exec, Cache& cache, const DraftBatch& batch,
             std::span<float> logits) const override;

 protected:
  DecoderModel(const DecoderConfig& config, DecoderWeights weights, ModelInfo info,
               std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options,
               std::vector<float> rope_frequencies);

  // What the attention of one layer runs with.
  struct AttentionStep {
    Exec& exec;
    const Batch& batch;
    Cache& cache;
    int layer;  // of the network
    RopeAngles rope;
    int first_key;  // rows of the cache before it are not attended to
    const std::vector<float>& input_layernorm;
    std::byte* shared;   // [step_bytes()]: what a layer leaves for later ones of the same step
    int iteration;       // DraftBatch::iteration
    const Probe* probe;  // may be null
  };
  virtual std::size_t step_bytes(const Batch& /*batch*/) const { return 0; }
  // y = attention(norm(x)), both [tokens, hidden]; writes the batch's rows of the cache.
  virtual void attention(const AttentionStep& step, const float* x, float* y) const = 0;

  Compute compute() const { return compute_; }
  CacheFormat cache_format() const { return cache_format_; }
  // How a token's rows are stored, and what they are multiplied as.
  CacheRows cache_rows() const { return {row_format(cache_format_, compute_), compute_}; }

 private:
  void run(const DecoderStep& step, Cache& cache, std::span<float> logits) const;
  void run_layer(const DecoderStep& step, const AttentionStep& attention_step, float* h,
                 float* y) const;
  int streams() const { return config_.hyper ? config_.hyper->streams : 1; }

  DecoderConfig config_;
  DecoderWeights weights_;
  ModelInfo info_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  Compute compute_;
  CacheFormat cache_format_;
  std::vector<float> rope_frequencies_;
};

}  // namespace glint
