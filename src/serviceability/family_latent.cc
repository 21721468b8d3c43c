// DeepSeek's line: latent attention on every layer, from DeepSeek-V3.2 on with an indexer that
// chooses tokens; a mixture of experts behind the first dense layers.
#include <fmt/format.h>

#include <algorithm>

#include "serviceability/families.h"

namespace glint {
namespace {

// How many layers have an indexer of their own; the others reuse the choice of one before them.
// transformers, configuration_glm_moe_dsa.py: a list, or a pattern of F and S, or every freq-th
// layer from an offset on.
std::int64_t full_indexers(ConfigView& text, std::int64_t layers) {
  const auto types = text.words({"indexer_types"}, 4096);
  if (!types.empty()) return std::ranges::count(types, "full");
  const std::string pattern = text.text({"index_topk_pattern"}, "");
  if (!pattern.empty()) return std::ranges::count(pattern, 'F');
  const std::int64_t frequency = text.get({"index_topk_freq"}, 1, 1, 4096);
  const std::int64_t offset = text.get({"index_skip_topk_offset"}, 2, 0, 4096);
  std::int64_t full = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (std::max<std::int64_t>(layer - offset + 1, 0) % frequency == 0) ++full;
  }
  return full;
}

}  // namespace

void read_latent_family(ConfigView& text, ModelProfile& p) {
  read_sizes(text, p);
  const LatentDims d = read_latent(text, p, p.layers);
  const std::optional<IndexerDims> indexer = read_indexer(text, p);
  p.attention_class = indexer ? "MLA-sparse (DSA)" : "MLA";
  p.attention_why = fmt::format(
      "model_type {} with kv_lora_rank {}: one latent of {} and one rope key of {} per token and "
      "layer, shared by {} heads",
      p.family, d.kv_lora_rank, d.kv_lora_rank, d.rope, p.heads);
  FeedForwardSizes f = read_feed_forward(text, p);
  f.router_bias = p.router == "sigmoid";
  add_part(p.parts, WeightKind::kAttention, Count(p.layers) * latent_parameters(p, d));
  if (text.flag({"attention_bias"}, false)) {
    const Count biases = Count(d.q_lora_rank) + d.row() + p.hidden_size;
    add_part(p.parts, WeightKind::kOther, Count(p.layers) * biases);
  }
  Count per_indexer = 0;
  if (indexer) {
    p.index_layers = full_indexers(text, p.layers);
    per_indexer = indexer_parameters(p, d, *indexer);
    p.cache.push_back(
        {CachePart::Kind::kIndex, "index keys", p.index_layers, indexer->head_dim, 1});
    add_part(p.parts, WeightKind::kIndexer, Count(p.index_layers) * per_indexer);
    p.attention_why += fmt::format(
        "; index_topk {}: each token attends to the best {} before it, chosen by an indexer on {} "
        "of {} layers",
        indexer->topk, indexer->topk, p.index_layers, p.layers);
  }
  add_decoder(text, p, f);
  add_draft_layers(p, f, latent_parameters(p, d), per_indexer);
  if (p.mtp_layers == 0) return;
  p.mtp_cache = p.cache;
  for (CachePart& part : p.mtp_cache) part.layers = p.mtp_layers;
}

}  // namespace glint
