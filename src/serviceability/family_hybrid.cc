// Hybrids of Kimi delta attention (KDA, arXiv 2510.26692), whose state does not grow, and of latent
// attention without rotation: GLM-5.3-Flash, Kimi-Linear, Kimi-K3.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "serviceability/families.h"

namespace glint {
namespace {

constexpr std::int64_t kStateBytes = 4;  // float32, as every engine keeps the recurrence
constexpr std::int64_t kConvBytes = 2;

struct KdaShape {
  std::int64_t heads = 0, head_dim = 0, taps = 4, linear = 0, full = 0;
  bool full_rank_gate = false;
  std::int64_t width() const { return heads * head_dim; }
};

// Which layers are linear: layer_types, or the two lists, whose numbers start at `base`.
void count_layers(ConfigView& text, ConfigView& linear, const ModelProfile& p, KdaShape& k) {
  const auto most = static_cast<std::size_t>(p.layers);
  const auto types = text.words({"layer_types"}, 4096);
  const std::int64_t base = p.family == "glm5_next" ? 0 : 1;
  const auto first = linear.numbers({"kda_layers"}, most, base, p.layers - 1 + base);
  const auto second = linear.numbers({"full_attn_layers"}, most, base, p.layers - 1 + base);
  std::vector<int> named(most, 0);
  for (const auto* list : {&first, &second}) {
    for (const std::int64_t layer : *list) ++named[static_cast<std::size_t>(layer - base)];
  }
  if (types.empty() || !first.empty() || !second.empty()) {
    if (std::ranges::any_of(named, [](int times) { return times != 1; })) {
      linear.fail(
          fmt::format("\"kda_layers\" and \"full_attn_layers\" must name each of the {} layers "
                      "once, counted from {}",
                      p.layers, base));
      return;
    }
  }
  k.linear = static_cast<std::int64_t>(first.size());
  if (!types.empty()) {
    if (static_cast<std::int64_t>(types.size()) != p.layers)
      text.fail(fmt::format("\"layer_types\" must list {} layers", p.layers));
    k.linear = std::ranges::count(types, "linear_attention");
  }
  k.full = std::max<std::int64_t>(p.layers - k.linear, 0);
}

Count kda_parameters(const ModelProfile& p, const KdaShape& k) {
  const Count h = p.hidden_size, width = k.width(), rank = k.head_dim;
  const Count low_rank = rank * h + width * rank;
  return 4 * width * h + 3 * width * k.taps + low_rank + (k.full_rank_gate ? width * h : low_rank) +
         Count(k.heads) * (h + 1) + width + rank;
}

void add_state(ModelProfile& p, const KdaShape& k) {
  p.hybrid = true;
  p.state_layers = k.linear;
  p.state_bytes = Count(k.linear) * (Count(k.heads) * k.head_dim * k.head_dim * kStateBytes +
                                     Count(k.taps - 1) * 3 * k.width() * kConvBytes);
  p.dims.push_back({"kda_num_heads", k.heads});
  p.dims.push_back({"kda_head_dim", k.head_dim});
  add_part(p.parts, WeightKind::kAttention, Count(k.linear) * kda_parameters(p, k));
}

// GLM-5.3-Flash: keys of pools of tokens, a gate and a learned position in front of them.
Count pool_parameters(const ModelProfile& p, const IndexerDims& i) {
  return Count(i.head_dim) * p.hidden_size + Count(*p.index_pool) * i.head_dim;
}

// Residual streams (mHC): of a sublayer.
Count stream_parameters(const ModelProfile& p) {
  const Count n = p.residual_streams;
  return n * (n + 2) * (n * p.hidden_size + 1) + 3;
}

void add_glm5_next(ConfigView& text, ModelProfile& p, const LatentDims& d,
                   const FeedForwardSizes& f, const KdaShape& k) {
  const std::optional<IndexerDims> indexer = read_indexer(text, p);
  Count per_indexer = 0;
  if (indexer) {
    p.index_pool = text.get({"index_kpool"}, 1, 1, 1 << 16);
    const auto types = text.words({"indexer_types"}, 4096);
    const auto layer_types = text.words({"layer_types"}, 4096);
    p.index_layers = k.full;
    if (types.size() == layer_types.size()) {
      for (std::size_t i = 0; i < types.size(); ++i)
        p.index_layers -= layer_types[i] != "linear_attention" && types[i] == "shared" ? 1 : 0;
    }
    per_indexer = indexer_parameters(p, d, *indexer) + pool_parameters(p, *indexer);
    add_part(p.parts, WeightKind::kIndexer, Count(p.index_layers) * per_indexer);
    p.cache.push_back({CachePart::Kind::kIndex, "pooled index keys", p.index_layers,
                       indexer->head_dim, *p.index_pool});
    p.attention_why += fmt::format(
        "; index_topk {} and index_kpool {}: each token attends to the best {} pools "
        "of {} tokens before it",
        indexer->topk, *p.index_pool, indexer->topk / *p.index_pool, *p.index_pool);
  }
  p.residual_streams = text.get({"hc_mult", "mhc_num_residual_streams"}, 1, 1, 64);
  if (p.residual_streams > 1)
    add_part(p.parts, WeightKind::kOther, Count(p.layers) * 2 * stream_parameters(p));
  add_draft_layers(p, f, latent_parameters(p, d), per_indexer);
}

// Kimi-K3: gated latent attention, experts behind a projection, residuals that attend to layers
// before them (its tensors as published).
void add_kimi_k3(ConfigView& text, ModelProfile& p, const LatentDims& d, FeedForwardSizes& f,
                 const KdaShape& k) {
  const Count h = p.hidden_size;
  add_part(p.parts, WeightKind::kAttention, Count(k.full) * h * p.heads * d.value);
  f.expert_input =
      text.get({"routed_expert_hidden_size"}, p.hidden_size, 1, ConfigView::kMostWidth);
  if (f.expert_input != p.hidden_size)
    add_part(p.parts, WeightKind::kOther,
             Count(p.layers - f.dense) * (2 * h * f.expert_input + f.expert_input));
  if (text.has({"attn_res_block_size"}))
    add_part(p.parts, WeightKind::kOther, (2 * Count(p.layers) + 1) * 2 * h);
}

}  // namespace

// transformers, modeling_glm5_next.py, Glm5NextVisionModel: patches, blocks with norms of each
// head, a convolution over the cells, a gated merger.
Count glm5_next_tower(ConfigView& vision) {
  constexpr std::int64_t kMost = 1 << 16;
  const auto width = [&](std::string_view key) { return Count(vision.need({key}, 1, kMost)); };
  const Count h = width("hidden_size"), inner = width("intermediate_size"),
              out = width("out_hidden_size");
  const Count wide = width("projection_intermediate_size"), merge = width("spatial_merge_size");
  const Count patch = width("patch_size"), frames = width("temporal_patch_size");
  const Count channels = width("in_channels"), heads = width("num_heads"), depth = width("depth");
  const Count head = h.value() / heads.value();
  const Count bias = vision.flag({"attention_bias"}, true) ? 1 : 0;
  const Count attention = 3 * h * (h + bias) + h * (h + bias) + 2 * head;
  const Count mlp = 2 * inner * (h + bias) + h * (inner + bias);
  const Count patches = h * (channels * frames * patch * patch + 1);
  const Count downsample = out * (h * merge * merge + 1);
  return patches + depth * (2 * h + attention + mlp) + h + downsample + out * out + 2 * out +
         3 * out * wide;
}

void read_hybrid_family(ConfigView& text, ModelProfile& p) {
  read_sizes(text, p);
  const Json* block = text.value({"linear_attn_config"});
  if (block == nullptr || !block->is_object()) {
    text.fail("\"linear_attn_config\" must be an object");
    return;
  }
  ConfigView linear(*block, text.where() + ": \"linear_attn_config\"");
  KdaShape k;
  k.heads = linear.need({"num_heads"}, 1, 1 << 16);
  k.head_dim = linear.need({"head_dim"}, 1, 1 << 16);
  k.taps = linear.get({"short_conv_kernel_size"}, 4, 1, 64);
  k.full_rank_gate = linear.flag({"use_full_rank_gate"}, false);
  count_layers(text, linear, p, k);
  if (const Status status = linear.status(); !status) {
    text.fail(status.error().message);
    return;
  }
  const LatentDims d = read_latent(text, p, k.full);
  add_state(p, k);
  add_part(p.parts, WeightKind::kAttention, Count(k.full) * latent_parameters(p, d));
  p.attention_why = fmt::format(
      "model_type {}: {} of {} layers are linear attention (KDA) with a state of {} heads of {} x "
      "{}; {} have one latent of {}{} per token, shared by {} heads and not rotated",
      p.family, k.linear, p.layers, k.heads, k.head_dim, k.head_dim, k.full, d.kv_lora_rank,
      d.rope > 0 ? fmt::format(" and one key of {}", d.rope) : "", p.heads);
  p.context.rope = "none";
  FeedForwardSizes f = read_feed_forward(text, p);
  if (p.family == "glm5_next") add_glm5_next(text, p, d, f, k);
  if (p.family == "kimi_k3") add_kimi_k3(text, p, d, f, k);
  p.attention_class = p.sparse ? "hybrid: KDA + MLA-sparse (k-pool)" : "hybrid: KDA + MLA";
  add_decoder(text, p, f);
  if (p.family != "glm5_next") add_draft_layers(p, f, latent_parameters(p, d), 0);
  if (p.mtp_layers == 0) return;
  p.mtp_cache = p.cache;
  for (CachePart& part : p.mtp_cache) part.layers = p.mtp_layers;
}

}  // namespace glint
