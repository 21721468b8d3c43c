#include "models/layers/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/integers.h"
#include "models/expert_store.h"

namespace glint {
namespace {

constexpr int kTokensPerTask = 16;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

GatedMlp bind_mlp(TensorBinder& b, const std::string& prefix, const DecoderConfig& c, int width) {
  const int hidden = c.hidden_size;
  return {b.matrix(prefix + "gate_proj.weight", width, hidden, MatrixUse::kFeedForward),
          b.matrix(prefix + "up_proj.weight", width, hidden, MatrixUse::kFeedForward),
          b.matrix(prefix + "down_proj.weight", hidden, width, MatrixUse::kFeedForward),
          c.swiglu_limit};
}

// bind_mlp() of an expert that is read when it is wanted.
StreamedExpert stream_mlp(TensorBinder& b, const std::string& prefix, const DecoderConfig& c,
                          int width) {
  constexpr MatrixUse kUse = MatrixUse::kFeedForward;
  return {b.streamed_matrix(prefix + "gate_proj.weight", width, c.hidden_size, kUse),
          b.streamed_matrix(prefix + "up_proj.weight", width, c.hidden_size, kUse),
          b.streamed_matrix(prefix + "down_proj.weight", c.hidden_size, width, kUse),
          c.swiglu_limit};
}

MoeWeights bind_moe(TensorBinder& b, const std::string& prefix, const DecoderConfig& c) {
  MoeWeights w;
  w.gate = b.matrix(prefix + "gate.weight", c.router.num_experts, c.hidden_size, MatrixUse::kKept);
  w.e_score_correction_bias =
      b.vector(prefix + "gate.e_score_correction_bias", c.router.num_experts);
  std::vector<StreamedExpert> streamed;
  w.store = b.expert_store();
  for (int e = 0; e < c.router.num_experts && !b.hopeless(); ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    if (w.store != nullptr) {
      streamed.push_back(stream_mlp(b, expert, c, c.moe_intermediate_size));
    } else {
      w.experts.push_back(bind_mlp(b, expert, c, c.moe_intermediate_size));
    }
  }
  if (w.store != nullptr)
    w.store_layer = w.store->add_layer(std::move(streamed), c.router.experts_per_token);
  if (c.n_shared_experts > 0) {
    w.shared_experts =
        bind_mlp(b, prefix + "shared_experts.", c, c.moe_intermediate_size * c.n_shared_experts);
  }
  return w;
}

// Calls work(first, count) for pieces of a step's tokens.
template <typename Work>
void for_tokens(const DecoderStep& step, const Work& work) {
  step.exec.pool.run(size(ceil_div(step.tokens(), kTokensPerTask)), [&](std::size_t task, int) {
    const int first = static_cast<int>(task) * kTokensPerTask;
    work(first, std::min(kTokensPerTask, step.tokens() - first));
  });
}

void report_routing(const DecoderStep& step, const std::string& name, const Routing& routing) {
  if (step.probe == nullptr) return;
  const std::size_t rows = step.batch.tokens.size();
  const std::size_t k = size(step.config.router.experts_per_token);
  auto* ids = step.exec.workspace.array<float>(rows * k);
  std::copy_n(routing.experts, rows * k, ids);
  (*step.probe)(name + "router_ids", ids, rows, k);
  (*step.probe)(name + "router_weights", routing.weights, rows, k);
}

}  // namespace

FeedForward bind_feed_forward(TensorBinder& binder, const DecoderConfig& config, int layer) {
  const std::string prefix = config.layer_prefix(layer);
  FeedForward w;
  w.post_attention_layernorm =
      binder.vector(prefix + "post_attention_layernorm.weight", config.hidden_size);
  w.dense = layer < config.num_layers && config.dense[size(layer)];
  if (w.dense) {
    w.mlp = bind_mlp(binder, prefix + "mlp.", config, config.intermediate_size);
  } else {
    w.moe = bind_moe(binder, prefix + "mlp.", config);
    binder.release();  // scales of experts, each on a page of its own
    if (w.moe.store != nullptr)
      w.moe.store->set_router(w.moe.store_layer, {w.moe.gate, w.moe.e_score_correction_bias,
                                                  w.post_attention_layernorm});
  }
  return w;
}

DecoderEnds bind_ends(TensorBinder& binder, const DecoderConfig& config) {
  DecoderEnds w;
  w.embed_tokens = binder.matrix(config.prefix + "embed_tokens.weight", config.vocab_size,
                                 config.hidden_size, MatrixUse::kKept);
  w.norm = binder.vector(config.prefix + "norm.weight", config.hidden_size);
  if (!config.tie_word_embeddings) {
    w.lm_head =
        binder.matrix("lm_head.weight", config.vocab_size, config.hidden_size, MatrixUse::kHead);
  } else {
    w.lm_head = w.embed_tokens;
    binder.skip([](std::string_view name) { return name == "lm_head.weight"; });
  }
  binder.skip(is_derived);
  return w;
}

void DecoderStep::report(const std::string& name, const float* values, std::size_t width) const {
  if (probe != nullptr) (*probe)(name, values, batch.tokens.size(), width);
}

void input_row(const DecoderStep& step, const Weight& embed_tokens, std::size_t t, float* row) {
  const std::size_t d = step.hidden();
  for (const InputRows& input : step.batch.inputs) {
    if (t < size(input.begin) || t >= size(input.begin + input.count)) continue;
    std::copy_n(input.values + (t - size(input.begin)) * d, d, row);
    return;
  }
  decode_row(embed_tokens, size(step.batch.tokens[t]), {row, d});
}

void embed(const DecoderStep& step, const Weight& embed_tokens, float* h) {
  step.exec.pool.run(step.batch.tokens.size(), [&](std::size_t t, int) {
    input_row(step, embed_tokens, t, h + t * step.hidden());
  });
}

void add_to_stream(const DecoderStep& step, const float* y, float* h) {
  for_tokens(step, [&](int first, int count) {
    const std::size_t at = size(first) * step.hidden();
    step.exec.kernels.add(y + at, count * step.config.hidden_size, h + at);
  });
}

void feed_forward(const DecoderStep& step, const FeedForward& weights, const std::string& name,
                  const float* h, float* y) {
  Exec& exec = step.exec;
  Workspace::Scope scope(exec.workspace);
  const int d = step.config.hidden_size, tokens = step.tokens();
  auto* x = exec.workspace.array<float>(step.values());
  for_tokens(step, [&](int first, int count) {
    for (int t = first; t < first + count; ++t) {
      exec.kernels.rms_norm(h + size(t) * size(d), weights.post_attention_layernorm.data(), d,
                            step.config.rms_norm_eps, x + size(t) * size(d));
    }
  });
  if (weights.dense) {
    const MlpGroup group{&weights.mlp, {}, nullptr};
    gated_mlp(exec, step.compute, x, tokens, d, {&group, 1}, y);
    return;
  }
  const std::size_t picks = size(tokens) * size(step.config.router.experts_per_token);
  const Routing routing{exec.workspace.array<std::int32_t>(picks),
                        exec.workspace.array<float>(picks)};
  route(exec, step.config.router, weights.moe.gate, weights.moe.e_score_correction_bias, x, tokens,
        d, routing);
  report_routing(step, name, routing);
  moe(exec, step.compute, step.config.router, weights.moe, x, tokens, d, routing, y,
      {h, step.config.rms_norm_eps});
}

void final_states(const DecoderStep& step, const std::vector<float>& norm, const float* h) {
  Exec& exec = step.exec;
  Workspace::Scope scope(exec.workspace);
  float* normed = step.batch.hidden.data();
  if (step.batch.hidden.empty()) {
    if (step.probe == nullptr) return;
    normed = exec.workspace.array<float>(step.values());
  }
  for_tokens(step, [&](int first, int count) {
    for (std::size_t t = size(first); t < size(first + count); ++t) {
      exec.kernels.rms_norm(h + t * step.hidden(), norm.data(), step.config.hidden_size,
                            step.config.rms_norm_eps, normed + t * step.hidden());
    }
  });
  step.report("norm", normed);
}

void head(const DecoderStep& step, const std::vector<float>& norm, const Weight& lm_head,
          const float* h, float* normed, std::span<float> logits) {
  const std::span<const std::int32_t> rows = step.batch.logit_rows;
  if (rows.empty()) return;
  Exec& exec = step.exec;
  Workspace::Scope scope(exec.workspace);
  const std::size_t d = step.hidden();
  auto* last = exec.workspace.array<float>(rows.size() * d);
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::memcpy(last + r * d, h + size(rows[r]) * d, d * sizeof(float));
  const MatmulKernels& kernels = matmul_kernels(exec.kernels, lm_head.format(), step.compute);
  const Activations x =
      rms_norm_pack(exec, kernels, last, d, norm.data(), step.config.rms_norm_eps,
                    static_cast<int>(rows.size()), step.config.hidden_size, normed);
  matmul(exec, {x, &lm_head, logits.data(), size(step.config.vocab_size)});
}

}  // namespace glint
