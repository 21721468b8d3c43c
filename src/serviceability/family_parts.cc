#include <fmt/format.h>

#include <algorithm>

#include "serviceability/families.h"

namespace glint {

namespace {
constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostExperts = 1 << 16;
constexpr std::int64_t kMostHeads = 1 << 16;
}  // namespace

void read_sizes(ConfigView& text, ModelProfile& p) {
  p.layers = text.need({"num_hidden_layers", "n_layer", "num_layers"}, 1, kMostLayers);
  p.hidden_size = text.need({"hidden_size", "n_embd", "d_model"}, 1, ConfigView::kMostWidth);
  p.vocab_size = text.need({"vocab_size"}, 1, ConfigView::kMostWidth);
  p.heads = text.need({"num_attention_heads", "n_head"}, 1, kMostHeads);
  p.mtp_layers = text.get({"num_nextn_predict_layers", "mtp_num_hidden_layers"}, 0, 0, 64);
  p.experts =
      text.get({"n_routed_experts", "num_experts", "num_local_experts"}, 0, 0, kMostExperts);
  if (p.experts == 0) return;
  p.experts_per_token = text.need(
      {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"}, 1, p.experts);
  p.shared_experts = text.get({"n_shared_experts", "num_shared_experts"}, 0, 0, kMostExperts);
}

LatentDims read_latent(ConfigView& text, ModelProfile& p, std::int64_t layers) {
  constexpr std::int64_t kMost = 1 << 20;
  LatentDims d;
  d.q_lora_rank = text.get({"q_lora_rank"}, 0, 1, kMost);
  d.kv_lora_rank = text.need({"kv_lora_rank"}, 1, kMost);
  d.nope = text.need({"qk_nope_head_dim"}, 1, kMost);
  // 0 is a value that this key may have.
  d.rope = text.need({"qk_rope_head_dim"}, 0, kMost);
  d.value = text.need({"v_head_dim"}, 1, kMost);
  p.attention = AttentionKind::kMla;
  p.kv_heads = 1;
  p.has_head_dim = text.has({"head_dim"});
  p.dims = {{"qk_nope_head_dim", d.nope},
            {"qk_rope_head_dim", d.rope},
            {"qk_head_dim", d.nope + d.rope, "qk_nope_head_dim + qk_rope_head_dim"},
            {"v_head_dim", d.value},
            {"kv_lora_rank", d.kv_lora_rank}};
  if (d.q_lora_rank > 0) p.dims.push_back({"q_lora_rank", d.q_lora_rank});
  p.dims.push_back({"cache_row", d.row(), "kv_lora_rank + qk_rope_head_dim"});
  p.per_head_bytes = Count(layers) * p.heads * (d.nope + d.rope + d.value) * 2;
  p.cache_layers = layers;
  p.cache.push_back({CachePart::Kind::kLatent, d.rope > 0 ? "latent and rope key" : "latent",
                     layers, d.row(), 1});
  return d;
}

Count latent_parameters(const ModelProfile& p, const LatentDims& d) {
  const Count h = p.hidden_size, heads = p.heads, qk = d.nope + d.rope;
  const Count query = d.q_lora_rank > 0
                          ? Count(d.q_lora_rank) * (h + 1) + heads * qk * d.q_lora_rank
                          : heads * qk * h;
  return query + h * d.row() + d.kv_lora_rank + heads * (d.nope + d.value) * d.kv_lora_rank +
         h * heads * d.value;
}

std::optional<IndexerDims> read_indexer(ConfigView& text, ModelProfile& p) {
  if (!text.has({"index_topk"})) return std::nullopt;
  IndexerDims d;
  d.topk = text.need({"index_topk"}, 1, 1 << 24);
  d.heads = text.need({"index_n_heads"}, 1, kMostHeads);
  d.head_dim = text.need({"index_head_dim"}, 1, 1 << 16);
  p.sparse = true;
  p.index_topk = d.topk;
  p.dims.push_back({"index_n_heads", d.heads});
  p.dims.push_back({"index_head_dim", d.head_dim});
  return d;
}

Count indexer_parameters(const ModelProfile& p, const LatentDims& d, const IndexerDims& i) {
  const Count query = d.q_lora_rank > 0 ? d.q_lora_rank : p.hidden_size;
  return Count(i.heads) * i.head_dim * query + Count(i.head_dim + i.heads) * p.hidden_size +
         2 * Count(i.head_dim);
}

void add_part(std::vector<ParameterPart>& parts, WeightKind kind, Count total, Count active) {
  const auto same = std::ranges::find(parts, kind, &ParameterPart::kind);
  if (same == parts.end()) {
    parts.push_back({kind, total, active});
    return;
  }
  same->total += total;
  same->active += active;
}

FeedForwardSizes read_feed_forward(ConfigView& text, ModelProfile& p) {
  FeedForwardSizes f;
  f.expert_input = p.hidden_size;
  f.dense = p.layers;
  if (p.experts > 0) {
    f.dense = std::min(p.layers, text.get({"first_k_dense_replace"}, 0, 0, kMostLayers));
    const auto types = text.words({"mlp_layer_types"}, static_cast<std::size_t>(kMostLayers));
    if (!types.empty()) {
      if (static_cast<std::int64_t>(types.size()) != p.layers)
        text.fail(fmt::format("\"mlp_layer_types\" must list {} layers", p.layers));
      f.dense = std::ranges::count(types, "dense");
    }
    f.expert_width =
        text.need({"moe_intermediate_size", "intermediate_size"}, 1, ConfigView::kMostWidth);
    f.shared_width = text.get({"shared_expert_intermediate_size"},
                              f.expert_width * p.shared_experts, 0, std::int64_t{1} << 40);
  }
  if (f.dense > 0)
    f.dense_width =
        text.need({"intermediate_size", "ffn_dim", "n_inner"}, 1, ConfigView::kMostWidth);
  p.dense_layers = f.dense;
  return f;
}

void add_sparse_layers(const ModelProfile& p, const FeedForwardSizes& f, Count layers,
                       std::vector<ParameterPart>& parts) {
  if (p.experts == 0) return;
  const Count expert = 3 * Count(f.expert_input) * f.expert_width;
  add_part(parts, WeightKind::kRouter,
           layers * p.experts * (Count(p.hidden_size) + (f.router_bias ? 1 : 0)));
  add_part(parts, WeightKind::kRoutedExperts, layers * p.experts * expert,
           layers * p.experts_per_token * expert);
  if (f.shared_width > 0)
    add_part(parts, WeightKind::kSharedExperts, layers * 3 * Count(p.hidden_size) * f.shared_width);
}

void add_decoder(ConfigView& text, ModelProfile& p, const FeedForwardSizes& f) {
  const Count h = p.hidden_size, table = h * p.vocab_size;
  if (f.dense > 0) add_part(p.parts, WeightKind::kDense, Count(f.dense) * 3 * h * f.dense_width);
  add_sparse_layers(p, f, p.layers - f.dense, p.parts);
  add_part(p.parts, WeightKind::kOther, 2 * h * p.layers + h);
  const bool tied = text.flag({"tie_word_embeddings"}, false);
  add_part(p.parts, WeightKind::kEmbedding, table, 0);
  add_part(p.parts, WeightKind::kHead, tied ? Count(0) : table, table);
}

void add_draft_layers(ModelProfile& p, const FeedForwardSizes& f, Count attention, Count indexer) {
  if (p.mtp_layers == 0) return;
  const Count h = p.hidden_size, n = p.mtp_layers;
  add_part(p.mtp_parts, WeightKind::kAttention, n * attention);
  if (indexer.value() > 0) add_part(p.mtp_parts, WeightKind::kIndexer, n * indexer);
  add_sparse_layers(p, f, n, p.mtp_parts);
  add_part(p.mtp_parts, WeightKind::kDense, n * 2 * h * h);  // eh_proj
  // The two norms of a layer, enorm, hnorm and shared_head.norm.
  add_part(p.mtp_parts, WeightKind::kOther, n * 5 * h);
}

}  // namespace glint
