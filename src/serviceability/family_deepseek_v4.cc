// DeepSeek-V4: one vector per token that is key and value of all heads, in a sliding window, and
// beside it entries that stand for 4 tokens (CSA, chosen by an indexer) or 128 (HCA). Sizes from
// its published tensors.
#include <fmt/format.h>

#include <algorithm>

#include "serviceability/families.h"

namespace glint {
namespace {

constexpr std::int64_t kChosenRate = 4;  // compression of layers whose entries an indexer chooses

struct Shape {
  std::int64_t head_dim = 0, rope = 0, q_rank = 0, o_rank = 0, o_groups = 0, window = 0;
  IndexerDims indexer;
  std::vector<std::int64_t> ratios;  // per layer: 0 none, 4, 128
};

Count attention_parameters(const ModelProfile& p, const Shape& s) {
  const Count h = p.hidden_size, heads = p.heads, dim = s.head_dim, out = s.o_groups;
  const Count grouped = heads * dim * s.o_rank;  // [groups * rank, heads * dim / groups]
  return h * s.q_rank + s.q_rank + heads * dim * s.q_rank + h * dim + dim + grouped +
         h * out * s.o_rank + heads;
}

// Two series of values overlap where the rate is 4, so there everything is twice as wide.
Count compressor_parameters(const ModelProfile& p, std::int64_t dim, std::int64_t rate) {
  const Count width = rate == kChosenRate ? 2 * dim : dim;
  return 2 * width * p.hidden_size + width * rate + dim;
}

Count indexer_parameters_v4(const ModelProfile& p, const Shape& s) {
  return compressor_parameters(p, s.indexer.head_dim, kChosenRate) +
         Count(s.indexer.heads) * p.hidden_size +
         Count(s.indexer.heads) * s.indexer.head_dim * s.q_rank;
}

Count stream_parameters(const ModelProfile& p) {
  const Count n = p.residual_streams;
  return n * (n + 2) * (n * p.hidden_size + 1) + 3;
}

void add_cache(ModelProfile& p, const Shape& s) {
  for (const std::int64_t rate : {std::int64_t{4}, std::int64_t{128}}) {
    const std::int64_t layers = std::ranges::count(s.ratios, rate);
    if (layers == 0) continue;
    if (p.least_compression == 0) p.least_compression = rate;
    p.cache.push_back(
        {CachePart::Kind::kLatent,
         fmt::format("entries for {} tokens ({})", rate, rate == kChosenRate ? "CSA" : "HCA"),
         layers, s.head_dim, rate});
    p.cache_layers += layers;
    if (rate != kChosenRate) continue;
    p.index_layers = layers;
  }
  if (p.index_layers > 0)
    p.cache.push_back({CachePart::Kind::kIndex, "index keys of entries", p.index_layers,
                       s.indexer.head_dim, kChosenRate});
  p.window_bytes = Count(p.layers) * s.window * s.head_dim * 2;
}

}  // namespace

void read_deepseek_v4(ConfigView& text, ModelProfile& p) {
  read_sizes(text, p);
  Shape s;
  constexpr std::int64_t kMost = 1 << 20;
  s.head_dim = text.need({"head_dim"}, 1, kMost);
  s.rope = text.need({"qk_rope_head_dim"}, 0, kMost);
  s.q_rank = text.need({"q_lora_rank"}, 1, kMost);
  s.o_rank = text.need({"o_lora_rank"}, 1, kMost);
  s.o_groups = text.need({"o_groups"}, 1, 1 << 16);
  s.window = text.need({"sliding_window"}, 1, 1 << 24);
  s.ratios = text.numbers({"compress_ratios"}, 4096, 0, 128);
  if (static_cast<std::int64_t>(s.ratios.size()) < p.layers)
    text.fail(fmt::format("\"compress_ratios\" must list {} layers", p.layers));
  if (std::ranges::any_of(s.ratios,
                          [](auto rate) { return rate != 0 && rate != 4 && rate != 128; }))
    text.fail("\"compress_ratios\": only 0, 4 and 128 are known");
  if (!text.status()) return;
  s.ratios.resize(static_cast<std::size_t>(p.layers));  // what follows is of draft layers
  p.attention = AttentionKind::kSharedKv;
  p.kv_heads = 1;
  p.has_head_dim = true;
  p.dims = {{"head_dim", s.head_dim},
            {"qk_rope_head_dim", s.rope},
            {"q_lora_rank", s.q_rank},
            {"o_lora_rank", s.o_rank},
            {"o_groups", s.o_groups},
            {"sliding_window", s.window},
            {"cache_row", s.head_dim, "head_dim: one vector is key and value"}};
  s.indexer = read_indexer(text, p).value_or(IndexerDims{});
  add_cache(p, s);
  p.residual_streams = text.get({"hc_mult"}, 1, 1, 64);
  p.attention_class = "shared-KV MQA: sliding window + compressed (CSA, HCA)";
  p.attention_why = fmt::format(
      "model_type deepseek_v4 with compress_ratios: one vector of {} per token is key and value of "
      "{} heads, within {} tokens; before them {} layers have entries for 4 tokens each, {} for "
      "128, {} none",
      s.head_dim, p.heads, s.window, std::ranges::count(s.ratios, 4),
      std::ranges::count(s.ratios, 128), std::ranges::count(s.ratios, 0));
  FeedForwardSizes f = read_feed_forward(text, p);
  const Count attention = attention_parameters(p, s);
  add_part(p.parts, WeightKind::kAttention, Count(p.layers) * attention);
  for (const std::int64_t rate : s.ratios) {
    if (rate > 0) add_part(p.parts, WeightKind::kOther, compressor_parameters(p, s.head_dim, rate));
    if (rate == kChosenRate) add_part(p.parts, WeightKind::kIndexer, indexer_parameters_v4(p, s));
  }
  add_decoder(text, p, f);
  const Count n = p.residual_streams, h = p.hidden_size;
  const Count collapse = n * n * h + n + 1;
  add_part(p.parts, WeightKind::kOther, Count(p.layers) * 2 * stream_parameters(p) + collapse);
  add_draft_layers(p, f, attention, 0);
  if (p.mtp_layers > 0)
    add_part(p.mtp_parts, WeightKind::kOther,
             Count(p.mtp_layers) * (2 * stream_parameters(p) + collapse));
}

}  // namespace glint
