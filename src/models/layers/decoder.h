// What the families of decoder_config.h share of their weights and of a step: the embedding, the
// feed-forward half of a layer, the head. decoder_model.h puts them together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/batch.h"
#include "models/layers/decoder_config.h"
#include "models/layers/moe.h"
#include "models/tensor_binder.h"

namespace glint {

// The second half of a layer.
struct FeedForward {
  std::vector<float> post_attention_layernorm;  // [hidden]
  bool dense = false;
  GatedMlp mlp;    // dense layers
  MoeWeights moe;  // the others
};

// What stands before and behind the layers.
struct DecoderEnds {
  Weight embed_tokens;      // [vocab, hidden]
  std::vector<float> norm;  // [hidden]
  Weight lm_head;           // [vocab, hidden]; the embedding when tied
};

FeedForward bind_feed_forward(TensorBinder& binder, const DecoderConfig& config, int layer);
// Also skips derived buffers, which no family reads.
DecoderEnds bind_ends(TensorBinder& binder, const DecoderConfig& config);

// What the parts of a step run with.
struct DecoderStep {
  Exec& exec;
  const DecoderConfig& config;
  Compute compute;
  const Batch& batch;
  const Probe* probe;  // may be null

  int tokens() const { return static_cast<int>(batch.tokens.size()); }
  std::size_t hidden() const { return static_cast<std::size_t>(config.hidden_size); }
  std::size_t values() const { return batch.tokens.size() * hidden(); }
  // Shows [tokens, width] values to the probe when there is one.
  void report(const std::string& name, const float* values, std::size_t width) const;
  void report(const std::string& name, const float* values) const {
    report(name, values, hidden());
  }
};

// The embedding of token t of the batch, or what an image looks like there; row [hidden].
void input_row(const DecoderStep& step, const Weight& embed_tokens, std::size_t t, float* row);
// h = the rows of the batch's tokens; h [tokens, hidden].
void embed(const DecoderStep& step, const Weight& embed_tokens, float* h);
// h += y.
void add_to_stream(const DecoderStep& step, const float* y, float* h);
// y = feed_forward(norm(h)); `name` is the probe's prefix of the layer.
void feed_forward(const DecoderStep& step, const FeedForward& weights, const std::string& name,
                  const float* h, float* y);
// norm(h) of every row, for whoever wants it: the batch or the probe.
void final_states(const DecoderStep& step, const std::vector<float>& norm, const float* h);
// Logits [logit_rows, vocab] of the batch's rows that need them, and with `normed` their norm(h)
// [logit_rows, hidden].
void head(const DecoderStep& step, const std::vector<float>& norm, const Weight& lm_head,
          const float* h, float* normed, std::span<float> logits);

}  // namespace glint
