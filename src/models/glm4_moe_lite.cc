// glm4_moe_lite (GLM-4.7-Flash): MLA with a latent cache, a sigmoid-routed mixture of experts after
// the first dense layers, and one multi-token-prediction layer that is recognised and left alone.
// Checked against transformers 5.24 (modeling_glm4_moe_lite.py) by tests/models.
#include "models/glm4_moe_lite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "models/config_reader.h"
#include "models/layers/mla.h"
#include "models/layers/moe.h"
#include "models/tensor_binder.h"

namespace glint {
namespace {

// transformers builds q_a_layernorm and kv_a_layernorm of this family with its class default,
// whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// ---- config

struct Config {
  int vocab_size, hidden_size, num_layers, max_positions;
  MlaDims mla;
  RouterDims router;
  int intermediate_size, moe_intermediate_size, n_shared_experts;
  std::vector<bool> dense;  // per layer
  float rms_norm_eps;
  double rope_theta;
  bool tie_word_embeddings;
  int mtp_layers;
};

void read_layer_types(ConfigReader& r, Config& c) {
  const int first_dense = r.integer_or("first_k_dense_replace", 1, 0, c.num_layers);
  c.dense.assign(size(c.num_layers), false);
  std::fill_n(c.dense.begin(), first_dense, true);
  const Json* types = r.value("mlp_layer_types");
  if (types == nullptr) return;  // otherwise the list wins
  if (!types->is_array() || types->as_array().size() != size(c.num_layers)) {
    r.fail(
        corrupt(fmt::format("config.json: \"mlp_layer_types\" must list {} layers", c.num_layers)));
    return;
  }
  for (int i = 0; i < c.num_layers; ++i) {
    const Json& type = types->as_array()[size(i)];
    const bool known =
        type.is_string() && (type.as_string() == "dense" || type.as_string() == "sparse");
    if (!known) {
      r.fail(unsupported(fmt::format(
          "config.json: \"mlp_layer_types\"[{}] is {}: only \"dense\" and \"sparse\" are "
          "known",
          i, type.dump())));
      return;
    }
    c.dense[size(i)] = type.as_string() == "dense";
  }
}

void read_attention(ConfigReader& r, Config& c) {
  constexpr int kMaxDim = 1 << 16;
  MlaDims& m = c.mla;
  m.hidden_size = c.hidden_size;
  m.num_heads = r.integer("num_attention_heads", 1, 4096);
  r.expect("num_key_value_heads", m.num_heads,
           "every head shares the latent, so it must equal num_attention_heads");
  if (r.value("q_lora_rank") == nullptr) {
    r.fail(
        unsupported("config.json: \"q_lora_rank\" is null: queries without a low-rank projection "
                    "are not supported"));
  } else {
    m.q_lora_rank = r.integer("q_lora_rank", 1, kMaxDim);
  }
  m.kv_lora_rank = r.integer("kv_lora_rank", 1, kMaxDim);
  m.qk_nope_head_dim = r.integer("qk_nope_head_dim", 1, kMaxDim);
  m.qk_rope_head_dim = r.integer("qk_rope_head_dim", 2, kMaxDim);
  m.v_head_dim = r.integer("v_head_dim", 1, kMaxDim);
  m.latent_eps = kLatentNormEps;
  if (m.qk_rope_head_dim % 2 != 0)
    r.fail(corrupt("config.json: \"qk_rope_head_dim\" must be even"));
  r.expect("qk_head_dim", m.qk_head_dim(), "it must be qk_nope_head_dim + qk_rope_head_dim");
  r.ignore({"head_dim"});  // transformers aliases it to qk_rope_head_dim; no width follows from it
  r.expect("attention_bias", false, "projections with a bias are not implemented for this family");
  r.expect("rope_interleave", true,
           "only interleaved rotary pairs are implemented for this family");
  r.expect("partial_rotary_factor", 1.0, "it applies to qk_rope_head_dim, all of which is rotated");
  c.rope_theta = read_plain_rope(r).theta;
}

void read_experts(ConfigReader& r, Config& c) {
  RouterDims& m = c.router;
  m.num_experts = r.integer("n_routed_experts", 1, 4096);
  m.experts_per_token = r.integer("num_experts_per_tok", 1, m.num_experts);
  m.n_group = r.integer_or("n_group", 1, 1, m.num_experts);
  m.topk_group = r.integer_or("topk_group", 1, 1, m.n_group);
  m.norm_topk_prob = r.boolean("norm_topk_prob");
  m.routed_scaling_factor = static_cast<float>(r.number("routed_scaling_factor", 1e-6, 1e6));
  c.moe_intermediate_size = r.integer("moe_intermediate_size", 1, 1 << 20);
  c.n_shared_experts = r.integer_or("n_shared_experts", 0, 0, 64);
  r.expect("topk_method", "noaux_tc", "the router of this family");
  r.expect("scoring_func", "sigmoid", "the router of this family");
  r.expect("moe_router_activation_func", "sigmoid", "the router of this family");
  r.expect("moe_layer_freq", 1, "every layer after the dense ones is sparse");
  if (m.num_experts % m.n_group != 0) {
    r.fail(corrupt("config.json: \"n_group\" does not divide \"n_routed_experts\""));
  } else if (m.n_group > 1 && m.num_experts / m.n_group < 2) {
    r.fail(unsupported("config.json: groups of one expert (\"n_group\") are not supported"));
  } else if (m.topk_group * (m.num_experts / m.n_group) < m.experts_per_token) {
    r.fail(corrupt(
        "config.json: \"topk_group\" groups hold fewer experts than \"num_experts_per_tok\""));
  }
}

Result<Config> parse_config(const Json& json) {
  ConfigReader r(json, "config.json");
  Config c{};
  c.vocab_size = r.integer("vocab_size", 2, 1 << 24);
  c.hidden_size = r.integer("hidden_size", 1, 1 << 17);
  c.num_layers = r.integer("num_hidden_layers", 1, 1024);
  c.max_positions = r.integer("max_position_embeddings", 1, 1 << 28);
  c.intermediate_size = r.integer("intermediate_size", 1, 1 << 20);
  c.rms_norm_eps = static_cast<float>(r.number("rms_norm_eps", 0, 1));
  c.tie_word_embeddings = r.boolean_or("tie_word_embeddings", false);
  c.mtp_layers = r.integer_or("num_nextn_predict_layers", 0, 0, 8);
  r.expect("hidden_act", "silu", "the activation of this family");
  r.expect("mlp_bias", false, "feed-forward blocks of this family have no bias");
  r.expect("quantization_config", Json(),
           "this version reads BF16, F16 and F32 checkpoints; use the original one");
  r.expect("sliding_window", Json(), "this family attends to everything before");
  read_attention(r, c);
  read_experts(r, c);
  read_layer_types(r, c);
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  return c;
}

// ---- weights

struct Layer {
  std::vector<float> input_layernorm, post_attention_layernorm;  // [hidden]
  MlaWeights self_attn;
  bool dense = false;
  GatedMlp mlp;    // dense layers
  MoeWeights moe;  // the others
};

struct Weights {
  Weight embed_tokens;  // [vocab, hidden]
  std::vector<Layer> layers;
  std::vector<float> norm;
  Weight lm_head;  // [vocab, hidden]; the embedding when tied
};

GatedMlp bind_mlp(TensorBinder& b, const std::string& prefix, int hidden, int width) {
  return {b.matrix(prefix + "gate_proj.weight", width, hidden, MatrixUse::kFeedForward),
          b.matrix(prefix + "up_proj.weight", width, hidden, MatrixUse::kFeedForward),
          b.matrix(prefix + "down_proj.weight", hidden, width, MatrixUse::kFeedForward)};
}

// kv_b comes whole, or split in two with its key half transposed (GGUF files).
void bind_kv_b(TensorBinder& b, const std::string& prefix, const MlaDims& d, MlaWeights& w) {
  const int heads = d.num_heads, c = d.kv_lora_rank, nope = d.qk_nope_head_dim, v = d.v_head_dim;
  if (b.has(prefix + "k_b_proj.weight")) {
    w.k_b_heads = b.head_matrices(prefix + "k_b_proj.weight", {heads, c, nope}, heads, c, 0, c);
    w.v_b_heads = b.head_matrices(prefix + "v_b_proj.weight", {heads, v, c}, heads, v, 0, v);
    return;
  }
  const std::string name = prefix + "kv_b_proj.weight";
  const int both = nope + v;
  w.k_up_heads = b.head_matrices(name, {heads * both, c}, heads, both, 0, nope);
  w.v_b_heads = b.head_matrices(name, {heads * both, c}, heads, both, nope, v);
}

MlaWeights bind_attention(TensorBinder& b, const std::string& prefix, const MlaDims& d) {
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    return b.matrix(prefix + name, rows, cols, MatrixUse::kAttention);
  };
  MlaWeights w;
  w.q_a_proj = matrix("q_a_proj.weight", d.q_lora_rank, d.hidden_size);
  w.q_a_layernorm = b.vector(prefix + "q_a_layernorm.weight", d.q_lora_rank);
  w.q_b_proj = matrix("q_b_proj.weight", d.num_heads * d.qk_head_dim(), d.q_lora_rank);
  w.kv_a_proj_with_mqa = matrix("kv_a_proj_with_mqa.weight", d.cache_width(), d.hidden_size);
  w.kv_a_layernorm = b.vector(prefix + "kv_a_layernorm.weight", d.kv_lora_rank);
  bind_kv_b(b, prefix, d, w);
  w.o_proj = matrix("o_proj.weight", d.hidden_size, d.num_heads * d.v_head_dim);
  return w;
}

MoeWeights bind_moe(TensorBinder& b, const std::string& prefix, const Config& c) {
  MoeWeights w;
  w.gate = b.matrix(prefix + "gate.weight", c.router.num_experts, c.hidden_size, MatrixUse::kKept);
  w.e_score_correction_bias =
      b.vector(prefix + "gate.e_score_correction_bias", c.router.num_experts);
  for (int e = 0; e < c.router.num_experts && !b.hopeless(); ++e) {
    w.experts.push_back(bind_mlp(b, fmt::format("{}experts.{}.", prefix, e), c.hidden_size,
                                 c.moe_intermediate_size));
  }
  if (c.n_shared_experts > 0) {
    w.shared_experts = bind_mlp(b, prefix + "shared_experts.", c.hidden_size,
                                c.moe_intermediate_size * c.n_shared_experts);
  }
  return w;
}

bool belongs_to_mtp(std::string_view name, const Config& c) {
  for (int i = 0; i < c.mtp_layers; ++i) {
    if (name.starts_with(fmt::format("model.layers.{}.", c.num_layers + i))) return true;
  }
  return false;
}

// Buffers that old exports carry; they follow from the config.
bool is_derived(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.cos_cached") ||
         name.ends_with("rotary_emb.sin_cached");
}

Weights bind_all(TensorBinder& b, const Config& c) {
  Weights w;
  w.embed_tokens =
      b.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, MatrixUse::kKept);
  for (int i = 0; i < c.num_layers && !b.hopeless(); ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    Layer layer;
    layer.input_layernorm = b.vector(prefix + "input_layernorm.weight", c.hidden_size);
    layer.self_attn = bind_attention(b, prefix + "self_attn.", c.mla);
    layer.post_attention_layernorm =
        b.vector(prefix + "post_attention_layernorm.weight", c.hidden_size);
    layer.dense = c.dense[size(i)];
    if (layer.dense) {
      layer.mlp = bind_mlp(b, prefix + "mlp.", c.hidden_size, c.intermediate_size);
    } else {
      layer.moe = bind_moe(b, prefix + "mlp.", c);
    }
    w.layers.push_back(std::move(layer));
  }
  w.norm = b.vector("model.norm.weight", c.hidden_size);
  if (!c.tie_word_embeddings) {
    w.lm_head = b.matrix("lm_head.weight", c.vocab_size, c.hidden_size, MatrixUse::kHead);
  } else {
    w.lm_head = w.embed_tokens;
    b.skip([](std::string_view name) { return name == "lm_head.weight"; });
  }
  b.skip([&](std::string_view name) { return belongs_to_mtp(name, c) || is_derived(name); });
  return w;
}

// ---- description

struct Counts {
  std::uint64_t total = 0, active = 0;
};

// From shapes alone; `active` is what one decoded token multiplies with.
Counts count_parameters(const Config& c) {
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  const MlaDims& m = c.mla;
  const std::uint64_t d = u(c.hidden_size), heads = u(m.num_heads);
  const std::uint64_t attention = u(m.q_lora_rank) * (d + 1) +
                                  heads * u(m.qk_head_dim()) * u(m.q_lora_rank) +
                                  u(m.cache_width()) * d + u(m.kv_lora_rank) +
                                  heads * u(m.qk_nope_head_dim + m.v_head_dim) * u(m.kv_lora_rank) +
                                  d * heads * u(m.v_head_dim) + 2 * d;
  const std::uint64_t expert = 3 * d * u(c.moe_intermediate_size);
  const std::uint64_t router = u(c.router.num_experts) * (d + 1);
  Counts n;
  for (const bool dense : c.dense) {
    const std::uint64_t feed = 3 * d * u(c.intermediate_size);
    n.total +=
        attention + (dense ? feed : router + expert * u(c.router.num_experts + c.n_shared_experts));
    n.active +=
        attention +
        (dense ? feed : router + expert * u(c.router.experts_per_token + c.n_shared_experts));
  }
  const std::uint64_t head = u(c.vocab_size) * d;
  n.total += d + head * (c.tie_word_embeddings ? 1u : 2u);
  n.active += d + head;
  return n;
}

ModelInfo describe(const Config& c, const Checkpoint& checkpoint) {
  ModelInfo info;
  info.model_type = "glm4_moe_lite";
  info.family = "GLM-4.7-Flash";
  info.attention_class = "MLA";
  info.attention_why = fmt::format(
      "model_type glm4_moe_lite with kv_lora_rank {}: one latent of {} and one rope key of "
      "{} per token and layer, shared by all heads",
      c.mla.kv_lora_rank, c.mla.kv_lora_rank, c.mla.qk_rope_head_dim);
  info.vocab_size = c.vocab_size;
  info.hidden_size = c.hidden_size;
  info.num_layers = c.num_layers;
  info.num_heads = c.mla.num_heads;
  info.num_kv_heads = 1;
  info.max_position_embeddings = c.max_positions;
  info.head_dims = {{"qk_nope_head_dim", c.mla.qk_nope_head_dim, false},
                    {"qk_rope_head_dim", c.mla.qk_rope_head_dim, false},
                    {"qk_head_dim", c.mla.qk_head_dim(), true},
                    {"v_head_dim", c.mla.v_head_dim, false},
                    {"kv_lora_rank", c.mla.kv_lora_rank, false},
                    {"cache_width", c.mla.cache_width(), true}};
  info.cache = {"mla_latent", c.num_layers, size(c.mla.cache_width()) * sizeof(bf16)};
  info.mtp_layers = c.mtp_layers;
  const Counts counts = count_parameters(c);
  info.total_parameters = counts.total;
  info.active_parameters = counts.active;
  std::uint64_t elements = 0;
  bool has_bf16 = false, has_f32 = false, has_f16 = false;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    std::uint64_t n = 1;
    for (const std::int64_t dim : tensor.shape) n *= static_cast<std::uint64_t>(dim);
    if (belongs_to_mtp(name, c)) {
      info.mtp_present = true;
      info.mtp_parameters += n;
      continue;
    }
    if (is_derived(name)) continue;
    info.weight_bytes += tensor.bytes.size();
    elements += n;
    if (tensor.shape.size() < 2) continue;
    has_bf16 = has_bf16 || tensor.dtype == DType::kBf16;
    has_f16 = has_f16 || tensor.dtype == DType::kF16;
    has_f32 = has_f32 || tensor.dtype == DType::kF32;
  }
  if (elements > 0) {
    info.active_weight_bytes = static_cast<std::uint64_t>(static_cast<double>(info.weight_bytes) /
                                                          static_cast<double>(elements) *
                                                          static_cast<double>(counts.active));
  }
  for (const auto& [present, name] :
       {std::pair{has_bf16, "bf16"}, {has_f16, "f16"}, {has_f32, "f32"}}) {
    if (present) info.weight_format += (info.weight_format.empty() ? "" : "+") + std::string(name);
  }
  if (c.mtp_layers > 0 && checkpoint.has_weights() && !info.mtp_present) {
    info.notes.push_back(fmt::format(
        "config.json declares {} MTP layer(s), but the checkpoint has no such tensors: MTP "
        "stays off",
        c.mtp_layers));
  }
  info.notes.push_back(fmt::format(
      "latent norms use eps {:g} as transformers does; rms_norm_eps {:g} applies elsewhere",
      kLatentNormEps, c.rms_norm_eps));
  return info;
}

// ---- forward

class Glm4MoeLite final : public Model {
 public:
  Glm4MoeLite(Config config, Weights weights, ModelInfo info,
              std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options)
      : config_(std::move(config)),
        weights_(std::move(weights)),
        info_(std::move(info)),
        checkpoint_(std::move(checkpoint)),
        compute_(options.compute),
        latent_form_(options.latent_form) {
    const int pairs = config_.mla.qk_rope_head_dim / 2;
    for (int j = 0; j < pairs; ++j) {
      inv_freq_.push_back(
          static_cast<float>(std::pow(config_.rope_theta, -static_cast<double>(j) / pairs)));
    }
  }

  const ModelInfo& info() const override { return info_; }

  CacheSpec cache_spec() const override {
    const std::size_t element = compute_ == Compute::kF32 ? sizeof(float) : sizeof(bf16);
    return {"mla_latent", config_.num_layers, size(config_.mla.cache_width()) * element};
  }

  void forward(Exec& exec, Cache& cache, const Batch& batch,
               std::span<float> logits) const override {
    run(exec, cache, batch, logits, nullptr);
  }

  void forward_probed(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                      const Probe& probe) const override {
    run(exec, cache, batch, logits, &probe);
  }

 private:
  void run(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
           const Probe* probe) const;
  RopeAngles angles(Exec& exec, const Batch& batch) const;
  void feed_forward(Exec& exec, const Layer& layer, const float* h, int tokens, float* y,
                    const std::string& name, const Probe* probe) const;
  void head(Exec& exec, const Batch& batch, const float* h, std::span<float> logits,
            const Probe* probe) const;

  Config config_;
  Weights weights_;
  ModelInfo info_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  Compute compute_;
  LatentForm latent_form_;
  std::vector<float> inv_freq_;
};

RopeAngles Glm4MoeLite::angles(Exec& exec, const Batch& batch) const {
  const std::size_t pairs = inv_freq_.size();
  auto* cos = exec.workspace.array<float>(batch.tokens.size() * pairs);
  auto* sin = exec.workspace.array<float>(batch.tokens.size() * pairs);
  exec.pool.run(batch.sequences.size(), [&](std::size_t s, int) {
    const SequenceSpan& sequence = batch.sequences[s];
    for (int i = 0; i < sequence.count; ++i) {
      const std::size_t row = size(sequence.begin + i) * pairs;
      for (std::size_t j = 0; j < pairs; ++j) {
        const float angle = static_cast<float>(sequence.start + i) * inv_freq_[j];
        cos[row + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        sin[row + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
  return {cos, sin};
}

void Glm4MoeLite::feed_forward(Exec& exec, const Layer& layer, const float* h, int tokens, float* y,
                               const std::string& name, const Probe* probe) const {
  Workspace::Scope scope(exec.workspace);
  const int d = config_.hidden_size;
  auto* x = exec.workspace.array<float>(size(tokens) * size(d));
  exec.pool.run(size((tokens + 15) / 16), [&](std::size_t task, int) {
    const int first = static_cast<int>(task) * 16;
    for (int t = first; t < std::min(first + 16, tokens); ++t) {
      exec.kernels.rms_norm(h + size(t) * size(d), layer.post_attention_layernorm.data(), d,
                            config_.rms_norm_eps, x + size(t) * size(d));
    }
  });
  if (layer.dense) {
    const MlpGroup group{&layer.mlp, {}, nullptr};
    gated_mlp(exec, compute_, x, tokens, d, {&group, 1}, y);
    return;
  }
  const std::size_t picks = size(tokens) * size(config_.router.experts_per_token);
  const Routing routing{exec.workspace.array<std::int32_t>(picks),
                        exec.workspace.array<float>(picks)};
  route(exec, config_.router, layer.moe, x, tokens, d, routing);
  if (probe != nullptr) {
    auto* ids = exec.workspace.array<float>(picks);
    std::copy_n(routing.experts, picks, ids);
    (*probe)(name + "router_ids", ids, size(tokens), size(config_.router.experts_per_token));
    (*probe)(name + "router_weights", routing.weights, size(tokens),
             size(config_.router.experts_per_token));
  }
  moe(exec, compute_, config_.router, layer.moe, x, tokens, d, routing, y);
}

void Glm4MoeLite::head(Exec& exec, const Batch& batch, const float* h, std::span<float> logits,
                       const Probe* probe) const {
  const std::size_t d = size(config_.hidden_size);
  if (probe != nullptr) {
    auto* normed = exec.workspace.array<float>(batch.tokens.size() * d);
    for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
      exec.kernels.rms_norm(h + t * d, weights_.norm.data(), config_.hidden_size,
                            config_.rms_norm_eps, normed + t * d);
    }
    (*probe)("norm", normed, batch.tokens.size(), d);
  }
  if (batch.logit_rows.empty()) return;
  const int rows = static_cast<int>(batch.logit_rows.size());
  auto* last = exec.workspace.array<float>(size(rows) * d);
  for (int r = 0; r < rows; ++r) {
    std::memcpy(last + size(r) * d, h + size(batch.logit_rows[size(r)]) * d, d * sizeof(float));
  }
  const Activations x =
      rms_norm_pack(exec, matmul_kernels(exec.kernels, weights_.lm_head.format(), compute_), last,
                    d, weights_.norm.data(), config_.rms_norm_eps, rows, config_.hidden_size);
  matmul(exec, {x, &weights_.lm_head, logits.data(), size(config_.vocab_size)});
}

void Glm4MoeLite::run(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                      const Probe* probe) const {
  GLINT_CHECK(logits.size() >= batch.logit_rows.size() * size(config_.vocab_size));
  Workspace::Scope scope(exec.workspace);
  const int tokens = static_cast<int>(batch.tokens.size());
  const int d = config_.hidden_size;
  const std::size_t values = size(tokens) * size(d);
  auto* h = exec.workspace.array<float>(values);  // the residual stream
  auto* y = exec.workspace.array<float>(values);
  const auto report = [&](const std::string& name, const float* data) {
    if (probe != nullptr) (*probe)(name, data, size(tokens), size(d));
  };
  const auto add_to_stream = [&] {
    exec.pool.run(size((tokens + 15) / 16), [&](std::size_t task, int) {
      const std::size_t first = task * 16 * size(d);
      exec.kernels.add(y + first, static_cast<int>(std::min(values - first, 16 * size(d))),
                       h + first);
    });
  };
  exec.pool.run(size(tokens), [&](std::size_t t, int) {
    decode_row(weights_.embed_tokens, size(batch.tokens[t]), {h + t * size(d), size(d)});
  });
  report("embed", h);
  const RopeAngles rope = angles(exec, batch);
  for (int i = 0; i < config_.num_layers; ++i) {
    const Layer& layer = weights_.layers[size(i)];
    const std::string name = probe == nullptr ? std::string() : fmt::format("layer{}.", i);
    const MlaStep step{batch, cache, i, rope, compute_, latent_form_};
    mla_attention(exec, config_.mla, layer.self_attn, layer.input_layernorm, config_.rms_norm_eps,
                  step, h, y);
    report(name + "attn", y);
    add_to_stream();
    feed_forward(exec, layer, h, tokens, y, name, probe);
    report(name + "mlp", y);
    add_to_stream();
    report(name + "out", h);
  }
  head(exec, batch, h, logits, probe);
}

}  // namespace

Result<ModelInfo> describe_glm4_moe_lite(const Checkpoint& checkpoint) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  return describe(config, checkpoint);
}

Status check_glm4_moe_lite(const Checkpoint& checkpoint) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  TensorBinder binder(checkpoint);
  bind_all(binder, config);
  return binder.finish();
}

Result<std::unique_ptr<Model>> load_glm4_moe_lite(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const LoadOptions& options) {
  GLINT_TRY(Config config, parse_config(checkpoint->config()));
  ModelInfo info = describe(config, *checkpoint);
  TensorBinder binder(*checkpoint, options);
  Weights weights = bind_all(binder, config);
  GLINT_TRY_VOID(binder.finish());
  binder.load();
  for (Layer& layer : weights.layers) complete_kv_b(layer.self_attn, options.compute);
  return std::unique_ptr<Model>(std::make_unique<Glm4MoeLite>(
      std::move(config), std::move(weights), std::move(info), std::move(checkpoint), options));
}

}  // namespace glint
