// glm5_next (GLM-5.3-Flash): layers of Kimi delta attention, and between them latent attention
// without positions over the pools of tokens that an indexer chooses; residual streams, a
// sigmoid-routed mixture of experts, a draft layer. Checked against transformers 5.24
// (modeling_glm5_next.py) by tests/models.
#include "models/glm5_next.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "models/cache_format.h"
#include "models/config_reader.h"
#include "models/layers/decoder_model.h"
#include "models/layers/kda.h"
#include "models/layers/kpool_indexer.h"
#include "models/layers/mla.h"
#include "models/layers/vision_tower.h"
#include "models/tensor_binder.h"

namespace glint {
namespace {

constexpr const char* kTextConfig = "config.json: \"text_config\"";
constexpr const char* kTextPrefix = "model.language_model.";
constexpr int kMaxDim = 1 << 16;

// What no checkpoint carries and transformers 5.24 (modeling_glm5_next.py) and vLLM
// (vllm/models/glm5next/common/model.py) hard-code alike.
constexpr float kHyperPostMultiplier = 2.0f;  // of the weights a sublayer's output is written with
constexpr float kIndexerKeyNormEps = 1e-6f;   // whatever rms_norm_eps says
// And what changes nothing: logits are multiplied by 1.0, and a routing temperature of 0.05 that
// vLLM stores stands in no formula. The fixed epsilon of KDA's L2 norms, 1e-6, is in
// kernels/kda.h, where they are computed.

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// ---- config

enum class LayerKind {
  kLinear,      // Kimi delta attention
  kFullIndex,   // latent attention with an indexer of its own
  kSharedIndex  // that reuses what the layer of the kind before it chose
};

struct Config {
  DecoderConfig decoder;
  MlaDims mla;
  KdaDims kda;
  std::vector<LayerKind> layers;     // without the draft layer, which is kFullIndex
  std::optional<KpoolDims> indexer;  // absent: latent attention sees every earlier token
  bool shares_drafts = false;        // later drafts of a round reuse the first one's choice
  std::optional<VisionDims> vision;
  std::int32_t image_token = -1, image_start_token = -1, image_end_token = -1;

  bool is_linear(int layer) const {
    return layer < decoder.num_layers && layers[size(layer)] == LayerKind::kLinear;
  }
  int num_linear() const {
    return static_cast<int>(std::count(layers.begin(), layers.end(), LayerKind::kLinear));
  }
  int num_full() const { return decoder.num_layers - num_linear(); }
};

// A list of layer numbers that must name the layers of one kind; absent: nothing is said.
void check_layer_list(ConfigReader& r, const char* key, const Config& c, bool linear) {
  const Json* list = r.value(key);
  if (list == nullptr) return;
  std::vector<bool> named(c.layers.size(), false);
  bool fits = list->is_array();
  for (std::size_t i = 0; fits && i < list->as_array().size(); ++i) {
    const Json& item = list->as_array()[i];
    fits = item.is_int() && item.as_int() >= 0 && item.as_int() < c.decoder.num_layers;
    if (fits) named[static_cast<std::size_t>(item.as_int())] = true;
  }
  for (int i = 0; fits && i < c.decoder.num_layers; ++i)
    fits = named[size(i)] == (c.is_linear(i) == linear);
  if (!fits) {
    r.fail(corrupt(fmt::format(
        "{}: \"linear_attn_config\".\"{}\" does not list the layers (from 0) that \"layer_types\" "
        "calls {}",
        kTextConfig, key,
        linear ? "\"linear_attention\"" : "otherwise than \"linear_attention\"")));
  }
}

// The strings of a list with an item per layer; empty after an error.
std::vector<std::string> read_layer_words(ConfigReader& r, const char* key, int layers) {
  const Json* list = r.value(key);
  std::vector<std::string> words;
  if (list == nullptr) return words;
  if (list->is_array() && list->as_array().size() == size(layers)) {
    for (const Json& item : list->as_array())
      words.push_back(item.is_string() ? item.as_string() : item.dump());
    return words;
  }
  r.fail(corrupt(fmt::format("{}: \"{}\" must list {} layers", kTextConfig, key, layers)));
  return words;
}

void read_layers(ConfigReader& r, Config& c) {
  const int n = c.decoder.num_layers;
  c.layers.assign(size(n), LayerKind::kFullIndex);
  const std::vector<std::string> types = read_layer_words(r, "layer_types", n);
  const std::vector<std::string> indexers = read_layer_words(r, "indexer_types", n);
  if (types.empty()) {
    r.fail(corrupt(fmt::format("{}: required key \"layer_types\" is missing", kTextConfig)));
    return;
  }
  bool seen_full = false;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::string indexer = indexers.empty() ? "full" : indexers[i];
    if (types[i] == "linear_attention") {
      c.layers[i] = LayerKind::kLinear;
    } else if (types[i] != "deepseek_sparse_attention" && types[i] != "indexed_attention" &&
               types[i] != "full_attention") {
      r.fail(unsupported(fmt::format(
          "{}: \"layer_types\"[{}] is \"{}\": only \"linear_attention\", "
          "\"deepseek_sparse_attention\", \"indexed_attention\" and \"full_attention\" are known",
          kTextConfig, i, types[i])));
    } else if (indexer == "shared" && seen_full) {
      c.layers[i] = LayerKind::kSharedIndex;
    } else if (indexer == "shared") {
      r.fail(corrupt(fmt::format(
          "{}: \"indexer_types\"[{}] is \"shared\", but no layer before it has an indexer",
          kTextConfig, i)));
    } else if (indexer != "full") {
      r.fail(unsupported(
          fmt::format("{}: \"indexer_types\"[{}] is \"{}\": only \"full\" and \"shared\" are known",
                      kTextConfig, i, indexer)));
    }
    seen_full = seen_full || c.layers[i] == LayerKind::kFullIndex;
  }
  if (c.num_full() == 0) {
    r.fail(unsupported(
        fmt::format("{}: \"layer_types\" names no layer of latent attention: a model of "
                    "\"linear_attention\" alone is not supported",
                    kTextConfig)));
  }
}

void read_linear_attention(ConfigReader& r, Config& c) {
  const Json* block = r.value("linear_attn_config");
  if (block == nullptr || !block->is_object()) {
    r.fail(corrupt(fmt::format("{}: \"linear_attn_config\" must be an object", kTextConfig)));
    return;
  }
  ConfigReader linear(*block, fmt::format("{}.\"linear_attn_config\"", kTextConfig));
  KdaDims& d = c.kda;
  d.hidden_size = c.decoder.hidden_size;
  d.num_heads = linear.integer("num_heads", 1, 4096);
  d.head_dim = linear.integer("head_dim", 1, 1024);
  d.o_norm_eps = c.decoder.rms_norm_eps;
  linear.expect("short_conv_kernel_size", 4, "the convolutions of this family");
  if (linear.value("gate_lower_bound") != nullptr)
    d.gate_lower_bound = static_cast<float>(linear.number("gate_lower_bound", -1e3, 0));
  check_layer_list(linear, "kda_layers", c, true);
  check_layer_list(linear, "full_attn_layers", c, false);
  if (Status status = linear.finish(); !status) r.fail(status.error());
}

void read_latent_attention(ConfigReader& r, Config& c) {
  MlaDims& m = c.mla;
  m.hidden_size = c.decoder.hidden_size;
  m.num_heads = r.integer("num_attention_heads", 1, 4096);
  r.expect("num_key_value_heads", m.num_heads,
           "every head shares the latent, so it must equal num_attention_heads");
  m.q_lora_rank = r.integer("q_lora_rank", 1, kMaxDim);
  m.kv_lora_rank = r.integer("kv_lora_rank", 1, kMaxDim);
  m.qk_nope_head_dim = r.integer("qk_nope_head_dim", 1, kMaxDim);
  m.v_head_dim = r.integer("v_head_dim", 1, kMaxDim);
  m.latent_eps = c.decoder.rms_norm_eps;
  r.expect("qk_rope_head_dim", 0,
           "this family has no rotary part: heads that carry one, turned or not, are not "
           "implemented for it");
  r.expect("qk_head_dim", m.qk_nope_head_dim, "it must equal qk_nope_head_dim");
  r.expect("mla_use_nope", true, "this family has no positions");
  r.expect("attention_bias", false, "projections with a bias are not implemented for this family");
  // No width follows from the first, and nothing is turned.
  r.ignore({"head_dim", "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave",
            "partial_rotary_factor", "indexer_rope_interleave"});
}

void read_indexer(ConfigReader& r, Config& c) {
  c.shares_drafts = r.boolean_or("index_share_for_mtp_iteration", false);
  r.expect("index_kpool_compress", true, "keys of pools are gated means");
  r.expect("index_kpool_always_select_tail", true,
           "the tokens behind the last whole pool are always attended to");
  if (r.value("index_topk") == nullptr) {
    r.ignore({"index_n_heads", "index_head_dim", "index_kpool"});
    return;
  }
  KpoolDims d;
  d.key_norm_eps = kIndexerKeyNormEps;
  d.hidden_size = c.decoder.hidden_size;
  d.q_lora_rank = c.mla.q_lora_rank;
  d.num_heads = r.integer("index_n_heads", 1, 1024);
  d.head_dim = r.integer("index_head_dim", 1, 4096);
  d.pool = r.integer("index_kpool", 1, kPageSize);
  d.topk = r.integer("index_topk", 1, 1 << 20);
  if (kPageSize % d.pool != 0) {
    r.fail(unsupported(fmt::format(
        "{}: \"index_kpool\": pools of {} tokens are not supported: they must divide a page of {}",
        kTextConfig, d.pool, kPageSize)));
  }
  if (d.topk % d.pool != 0) {
    r.fail(corrupt(fmt::format("{}: \"index_kpool\" {} does not divide \"index_topk\" {}",
                               kTextConfig, d.pool, d.topk)));
  }
  c.indexer = d;
}

// Either spelling of a key; the older one where the newer is absent.
const char* spelling(ConfigReader& r, const char* key, const char* older) {
  const bool is_older = r.value(key) == nullptr && r.value(older) != nullptr;
  return is_older ? older : key;
}

void read_streams(ConfigReader& r, Config& c) {
  r.expect("mhc", true, "an ordinary residual is not implemented for this family");
  HyperDims d;
  d.post_multiplier = kHyperPostMultiplier;
  d.hidden_size = c.decoder.hidden_size;
  d.norm_eps = c.decoder.rms_norm_eps;
  d.streams = r.integer(spelling(r, "hc_mult", "mhc_num_residual_streams"), 1, 16);
  d.iterations = r.integer(spelling(r, "hc_sinkhorn_iters", "mhc_sinkhorn_iterations"), 1, 1000);
  d.eps = static_cast<float>(r.number("hc_eps", 0, 1));
  c.decoder.hyper = d;
}

Result<Config> parse_text(const Json& json) {
  ConfigReader r(json, kTextConfig);
  Config c;
  c.decoder = read_decoder(r);
  c.decoder.prefix = kTextPrefix;
  read_mlp_layer_types(r, c.decoder);
  if (r.value("swiglu_limit") != nullptr)
    c.decoder.swiglu_limit = static_cast<float>(r.number("swiglu_limit", 1e-6, 1e30));
  r.expect("moe_router_dtype", "float32", "the router is always computed in float32");
  read_latent_attention(r, c);
  read_layers(r, c);
  read_linear_attention(r, c);
  read_indexer(r, c);
  read_streams(r, c);
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  return c;
}

Result<Config> parse_config(const Json& json) {
  ConfigReader r(json, "config.json");
  const Json* text = r.value("text_config");
  if (text == nullptr || !text->is_object())
    return corrupt("config.json: \"text_config\" must be an object");
  GLINT_TRY(Config c, parse_text(*text));
  r.expect("tie_word_embeddings", c.decoder.tie_word_embeddings, "\"text_config\" says otherwise");
  if (const Json* vision = r.value("vision_config")) {
    GLINT_TRY(c.vision, read_vision(*vision, c.decoder.hidden_size));
    const int last = c.decoder.vocab_size - 1;
    c.image_token = r.integer("image_token_id", 0, last);
    c.image_start_token = r.integer("image_start_token_id", 0, last);
    c.image_end_token = r.integer("image_end_token_id", 0, last);
  }
  r.ignore({"quantization_config", "image_token_id", "image_start_token_id", "image_end_token_id",
            "video_token_id", "video_start_token_id", "video_end_token_id"});
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  return c;
}

// ---- what is cached

// Where each layer's part lies in a sequence's state and in a snapshot of it.
struct StateLayout {
  std::vector<std::size_t> state, snapshot;  // per layer, the draft layer behind the others
  std::size_t kept = 0;                      // what the draft layer chose
  std::size_t state_bytes = 0, snapshot_bytes = 0;

  StateLayout(const Config& c, Compute compute, bool draft) {
    for (int i = 0; i < c.decoder.num_layers + (draft ? 1 : 0); ++i) {
      state.push_back(state_bytes);
      snapshot.push_back(snapshot_bytes);
      if (c.is_linear(i)) {
        state_bytes += kda_state_bytes(c.kda, compute);
        snapshot_bytes += kda_snapshot_bytes(c.kda, compute);
      } else if (c.indexer) {
        state_bytes += kpool_rows_bytes(*c.indexer);
      }
    }
    kept = state_bytes;
    if (draft && c.indexer) state_bytes += kpool_kept_bytes(*c.indexer);
  }
};

// A page of a layer holds its latents, then the keys of the pools that end in it, which are
// elements whatever the latents' format is: they are few, and what is chosen hangs on them.
std::size_t row_bytes(const Config& c, CacheFormat format, Compute compute) {
  std::size_t bytes = row_bytes(row_format(format, compute), c.mla.cache_width());
  if (c.indexer) bytes += (kpool_keys_bytes(*c.indexer, compute) + kPageSize - 1) / kPageSize;
  return bytes;
}

CacheSpec cache_spec_of(const Config& c, CacheFormat format, Compute compute, bool draft) {
  CacheSpec spec{"mla_latent", c.num_full() + (draft ? 1 : 0), row_bytes(c, format, compute)};
  const StateLayout layout(c, compute, draft);
  spec.state_bytes = layout.state_bytes;
  spec.snapshot_bytes = layout.snapshot_bytes;
  if (draft && c.indexer) spec.page_model_bytes = kpool_page_bytes(*c.indexer);
  return spec;
}

CacheSpecs cache_specs_of(const Config& c, bool draft) {
  const auto spec = [&](CacheFormat format) {
    return cache_spec_of(c, format, Compute::kBf16, draft);
  };
  return {spec(CacheFormat::kBf16), spec(CacheFormat::kFp8), spec(CacheFormat::kFp4)};
}

// ---- weights

constexpr std::string_view kIndexerPart = ".self_attn.indexer.";

// Without tensors of any indexer only dense attention is left.
bool lacks_indexer(const Config& c, const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  return c.indexer && checkpoint.has_weights() &&
         std::none_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
           return tensor.first.find(kIndexerPart) != std::string::npos;
         });
}

struct Weights {
  DecoderWeights decoder;
  // Per layer, the draft layer behind the others; one of the first two.
  std::vector<KdaWeights> linear_attn;
  std::vector<MlaWeights> self_attn;
  std::vector<std::optional<KpoolWeights>> indexer;
  std::optional<VisionWeights> vision;
};

bool has_tower(const Config& c, const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  const auto first = tensors.lower_bound(kVisionPrefix);
  return c.vision && (!checkpoint.has_weights() ||
                      (first != tensors.end() && first->first.starts_with(kVisionPrefix)));
}

Weights bind_all(TensorBinder& b, const Config& c, bool draft, bool vision) {
  Weights w;
  w.decoder = bind_decoder(b, c.decoder, draft, [&](int layer, const std::string& prefix) {
    w.linear_attn.emplace_back();
    w.self_attn.emplace_back();
    w.indexer.emplace_back();
    if (c.is_linear(layer)) {
      w.linear_attn.back() = bind_kda(b, prefix, c.kda);
      return;
    }
    w.self_attn.back() = bind_mla(b, prefix, c.mla);
    const bool shares =
        layer < c.decoder.num_layers && c.layers[size(layer)] == LayerKind::kSharedIndex;
    if (c.indexer && !shares) w.indexer.back() = bind_kpool(b, prefix + "indexer.", *c.indexer);
  });
  if (vision) w.vision = bind_vision(b, *c.vision);
  b.skip([&](std::string_view name) {
    return (!vision && name.starts_with(kVisionPrefix)) ||
           (!c.indexer && name.find(kIndexerPart) != std::string_view::npos);
  });
  return w;
}

// ---- description

std::uint64_t kda_parameters(const KdaDims& d) {
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t hidden = u(d.hidden_size), width = u(d.width()), heads = u(d.num_heads);
  const std::uint64_t rank = u(d.head_dim);
  return 4 * width * hidden + 3 * width * kKdaTaps +  // q, k, v, o and their convolutions
         2 * (rank * hidden + width * rank) +         // f and g
         heads * (hidden + 1) + width + rank;         // beta, A_log, dt_bias, o_norm
}

std::uint64_t attention_parameters(const Config& c) {
  const auto n = [](int count) { return static_cast<std::uint64_t>(count); };
  const auto indexers = static_cast<std::uint64_t>(
      std::count(c.layers.begin(), c.layers.end(), LayerKind::kFullIndex));
  return n(c.num_linear()) * kda_parameters(c.kda) + n(c.num_full()) * mla_parameters(c.mla) +
         (c.indexer ? indexers * kpool_parameters(*c.indexer) : 0);
}

std::string why_attention(const Config& c) {
  std::string text = fmt::format(
      "model_type glm5_next: {} of {} layers are linear attention (KDA) with a state of {} heads "
      "of {} x {}; {} have one latent of {} per token, shared by {} heads and without positions",
      c.num_linear(), c.decoder.num_layers, c.kda.num_heads, c.kda.head_dim, c.kda.head_dim,
      c.num_full(), c.mla.kv_lora_rank, c.mla.num_heads);
  if (c.indexer) {
    text += fmt::format("; each token attends to the best {} pools of {} tokens before it",
                        c.indexer->max_pools(), c.indexer->pool);
  }
  return text;
}

ModelInfo describe(const Config& c, const Checkpoint& checkpoint) {
  ModelInfo info;
  info.model_type = "glm5_next";
  info.family = "GLM-5.3-Flash";
  info.attention_class = c.indexer ? "hybrid: KDA + MLA-sparse (k-pool)" : "hybrid: KDA + MLA";
  info.attention_why = why_attention(c);
  info.num_heads = c.mla.num_heads;
  info.num_kv_heads = 1;
  info.head_dims = {{"qk_nope_head_dim", c.mla.qk_nope_head_dim, false},
                    {"v_head_dim", c.mla.v_head_dim, false},
                    {"kv_lora_rank", c.mla.kv_lora_rank, false},
                    {"kda_head_dim", c.kda.head_dim, false}};
  if (c.indexer) {
    info.head_dims.push_back({"index_head_dim", c.indexer->head_dim, false});
    info.chosen_keys = c.indexer->topk;
  }
  if (c.decoder.hyper) info.residual_streams = c.decoder.hyper->streams;
  info.cache = cache_specs_of(c, false);
  describe_decoder(c.decoder, attention_parameters(c), checkpoint, info);
  if (info.mtp_present) {
    const std::size_t engine_bytes = info.draft.cache.bf16.page_state_bytes;
    info.draft.cache = cache_specs_of(c, true);
    for_each_format(info.draft.cache, [&](CacheFormat, CacheSpec& spec) {
      spec.page_state_bytes = engine_bytes + spec.page_model_bytes;
    });
  }
  if (lacks_indexer(c, checkpoint)) {
    info.notes.push_back(
        "the checkpoint has no tensors of the indexer (self_attn.indexer.*): it runs with --dsa "
        "off only");
  }
  if (has_tower(c, checkpoint)) {
    info.images = describe_vision(*c.vision, checkpoint);
    info.images->image_token = c.image_token;
    info.images->begin_token = c.image_start_token;
    info.images->end_token = c.image_end_token;
  }
  info.notes.push_back(
      fmt::format("a running sequence carries {} bytes of recurrent state however long it is; a "
                  "snapshot of it, {} bytes, is where a cached prefix can be taken up",
                  info.cache.bf16.state_bytes, info.cache.bf16.snapshot_bytes));
  return info;
}

// ---- forward

class Glm5Next final : public DecoderModel {
 public:
  Glm5Next(const Config& config, Weights weights, ModelInfo info,
           std::shared_ptr<const Checkpoint> checkpoint, const LoadOptions& options)
      : DecoderModel(config.decoder, std::move(weights.decoder), std::move(info),
                     std::move(checkpoint), options, {}),
        config_(config),
        layout_(config, options.compute, can_draft()),
        latent_form_(options.latent_form),
        linear_attn_(std::move(weights.linear_attn)),
        self_attn_(std::move(weights.self_attn)),
        indexer_(std::move(weights.indexer)),
        vision_(std::move(weights.vision)) {
    int next = 0;
    for (int i = 0; i <= config.decoder.num_layers; ++i)
      cache_layer_.push_back(config.is_linear(i) ? -1 : next++);
  }

  CacheSpec cache_spec() const override {
    CacheSpec spec = cache_spec_of(config_, cache_format(), compute(), can_draft());
    if (can_draft()) spec.page_state_bytes = info().draft.cache.bf16.page_state_bytes;
    return spec;
  }

  void start_state(int length, const std::byte* snapshot, std::byte* state) const override {
    std::memset(state, 0, layout_.state_bytes);
    for (int i = 0; i < config_.decoder.num_layers; ++i) {
      if (!config_.is_linear(i)) continue;
      start_kda_state(config_.kda, compute(), length,
                      snapshot == nullptr ? nullptr : snapshot + layout_.snapshot[size(i)],
                      state + layout_.state[size(i)]);
    }
  }

  bool can_see() const override { return vision_.has_value(); }
  void encode_image(Exec& exec, const ImagePatches& image,
                    std::span<float> features) const override {
    GLINT_CHECK(can_see());
    glint::encode_image(exec, compute(), *config_.vision, *vision_, image, features);
  }

 private:
  std::size_t step_bytes(const Batch& batch) const override {
    return config_.indexer ? KpoolSelection::bytes(*config_.indexer, batch) : 0;
  }

  void attention(const AttentionStep& step, const float* x, float* y) const override {
    if (config_.is_linear(step.layer)) {
      kda_attention(step.exec, config_.kda, linear_attn_[size(step.layer)], step.input_layernorm,
                    config_.decoder.rms_norm_eps,
                    {step.batch, compute(), layout_.state[size(step.layer)],
                     layout_.snapshot[size(step.layer)]},
                    x, y);
      return;
    }
    if (!config_.indexer) {
      latent_attention(step, nullptr, x, y);
      return;
    }
    const auto& own = indexer_[size(step.layer)];
    const bool draft = step.layer == config_.decoder.num_layers;
    KpoolStep pools{*config_.indexer, own ? &*own : nullptr,
                    KpoolSelection(step.batch.tokens.size(), step.shared),
                    layout_.state[size(step.layer)]};
    if (draft && config_.shares_drafts) {
      pools.kept_offset = layout_.kept;
      pools.reuses_kept = step.iteration > 0;
    }
    latent_attention(step, &pools, x, y);
    if (step.probe != nullptr) report_selection(step, pools);
  }

  void latent_attention(const AttentionStep& step, const KpoolStep* pools, const float* x,
                        float* y) const {
    MlaStep mla{step.batch,     step.cache,   cache_layer_[size(step.layer)],
                step.rope,      cache_rows(), latent_form_,
                step.first_key, pools};
    mla_attention(step.exec, config_.mla, self_attn_[size(step.layer)], step.input_layernorm,
                  config_.decoder.rms_norm_eps, mla, x, y);
  }

  // The positions that each token attends to, ascending, then -1.
  void report_selection(const AttentionStep& step, const KpoolStep& pools) const {
    Workspace::Scope scope(step.exec.workspace);
    const std::size_t width = size(pools.dims.topk + pools.dims.pool - 1);
    const std::size_t rows = step.batch.tokens.size();
    auto* out = step.exec.workspace.array<float>(rows * width);
    std::fill_n(out, rows * width, -1.0f);
    std::vector<std::int32_t> positions(width + kMaxGuesses + 1);
    for (const SequenceSpan& sequence : step.batch.sequences) {
      for (int i = 0; i < sequence.count; ++i) {
        float* row = out + size(sequence.begin + i) * width;
        if (pools.selection.count[sequence.begin + i] == KpoolSelection::kEverything) {
          for (int at = step.first_key; at <= sequence.start + i; ++at)
            *row++ = static_cast<float>(at);
          continue;
        }
        const int n = kpool_positions(pools, step.first_key, sequence.begin + i, sequence.start + i,
                                      positions.data());
        std::copy_n(positions.begin(), n, row);
      }
    }
    (*step.probe)(fmt::format("layer{}.selected", step.layer), out, rows, width);
  }

  Config config_;
  StateLayout layout_;
  LatentForm latent_form_;
  std::vector<int> cache_layer_;  // of each layer, -1 of linear ones
  std::vector<KdaWeights> linear_attn_;
  std::vector<MlaWeights> self_attn_;
  std::vector<std::optional<KpoolWeights>> indexer_;
  std::optional<VisionWeights> vision_;
};

}  // namespace

Result<ModelInfo> describe_glm5_next(const Checkpoint& checkpoint) {
  GLINT_TRY(const Config config, parse_config(checkpoint.config()));
  return describe(config, checkpoint);
}

Status check_glm5_next(const Checkpoint& checkpoint, DraftLayer draft_layer) {
  GLINT_TRY(Config config, parse_config(checkpoint.config()));
  if (lacks_indexer(config, checkpoint)) config.indexer.reset();  // loading may yet refuse it
  GLINT_TRY(const bool draft, wants_draft(config.decoder, checkpoint, draft_layer));
  TensorBinder binder(checkpoint);
  bind_all(binder, config, draft, has_tower(config, checkpoint));
  return binder.finish();
}

Result<std::unique_ptr<Model>> load_glm5_next(std::shared_ptr<const Checkpoint> checkpoint,
                                              const LoadOptions& options) {
  GLINT_TRY(Config config, parse_config(checkpoint->config()));
  if (!options.sparse_attention) config.indexer.reset();
  if (lacks_indexer(config, *checkpoint)) {
    return corrupt(fmt::format(
        "{}: the tensors of the indexer ({}layers.N{}wk.weight, ...) are missing: fetch a "
        "checkpoint that kept them, or run with dense attention (--dsa off)",
        checkpoint->folder().string(), kTextPrefix, kIndexerPart));
  }
  GLINT_TRY(const bool draft, wants_draft(config.decoder, *checkpoint, options.draft));
  ModelInfo info = describe(config, *checkpoint);
  TensorBinder binder(*checkpoint, options);
  const bool vision = options.vision && has_tower(config, *checkpoint);
  Weights weights = bind_all(binder, config, draft, vision);
  GLINT_TRY_VOID(binder.finish());
  if (vision) log_vision_eps(*config.vision);
  binder.load();
  for (MlaWeights& layer : weights.self_attn) complete_kv_b(layer, options.compute);
  return std::unique_ptr<Model>(std::make_unique<Glm5Next>(
      config, std::move(weights), std::move(info), std::move(checkpoint), options));
}

}  // namespace glint
