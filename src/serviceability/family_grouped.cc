// Keys and values of heads (multi-head, grouped-query, multi-query attention), and what can be said
// of a config that no reader knows.
#include <fmt/format.h>

#include "serviceability/families.h"

namespace glint {
namespace {

AttentionKind kind_of(std::int64_t heads, std::int64_t kv_heads) {
  if (kv_heads == 1 && heads > 1) return AttentionKind::kMqa;
  return kv_heads == heads ? AttentionKind::kMha : AttentionKind::kGqa;
}

std::string upper(std::string_view name) {
  std::string text(name);
  for (char& letter : text) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return text;
}

}  // namespace

void read_grouped_family(ConfigView& text, ModelProfile& p) {
  read_sizes(text, p);
  p.kv_heads = text.get({"num_key_value_heads", "num_kv_heads"}, p.heads, 1, 1 << 16);
  const bool given = text.has({"head_dim"});
  if (!given && p.hidden_size % p.heads != 0)
    text.fail(fmt::format("\"head_dim\" is missing, and hidden_size {} is no multiple of {} heads",
                          p.hidden_size, p.heads));
  const std::int64_t dim = text.get({"head_dim"}, p.hidden_size / p.heads, 1, 1 << 20);
  p.has_head_dim = given;
  if (p.heads % p.kv_heads != 0)
    text.fail(
        fmt::format("\"num_key_value_heads\" {} does not divide {} heads", p.kv_heads, p.heads));
  const std::int64_t row = 2 * p.kv_heads * dim;
  p.dims = {
      {"head_dim", dim, given ? "" : "hidden_size / num_attention_heads"},
      {"heads_per_kv_head", p.heads / p.kv_heads, "num_attention_heads / num_key_value_heads"},
      {"cache_row", row, "2 x num_key_value_heads x head_dim"}};
  p.attention = kind_of(p.heads, p.kv_heads);
  p.attention_class = upper(attention_kind_name(p.attention));
  p.attention_why = fmt::format(
      "model_type {} with num_key_value_heads {}: keys and values of {} heads of {} per "
      "token and layer, read by {} query heads",
      p.model_type, p.kv_heads, p.kv_heads, dim, p.heads);
  p.cache_layers = p.layers;
  p.cache.push_back({CachePart::Kind::kHeads, "keys and values", p.layers, dim, 1, 2 * p.kv_heads});
  const Count q = Count(p.heads) * dim, kv = Count(p.kv_heads) * dim, h = p.hidden_size;
  const Count in = q + 2 * kv;
  const Count attention = in * h + (text.flag({"attention_bias"}, false) ? in : 0) +
                          (text.flag({"use_qk_norm"}, false) ? 2 * dim : 0) + h * q;
  add_part(p.parts, WeightKind::kAttention, Count(p.layers) * attention);
  FeedForwardSizes f = read_feed_forward(text, p);
  f.router_bias = p.router == "sigmoid";
  add_decoder(text, p, f);
  add_draft_layers(p, f, attention, 0);
  if (p.mtp_layers == 0) return;
  p.mtp_cache = p.cache;
  p.mtp_cache.front().layers = p.mtp_layers;
}

void read_unknown_family(ConfigView& text, ModelProfile& p) {
  p.guessed = true;
  const bool latent = text.has({"kv_lora_rank"}) && text.has({"qk_nope_head_dim"}) &&
                      text.has({"qk_rope_head_dim"}) && text.has({"v_head_dim"});
  if (latent) {
    read_latent_family(text, p);
    p.attention_why =
        "looks like MLA (kv_lora_rank, qk_nope_head_dim and v_head_dim are there), "
        "family unknown: " +
        p.attention_why;
  } else {
    read_grouped_family(text, p);
    p.attention_why = "no key of a latent is there, family unknown: " + p.attention_why;
  }
  p.notes.push_back(
      fmt::format("no reader knows model_type \"{}\": everything here is a guess by generic rules "
                  "(a decoder with gated feed-forward blocks)",
                  p.model_type));
  if (text.has({"layer_types"}) || text.has({"linear_attn_config"}) ||
      text.has({"sliding_window"}) || text.has({"attn_type_list"}))
    p.notes.push_back(
        "the config speaks of layers of several kinds (layer_types, sliding_window, ...), which "
        "the "
        "generic rules count as if all were alike: the cache is at most this");
}

}  // namespace glint
