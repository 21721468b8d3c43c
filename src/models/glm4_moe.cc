// glm4_moe (GLM-4.5, 4.5-Air, 4.6, 4.7): grouped-query attention with a partial rope and per-head
// keys and values in the cache, a sigmoid-routed mixture of experts after the first dense layers,
// and a draft layer. Checked against transformers 5.24 (modeling_glm4_moe.py) by tests/models.
#include "models/glm4_moe.h"

#include <fmt/format.h>

#include "models/cache_format.h"
#include "models/config_reader.h"
#include "models/layers/decoder_model.h"
#include "models/layers/gqa.h"
#include "models/tensor_binder.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// ---- config

constexpr int kMaxQueryWidth = 1 << 18;  // of all heads; 12,288 in the released models

struct Config {
  DecoderConfig decoder;
  GqaDims gqa;
  bool attention_bias = false;
  bool use_qk_norm = false;
  double partial_rotary_factor = 0;
  double rope_theta = 0;
};

void read_attention(ConfigReader& r, Config& c) {
  GqaDims& m = c.gqa;
  m.hidden_size = c.decoder.hidden_size;
  m.norm_eps = c.decoder.rms_norm_eps;
  m.num_heads = r.integer("num_attention_heads", 1, 4096);
  m.num_kv_heads = r.integer("num_key_value_heads", 1, m.num_heads);
  m.head_dim = r.integer("head_dim", 2, kMaxQueryWidth / m.num_heads);
  c.attention_bias = r.boolean_or("attention_bias", false);
  c.use_qk_norm = r.boolean_or("use_qk_norm", false);
  const RopeConfig rope = read_partial_rope(r, 0.5);
  c.partial_rotary_factor = rope.partial_rotary_factor;
  c.rope_theta = rope.theta;
  m.rotary_dim = static_cast<int>(m.head_dim * rope.partial_rotary_factor);
  if (m.num_heads % m.num_kv_heads != 0) {
    r.fail(corrupt("config.json: \"num_key_value_heads\" does not divide \"num_attention_heads\""));
  }
  if (m.rotary_dim < 2 || m.rotary_dim % 2 != 0) {
    r.fail(corrupt(fmt::format(
        "config.json: \"partial_rotary_factor\" {} of \"head_dim\" {} is not a positive even "
        "number of values",
        rope.partial_rotary_factor, m.head_dim)));
  }
}

Result<Config> parse_config(const Json& json) {
  ConfigReader r(json, "config.json");
  Config c;
  c.decoder = read_decoder(r);
  read_attention(r, c);
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  return c;
}

// ---- weights

struct Weights {
  DecoderWeights decoder;
  std::vector<GqaWeights> self_attn;  // per layer
};

GqaWeights bind_attention(TensorBinder& b, const std::string& prefix, const Config& c) {
  const GqaDims& d = c.gqa;
  GqaWeights w;
  w.q_proj = b.matrix(prefix + "q_proj.weight", d.q_width(), d.hidden_size, MatrixUse::kAttention);
  w.k_proj = b.matrix(prefix + "k_proj.weight", d.kv_width(), d.hidden_size, MatrixUse::kAttention);
  w.v_proj = b.matrix(prefix + "v_proj.weight", d.kv_width(), d.hidden_size, MatrixUse::kAttention);
  if (c.attention_bias) {
    w.q_proj_bias = b.vector(prefix + "q_proj.bias", d.q_width());
    w.k_proj_bias = b.vector(prefix + "k_proj.bias", d.kv_width());
    w.v_proj_bias = b.vector(prefix + "v_proj.bias", d.kv_width());
  }
  if (c.use_qk_norm) {
    w.q_norm = b.vector(prefix + "q_norm.weight", d.head_dim);
    w.k_norm = b.vector(prefix + "k_norm.weight", d.head_dim);
  }
  w.o_proj = b.matrix(prefix + "o_proj.weight", d.hidden_size, d.q_width(), MatrixUse::kAttention);
  return w;
}

Weights bind_all(TensorBinder& b, const Config& c, bool draft) {
  Weights w;
  w.decoder = bind_decoder(b, c.decoder, draft, [&](int, const std::string& prefix) {
    w.self_attn.push_back(bind_attention(b, prefix, c));
  });
  return w;
}

// ---- description

// Of one layer.
std::uint64_t attention_parameters(const Config& c) {
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  const GqaDims& m = c.gqa;
  const std::uint64_t in = u(m.q_width()) + 2 * u(m.kv_width());
  return in * u(m.hidden_size) + (c.attention_bias ? in : 0) +
         (c.use_qk_norm ? 2 * u(m.head_dim) : 0) + u(m.hidden_size) * u(m.q_width());
}

ModelInfo describe(const Config& c, const Checkpoint& checkpoint) {
  const GqaDims& m = c.gqa;
  ModelInfo info;
  info.model_type = "glm4_moe";
  info.family = "GLM-4.5 / 4.6 / 4.7";
  info.attention_class = "GQA";
  info.attention_why = fmt::format(
      "model_type glm4_moe with num_key_value_heads {} of num_attention_heads {}: a key and a "
      "value of {} for each kv head per token and layer, no shared latent (kv_lora_rank)",
      m.num_kv_heads, m.num_heads, m.head_dim);
  info.num_heads = m.num_heads;
  info.num_kv_heads = m.num_kv_heads;
  info.head_dims = {{"head_dim", m.head_dim, false},
                    {"rotary_dim", m.rotary_dim, true},
                    {"heads_per_kv_head", m.group(), true},
                    {"cache_width", m.cache_width(), true}};
  info.cache = cache_specs("kv_heads", c.decoder.num_layers,
                           {.width = m.head_dim, .count = 2 * m.num_kv_heads});
  describe_decoder(c.decoder,
                   static_cast<std::uint64_t>(c.decoder.num_layers) * attention_parameters(c),
                   checkpoint, info);
  return info;
}

// ---- forward

class Glm4Moe final : public DecoderModel {
 public:
  Glm4Moe(const Config& config, Weights weights, ModelInfo info,
          std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options)
      : DecoderModel(config.decoder, std::move(weights.decoder), std::move(info),
                     std::move(checkpoint), options,
                     rope_frequencies(config.rope_theta, config.gqa.rotary_dim)),
        dims_(config.gqa),
        self_attn_(std::move(weights.self_attn)) {}

 private:
  void attention(const AttentionStep& step, const float* x, float* y) const override {
    gqa_attention(
        step.exec, dims_, self_attn_[size(step.layer)], step.input_layernorm, dims_.norm_eps,
        {step.batch, step.cache, step.layer, step.rope, cache_rows(), step.first_key}, x, y);
  }

  GqaDims dims_;
  std::vector<GqaWeights> self_attn_;
};

}  // namespace

Result<ModelInfo> describe_glm4_moe(const Checkpoint& checkpoint) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  return describe(config, checkpoint);
}

Status check_glm4_moe(const Checkpoint& checkpoint, DraftLayer draft_layer) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  GLINT_TRY(const bool draft, wants_draft(config.decoder, checkpoint, draft_layer));
  TensorBinder binder(checkpoint);
  bind_all(binder, config, draft);
  return binder.finish();
}

Result<std::unique_ptr<Model>> load_glm4_moe(std::shared_ptr<const Checkpoint> checkpoint,
                                             const LoadOptions& options) {
  GLINT_TRY(const Config config, parse_config(checkpoint->config()));
  GLINT_TRY(const bool draft, wants_draft(config.decoder, *checkpoint, options.draft));
  ModelInfo info = describe(config, *checkpoint);
  TensorBinder binder(*checkpoint, options);
  Weights weights = bind_all(binder, config, draft);
  GLINT_TRY_VOID(binder.finish());
  binder.load();
  return std::unique_ptr<Model>(std::make_unique<Glm4Moe>(
      config, std::move(weights), std::move(info), std::move(checkpoint), options));
}

}  // namespace glint
