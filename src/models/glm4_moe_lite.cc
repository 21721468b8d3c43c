// glm4_moe_lite (GLM-4.7-Flash): MLA with a latent cache, a sigmoid-routed mixture of experts after
// the first dense layers, and a draft layer. Checked against transformers 5.24
// (modeling_glm4_moe_lite.py) by tests/models.
#include "models/glm4_moe_lite.h"

#include <fmt/format.h>

#include "models/cache_format.h"
#include "models/config_reader.h"
#include "models/layers/decoder_model.h"
#include "models/layers/mla.h"
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
  DecoderConfig decoder;
  MlaDims mla;
  double rope_theta = 0;
};

void read_attention(ConfigReader& r, Config& c) {
  constexpr int kMaxDim = 1 << 16;
  MlaDims& m = c.mla;
  m.hidden_size = c.decoder.hidden_size;
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

Result<Config> parse_config(const Json& json) {
  ConfigReader r(json, "config.json");
  Config c;
  c.decoder = read_decoder(r);
  read_attention(r, c);
  read_mlp_layer_types(r, c.decoder);
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  return c;
}

// ---- weights

struct Weights {
  DecoderWeights decoder;
  std::vector<MlaWeights> self_attn;  // per layer
};

Weights bind_all(TensorBinder& b, const Config& c, bool draft) {
  Weights w;
  w.decoder = bind_decoder(b, c.decoder, draft, [&](int, const std::string& prefix) {
    w.self_attn.push_back(bind_mla(b, prefix, c.mla));
  });
  return w;
}

// ---- description

ModelInfo describe(const Config& c, const Checkpoint& checkpoint) {
  ModelInfo info;
  info.model_type = "glm4_moe_lite";
  info.family = "GLM-4.7-Flash";
  info.attention_class = "MLA";
  info.attention_why = fmt::format(
      "model_type glm4_moe_lite with kv_lora_rank {}: one latent of {} and one rope key of "
      "{} per token and layer, shared by all heads",
      c.mla.kv_lora_rank, c.mla.kv_lora_rank, c.mla.qk_rope_head_dim);
  info.num_heads = c.mla.num_heads;
  info.num_kv_heads = 1;
  info.head_dims = {{"qk_nope_head_dim", c.mla.qk_nope_head_dim, false},
                    {"qk_rope_head_dim", c.mla.qk_rope_head_dim, false},
                    {"qk_head_dim", c.mla.qk_head_dim(), true},
                    {"v_head_dim", c.mla.v_head_dim, false},
                    {"kv_lora_rank", c.mla.kv_lora_rank, false},
                    {"cache_width", c.mla.cache_width(), true}};
  info.cache = cache_specs("mla_latent", c.decoder.num_layers, {.width = c.mla.cache_width()});
  describe_decoder(c.decoder,
                   static_cast<std::uint64_t>(c.decoder.num_layers) * mla_parameters(c.mla),
                   checkpoint, info);
  info.notes.push_back(fmt::format(
      "latent norms use eps {:g} as transformers does; rms_norm_eps {:g} applies elsewhere",
      kLatentNormEps, c.decoder.rms_norm_eps));
  return info;
}

// ---- forward

class Glm4MoeLite final : public DecoderModel {
 public:
  Glm4MoeLite(const Config& config, Weights weights, ModelInfo info,
              std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options)
      : DecoderModel(config.decoder, std::move(weights.decoder), std::move(info),
                     std::move(checkpoint), options,
                     rope_frequencies(config.rope_theta, config.mla.qk_rope_head_dim)),
        dims_(config.mla),
        input_eps_(config.decoder.rms_norm_eps),
        latent_form_(options.latent_form),
        self_attn_(std::move(weights.self_attn)) {}

 private:
  void attention(const AttentionStep& step, const float* x, float* y) const override {
    mla_attention(
        step.exec, dims_, self_attn_[size(step.layer)], step.input_layernorm, input_eps_,
        {step.batch, step.cache, step.layer, step.rope, cache_rows(), latent_form_, step.first_key},
        x, y);
  }

  MlaDims dims_;
  float input_eps_;
  LatentForm latent_form_;
  std::vector<MlaWeights> self_attn_;
};

}  // namespace

Result<ModelInfo> describe_glm4_moe_lite(const Checkpoint& checkpoint) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  return describe(config, checkpoint);
}

Status check_glm4_moe_lite(const Checkpoint& checkpoint, DraftLayer draft_layer) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  GLINT_TRY(const bool draft, wants_draft(config.decoder, checkpoint, draft_layer));
  TensorBinder binder(checkpoint);
  bind_all(binder, config, draft);
  return binder.finish();
}

Result<std::unique_ptr<Model>> load_glm4_moe_lite(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const LoadOptions& options) {
  GLINT_TRY(const Config config, parse_config(checkpoint->config()));
  GLINT_TRY(const bool draft, wants_draft(config.decoder, *checkpoint, options.draft));
  ModelInfo info = describe(config, *checkpoint);
  TensorBinder binder(*checkpoint, options);
  Weights weights = bind_all(binder, config, draft);
  GLINT_TRY_VOID(binder.finish());
  binder.load();
  for (MlaWeights& layer : weights.self_attn) complete_kv_b(layer, options.compute);
  return std::unique_ptr<Model>(std::make_unique<Glm4MoeLite>(
      config, std::move(weights), std::move(info), std::move(checkpoint), options));
}

}  // namespace glint
