#include "models/layers/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/quant_config.h"
#include "checkpoint/stored_matrix.h"
#include "models/layers/draft.h"

namespace glint {
namespace {

std::uint64_t u64(int n) {
  return static_cast<std::uint64_t>(n);
}

void read_experts(ConfigReader& r, DecoderConfig& c) {
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

struct Counts {
  std::uint64_t total = 0, active = 0;
};

// From shapes alone; `active` is what one decoded token multiplies with.
Counts count_parameters(const DecoderConfig& c, std::uint64_t attention) {
  const std::uint64_t d = u64(c.hidden_size);
  const std::uint64_t expert = 3 * d * u64(c.moe_intermediate_size);
  const std::uint64_t router = u64(c.router.num_experts) * (d + 1);
  const std::uint64_t every_layer = 2 * d + (c.hyper ? 2 * hyper_parameters(*c.hyper) : 0);
  Counts n{attention, attention};
  for (const bool dense : c.dense) {
    const std::uint64_t feed = 3 * d * u64(c.intermediate_size);
    n.total += every_layer +
               (dense ? feed : router + expert * u64(c.router.num_experts + c.n_shared_experts));
    n.active +=
        every_layer +
        (dense ? feed : router + expert * u64(c.router.experts_per_token + c.n_shared_experts));
  }
  const std::uint64_t head = u64(c.vocab_size) * d;
  n.total += d + head * (c.tie_word_embeddings ? 1u : 2u);
  n.active += d + head;
  return n;
}

// The schemes or element types of matrices, the most bytes first: "nvfp4+bf16". What holds less
// than a hundredth of them (a router in float32) is not worth a word.
std::string format_of(const std::map<std::string, std::uint64_t>& bytes_of_scheme) {
  std::vector<std::pair<std::uint64_t, std::string>> schemes;
  std::uint64_t total = 0;
  for (const auto& [scheme, bytes] : bytes_of_scheme) {
    schemes.emplace_back(bytes, scheme);
    total += bytes;
  }
  std::sort(schemes.rbegin(), schemes.rend());
  std::string text;
  for (const auto& [bytes, scheme] : schemes) {
    if (bytes < total / 100) break;
    if (!text.empty()) text += '+';
    for (const char letter : scheme)
      text += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return text;
}

WeightPart part_of(std::string_view name, std::size_t dimensions) {
  const auto has = [&](std::string_view word) { return name.find(word) != std::string_view::npos; };
  if (dimensions < 2 || has(".hc_")) return WeightPart::kVectors;
  if (has(".self_attn.indexer.")) return WeightPart::kRouter;
  if (has(".self_attn.")) return WeightPart::kAttention;
  if (has(".mlp.experts.")) return WeightPart::kExperts;
  if (has(".mlp.gate.")) return WeightPart::kRouter;
  if (has(".mlp.")) return WeightPart::kFeedForward;
  return name == "lm_head.weight" ? WeightPart::kHead : WeightPart::kEmbedding;
}

// One matrix or vector `name`, whose (first) tensor is `tensor`.
WeightGroup describe_weight(std::string_view name, const TensorRef& tensor,
                            const StoredMatrix* matrix) {
  WeightGroup group;
  group.part = part_of(name, tensor.shape.size());
  group.count = 1;
  if (matrix == nullptr) {  // check_model() will say why
    group.type = tensor.dtype;
    group.cols = 0;
    group.nbytes = tensor.bytes.size();
    return group;
  }
  using Kind = StoredMatrix::Kind;
  group.type = matrix->type();
  group.rows = matrix->rows();
  group.cols = matrix->cols();
  group.nbytes = matrix->nbytes();
  group.storage = matrix->description();
  group.scales = matrix->grid().rows * matrix->grid().cols;
  group.in_parts = matrix->kind() == Kind::kGroups;
  // Heads are cut out of it, which its scales do not allow: see TensorBinder::head_matrices().
  const bool by_head = name.ends_with("kv_b_proj.weight");
  group.expanded =
      matrix->kind() != Kind::kPlain && (by_head || (group.in_parts && !matrix->has_blocks()));
  return group;
}

// Weights are alike when all but `count` is; there are a dozen kinds in any model.
void add_to_groups(const WeightGroup& group, std::vector<WeightGroup>& groups) {
  for (WeightGroup& known : groups) {
    if (known.part == group.part && known.type == group.type && known.rows == group.rows &&
        known.cols == group.cols && known.nbytes == group.nbytes &&
        known.storage == group.storage && known.expanded == group.expanded) {
      ++known.count;
      return;
    }
  }
  groups.push_back(group);
}

void describe_tensors(const DecoderConfig& c, const Checkpoint& checkpoint, ModelInfo& info) {
  const QuantConfig config = read_quant_config(checkpoint).value_or(QuantConfig{});
  std::map<std::string, std::uint64_t> matrix_bytes;
  std::set<std::string> quantised;
  std::uint64_t expert_bytes = 0;
  for (const auto& [tensor_name, tensor] : checkpoint.tensors()) {
    const auto [role, name] = place_of(tensor_name);
    if (role == TensorRole::kPart || role == TensorRole::kUnread || is_derived(name)) continue;
    if (!name.starts_with(c.prefix) && name != "lm_head.weight") continue;  // a vision tower's
    if (c.tie_word_embeddings && name == "lm_head.weight") continue;  // a copy that nothing reads
    const auto matrix = find_matrix(checkpoint, config, name);
    const WeightGroup group = describe_weight(name, tensor, matrix ? matrix->get() : nullptr);
    if (matrix && (*matrix)->kind() != StoredMatrix::Kind::kPlain)
      quantised.insert((*matrix)->scheme());
    if (belongs_to_mtp(name, c)) {
      info.mtp_parameters += group.parameters();
      continue;
    }
    add_to_groups(group, info.weights);
    info.weight_bytes += group.nbytes;
    if (group.part == WeightPart::kExperts) {
      expert_bytes += group.nbytes;
    } else if (group.part != WeightPart::kEmbedding || c.tie_word_embeddings) {
      info.active_weight_bytes += group.nbytes;
    }
    if (group.part != WeightPart::kVectors)
      matrix_bytes[matrix ? (*matrix)->scheme() : std::string(dtype_name(group.type))] +=
          group.nbytes;
  }
  info.active_weight_bytes +=
      expert_bytes * u64(c.router.experts_per_token) / u64(c.router.num_experts);
  info.weight_format = format_of(matrix_bytes);
  if (std::string line = undeclared_schemes(config, quantised); !line.empty())
    info.notes.push_back(std::move(line));
}

}  // namespace

DecoderConfig read_decoder(ConfigReader& r) {
  DecoderConfig c;
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
  r.ignore({"quantization_config"});  // checkpoint/quant_config.h
  r.expect("sliding_window", Json(), "this family attends to everything before");
  read_experts(r, c);
  const int first_dense = r.integer_or("first_k_dense_replace", 1, 0, c.num_layers);
  c.dense.assign(static_cast<std::size_t>(c.num_layers), false);
  std::fill_n(c.dense.begin(), first_dense, true);
  return c;
}

std::string DecoderConfig::layer_prefix(int layer) const {
  return fmt::format("{}layers.{}.", prefix, layer);
}

void read_mlp_layer_types(ConfigReader& r, DecoderConfig& c) {
  const Json* types = r.value("mlp_layer_types");
  if (types == nullptr) return;
  const auto layers = static_cast<std::size_t>(c.num_layers);
  if (!types->is_array() || types->as_array().size() != layers) {
    r.fail(
        corrupt(fmt::format("config.json: \"mlp_layer_types\" must list {} layers", c.num_layers)));
    return;
  }
  for (std::size_t i = 0; i < layers; ++i) {
    const Json& type = types->as_array()[i];
    const bool known =
        type.is_string() && (type.as_string() == "dense" || type.as_string() == "sparse");
    if (!known) {
      r.fail(unsupported(fmt::format(
          "config.json: \"mlp_layer_types\"[{}] is {}: only \"dense\" and \"sparse\" are "
          "known",
          i, type.dump())));
      return;
    }
    c.dense[i] = type.as_string() == "dense";
  }
}

bool belongs_to_mtp(std::string_view tensor, const DecoderConfig& config) {
  for (int i = 0; i < config.mtp_layers; ++i) {
    if (tensor.starts_with(config.layer_prefix(config.num_layers + i))) return true;
  }
  return false;
}

bool is_derived(std::string_view tensor) {
  return tensor.ends_with("rotary_emb.inv_freq") || tensor.ends_with("rotary_emb.cos_cached") ||
         tensor.ends_with("rotary_emb.sin_cached");
}

void describe_decoder(const DecoderConfig& config, std::uint64_t attention_parameters,
                      const Checkpoint& checkpoint, ModelInfo& info) {
  info.vocab_size = config.vocab_size;
  info.hidden_size = config.hidden_size;
  info.num_layers = config.num_layers;
  info.max_position_embeddings = config.max_positions;
  info.mtp_layers = config.mtp_layers;
  info.num_experts = config.router.num_experts;
  info.experts_per_token = config.router.experts_per_token;
  info.tied_embedding = config.tie_word_embeddings;
  const Counts counts = count_parameters(config, attention_parameters);
  info.total_parameters = counts.total;
  info.active_parameters = counts.active;
  describe_tensors(config, checkpoint, info);
  describe_draft(config, checkpoint, info);
  if (config.mtp_layers > 0 && checkpoint.has_weights() && !info.mtp_present) {
    info.notes.push_back(fmt::format(
        "config.json declares {} MTP layer(s), but the checkpoint has no such tensors: MTP "
        "stays off",
        config.mtp_layers));
  }
}

}  // namespace glint
