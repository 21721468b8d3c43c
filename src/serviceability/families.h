// The readers behind profile.h, a file per group of families, and what they share. Each fills the
// attention, the cache and the parameters; profile.cc does the rest.
#pragma once

#include "serviceability/config_view.h"
#include "serviceability/profile.h"

namespace glint {

// `text` reads text_config, or the root where there is none.
void read_latent_family(ConfigView& text, ModelProfile& p);   // family_latent.cc
void read_hybrid_family(ConfigView& text, ModelProfile& p);   // family_hybrid.cc
void read_deepseek_v4(ConfigView& text, ModelProfile& p);     // family_deepseek_v4.cc
void read_grouped_family(ConfigView& text, ModelProfile& p);  // family_grouped.cc
// Any other config: decides the class by its keys.
void read_unknown_family(ConfigView& text, ModelProfile& p);  // family_grouped.cc

// The vision tower of GLM-5.3-Flash, by its vision_config.
Count glm5_next_tower(ConfigView& vision);  // family_hybrid.cc

// ---- shared

// layers, hidden_size, vocab_size, heads, the counts of MTP layers and experts.
void read_sizes(ConfigView& text, ModelProfile& p);

struct LatentDims {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected in one step
  std::int64_t kv_lora_rank = 0, nope = 0, rope = 0, value = 0;
  std::int64_t row() const { return kv_lora_rank + rope; }
};
// Reads them, sets kind, kv heads, dims and per_head_bytes for `layers` layers.
LatentDims read_latent(ConfigView& text, ModelProfile& p, std::int64_t layers);
// Of a layer, its two inner norms included (arXiv 2405.04434, 2.1).
Count latent_parameters(const ModelProfile& p, const LatentDims& d);

struct IndexerDims {
  std::int64_t heads = 0, head_dim = 0, topk = 0;
};
// Absent: index_topk is missing or null.
std::optional<IndexerDims> read_indexer(ConfigView& text, ModelProfile& p);
// Of a layer: wq_b, wk, k_norm and its bias, weights_proj (arXiv 2512.02556, 2.1).
Count indexer_parameters(const ModelProfile& p, const LatentDims& d, const IndexerDims& i);

// Adds a share of the parameters to the parts of a kind.
void add_part(std::vector<ParameterPart>& parts, WeightKind kind, Count total, Count active);
inline void add_part(std::vector<ParameterPart>& parts, WeightKind kind, Count all) {
  add_part(parts, kind, all, all);
}

// Feed-forward parts of all layers, two norms of each, the last norm, embedding and head.
struct FeedForwardSizes {
  std::int64_t dense_width = 0, expert_width = 0, shared_width = 0;
  std::int64_t dense = 0;         // layers that are not sparse
  std::int64_t expert_input = 0;  // hidden_size, or the latent that experts see
  bool router_bias = true;
};
FeedForwardSizes read_feed_forward(ConfigView& text, ModelProfile& p);
void add_sparse_layers(const ModelProfile& p, const FeedForwardSizes& f, Count layers,
                       std::vector<ParameterPart>& parts);
void add_decoder(ConfigView& text, ModelProfile& p, const FeedForwardSizes& f);
// A draft layer in the way of DeepSeek-V3 around `attention` and `indexer` parameters.
void add_draft_layers(ModelProfile& p, const FeedForwardSizes& f, Count attention, Count indexer);

}  // namespace glint
